"""The builder's task: compile a requested kernel, put it into the store, and record the result."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache

from celery import shared_task
from sqlalchemy import Engine

from farm import signing_keys
from farm.broker.queues import BUILD
from farm.builds import installed_toolchains, versions_of
from farm.builds.cache import KernelCache
from farm.builds.record import Built
from farm.builds.stores import Store, store_of
from farm.db import definitions, kernels
from farm.db.engine import make_engine
from farm.db.kernels import BuildAttempt
from farm.devices import host_name
from farm.errors import BadBinary, BuildFailed, CompilerMissing, DoesNotCompile, FarmError, WrongCompiler
from farm.kernels.families import binary_from_json
from farm.kernels.toolchains import NVCC
from farm.services.task_runner import run_task
from farm.services.task_spans import TaskSpans
from farm.settings import settings
from farm.signing import Purpose, Signer
from farm.tracing import ids_of_kernel, tracing
from farm.tracing.span import Value
from workers.kernels.toolchains import Compiler, compiler_of

log = logging.getLogger(__name__)


@cache
def engine() -> Engine:
    """Each statement is a transaction of its own: a builder that is paused must not hold a lock for as long."""
    url = settings().database_url
    assert url is not None, "the builder sets FARM_DATABASE_URL"
    made = make_engine(url.get_secret_value(), application="farm builder", pool_size=2)
    return made.execution_options(isolation_level="AUTOCOMMIT")


@cache
def compilers() -> Mapping[str, Compiler]:
    """This host's that work and have the farm's versions, by the toolchain's version.

    One that is installed and of no use is left out with a warning. Raises `CompilerMissing` or `WrongCompiler` if none is left.
    """
    versions = versions_of(settings())
    found: dict[str, Compiler] = {}
    errors: list[FarmError] = []
    for toolchain in installed_toolchains(settings()) or (NVCC,):
        try:
            compiler = compiler_of(toolchain, versions)
            compiler.prove()
            found[toolchain.text(versions)] = compiler
        except (CompilerMissing, WrongCompiler) as error:
            errors.append(error)
    if not found:
        raise errors[0]
    for unusable in errors:
        log.warning("%s", unusable)
    return found


@cache
def _store() -> Store:
    return store_of(settings(), engine())


@cache
def _signer() -> Signer:
    return signing_keys.signer(settings(), Purpose.KERNEL)


def _attributes(started: BuildAttempt) -> dict[str, Value]:
    description = started.description
    known = {name: str(description[name]) for name in ("arch", "template") if name in description}
    return {
        "kernel.id": started.kernel_id,
        "kernel.hash": started.hash,
        "kernel.attempt": started.number,
        **{f"kernel.{name}": value for name, value in known.items()},
    }


def _result(result: Built | FarmError) -> tuple[str | None, dict[str, Value]]:
    """The error of a build and the attributes of its span."""
    return (None, {"kernel.bytes": result.record.bytes}) if isinstance(result, Built) else (str(result), {})


_SPANS: TaskSpans[BuildAttempt, Built | FarmError] = TaskSpans(
    name="run build",
    waiting="wait for builder",
    ids_of=ids_of_kernel,
    engine=engine,
    queued_s=lambda started: started.queued_s,
    attributes=_attributes,
    result=_result,
)


@shared_task(name=BUILD)
def build_kernel(kernel_id: int) -> None:
    """Builds the kernel of that id, unless another builder has it.

    If the database or the process fails, the coordinator takes the kernel back, and another attempt starts.
    """
    run_task(kernel_id, "kernel", start=_start, beat=_beat, attempt=_attempt, write_down=_write_down, spans=_SPANS)


def _start(kernel_id: int) -> BuildAttempt | None:
    with engine().connect() as connection:
        return kernels.start(connection, kernel_id, list(compilers()), builder=host_name())


def _beat(started: BuildAttempt) -> bool:
    with engine().connect() as connection:
        return kernels.beat(connection, started)


def _attempt(started: BuildAttempt) -> Built | FarmError:
    """Builds the kernel and puts it into the store. Returns the error if that fails."""
    try:
        built = _built(started)
        with tracing().span("store kernel"):
            _store().put(started.hash, built.code)
    except FarmError as error:
        return error
    except Exception as error:
        log.exception("building failed", extra={"kernel_id": started.kernel_id})
        return BuildFailed(binary=started.hash, why=f"{type(error).__name__}: {error}")
    return built


def _built(started: BuildAttempt) -> Built:
    """From this host's cache where we signed it, or compiled and put there."""
    binary, versions = binary_from_json(started.description), versions_of(settings())
    compiler = compilers().get(binary.toolchain(versions))
    if compiler is None or binary.hash(versions) != started.hash:
        raise BadBinary(why="its hash is that of another description", binary=binary)
    cache = KernelCache(settings().kernel_cache)
    built = cache.get(started.hash)
    if built is None or not built.is_signed([_signer().public]):
        log.info("compiling %s", binary, extra={"kernel_id": started.kernel_id})
        with engine().connect() as connection:
            definition = definitions.of_binary(connection, binary)
        with tracing().span("compile kernel"):
            built = compiler.compile(binary).signed(_signer())
        del definition  # known until here
        cache.put(built)
    return built


def _write_down(started: BuildAttempt, result: Built | FarmError) -> bool:
    builder = host_name()
    with engine().connect() as connection:
        if isinstance(result, Built):
            record = result.record.model_dump()
            return kernels.built(connection, started, record=record, signature=result.signature, builder=builder)
        log.warning("%s", result, extra={"kernel_id": started.kernel_id})
        final = isinstance(result, DoesNotCompile)
        return kernels.failed(connection, started, error=str(result), final=final, builder=builder)
