"""The manifest of a version: its files with their hashes. It is signed, and each file is checked against it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

MANIFEST = "farm-manifest.json"
"""The file of a model that holds its manifest."""

MAX_MANIFEST_BYTES = 1 << 20
MAX_FILES = 2000
MAX_BYTES = 1 << 32
"""Limit for all files of a version together."""

_SHA256 = re.compile(r"[0-9a-f]{64}")


class BadManifest(ValueError):
    """A manifest, or a file for one, that no trainer produces."""


@dataclass(frozen=True, slots=True)
class File:
    """One file."""

    sha256: str
    size: int

    @classmethod
    def of(cls, content: bytes) -> File:
        return cls(hashlib.sha256(content).hexdigest(), len(content))


@dataclass(frozen=True, slots=True)
class Manifest:
    """Files by relative path with slashes: of the model, and of its run."""

    model: Mapping[str, File]
    run: Mapping[str, File]

    @classmethod
    def of(cls, model: Path, run: Path | None) -> Manifest:
        """The manifest of these folders. Raises `BadManifest` for a link or anything else that is not a file."""
        return cls(_files(model), {} if run is None else _files(run))

    def to_bytes(self) -> bytes:
        parts = {"model": self.model, "run": self.run}
        found = {
            part: {path: [file.sha256, file.size] for path, file in files.items()} for part, files in parts.items()
        }
        return json.dumps(found, sort_keys=True, indent=1).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Manifest:
        """Raises `BadManifest`."""
        try:
            found = json.loads(content)
            parts = {part: {path: File(*file) for path, file in found[part].items()} for part in ("model", "run")}
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise BadManifest(f"{MANIFEST} cannot be read: {error}") from None
        files: list[tuple[Any, File]] = [each for part in parts.values() for each in part.items()]
        for path, file in files:
            sound = isinstance(file.sha256, str) and _SHA256.fullmatch(file.sha256) and type(file.size) is int
            if not (sound and file.size >= 0 and is_safe(path)):
                raise BadManifest(f"{MANIFEST} names {path[:80]!r}, which is not a file of a model")
        if len(files) > MAX_FILES or sum(file.size for _, file in files) > MAX_BYTES:
            raise BadManifest(f"{MANIFEST} names more than {MAX_FILES:,} files or {MAX_BYTES:,} bytes")
        return cls(**parts)


def is_safe(path: str) -> bool:
    """Whether a relative path stays inside its folder on every operating system."""
    parts = path.split("/")
    return len(path) <= 400 and path.isprintable() and not re.search(r"[\\:]", path) and not {"", ".", ".."} & {*parts}


_PIECE_BYTES = 2**20


def read_file(path: Path, *, max_bytes: int) -> bytes:
    """The content of a regular file. Raises `BadManifest` for anything else, and `FileNotFoundError`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise BadManifest(f"{path.name} cannot be read: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as opened:
        found = os.fstat(opened.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise BadManifest(f"{path.name} is not a file")
        # In pieces: a single read allocates memory for all bytes first.
        content = bytearray()
        while len(content) <= max_bytes and (piece := opened.read(min(_PIECE_BYTES, max_bytes + 1 - len(content)))):
            content += piece
    if len(content) > max_bytes:
        raise BadManifest(f"{path.name} has more than {max_bytes:,} bytes")
    return bytes(content)


def _files(folder: Path) -> dict[str, File]:
    found: dict[str, File] = {}
    left = MAX_BYTES
    for path in sorted(folder.rglob("*")):
        name = PurePosixPath(path.relative_to(folder)).as_posix()
        if name == MANIFEST or "__pycache__" in path.parts or (path.is_dir() and not path.is_symlink()):
            continue
        if not is_safe(name) or path.is_symlink():
            raise BadManifest(f"{name!r} is a link, or not the name of a model's file")
        found[name] = File.of(read_file(path, max_bytes=left))
        left -= found[name].size
        if len(found) > MAX_FILES:
            raise BadManifest(f"{folder.name} has more than {MAX_FILES:,} files")
    return found
