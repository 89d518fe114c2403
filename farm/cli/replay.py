"""`farm replay`: replay measurements of other devices through the whole farm."""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from farm import datasets
from farm.api import reports
from farm.atomic_write import require_new, write_text
from farm.campaign import Campaign, Target, TargetKind, load
from farm.campaign.campaign import in_order
from farm.cli.campaigns import CampaignIncomplete, direct, store
from farm.cli.files import ForceOption
from farm.cli.output import JsonOption, console, emit_json, print_next, remarks
from farm.cli.progress import follow
from farm.cli.run import DEVICE_SECONDS, check_devices, print_results
from farm.cli.tables import Column, Table
from farm.datasets import Dataset
from farm.db import devices
from farm.errors import BadInput, NoWorkers
from farm.formatting import seconds_text
from farm.kernels.families import TILE_STUDY
from farm.report.campaign_summary import summarise
from farm.services import Stack
from farm.services.session import Session, session
from farm.settings import environment, settings
from farm.system_account import login_name

MOST_CONFIGURATIONS = 100_000
"""Maximum for a file that is replayed row by row, because its campaign lists each configuration."""

ELSEWHERE = ("FARM_DATABASE_URL", "FARM_BROKER_URL", "FARM_API_URL", "FARM_API_TOKEN", "MLFLOW_TRACKING_URI")
"""Variables that name another farm. A replay has its own services, which keeps recorded rows apart from measured ones."""

Recordings = list[tuple[Path, str | None]]
"""The recorded devices of a dataset: a file, and the device in it that each replays."""


