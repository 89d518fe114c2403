"""Standard output and standard error, prepared once for every command.

- A reader that goes away, as in `farm results | head -1`, is no error: the rest is discarded, and the exit code is that of the
  command. Commands with much output ask `reader_left`, and end. The same holds for a stream that was closed from the beginning (`>&-`).
- A stream that cannot take more, as on a full disk, ends the command with one message.
- Characters that the encoding of a stream lacks are replaced by ones that it has.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from farm.control_characters import neutralised
from farm.errors import BadInput

REPLACE = "farm.replace"
"""The name of the codec error handler `replaced`."""

ASCII = {
    "–": "-", "—": "-", "−": "-", "…": "...", "×": "x", "·": ".", "•": "*", "±": "+-", "°": "", "²": "2", "³": "3",
    "√": "sqrt ", "→": "->", "≤": "<=", "≥": ">=", "µ": "u", "‘": "'", "’": "'", "“": '"', "”": '"',
    "─": "-", "━": "-", "═": "=", "│": "|", "┃": "|", "╸": "-", "╺": "-", "█": "#", "✓": "v", "✗": "x",
}  # fmt: skip
"""Replacements for characters that an encoding lacks. Corners of boxes are `+`."""


class OutputUnwritable(BadInput):
    """Standard output cannot be written: {why}. The rest of the output is lost."""


def in_ascii(character: str) -> str:
    """The ASCII replacement of a character; `?` if there is none."""
    if character in ASCII:
        return ASCII[character]
    if "\N{BOX DRAWINGS LIGHT HORIZONTAL}" <= character <= "\N{BOX DRAWINGS HEAVY LEFT AND LIGHT RIGHT}":
        return "+"
    return unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode() or "?"


def replaced(error: UnicodeError) -> tuple[str, int]:
    """The codec error handler for characters that cannot be encoded."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(in_ascii, error.object[error.start : error.end])), error.end


codecs.register_error(REPLACE, replaced)


def ascii_text(text: str) -> str:
    """The text in ASCII."""
    return text.encode("ascii", REPLACE).decode()


def printable(text: str) -> str:
    """The text as standard output can show it, without control characters."""
    text = neutralised(text)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.encode(encoding, REPLACE).decode(encoding)
    return text


def prepare() -> None:
    """Replaces `sys.stdin`, `sys.stdout` and `sys.stderr` where they are closed, and the latter two by safe ones."""
    for number, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            # Otherwise the next file or socket that is opened would be standard output.
            nowhere = os.open(os.devnull, mode)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = _safe(sys.stdout, 1, complain=True)
    sys.stderr = _safe(sys.stderr, 2, complain=False)


def _safe(stream: TextIO | None, number: int, *, complain: bool) -> TextIO:
    if stream is not None:
        stream.flush()
    raw = _Descriptor(number, complain=complain)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding="utf-8" if stream is None else stream.encoding,
        errors=REPLACE,
        line_buffering=number == 2 or raw.isatty(),
        write_through=bool(getattr(stream, "write_through", False)),
    )


class _Descriptor(io.FileIO):
    """A stream that never fails: it discards what cannot be written.

    Where it `complain`s, the first failure that is no reader's departure raises `OutputUnwritable`.
    """

    def __init__(self, number: int, *, complain: bool) -> None:
        super().__init__(number, "wb", closefd=False)
        self._complain = complain
        self.reader_left = False

    def write(self, data: object, /) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except BrokenPipeError:
            self.reader_left = True
            self._discard_the_rest()
        except BlockingIOError:
            raise
        except OSError as error:
            self._discard_the_rest()
            if self._complain:
                raise OutputUnwritable(why=error.strerror or str(error)) from None
        return memoryview(data).nbytes  # type: ignore[arg-type]

    def _discard_the_rest(self) -> None:
        """Discards also what child processes write, and what Python writes at exit."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


def reader_left() -> bool:
    """Whether the reader of standard output has gone away, so that what is written is discarded."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return isinstance(raw, _Descriptor) and raw.reader_left


@contextmanager
def flushed() -> Iterator[None]:
    """Writes buffered output when the block ends. Raises `OutputUnwritable`."""
    try:
        yield
    finally:
        sys.stdout.flush()
