"""Signatures of model versions: the record that signatures in the registry are compared with."""

from __future__ import annotations

from sqlalchemy import Connection, text

_STORE = text("""
INSERT INTO model_signatures (model, version, manifest, public_key, signature)
VALUES (:model, :version, :manifest, :public_key, :signature)
ON CONFLICT (model, version) DO UPDATE SET
    manifest = excluded.manifest, public_key = excluded.public_key, signature = excluded.signature, signed_at = clock_timestamp()
""")


def store(connection: Connection, model: str, version: str, *, manifest: str, public_key: str, signature: str) -> None:
    """Stores the signature of a version. A new signature replaces the old one."""
    values = {"manifest": manifest, "public_key": public_key, "signature": signature}
    connection.execute(_STORE, {"model": model, "version": int(version), **values})


_MANIFEST = text("SELECT manifest FROM model_signatures WHERE model = :model AND version = :version")


def manifest_of(connection: Connection, model: str, version: str) -> str | None:
    """The recorded SHA-256 of the manifest of a version."""
    return connection.execute(_MANIFEST, {"model": model, "version": int(version)}).scalar_one_or_none()
