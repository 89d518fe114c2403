"""`farm run`: measure, train and predict on one machine, from a campaign file."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any

import typer
from sqlalchemy import Connection

from farm import registry
from farm.api.campaigns import SubmitOptions, with_operands
from farm.api.trainings import TrainingNow, TrainingRequest
from farm.builds import installed_toolchains, versions_of
from farm.campaign.workloads import CampaignText
from farm.cli.campaigns import CampaignIncomplete, direct, repeated, store
from farm.cli.options import takes
from farm.cli.output import JsonOption, console, emit_json, kernel_text, print_next, remarks, types_text
from farm.cli.problem_columns import ADDED, added_cells, usual_columns
from farm.cli.progress import follow
from farm.cli.tables import Column, Table
from farm.cli.train import print_outcomes
from farm.cli.training import require_trainer, train_here
from farm.cli.workload_options import takes_workload
from farm.db import devices, kernels, learning, trainings
from farm.devices import host_name
from farm.errors import NoBuilder, NoDeviceLeft, NoSuchModel, NoWorkers
from farm.formatting import seconds_text
from farm.installing import INSTALL
from farm.kernels import FAMILIES, Configuration
from farm.kernels.toolchains import extras_of
from farm.registry.held_out import predict_held_out
from farm.report.campaign_summary import largest_measured, summarise
from farm.services import Stack
from farm.services.session import Session, session
from farm.settings import settings
from farm.tracing import running

DEVICE_SECONDS = 60.0
"""Time limit for workers to announce a device."""

NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")

NOISY_RSE_PCT = 2.0
"""A larger median relative standard error means a busy machine. It is twice the target of the quickstart."""


@takes(SubmitOptions)
@takes_workload
def run(
    options: SubmitOptions,
    *,
    workload: CampaignText,
    train: Annotated[bool, typer.Option("--train/--no-train", help="Train and register models at the end.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Measure a campaign on this machine, train and register a model, predict a held-out shape, and print a report.

    It starts the services that are not running, and stops them at the end. If you interrupt it, run it again to continue.
    Measured rows are kept.

    Examples:
        farm run examples/campaigns/quickstart.yaml
        farm run --no-train sweep.yaml
        farm run --again sweep.yaml
        farm run --trace tunableop_untuned0.csv
        farm run --model llama-3.1-8b --tp 4 --tokens 1,8,128
    """
    began = time.monotonic()
    campaign = workload.campaign(settings().max_configurations)
    if options.distribution is not None:
        campaign = with_operands(campaign, options.distribution)
    needed = {template.toolchain for family in campaign.families for template in FAMILIES[family].templates}
    here = needed.intersection(installed_toolchains(settings()))
    # A trainer also decides the rounds of a learning campaign: it runs beside the workers from the start.
    trains = train or campaign.learns
    if trains:
        require_trainer("" if campaign.learns else ". To measure without a model, add --no-train.")
    programs = ("coordinator", "workers", *(("trainer",) if trains else ()), *(("builder",) if here else ()))
    with (
        running(settings(), "cli"),
        session(broker=True) as opened,
        Stack.attach_or_start(opened.settings, opened.urls, programs) as stack,
    ):
        if NVIDIA_DRIVER.exists() and importlib.util.find_spec("cupy") is None:
            remarks.print("This machine has an NVIDIA driver, but not CuPy, so its CPU is measured: see farm doctor.")
        _wait_for_devices(opened, stack.check)
        if options.again:
            campaign = repeated(opened, campaign)
        stored = store(
            opened,
            campaign,
            allow_missing=options.allow_missing,
            check=lambda connection, campaign_id: _require_builder(
                opened, connection, campaign_id, [toolchain.text(versions_of(opened.settings)) for toolchain in here]
            ),
        )
        if stored.restored:
            remarks.print(f"{campaign.name} was deleted and is restored, with what it had measured.")
        elif not stored.new:
            remarks.print(f"{campaign.name} is known: what is measured already is not measured again.")
        counts = follow(direct(opened), campaign.digest, check=lambda: check_devices(opened, stack))
        measured_s = time.monotonic() - began
        outcomes: dict[str, TrainingNow] = {}
        if train and counts["done"]:
            outcomes = _train(opened, stored.campaign_id, stack.check)
        with opened.engine.connect() as connection:
            report = summarise(connection, stored.campaign_id)
            curve = learning.curve(connection, stored.campaign_id)
        report |= {
            "campaign": campaign.name,
            "digest": campaign.digest,
            "searches": campaign.search is not None and not campaign.learns,
            "learning": curve,
            "trainings": outcomes,
            "predictions": [
                p
                for kind, o in outcomes.items()
                if o.error is None and (p := _against(opened, stored.campaign_id, kind))
            ],
            "measured_s": measured_s,
        }
    report["total_s"] = time.monotonic() - began
    if as_json:
        emit_json(report)
    else:
        _print(report)
    if counts["dead"]:
        raise CampaignIncomplete(dead=counts["dead"], jobs=sum(counts.values()), name=campaign.name)


