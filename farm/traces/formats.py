"""The formats of traces, and reading a file of any of them."""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import BinaryIO, cast

from farm.errors import BadTrace
from farm.traces.cublaslt import CublasLt
from farm.traces.inductor import Inductor
from farm.traces.profiler import Profiler
from farm.traces.trace import Gemms, Lines, LogFormat, Trace, TraceFormat
from farm.traces.tunableop import TunableOp

LOGS: list[LogFormat] = [TunableOp(), CublasLt(), Inductor()]
"""Formats of lines. The first line of a format tells it from the others."""

PROFILER = Profiler()

MAX_BYTES = 4 * 2**30
"""Of a file, decompressed."""

_MAX_LINE = 2**24
_CHUNK = 2**20
_GZIP = b"\x1f\x8b"


def read_trace(path: Path) -> Trace:
    """Reads the GEMMs of a file, whose format shows in its content. It may be compressed with gzip.

    Raises:
        BadTrace: It cannot be read, is too large, or has no GEMMs.
    """
    try:
        with path.open("rb") as file:
            compressed = file.read(2) == _GZIP
            file.seek(0)
            content = gzip.GzipFile(fileobj=file) if compressed else file
            return _read(str(path), _chunks(str(path), cast(BinaryIO, content)))
    except FileNotFoundError:
        raise BadTrace(where=path, why="there is no such file") from None
    except (OSError, EOFError, zlib.error) as error:
        raise BadTrace(where=path, why=f"it cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _chunks(name: str, content: BinaryIO) -> Iterator[str]:
    decoder, size = codecs.getincrementaldecoder("utf-8-sig")("replace"), 0
    while data := content.read(_CHUNK):
        size += len(data)
        if size > MAX_BYTES:
            raise BadTrace(where=name, why=f"it has more than {MAX_BYTES // 2**30} GiB; record fewer steps")
        yield decoder.decode(data)


def _lines(name: str, chunks: Iterable[str]) -> Iterator[str]:
    rest, number = "", 0
    for chunk in chunks:
        *lines, rest = (rest + chunk).split("\n")
        number += len(lines)
        if len(rest) > _MAX_LINE:
            raise BadTrace(where=f"{name}:{number + 1}", why=f"the line is longer than {_MAX_LINE // 2**20} MiB")
        yield from lines
    if rest:
        yield rest


def _read(name: str, chunks: Iterator[str]) -> Trace:
    found, head = Gemms(), next(chunks, "")
    whole = chain([head], chunks)
    known: TraceFormat | None = PROFILER
    if PROFILER.begins(head):
        PROFILER.read(name, whole, found)
    else:
        known = _read_log(name, _lines(name, whole), found)
    if known is None or not found:
        raise BadTrace(where=name, why=_nothing([*LOGS, PROFILER] if known is None else [known], found))
    return found.trace(known.name)


def _read_log(name: str, lines: Iterator[str], found: Gemms) -> LogFormat | None:
    """Reads a file of lines. Returns its format; None if it has no line of any."""
    for number, line in enumerate(lines, start=1):
        known = next((one for one in LOGS if one.begins(line)), None)
        if known is not None:
            others = [one for one in LOGS if one is not known]
            rest = chain([line], lines)
            known.read(Lines(name, _watched(rest, known, others, found), before=number - 1), found)
            return known
    return None


def _watched(lines: Iterator[str], known: LogFormat, others: list[LogFormat], found: Gemms) -> Iterator[str]:
    """The same lines. Remarks those of other formats."""
    for line in lines:
        for other in others:
            if other.begins(line):
                found.remark(
                    f"The file has lines of {other.name} too. Only those of {known.name}, which comes first, are read."
                )
                others.remove(other)
                break
        yield line


def _nothing(formats: Sequence[TraceFormat], found: Gemms) -> str:
    looked_for = "; ".join(one.looks_for for one in formats)
    return f"it has no GEMMs. Looked for: {looked_for}" + (f". Left out: {found.reasons}" if found.reasons else "")
