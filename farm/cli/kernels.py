"""`farm kernels`: kernels that are built ahead of time: which there are, building them here, adding those built elsewhere."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from farm import python_program, signing_keys
from farm.api import farm_of
from farm.api import kernels as operations
from farm.api.kernels import Addition, BuiltKernel, KernelLine
from farm.builds import slots_of
from farm.builds.cache import KernelCache
from farm.campaign import Campaign, load
from farm.campaign.planning import binaries_for
from farm.cli.options import takes
from farm.cli.output import JsonOption, console, emit_json, remarks
from farm.cli.progress import counting
from farm.cli.tables import Column, Table
from farm.devices import traits_of_capability
from farm.errors import BadInput, KernelsNotBuilt, NoSuchKernels, ServiceUnavailable
from farm.formatting import lines_text, seconds_text
from farm.kernels import Configuration, definition, own_triton
from farm.kernels.binary import Binary, capability_of
from farm.services.processes import end_guarded, start_guarded
from farm.settings import environment_for_children, settings
from farm.signing import Purpose

app = typer.Typer(help="Manage kernels that are built ahead of time.", no_args_is_help=True)

FolderOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="A folder for them.", show_default="this host's own, FARM_KERNELS"),
]

GRACE_SECONDS = 5.0
"""Between asking the building process to end and killing what it started."""


# --- what the farm has -------------------------------------------------------------------------------


@app.command("list")
@takes(operations.list_)
def list_(query: dict[str, Any], *, as_json: JsonOption = False) -> None:
    """List kernels: built, in work, wanted and failed, and how many jobs wait for each.

    Examples:
        farm kernels list
        farm kernels list cutlass-tuned --state failed
    """
    with farm_of(settings()) as farm:
        found = farm.ask(operations.list_, **query)
    if as_json:
        emit_json(found)
        return
    if found.kernels:
        _KERNELS.print(map(_line, found.kernels), title="kernels")
    elif "campaign" in query:
        console.print(f"{query['campaign']} waits for no kernels.", markup=False)
    else:
        console.print("None. Campaigns of families that are built ahead of time, such as cutlass, want some.")
    for kernel in found.kernels:
        if kernel.error:
            console.print(f"[yellow]{kernel.hash[:12]}[/] {escape(kernel.error)}", soft_wrap=True)
    names = ", ".join(f"{b.name} ({' and '.join(b.toolchains)}; {b.slots} at a time)" for b in found.builders)
    remarks.print(f"Builders: {names or 'none; farm-worker --build starts one'}.")


_KERNELS = Table(
    "kernels",
    Column("kernel"),
    Column("state"),
    Column("jobs waiting", number=True, priority=1),
    Column("built in", "s", number=True, priority=2),
    Column("size", "kB", number=True, priority=3),
    Column("registers", number=True, priority=4),
    Column("spilled", "bytes", number=True, priority=5),
    Column("what is compiled in", folds=True),
)


def _line(kernel: KernelLine) -> tuple[Any, ...]:
    record = kernel.record or {}
    size = record.get("bytes")
    return (
        kernel.hash[:12],
        kernel.state,
        kernel.waiting_jobs,
        record.get("seconds"),
        None if size is None else round(size / 1000),
        record.get("registers"),
        record.get("spill_bytes"),
        kernel.label,
    )


@app.command()
def add(
    folder: Annotated[Path, typer.Argument(help="A folder that farm kernels build made.", show_default=False)],
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Also those that no trusted key signed: sign them with this host's key."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Add kernels that were built on another host to the farm's store. Jobs that wait for them continue.

    A kernel runs as the worker, on every host that measures it. It is accepted only if the key of the farm's host or one of
    its FARM_KERNEL_KEYS signed it.

    Examples:
        farm kernels add built-kernels
    """
    cache = KernelCache(folder)
    names = [record.hash for record in cache.records()] if folder.is_dir() else []
    if not names:
        raise NoSuchKernels(path=folder)
    outcomes, refused = Counter[Addition](), list[str]()
    with farm_of(settings()) as farm:
        for name in names:
            built = cache.get(name)
            if built is None:
                refused.append(f"{name[:12]}: it is damaged")
                continue
            if trust and not built.is_signed(signing_keys.trusted(settings(), Purpose.KERNEL)):
                built = built.signed(signing_keys.signer(settings(), Purpose.KERNEL))
            done = farm.ask(operations.add, BuiltKernel.of(built))
            outcomes[done.outcome] += 1
            if done.outcome is Addition.REFUSED:
                refused.append(f"{name[:12]}: {done.why}")
    added, known = outcomes[Addition.ADDED], outcomes[Addition.KNOWN]
    if as_json:
        emit_json({"added": added, "known": known, "refused": refused})
    else:
        console.print(f"{added:,} kernels were added, {known:,} were there already.")
        if refused:
            console.print(f"[yellow]refused:[/] {escape(lines_text(refused, what='kernels'))}", soft_wrap=True)
    if refused:
        raise KernelsNotBuilt(failed=len(refused), kernels=len(names))


# --- building here -----------------------------------------------------------------------------------


