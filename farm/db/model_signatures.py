"""Which files of model versions were signed, and by which key: the record that signatures in the registry are held against."""

from __future__ import annotations

from sqlalchemy import Connection, text

_STORE = text("""
INSERT INTO model_signatures (model, version, manifest, public_key, signature)
VALUES (:model, :version, :manifest, :public_key, :signature)
ON CONFLICT (model, version) DO UPDATE SET
    manifest = excluded.manifest, public_key = excluded.public_key, signature = excluded.signature, signed_at = clock_timestamp()
""")


def store(connection: Connection, model: str, version: str, *, manifest: str, public_key: str, signature: str) -> None:
    """Records a version. A version that is signed again replaces its record."""
    values = {"manifest": manifest, "public_key": public_key, "signature": signature}
    connection.execute(_STORE, {"model": model, "version": int(version), **values})


_MANIFEST = text("SELECT manifest FROM model_signatures WHERE model = :model AND version = :version")


def manifest_of(connection: Connection, model: str, version: str) -> str | None:
    """The SHA-256 of the manifest that is on record for a version."""
    return connection.execute(_MANIFEST, {"model": model, "version": int(version)}).scalar_one_or_none()
