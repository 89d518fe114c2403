"""The code of an own kernel: its language, and what may not reach the compiler of a worker. Everything here is pure."""

from __future__ import annotations

import base64
import binascii
import re
from enum import StrEnum

from farm.kernels import triton_files

MAX_CODE_BYTES, MAX_TRITON_BYTES = 2**20, 2**18
"""Length of a source or binary. Reading a Triton file takes 8 s for each MiB at worst."""


class Language(StrEnum):
    """What a definition's code is; the suffix of its file says it."""

    CUDA = "cu"
    PTX = "ptx"
    CUBIN = "cubin"
    TRITON = "py"


_DIRECTIVE = re.compile(
    r"(?:\#|%:|\?\?=)(?:\s|/\*.*?\*/)*(?:include_next|include|import|embed)\b(?P<what>[^\n]*)", re.DOTALL
)
_HEADER = re.compile(r"\s*<(?![/.])(?!\S*\.\.)[\w./-]+>\s*(?://.*|/\*.*)?")
_SPLICE = re.compile(r"(?:\\|\?\?/)[ \t\r\f\v]*\n")


def why_not_compilable(code: str) -> str | None:
    """Why a CUDA C++ source must not reach the compiler of a worker: it could read files there. None if it may.

    An error message of the compiler would show lines of a file that is included. Headers of CUDA are allowed, by their names in
    angle brackets. What looks like a directive inside a comment counts as one.
    """
    text = _SPLICE.sub("", code.replace("\r\n", "\n").replace("\r", "\n"))
    for found in _DIRECTIVE.finditer(text):
        if not _HEADER.fullmatch(found["what"]):
            line = code[: found.start()].count("\n") + 1
            what = " ".join(found.group().split())[:60]
            return f"line {line}: {what!r} is not allowed; only headers of CUDA are, as in #include <cuda_fp16.h>"
    for word in ("__has_include", "__has_embed", "\\u", "\\U"):
        if word in text:
            return f"{word} is not allowed; remove it"
    return None


def why_bad_code(file: str, code: str) -> str | None:
    """Why a definition cannot have that code; None if it can. Of a cubin, the code is base64."""
    language = file.rpartition(".")[2]
    if language not in tuple(Language):
        return f"{file!r} is no {', '.join(f'.{one}' for one in Language)} file"
    if not code.strip():
        return f"{file} is empty"
    if "\0" in code:
        return f"{file} has a zero byte"
    content = code.encode()
    if language == Language.CUBIN:
        try:
            content = base64.b64decode(code, validate=True)
        except (binascii.Error, ValueError):
            return f"{file} is not base64, as cubins are sent"
        if content[:4] != b"\x7fELF":
            return f"{file} is no cubin: it does not begin as an ELF file"
    allowed = MAX_TRITON_BYTES if language == Language.TRITON else MAX_CODE_BYTES
    if len(content) > allowed:
        return f"{file} is larger than {allowed // 2**10:,} KiB"
    why = None
    if language == Language.CUDA:
        why = why_not_compilable(code)
    elif language == Language.TRITON:
        try:
            triton_files.read(code)
        except triton_files.NotAllowed as error:
            why = str(error)
    return None if why is None else f"{file}: {why}"
