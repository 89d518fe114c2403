"""The Python API: submit campaigns, wait for them, read what was measured, compare, predict, recommend.

>>> import farm  # doctest: +SKIP
>>> with farm.connect() as client:
...     campaign = client.submit("sweep.yaml")
...     campaign.wait()
...     table = campaign.results().to_pandas()

A client works on the farm behind `FARM_API_URL`, or on that of `FARM_DATABASE_URL` or of this machine. Errors are
`FarmError`, whose message says what to do.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from farm.api import campaigns, comparing, models
from farm.api import results as operations
from farm.api.campaigns import CampaignChange, Progress, Submission, Submitted
from farm.api.comparing import Compared, Comparing
from farm.api.connecting import Farm, farm_of
from farm.api.models import Predicted, PredictQuery, Recommended
from farm.api.operation import checked
from farm.campaign import texts_named
from farm.campaign.reading import text_of
from farm.db.states import OPEN_JOB_STATES
from farm.protocols import Time
from farm.schema.results import EXPORTED
from farm.settings import settings

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

POLL_SECONDS = 1.0


class Table(Sequence[Mapping[str, Any]]):
    """Rows of results. Each is a mapping of the columns that docs/sql.md lists."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        return Table(self._rows[index]) if isinstance(index, slice) else self._rows[index]

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table. Every column has its declared type, and objects are JSON text."""
        from farm.schema.arrow import arrow_table

        return arrow_table(self._rows)

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a DataFrame. `parameters`, `environment` and `details` hold dictionaries."""
        import pandas as pd

        return pd.DataFrame(self._rows, columns=list(EXPORTED))