def _require_builder(opened: Session, connection: Connection, campaign_id: int, here: Collection[str]) -> None:
    """Raises `NoBuilder` if jobs wait for kernels that no machine builds. This one has the toolchains `here`."""
    awaited = kernels.awaited(connection, campaign_id, silent_after=opened.settings.silent_after_seconds)
    lacking = [toolchain for toolchain in awaited.without_builder if toolchain not in here]
    if lacking:
        commands = " and ".join(INSTALL[extra] for extra in extras_of(lacking))
        raise NoBuilder(kernels=awaited.kernels, jobs=awaited.jobs, toolchains=" and ".join(lacking), commands=commands)


def check_devices(opened: Session, stack: Stack) -> None:
    """Raises if this host cannot measure any more: a program ended, or no device takes work."""
    stack.check()
    if _this_host_measures(opened):
        return
    with opened.engine.connect() as connection:
        left = devices.shut_out_on(connection, host_name())
    if left:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left.items())
        raise NoDeviceLeft(devices=reasons, log=opened.settings.home / "logs" / "workers.log")


def _this_host_measures(opened: Session) -> bool:
    with opened.engine.connect() as connection:
        return host_name() in devices.live_hosts(connection, silent_after=opened.settings.silent_after_seconds)


def _wait_for_devices(opened: Session, check: Callable[[], None]) -> None:
    """Waits until a worker of this host has announced its device, because targets are resolved against known devices."""
    began = time.monotonic()
    with remarks.status("starting workers"):
        while time.monotonic() - began < DEVICE_SECONDS:
            check()
            if _this_host_measures(opened):
                return
            time.sleep(0.1)
    raise NoWorkers(detail=f"No device was announced within {DEVICE_SECONDS:.0f} s.")


def _train(opened: Session, campaign_id: int, check: Callable[[], None]) -> dict[str, TrainingNow]:
    with opened.engine.connect() as connection:
        kinds = trainings.trainable_types(connection, campaign_id=campaign_id, any_source=False)
    if not kinds:
        remarks.print(
            "No model is trained: the rows are recorded, not measured. `farm train --any-source` learns from them."
        )
        return {}
    return train_here(opened, TrainingRequest(device_types=kinds), check=check)


def _against(opened: Session, campaign_id: int, device_type: str) -> dict[str, Any] | None:
    """The prediction for the largest measured problem of a type, by a model that has not seen its shape.

    None if there is no such model, or no measurement on that type.
    """
    uri = opened.urls.tracking_uri
    with opened.engine.connect() as connection:
        row = largest_measured(connection, campaign_id, device_type)
    if row is None:
        return None
    configuration = Configuration.from_columns(row)
    try:
        model = registry.answering_model(uri, device_type)
    except NoSuchModel:
        return None
    predicted_ms = predict_held_out(uri, model, configuration, registry.Trust(opened.settings, opened.engine))
    if predicted_ms is None:
        return None
    return {
        "device_type": device_type,
        "model": model.name,
        "version": model.version,
        "standing": model.standing,
        "configuration": configuration.canonical,
        "held_out": True,
        "predicted_ms": predicted_ms,
        "measured_ms": row["runtime_ms"],
        "error_pct": 100 * abs(predicted_ms / row["runtime_ms"] - 1),
        "to_get_a_champion": None
        if model.standing == registry.CHAMPION
        else registry.remedy(
            name=model.name,
            version=model.version,
            device_type=device_type,
            sound=model.sound,
            verdict=model.verdict,
        ),
    }


_ORIGINS = Table(
    "where results come from",
    Column("device type", folds=True),
    Column("name", folds=True, priority=4),
    Column("host", folds=True, priority=3),
    Column("source"),
    Column("rows", number=True),
    Column("shapes", number=True, priority=2),
    Column("median ±%", number=True, priority=1),
    Column("{recorded}", number=True, priority=1),
)

_RANKED = Table(
    "best and worst",
    Column(""),
    Column("kernel", folds=True),
    Column("m x n x k"),
    *ADDED,
    Column("types", priority=3),
    Column("layout", priority=4),
    Column("runtime", "ms", number=True),
    Column("TFLOP/s", number=True),
    Column("power", "W", number=True, priority=1),
    Column("energy", "mJ", number=True, priority=2),
)


