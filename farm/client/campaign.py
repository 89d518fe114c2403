"""A campaign of a farm, in the Python API."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from farm.api import campaigns, deletions
from farm.api import results as operations
from farm.api.campaigns import CampaignChange, CampaignNow, Progress
from farm.api.deletions import Deletion
from farm.api.results import Best
from farm.client.requests import Requests
from farm.client.table import Table
from farm.db.states import OPEN_JOB_STATES
from farm.errors import BadInput, ServiceUnavailable, WaitTimedOut
from farm.formatting import percent_text, seconds_text

POLL_SECONDS = 1.0

PATIENCE_SECONDS = 300.0
"""How long `wait` asks again while the farm does not answer, for example during a restart."""


class Campaign:
    """A campaign of a farm, from `Client.submit` or `Client.campaign`.

    Attributes:
        name: The name in its file.
        digest: SHA-256 of its content in hex, which identifies it.
    """

    def __init__(self, name: str, digest: str, requests: Requests) -> None:
        self.name = name
        self.digest = digest
        self._requests = requests

    def __repr__(self) -> str:
        return f"<Campaign {self.name} {self.digest[:12]}>"

    def progress(self) -> Progress:
        """The number of jobs by state, the share that is done in %, the rate, and jobs that are stuck and why."""
        return self._requests.run("progress", campaigns.progress, campaign=self.digest)

    def status(self) -> CampaignNow:
        """Everything that `farm status NAME` shows: jobs by target, running batches, duty of devices, failed jobs."""
        return self._requests.run("status", campaigns.show, campaign=self.digest)

    def wait(
        self,
        *,
        timeout: float | None = None,
        progress: bool | Callable[[Progress], None] = False,
        poll_seconds: float = POLL_SECONDS,
    ) -> Progress:
        """Waits until no job is open. While the farm does not answer, it asks again for five minutes.

        Args:
            timeout: In seconds. None waits without limit.
            progress: True prints a line to standard error whenever the counts change. A function is called with the progress
                after each request.
            poll_seconds: Seconds between two requests.

        Returns:
            The progress at the end. Its `verdict` says whether every job has a result: jobs that are dead or invalid have none.

        Raises:
            WaitTimedOut: Jobs are still open after `timeout`. It is a `TimeoutError` too. The campaign continues.
            NoSuchCampaign: The campaign was deleted meanwhile.
            ServiceUnavailable: The farm did not answer for five minutes.
        """
        _check_seconds("timeout", timeout)
        _check_seconds("poll_seconds", poll_seconds)
        show = progress if callable(progress) else _Lines().show if progress else _ignore
        began = answered = time.monotonic()
        while True:
            try:
                now = self.progress()
            except ServiceUnavailable:
                if time.monotonic() - answered > PATIENCE_SECONDS or _over(began, timeout, poll_seconds):
                    raise
            else:
                answered = time.monotonic()
                show(now)
                waiting = sum(now.counts[state] for state in OPEN_JOB_STATES)
                if not waiting:
                    return now
                if _over(began, timeout, poll_seconds):
                    raise WaitTimedOut(jobs=waiting, campaign=self.name, seconds=timeout)
            time.sleep(poll_seconds)

    def results(self, *, limit: int | None = None, **conditions: Any) -> Table:
        """The rows of this campaign that match. Takes what `Client.results` takes, less `campaign`."""
        if "campaign" in conditions:
            raise BadInput(detail=f"campaign: these are the rows of {self.name}. Client.results takes a campaign.")
        return Table(self._requests.rows(limit, campaign=self.digest, **conditions))

    def best(self, *, device_type: str | None = None, **kind: Any) -> Best:
        """The best kernel of each problem that the campaign found. Times are in ms.

        Args:
            device_type: Only on this one.
            kind: Only problems with these values of `batch`, `scale`, `fused`, `groups` and `sparsity`.
        """
        return self._requests.run("best", operations.best, campaign=self.digest, type=device_type, **kind)

    def pause(self) -> CampaignChange:
        """Pauses the campaign: no further job starts until `resume`. What devices have in hand is measured and stored."""
        return self._requests.run("pause", campaigns.pause, campaign=self.digest)

    def resume(self) -> CampaignChange:
        """Resumes the campaign after `pause`. Raises `CampaignCancelled` for a cancelled one: submit that again."""
        return self._requests.run("resume", campaigns.resume, campaign=self.digest)

    def cancel(self) -> CampaignChange:
        """Cancels the campaign: no further job starts. Its results stay."""
        return self._requests.run("cancel", campaigns.cancel, campaign=self.digest)

    def delete(self, *, cancel: bool = False, dry_run: bool = False) -> Deletion:
        """Deletes the campaign with its jobs and rows. `Client.restore` restores it until a vacuum.

        Args:
            cancel: Delete it even if it has open jobs, and cancel these.
            dry_run: Only return what would be deleted.

        Raises:
            CampaignHasOpenWork: It has open jobs.
        """
        return self._requests.run(
            "delete", deletions.delete, kind="campaign", name=self.digest, cancel=cancel, dry_run=dry_run
        )


class _Lines:
    """Prints a line whenever the counts change."""

    def __init__(self) -> None:
        self._last: dict[str, int] | None = None

    def show(self, now: Progress) -> None:
        if now.counts == self._last:
            return
        self._last = now.counts
        total = sum(now.counts.values())
        ended = total - sum(now.counts[state] for state in OPEN_JOB_STATES)
        left = "" if now.seconds_left is None else f", {seconds_text(now.seconds_left)} left"
        sys.stderr.write(f"{now.name}: {ended:,} of {total:,} jobs, {percent_text(ended, total)}{left}\n")
        sys.stderr.flush()


def _ignore(_: Progress) -> None:
    """Shows no progress."""


def _over(began: float, timeout: float | None, poll_seconds: float) -> bool:
    """Whether the next request would come after the timeout."""
    return timeout is not None and time.monotonic() + poll_seconds > began + timeout


def _check_seconds(what: str, seconds: object) -> None:
    if seconds is None and what == "timeout":
        return
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
        raise BadInput(detail=f"{what}: write a number of seconds from 0, not {seconds!r}.")