@app.command()
def build(
    file: Annotated[Path, typer.Argument(help="A campaign file (YAML).", show_default=False)],
    arch: Annotated[
        list[str],
        typer.Option(
            "--arch", help="What to build for, as nvcc names it: sm_90a. May be given often.", show_default=False
        ),
    ],
    output: FolderOption = None,
    slots: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=1, help="How many at a time.", show_default="as many as there is room for"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Build the kernels of a campaign on this host, for hosts without a compiler. Needs no services and no GPU.

    Built kernels are kept, so you can continue after Ctrl-C. A host reads them from the folder that FARM_KERNELS names.
    farm kernels add gives them to a whole farm.

    Examples:
        farm kernels build sweep.yaml --arch sm_90a --output built-kernels
    """
    campaign = load(file, limit=settings().max_configurations)
    capabilities = [capability_of(name) for name in arch]
    wanted, invalid = needed(campaign, capabilities)
    if not wanted:
        raise BadInput(
            detail=f"No configuration of {file} needs a kernel that is built ahead of time for {', '.join(arch)}."
        )
    folder = (output or settings().kernel_cache).absolute()
    answers = list(_built(campaign.name, wanted, folder, slots or slots_of(settings())))
    failed = [answer["failed"] for answer in answers if "failed" in answer]
    new = sum(answer.get("new", False) for answer in answers)
    if as_json:
        emit_json({"folder": folder, "kernels": answers, "invalid_configurations": invalid})
    else:
        records = [answer["built"] for answer in answers if "built" in answer]
        seconds = sum(answer["built"]["seconds"] for answer in answers if answer.get("new"))
        size = sum(record["bytes"] for record in records)
        console.print(
            f"{len(records):,} kernels of {size / 1e6:.1f} MB are in {folder}; {new:,} were built now"
            f"{f', in {seconds_text(seconds)} of compiling' if new else ''}.",
            soft_wrap=True,
        )
        remarks.print(f"They are signed for hosts whose FARM_KERNEL_KEYS has {_public_key()}", soft_wrap=True)
        if invalid:
            console.print(
                f"{invalid:,} configurations cannot run on {', '.join(arch)}: farm submit --dry-run says why."
            )
        if failed:
            console.print(f"[yellow]failed:[/] {escape(lines_text(failed, what='kernels'))}", soft_wrap=True)
    if failed:
        raise KernelsNotBuilt(failed=len(failed), kernels=len(answers))


def _public_key() -> str:
    return signing_keys.signer(settings(), Purpose.KERNEL).public


def needed(campaign: Campaign, capabilities: list[tuple[int, int]]) -> tuple[list[Binary], int]:
    """The binaries of a campaign for cards of these compute capabilities, and how many configurations none can run."""
    traits = [traits_of_capability(capability) for capability in capabilities]
    wanted: dict[Binary, None] = {}
    invalid = 0

    def runs(configuration: Configuration) -> bool:
        return any(configuration.why_invalid(device) is None for device in traits)

    for configuration in campaign.expand(runs):
        wanted |= dict.fromkeys(binaries_for(configuration, traits))
        invalid += not runs(configuration)
    return list(wanted), invalid


def _described(binary: Binary) -> dict[str, Any]:
    """A line of what `workers.compiling` reads."""
    number = own_triton.definition_in(binary)
    found = None if number is None else definition.known(number)
    return binary.to_json() | ({} if found is None else {"definition": found.to_json()})


def _built(name: str, wanted: list[Binary], folder: Path, slots: int) -> Iterator[dict[str, Any]]:
    """The result of each kernel when it is finished. Raises the reason why this host cannot build, and `ServiceUnavailable`."""
    with (
        tempfile.NamedTemporaryFile("w", prefix="gemm-farm-", suffix=".jsonl") as descriptions,
        counting(f"building for {name}", len(wanted)) as done,
    ):
        descriptions.writelines(json.dumps(_described(binary)) + "\n" for binary in wanted)
        descriptions.flush()
        command = python_program.program("workers.compiling", descriptions.name, str(folder), str(slots))
        environment = environment_for_children()
        with start_guarded(command, environment=environment, grace_s=GRACE_SECONDS, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            try:
                count = 0
                for line in process.stdout:
                    answer = json.loads(line)
                    if "refused" in answer:
                        raise ServiceUnavailable(detail=answer["refused"]["message"])
                    count += 1
                    done(count, None)
                    yield answer
                if count < len(wanted):
                    raise ServiceUnavailable(
                        detail=f"The building process ended with status {process.wait()}; what it built is kept."
                    )
            finally:
                end_guarded(process)


# --- this host's own ---------------------------------------------------------------------------------


@app.command()
def prune(
    keep: Annotated[float, typer.Option("--keep", min=0, help="How much to keep, in MB.")] = 2000,
    as_json: JsonOption = False,
) -> None:
    """Remove kernels from this host's own folder, the least recently used first. They are fetched again when needed.

    Examples:
        farm kernels prune --keep 500
    """
    cache = KernelCache(settings().kernel_cache)
    removed = cache.prune(int(keep * 1e6))
    left = [record.bytes for record in cache.records()]
    if as_json:
        emit_json({"folder": settings().kernel_cache, "removed": removed, "left": len(left), "left_bytes": sum(left)})
    else:
        console.print(
            f"{removed:,} kernels were removed from {settings().kernel_cache}; {len(left):,} of {sum(left) / 1e6:.1f} MB "
            "are left.",
            soft_wrap=True,
        )