def print_results(report: dict[str, Any]) -> None:
    """Prints the number of results, their devices, and the best and worst results."""
    counts = report["counts"]
    console.print()
    console.print(f"[bold]{report['campaign']}[/]")
    left = ", ".join(f"{counts[s]:,} {s}" for s in ("invalid", "dead", "cancelled") if counts[s])
    replayed = sum(d["rows"] for d in report["devices"] if d["source"] != "measured")
    rows = sum(d["rows"] for d in report["devices"])
    how = f"answered, {replayed:,} of them from a recording" if replayed else "measured"
    what = f"{rows:,} configurations {how}{'; ' + left if left else ''}"
    if report["rounds"] > 1:
        what += f". {_rounds_text(report)} took {counts['done']:,} measurements"
    console.print(f"{what}.")
    on = [
        (d["device_type"], d["device_name"], d["host"], d["source"], d["rows"], d["shapes"], d["median_rse_pct"],
         seconds_text(d["device_s"]))
        for d in report["devices"]
    ]  # fmt: skip
    # Of a replay, the device time is that of the measurements that were recorded.
    recorded = bool(on) and all(d["source"] != "measured" for d in report["devices"])
    _ORIGINS.print(
        on,
        title="where the results come from",
        names={"recorded": "recorded device time" if recorded else "device time"},
    )
    for d in report["devices"]:
        if d["source"] == "measured" and d["median_rse_pct"] > NOISY_RSE_PCT:
            console.print(
                f"Times on {d['device_type']} scatter by {d['median_rse_pct']:.1f}%: something else was using {d['host']}. "
                "Do not trust the rest too far."
            )
    for kind, ends in report["ranked"].items():
        rows = [
            (end, kernel_text(r), f"{r['m']}x{r['n']}x{r['k']}", *added_cells(r), types_text(r), r["layout"], r["runtime_ms"],
             r["tflops"], r["power_w"], r["energy_mj"])
            for end in ("best", "worst") for r in ends[end]
        ]  # fmt: skip
        without = usual_columns([r for found in ends.values() for r in found])
        _RANKED.print(rows, title=f"{kind}: best and worst by TFLOP/s", without=without)


def _rounds_text(report: dict[str, Any]) -> str:
    """`3 rounds of a search`, or for a learning campaign `The test set and 2 rounds`."""
    if not report.get("learning"):
        return f"{report['rounds']} rounds of a search"
    learned = report["rounds"] - 1
    return f"The test set and {learned} round{'s' if learned > 1 else ''}"


def _print(report: dict[str, Any]) -> None:
    print_results(report)
    for point in _last_points(report["learning"]):
        console.print(_learned_text(point), markup=False, soft_wrap=True)
    if report["trainings"]:
        print_outcomes(report["trainings"])
    for p in report["predictions"]:
        label = "" if p["standing"] == registry.CHAMPION else f" ({p['standing'].upper()}, not the champion)"
        console.print(
            f"\nA prediction for a shape that was held out of training, by {p['model']} v{p['version']}{label}:\n"
            f"  {p['configuration']}\n"
            f"  predicted {p['predicted_ms']:.4g} ms, measured {p['measured_ms']:.4g} ms: {p['error_pct']:.1f}% off.",
            markup=False,
        )
        if p["to_get_a_champion"]:
            console.print(
                f"{p['device_type']} has no champion, so the challenger answers. {p['to_get_a_champion']}", markup=False
            )
    _print_next_steps(report)


def _last_points(curve: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last point of the learning curve of each pool."""
    return list({point["pool"]: point for point in curve}.values())


def _learned_text(point: dict[str, Any]) -> str:
    """`Learning on any ended after round 3: 4.1% mean error on 40 rows of the test set, … It ended as the budget … is used.`"""
    head = f"Learning on {point['pool']} ended after round {point['round']}"
    if point["error"] is not None:
        return f"{head}, which could not be decided: {point['error']}"
    score = point.get("test", {}).get("all")
    off = (
        ""
        if score is None
        else f"{score['mean_error_pct']:.1f}% mean error on {score['rows']:,} rows of the test set, "
    )
    return f"{head}: {off}{point['device_seconds']:,.0f} device seconds used. It ended as {point['stop'] or 'the campaign was cancelled'}."


def _print_next_steps(report: dict[str, Any]) -> None:
    name = report["campaign"]
    steps = [
        *([(f"best {name}", "the best kernel of each problem")] if report["searches"] else []),
        (f"results --campaign {name} --sort -tflops", "every measurement, fastest first"),
        (f"results --campaign {name} -o {name}.csv", "all columns, for a spreadsheet or pandas"),
        *((f'predict "{p["configuration"].split(" nn ")[0]}"', "ask the model") for p in report["predictions"][:1]),
        ("models", "the registry"),
        (f"report {name}", "one page with charts, to read and to send"),
        ("serve", "show everything in a browser"),
        ("up", "keep the farm running in the background; then farm submit FILE"),
    ]
    console.print(
        f"\nMeasured in {seconds_text(report['measured_s'])}, {seconds_text(report['total_s'])} in all. Next:"
    )
    print_next(steps)
