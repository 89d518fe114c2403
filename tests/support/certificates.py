"""Certificates of servers that a test starts on loopback."""

from __future__ import annotations

import subprocess
from pathlib import Path


def certificate(folder: Path, name: str, *, address: str = "127.0.0.1") -> tuple[Path, Path]:
    """A certificate of that name and address that signs itself, and its key."""
    made, key = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
            "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name},IP:{address}", "-keyout", key, "-out", made,
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    return made, key