def replay(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="A dataset, or a Parquet file that farm results exported.", show_default=False
        ),
    ] = None,
    home: Annotated[
        Path | None,
        typer.Option(
            "--home",
            help="Folder of the farm for this replay. The default is a folder next to the farm's own.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write the report to this file. The default is NAME.html.", show_default=False
        ),
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Replay measurements of other devices, without a GPU. Without a name, list the datasets.

    Recorded devices run the dataset's campaign in a separate farm. Its rows are labelled as recorded. The command writes a
    report at the end, and prints what to look at next.

    Examples:
        farm replay paper-tiled
        farm replay exported.parquet --home /tmp/replays/.farm
    """
    if name is None:
        _list(as_json)
        return
    dataset = datasets.find(name)
    if output is not None and not output.absolute().parent.is_dir():
        raise BadInput(detail=f"{output} cannot be written: there is no folder {output.parent}")
    page = output or Path(f"{dataset.name}.html")
    require_new(page, force=force)
    recordings = [(part.path, device) for part in dataset.parts for device in datasets.devices(part.path)]
    campaign = _campaign(dataset)
    variables = dict.fromkeys(ELSEWHERE) | {"FARM_HOME": str(_home(home)), "FARM_DEVICES": _selection(recordings)}
    with environment(**variables):
        report = _replayed(campaign, recordings, page, force=force)
        if as_json:
            emit_json({**report, "dataset": dataset.name, "home": str(settings().home)})
        else:
            _print(report)


def _home(given: Path | None) -> Path:
    if given is not None:
        return given.absolute()
    own = settings().home.absolute()
    return own.with_name(f"{own.name}-replay")


def _selection(recordings: Recordings) -> str:
    """FARM_DEVICES for these recordings."""
    for path, _ in recordings:
        if re.search(r"[,?]", str(path)):
            raise BadInput(detail=f"{path} cannot be replayed from there: its path holds a comma or a question mark")
    return ",".join(f"recorded:{path}" + (f"?device={device}" if device else "") for path, device in recordings)


def _campaign(dataset: Dataset) -> Campaign:
    """The campaign to replay. Its targets are set later.

    A user's file is replayed row by row. So is a learning campaign, because another model would select rows that were not
    measured.
    """
    if dataset.campaign is not None:
        campaign = load(dataset.campaign, limit=settings().max_configurations)
        if not campaign.learns:
            return campaign
    (part,) = dataset.parts
    listed = {configuration for _, configuration in datasets.configurations(part.path)}
    if len(listed) > MOST_CONFIGURATIONS:
        raise BadInput(
            detail=f"{part.path} has {len(listed):,} configurations; a replay may have {MOST_CONFIGURATIONS:,}. "
            f"farm import dataset {part.path} takes all of them, to compare with and to learn from."
        )
    return Campaign(
        name=re.sub(r"[^a-z0-9._-]+", "-", dataset.name.lower()).strip("-._")[:100] or "replay",
        owner=login_name() or "nobody",
        configurations=in_order(listed),
        description=f"What {part.path.name} recorded: {part.origin.provenance}",
    )


def _replayed(campaign: Campaign, recordings: Recordings, page: Path, *, force: bool) -> dict[str, Any]:
    began = time.monotonic()
    with (
        session(broker=True) as opened,
        Stack.attach_or_start(opened.settings, opened.urls, ("coordinator", "workers")) as stack,
    ):
        uuids = _announced(opened, stack, recordings)
        targeted = campaign.changed(targets=tuple(Target(TargetKind.DEVICE, uuid) for uuid in uuids))
        stored = store(opened, targeted, allow_missing=False)
        if not stored.new:
            remarks.print(f"{campaign.name} was replayed here before: nothing is replayed again.", markup=False)
        counts = follow(direct(opened), targeted.digest, check=lambda: check_devices(opened, stack))
        with opened.engine.connect() as connection:
            report = summarise(connection, stored.campaign_id)
        with remarks.status("writing the report"):
            _, text = reports.rendered(direct(opened).access, targeted.digest, device_type=None)
        write_text(page, text, force=force)
    if counts["dead"]:
        raise CampaignIncomplete(dead=counts["dead"], jobs=sum(counts.values()), name=campaign.name)
    return report | {
        "campaign": campaign.name,
        "digest": targeted.digest,
        "searches": campaign.search is not None,
        "families": list(campaign.families),
        "recorded_devices": uuids,
        "report": str(page),
        "total_s": time.monotonic() - began,
    }


def _announced(opened: Session, stack: Stack, recordings: Recordings) -> list[str]:
    """The UUIDs of the recorded devices, once workers have announced all of them."""
    wanted = [(str(path), device) for path, device in recordings]
    end = time.monotonic() + DEVICE_SECONDS
    with remarks.status("opening the recordings"):
        while time.monotonic() < end:
            stack.check()
            with opened.engine.connect() as connection:
                found = devices.live_recordings(connection, silent_after=opened.settings.silent_after_seconds)
            if all(one in found for one in wanted):
                return [found[one] for one in wanted]
            time.sleep(0.1)
    missing = ", ".join(path for path, device in wanted if (path, device) not in found)
    why = "another command runs workers for other devices in this home" if stack.elsewhere() else "see the workers' log"
    raise NoWorkers(detail=f"No recorded device was announced for {missing} within {DEVICE_SECONDS:.0f} s: {why}.")


_DATASETS = Table(
    "datasets",
    Column("name"),
    Column("rows", number=True, priority=2),
    Column("device", folds=True, priority=1),
    Column("what it shows", folds=True, priority=3),
)


def _list(as_json: bool) -> None:
    known = datasets.shipped()
    lines = [
        (one, "" if one.campaign is None else load(one.campaign, limit=10**9).description) for one in known.values()
    ]
    if as_json:
        emit_json(
            [{"name": d.name, "rows": d.rows, "device_types": d.device_types, "shows": shows,
              "files": [str(part.path) for part in d.parts]} for d, shows in lines]
        )  # fmt: skip
        return
    if not known:
        console.print(
            "This installation brings no datasets: name the path of a Parquet file that farm results exported."
        )
        return
    _DATASETS.print([(d.name, d.rows, ", ".join(d.device_types), shows) for d, shows in lines], title="datasets")
    console.print("Replay one:")
    print_next([(f"replay {name}", f"{one.rows:,} rows") for name, one in list(known.items())[-1:]])


def _print(report: dict[str, Any]) -> None:
    name = report["campaign"]
    kinds = Counter(d["device_type"] for d in report["devices"])
    print_results(report)
    console.print(
        f"\nThe report is {report['report']}. Replayed in {seconds_text(report['total_s'])}. Next:", soft_wrap=True
    )
    print_next(
        [
            *([(f"best {name}", "the best kernel of each problem")] if report["searches"] else []),
            (f"results --campaign {name} --sort -tflops", "every row, fastest first"),
            (f"results --campaign {name} -o {name}.csv", "all columns, for a spreadsheet or pandas"),
            *([(f"compare --by type --campaign {name} --any-source", "compare the types")] if len(kinds) > 1 else []),
            *(
                [(f"compare --by device --campaign {name} --any-source --top 5", "compare the cards")]
                if len(report["recorded_devices"]) > 1
                else []
            ),
            *(
                [(f"analyze tiles {name}", "what the tile size changes")]
                if TILE_STUDY.name in report["families"]
                else []
            ),
            *((f"train {kind} --any-source", "a model of these rows") for kind in list(kinds)[:1]),
            ("serve", "show everything in a browser"),
        ]
    )
