"""Ed25519 signatures of models, built kernels and published folders.

The producer has a private key: a PEM file (PKCS 8) that only the producer can read. The user knows the public keys as text: the 32 bytes of
RFC 8032 in base64. A signature includes a purpose, so a signature of a model is not valid for a kernel.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import stat
import threading
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from farm.errors import BadInput, first_line


class Purpose(StrEnum):
    """What a signature is for."""

    MODEL = "model"
    KERNEL = "kernel"
    PUBLICATION = "publication"


class BadSigningKey(BadInput):
    """The signing key {file} cannot be used: {why}."""


class BadPublicKey(BadInput):
    """{key!r} is not a public key: it must be the 44 characters that `farm keys make` printed."""


class Signer:
    """A private key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def make(cls, file: Path) -> Signer:
        """Creates a key in a file that only this user can read. Raises `BadSigningKey`."""
        key = Ed25519PrivateKey.generate()
        content = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as out:
                out.write(content)
                out.flush()
                os.fsync(out.fileno())
        except FileExistsError:
            raise BadSigningKey(file=file, why="there is a file of that name already") from None
        except OSError as error:
            raise BadSigningKey(file=file, why=error.strerror) from None
        return cls(key)

    @classmethod
    def load_or_make(cls, file: Path) -> Signer:
        """The key in that file, created if it is missing. Concurrent callers get the same key."""
        if not file.exists():
            draft = file.with_name(f".{file.name}.{os.getpid()}-{threading.get_ident()}")
            try:
                cls.make(draft)
                with contextlib.suppress(FileExistsError):  # another process was first
                    os.link(draft, file)
            except OSError as error:
                raise BadSigningKey(file=file, why=error.strerror) from None
            finally:
                draft.unlink(missing_ok=True)
        return cls.load(file)

    @classmethod
    def load(cls, file: Path) -> Signer:
        """Reads a key. Raises `BadSigningKey`, also where other users can read the file."""
        try:
            with file.open("rb") as opened:
                found = os.fstat(opened.fileno())
                if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                    raise BadSigningKey(file=file, why=f"other users have access to it. Run: chmod 600 {file}")
                key = load_pem_private_key(opened.read(10_000), password=None)
        except OSError as error:
            raise BadSigningKey(file=file, why=error.strerror) from None
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise BadSigningKey(file=file, why=first_line(error)) from None
        if not isinstance(key, Ed25519PrivateKey):
            raise BadSigningKey(file=file, why="it is not an Ed25519 key")
        return cls(key)

    @property
    def public(self) -> str:
        """The public key, 44 characters of base64."""
        return base64.b64encode(self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()

    def sign(self, purpose: Purpose, content: bytes) -> str:
        """The signature, 88 characters of base64."""
        return base64.b64encode(self._key.sign(_signed(purpose, content))).decode()


def is_signed(public_keys: Iterable[str], purpose: Purpose, content: bytes, signature: str) -> bool:
    """Whether the signature on that content is by one of these keys. Raises `BadPublicKey` for what is no key."""
    try:
        given = base64.b64decode(signature, validate=True)
    except (binascii.Error, ValueError):
        return False
    return any(_is_by(_public_key(key), given, _signed(purpose, content)) for key in public_keys)


def _public_key(text: str) -> Ed25519PublicKey:
    try:
        return Ed25519PublicKey.from_public_bytes(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        raise BadPublicKey(key=text) from None


def _is_by(key: Ed25519PublicKey, signature: bytes, content: bytes) -> bool:
    try:
        key.verify(signature, content)
    except InvalidSignature:
        return False
    return True


def _signed(purpose: Purpose, content: bytes) -> bytes:
    return f"gemm-farm {purpose.value}\0".encode() + content
