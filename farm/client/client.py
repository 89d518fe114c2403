"""A farm to work with from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from farm.api import campaigns, comparing, deletions, devices, imports
from farm.api.campaigns import ListedCampaign, Planned
from farm.api.comparing import Compared
from farm.api.connecting import Farm
from farm.api.deletions import Deletion, Restored
from farm.api.devices import DeviceLine
from farm.api.imports import ImportedFile
from farm.api.operation import Upload
from farm.campaign.workloads import CampaignText
from farm.client.campaign import Campaign
from farm.client.model_methods import ModelMethods
from farm.client.requests import Requests, checked_name
from farm.client.submissions import campaign_text, readable_file, text_of_model
from farm.client.table import Table

if TYPE_CHECKING:
    from farm.client.pulling import Pulled

MAX_NAME_OF_FILE = 500
"""Characters of the name that an import keeps."""


class Client(ModelMethods):
    """A farm to work with, from `farm.connect`. Used with `with`, it closes its connection at the end."""

    def __init__(self, farm: Farm, opened: ExitStack | None = None) -> None:
        """`opened` closes the farm. The caller of the constructor has opened it; `farm.connect` does both."""
        self._requests = Requests(farm, ExitStack() if opened is None else opened)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection, and stops the services that it started. Campaigns continue on workers that run."""
        self._requests.close()

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
            campaign: The path of a campaign file, the name of one that comes with GEMM Farm, such as `quickstart`, or the content of
                one as a mapping. numpy arrays stand for lists.
            allow_missing: Accept targets that no device has yet.
            again: Measure the same campaign again.
            distribution: Operands instead of those of the campaign, as in `normal` or `a=normal*0.02 b=zeros`.

        Raises:
            CampaignFileError: With every mistake in the campaign.
            NoSuchTarget: No device is of a target.
        """
        return self._submit(campaign_text(campaign), allow_missing, again, distribution)

    def submit_model(
        self,
        model: str | Path,
        *,
        tokens: int | Sequence[int] | None = None,
        tp: int = 1,
        ep: int = 1,
        sequences: int | None = None,
        training: bool = False,
        lora_rank: int = 0,
        layers: str = "all",
        families: str | Sequence[str] | None = None,
        allow_missing: bool = False,
        again: bool = False,
        distribution: str | None = None,
    ) -> Campaign:
        """Submits the GEMMs of a step of a language model on one GPU.

        Args:
            model: A built-in language model, as in `llama-3.1-8b`, or the path of a `config.json` or its folder.
            tokens: Numbers of tokens of a step, as in `[1, 128]`. The default is 1, 8, 128 and 2048.
            tp: Tensor parallelism: GPUs that share each layer.
            ep: Expert parallelism: groups of GPUs with different experts.
            sequences: Sequences that the tokens are of. The default is a step that decodes one token of each.
            training: With the GEMMs of the gradients.
            lora_rank: Rank of low-rank adapters; 0 without.
            layers: `all`, `experts`, or the others: `dense`.
            families: Kernel families. The default is cuBLASLt.
            allow_missing: As for `submit`.
            again: As for `submit`.
            distribution: As for `submit`.

        Raises:
            UnknownLanguageModel: No model has that name.
            BadInput: An argument is wrong.
        """
        text = text_of_model(
            model,
            tokens=tokens,
            tp=tp,
            ep=ep,
            sequences=sequences,
            training=training,
            lora_rank=lora_rank,
            layers=layers,
            families=families,
        )
        return self._submit(text, allow_missing, again, distribution)

    def _submit(self, text: CampaignText, allow_missing: bool, again: bool, distribution: str | None) -> Campaign:
        done = self._requests.run(
            "submit",
            campaigns.submit,
            text=text.text,
            name=text.name,
            files=text.files,
            allow_missing=allow_missing,
            again=again,
            distribution=distribution,
        )
        return Campaign(done.campaign, done.digest, self._requests)

    def check(self, campaign: Mapping[str, Any] | str | Path, *, allow_missing: bool = False) -> Planned:
        """Counts and checks the jobs of a campaign, and estimates their device time in s. Submits nothing."""
        text = campaign_text(campaign)
        return self._requests.run(
            "check", campaigns.check, text=text.text, name=text.name, files=text.files, allow_missing=allow_missing
        )

    def campaign(self, name: str) -> Campaign:
        """The campaign of that name, or of a digest that begins so. Raises `NoSuchCampaign`."""
        found = self._requests.run("campaign", campaigns.progress, campaign=checked_name("campaign", name))
        return Campaign(found.name, found.digest, self._requests)

    def campaigns(self, **conditions: Any) -> list[ListedCampaign]:
        """Campaigns, the newest first, with their progress.

        Args:
            conditions: `state`, `owner`, `search`: a part of the name; `limit`: at most so many, 50 by default.
        """
        return self._requests.run("campaigns", campaigns.list_, **conditions)

    def results(self, *, limit: int | None = None, **conditions: Any) -> Table:
        """Rows of measurements that match. Times are in ms, power in W, energy in mJ.

        Args:
            limit: At most so many rows. None: all.
            conditions: `campaign`, `type`, `family`, `host`, `device`, `source`, `since`, `until`, `where`, `sort` and
                `short_rounds`, as `farm results` takes them. Several conditions in `where` are a list.

        Raises:
            BadFilter: An expression of `where` is wrong.
        """
        return Table(self._requests.rows(limit, **conditions))

    def compare(self, *groups: str, **options: Any) -> Compared:
        """Compares groups of measurements with a baseline, the first group, on the configurations that they share.

        Args:
            groups: Device types, hosts, devices or conditions, as `farm compare` takes them.
            options: The other options of `farm compare`, as `by`, `campaign`, `tie` (in %), `check` (in %), `top` and `price`.

        Returns:
            Ratios of time, power and energy, group over baseline, with their confidence intervals.

        Raises:
            NothingShared: No configuration was measured in both groups.
            NotComparable: The groups were measured under different conditions.
        """
        return self._requests.run("compare", comparing.compare, side=list(groups), **options)

    def devices(self, *, host: str | None = None, type: str | None = None) -> list[DeviceLine]:  # noqa: A002
        """Devices: state, current work, errors of the last hour. Ages are in s."""
        return self._requests.run("devices", devices.list_, host=host, type=type)

    def import_file(
        self,
        path: str | Path,
        *,
        format: str = "dataset",  # noqa: A002
        device: str | None = None,
        dry_run: bool = False,
    ) -> ImportedFile:
        """Imports rows that were measured elsewhere, to compare with and to train on. The same content again adds nothing.

        Args:
            path: The file.
            format: `dataset`, `gpperf` or `aiconfigurator`.
            device: The card, for a table of GPPerf that does not name it.
            dry_run: Check every row, and store nothing.

        Raises:
            BadRecording: The file is not of that format.
            RowNotImported: A row is wrong. Nothing of the file is imported.
        """
        file = readable_file("path", path)
        return self._requests.run(
            "import_file",
            imports.import_,
            file_format=format,
            upload=Upload(file),
            name=str(path)[-MAX_NAME_OF_FILE:],
            device=device,
            dry_run=dry_run,
        )

    def pull(
        self, url: str, *, token: str | None = None, name: str | None = None, since: str | datetime | None = None
    ) -> Pulled:
        """Imports the finished campaigns of another farm over its HTTP API. Again, it imports only what is new.

        Args:
            url: The `farm serve` of the other farm.
            token: A token of that farm with the role read. None: that of FARM_PULL_TOKEN.
            name: The name of the other farm here. None: the host and port of the URL. Give the same one each time.
            since: Only campaigns that ended from then on, as `farm pull` takes it. In UTC unless it names another zone.

        Returns:
            The campaigns with new rows. `error` of a campaign says why not all of its rows were stored.

        Raises:
            BadInput: The name is wrong.
            BadMoment: `since` is no time.
            BadServiceUrl: The URL is wrong.
            OtherFarmUnreachable: The other farm does not answer.
            OtherFarmRefused: The other farm wants another token.
            OtherApi: What answers is no farm of this version.
        """
        from farm.client.pulling import pull

        return self._requests.with_farm(lambda farm: pull(url, farm, token=token, name=name, since=since))

    def delete(self, name: str, *, kind: str = "campaign", cancel: bool = False, dry_run: bool = False) -> Deletion:
        """Deletes a campaign, an import or a model, with everything that depends on it.

        Args:
            name: As `farm delete` takes it.
            kind: `campaign`, `import` or `model`.
            cancel: Delete a campaign even if it has open jobs, and cancel these.
            dry_run: Only return what would be deleted.

        Raises:
            NotFound: There is no such thing.
            CampaignHasOpenWork: The campaign has open jobs.
        """
        return self._requests.run("delete", deletions.delete, kind=kind, name=name, cancel=cancel, dry_run=dry_run)

    def restore(self, name: str, *, kind: str = "campaign") -> Restored:
        """Restores something that was deleted. Raises `NoSuchDeletion`."""
        return self._requests.run("restore", deletions.restore, kind=kind, name=name)
