"""`farm export`: files that other tools read, made of measurements and models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from farm.api import farm_of, plans
from farm.api import results as operations
from farm.api.plans import PlanQuery
from farm.atomic_write import own_name
from farm.cli.files import ForceOption, write_export
from farm.cli.options import takes
from farm.cli.plan import workload
from farm.cli.workload_options import trace_help
from farm.errors import NothingToExport
from farm.exporters import TUNED, kernel_table
from farm.exporters import aiconfigurator as planner
from farm.exporters import dataset as datasets
from farm.exporters.tuned import TunedFormat
from farm.protocols import Time
from farm.settings import settings

app = typer.Typer(help="Write files that other tools read, made of measurements and models.", no_args_is_help=True)

Folder = Annotated[
    Path,
    typer.Option("--output", "-o", metavar="FOLDER", help="The folder to write to. It is made.", show_default=False),
]
ConsumerVersion = Annotated[
    str | None,
    typer.Option(
        "--consumer-version",
        metavar="VERSION",
        help="The version of the tool that reads the files.",
        show_default=False,
    ),
]
_NOT_OF_EXPORTS = ("commands", "after", "limit", "sort", "short_rounds")


@app.command()
@takes(operations.rows, without=_NOT_OF_EXPORTS, required=("type",))
def aiconfigurator(
    query: dict[str, Any],
    *,
    output: Folder,
    time: Annotated[
        Time, typer.Option("--time", help="The time of a GEMM: burst, as in AIConfigurator's own tables, or settled.")
    ] = "burst",
    backend: Annotated[
        planner.Backend, typer.Option("--backend", help="The serving framework under whose name the table is found.")
    ] = planner.Backend.VLLM,
    fill: Annotated[
        Literal["model"] | None,
        typer.Option(
            "--fill",
            help="model: the champion predicts the rest of AIConfigurator's grid, and the power of rows without. Its entries are marked.",
            show_default=False,
        ),
    ] = None,
    system: Annotated[
        Path | None,
        typer.Option(
            "--system",
            metavar="FILE",
            help="AIConfigurator's own YAML file of the card, for its figures of the network and of collectives.",
            show_default=False,
        ),
    ] = None,
    consumer_version: ConsumerVersion = None,
    force: ForceOption = False,
) -> None:
    """Write the GEMMs of a card as a system that NVIDIA AIConfigurator loads, with power.

    The table has linear layers in bfloat16, fp8 and fp8_block: products in layout nt by cuBLASLt's own choice, or by the
    fastest kernel of --family.

    Examples:
        farm export aiconfigurator --type nvidia-h200 --output systems/
        farm export aiconfigurator -t nvidia-h200 --time settled --fill model -o all/
    """
    with farm_of(settings()) as farm:
        export = planner.export(
            farm,
            query,
            time=time,
            backend=backend,
            fill=fill is not None,
            system_file=system,
            consumer_version=consumer_version,
        )
    write_export(export, output, folder=True, force=force)


@app.command()
@takes(operations.rows, without=_NOT_OF_EXPORTS, required=("type",))
def dataset(
    query: dict[str, Any],
    *,
    output: Folder,
    license_id: Annotated[
        str,
        typer.Option(
            "--license", metavar="ID", help="The licence, as Hugging Face names it: cc-by-4.0.", show_default=False
        ),
    ],
    name: Annotated[
        str | None, typer.Option("--name", help="The name of the dataset.", show_default="that of the folder")
    ] = None,
    force: ForceOption = False,
) -> None:
    """Write measurements of a device type as a dataset: a recording, and a card that describes its rows and columns.

    The card is a README.md as Hugging Face shows it. farm import dataset and farm replay read the recording.

    Examples:
        farm export dataset -t nvidia-h200 -c quickstart --license cc-by-4.0 -o h200/
    """
    called = own_name(output.resolve().name if name is None else name, option="--name")
    with farm_of(settings()) as farm:
        export = datasets.export(farm, query, name=called, license_id=license_id)
        write_export(export, output, folder=True, force=force)


@app.command()
@takes(PlanQuery, without=("config", "gemms", "others", "cards", "on", "max_latency", "price", "carbon"))
def table(
    query: PlanQuery,
    *,
    device_type: Annotated[
        str, typer.Option("--type", "-t", metavar="TYPE", help="The device type.", show_default=False)
    ],
    output: Folder,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace", help=trace_help("The GEMMs of a program instead of a language model"), show_default=False
        ),
    ] = None,
    force: ForceOption = False,
) -> None:
    """Write the kernel of each GEMM of a language model as a lookup table, in JSON and as a C header.

    Kernels, times and energies are those of farm plan: measured where the farm has rows, and predicted elsewhere.

    Examples:
        farm export table llama-3.1-8b -t nvidia-h200 --tokens 1,8,128 -o kernels/
    """
    query = query.model_copy(update={**workload(query.model, trace), "on": [device_type]})
    with farm_of(settings()) as farm:
        planned = farm.ask(plans.plan, query)
    write_export(kernel_table.export(planned, device_type), output, folder=True, force=force)


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def tunableop() -> None:
    """Say why PyTorch's TunableOp cannot get kernels from the farm. Writes nothing.

    Examples:
        farm export tunableop
    """
    raise NothingToExport(
        tool="TunableOp",
        why="on NVIDIA GPUs, its only solution in PyTorch up to 2.13 is Default. PyTorch 2.14 names a kernel of cuBLASLt by a number that "
        "the farm does not store. farm export inductor writes a table for PyTorch's compiler.",
    )


def add_command(tool: TunedFormat) -> None:
    """Adds `farm export NAME` for tuned kernels."""

    def run(
        query: dict[str, Any],
        *,
        output: Folder,
        proof: Annotated[
            list[Path] | None,
            typer.Option(
                "--proof", metavar="FILE", help="Output of farm check --json. Can be repeated.", show_default=False
            ),
        ] = None,
        time: Annotated[
            Time, typer.Option("--time", help="The time by which the fastest kernel is found: settled or burst.")
        ] = "settled",
        consumer_version: ConsumerVersion = None,
        force: ForceOption = False,
    ) -> None:
        with farm_of(settings()) as farm:
            export = tool.export(farm, query, time=time, proofs=proof or (), consumer_version=consumer_version)
        write_export(export, output, folder=True, force=force)

    command = takes(operations.rows, without=_NOT_OF_EXPORTS, required=("type",))(run)
    app.command(tool.name, help=tool.help)(command)


for _tool in TUNED.values():
    add_command(_tool)
