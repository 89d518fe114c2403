"""Signatures of model versions, and their verification.

A version is loaded only if its name, its number and the hashes of its files are signed with a trusted key. The signature is a
tag of the version, so a program without the database can check it. The database records it too: a program with the database
refuses a version without a record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from farm.errors import ModelNotTrusted
from farm.settings import Settings

if TYPE_CHECKING:
    from sqlalchemy import Engine

TAG = "farm.signature"
"""The tag of a model version that holds its signature as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """The signature of a version."""

    # SHA-256 of its manifest.
    manifest: str
    public_key: str
    signature: str

    def to_tag(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_tags(cls, tags: Mapping[str, str]) -> Signature | None:
        """None where a version has no such tag, or one that this code cannot read."""
        try:
            found = json.loads(tags.get(TAG, ""))
            made = cls(**{name: found[name] for name in cls.__slots__})
        except (ValueError, TypeError, LookupError, RecursionError):
            return None
        return made if all(isinstance(value, str) for value in asdict(made).values()) else None


def _statement(name: str, version: str, manifest: str) -> bytes:
    return json.dumps({"name": name, "version": version, "manifest": manifest}, sort_keys=True).encode()


class Trust:
    """Signs and checks versions with the keys in the settings and, if given, the records in the database."""

    def __init__(self, settings: Settings, engine: Engine | None = None) -> None:
        self._settings = settings
        self._engine = engine

    def sign(self, name: str, version: str, manifest: str) -> Signature:
        """Signs a version with the key of this host. Raises `BadSigningKey`."""
        from farm.signing import Purpose
        from farm.signing_keys import signer

        key = signer(self._settings, Purpose.MODEL)
        signature = key.sign(Purpose.MODEL, _statement(name, version, manifest))
        return Signature(manifest=manifest, public_key=key.public, signature=signature)

    def record(self, name: str, version: str, signature: Signature) -> None:
        """Stores a signature in the database, in place of an earlier one."""
        if self._engine is not None:
            from farm.db import model_signatures

            with self._engine.begin() as connection:
                model_signatures.store(connection, name, version, **asdict(signature))

    def check(self, name: str, version: str, signature: Signature | None) -> str:
        """Checks a signature and returns the SHA-256 of the version's manifest. Raises `ModelNotTrusted`."""
        from farm.signing import Purpose, is_signed
        from farm.signing_keys import trusted

        def refused(why: str) -> ModelNotTrusted:
            return ModelNotTrusted(name=name, version=version, why=why)

        if signature is None:
            raise refused("it is not signed")
        content = _statement(name, version, signature.manifest)
        if not is_signed(trusted(self._settings, Purpose.MODEL), Purpose.MODEL, content, signature.signature):
            raise refused(
                f"its signature, which names the key {signature.public_key[:44]}, is by none of the keys that are trusted here"
            )
        if self._engine is not None:
            from farm.db import model_signatures

            with self._engine.connect() as connection:
                recorded = model_signatures.manifest_of(connection, name, version)
            if recorded != signature.manifest:
                raise refused(
                    "the database has no record of it" if recorded is None else "the database has other files on record"
                )
        return signature.manifest