@dataclass(frozen=True)
class Campaign:
    """A campaign of a farm."""

    name: str
    # SHA-256 of the campaign's content in hex, which identifies the campaign.
    digest: str
    _farm: Farm

    def progress(self) -> Progress:
        """Numbers of jobs by state, progress and blocked jobs."""
        return self._farm.ask(campaigns.progress, self.digest)

    def wait(
        self,
        *,
        timeout: float | None = None,
        poll_seconds: float = POLL_SECONDS,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Progress:
        """Waits until no job is open.

        Args:
            timeout: in seconds; None: no timeout.
            poll_seconds: seconds between two requests for the progress.
            on_progress: is called with the progress after each request.

        Returns:
            The state at the end. Jobs that are dead or invalid in it have no result.

        Raises:
            TimeoutError: jobs are still open after `timeout`. The campaign goes on.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            now = self.progress()
            if on_progress is not None:
                on_progress(now)
            waiting = sum(now.counts[state] for state in OPEN_JOB_STATES)
            if not waiting:
                return now
            if deadline is not None and time.monotonic() + poll_seconds > deadline:
                raise TimeoutError(f"{waiting:,} jobs of {self.name} are open after {timeout:g} s")
            time.sleep(poll_seconds)

    def results(self, **conditions: Any) -> Table:
        """The rows of the campaign that match. Takes what `Client.results` takes."""
        return _results(self._farm, campaign=self.digest, **conditions)

    def best(self, *, device_type: str | None = None, **kind: Any) -> operations.Best:
        """The best kernel of each problem that the campaign found.

        Args:
            device_type: Only on this one.
            kind: Only problems with these values of `batch`, `scale`, `fused`, `groups` and `sparsity`.
        """
        return self._farm.ask(operations.best, self.digest, type=device_type, **kind)

    def pause(self) -> CampaignChange:
        """Pauses the campaign: no further job starts until `resume`."""
        return self._farm.ask(campaigns.pause, self.digest)

    def resume(self) -> CampaignChange:
        """Resumes the campaign after `pause`."""
        return self._farm.ask(campaigns.resume, self.digest)

    def cancel(self) -> CampaignChange:
        """Cancels the campaign. Its results stay."""
        return self._farm.ask(campaigns.cancel, self.digest)


class Client:
    """A farm to work with, from `connect`."""

    def __init__(self, farm: Farm) -> None:
        self._farm = farm

    def submit(
        self,
        campaign: Mapping[str, Any] | str | Path,
        *,
        allow_missing: bool = False,
        again: bool = False,
        distribution: str | None = None,
    ) -> Campaign:
        """Submits a campaign. The same campaign twice is one campaign, and nothing is measured again.

        Args:
            campaign: a campaign file, or its content as a mapping.
            allow_missing: accept targets that no device has yet.
            again: measure the same campaign again.
            distribution: operands instead of those of the campaign, as in `normal` or `a=normal*0.02 b=zeros`.

        Raises:
            CampaignFileError: with every mistake in the campaign.
        """
        if isinstance(campaign, Mapping):
            submission = checked(
                Submission,
                text=json.dumps(campaign),
                name="campaign",
                allow_missing=allow_missing,
                again=again,
                distribution=distribution,
            )
        else:
            path = Path(campaign)
            text = text_of(path)
            submission = checked(
                Submission,
                text=text,
                name=str(path),
                allow_missing=allow_missing,
                again=again,
                distribution=distribution,
                files=texts_named(text, path),
            )
        done: Submitted = self._farm.ask(campaigns.submit, submission)
        return Campaign(done.campaign, done.digest, self._farm)

    def campaign(self, name: str) -> Campaign:
        """The campaign of that name, or of a digest that begins so. Raises `NoSuchCampaign`."""
        found = self._farm.ask(campaigns.progress, name)
        return Campaign(found.name, found.digest, self._farm)

    def results(self, **conditions: Any) -> Table:
        """Rows of results that match.

        Args:
            conditions: `campaign`, `type`, `family`, `host`, `device`, `source`, `since`, `until`, `where`, `sort` and
                `short_rounds`, as `farm results` takes them; `limit`: at most so many rows.

        Raises:
            BadFilter: an expression of `where` is wrong.
        """
        return _results(self._farm, **conditions)

    def compare(self, *groups: str, **options: Any) -> Compared:
        """Compares groups of measurements with a baseline, the first group, on the configurations that they share.

        Args:
            groups: device types, hosts, devices or conditions, as `farm compare` takes them.
            options: the other fields of `farm.api.comparing.Comparing`, as `by`, `tie` (in %) and `check` (in %).
        """
        return self._farm.ask(comparing.compare, checked(Comparing, side=list(groups), **options))

    def predict(
        self,
        configurations: Sequence[str],
        *,
        device_type: str | None = None,
        version: str | None = None,
        time: Time | None = None,
    ) -> Predicted:
        """Time, power and energy of configurations, as `tiled(tile=16) 512x512x512 f32`, by a registered model.

        Args:
            configurations: as the farm writes them.
            device_type: may be left out where there is one model.
            version: a number or an alias; the champion if none.
            time: `burst` or `settled`, where the model must know it. Predictions hold both where it does.
        """
        asked = checked(
            PredictQuery, configurations=list(configurations), device_type=device_type, version=version, time=time
        )
        return self._farm.ask(models.predict, asked)

    def recommend(self, shape: str, **options: Any) -> Recommended:
        """The kernels for a problem, ranked by a registered model.

        Args:
            shape: m x n x k, as `4096x4096x1024`.
            options: `types`, `layout`, `alpha`, `beta`, `batch`, `scale`, `fused`, `groups`, `sparsity`, `family`, `objective`, `time`, `unmeasured`,
                `top`, `device_type` and `version`, as `farm recommend` takes them.
        """
        return self._farm.ask(models.recommend, shape=shape, **options)


def _results(farm: Farm, *, limit: int | None = None, **conditions: Any) -> Table:
    for name in ("where", "host", "device", "source"):
        if isinstance(conditions.get(name), str):
            conditions[name] = [conditions[name]]
    return Table(operations.all_rows(farm, limit, **conditions).rows)


@contextmanager
def connect(url: str | None = None, *, token: str | None = None) -> Iterator[Client]:
    """A client of a farm.

    Args:
        url: of a `farm serve`; None: what `FARM_API_URL` says, or the farm of this machine or of `FARM_DATABASE_URL`.
        token: for that server; None: what `FARM_API_TOKEN` says.

    Raises:
        FarmError: the farm cannot be reached, or refuses.
    """
    given = {"api_url": url, "api_token": None if token is None else SecretStr(token)}
    with farm_of(settings().model_copy(update={k: v for k, v in given.items() if v is not None})) as farm:
        yield Client(farm)
