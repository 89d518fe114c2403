"""Signing keys of this host, and the public keys that it trusts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from farm.settings import Settings
from farm.signing import BadSigningKey, Purpose, Signer

FOLDER = "keys"
"""Folder of this host's own keys, in the home."""

_SIGNING_KEYS: Mapping[Purpose, str] = {
    Purpose.MODEL: "model_signing_key",
    Purpose.KERNEL: "kernel_signing_key",
    Purpose.PUBLICATION: "publish_signing_key",
}
_TRUSTED_KEYS: Mapping[Purpose, str] = {
    Purpose.MODEL: "model_keys",
    Purpose.KERNEL: "kernel_keys",
    Purpose.PUBLICATION: "publish_keys",
}


def signer(settings: Settings, purpose: Purpose) -> Signer:
    """The key of the setting, or the home's own key, which is created at first use. Raises `BadSigningKey`."""
    named: Path | None = getattr(settings, _SIGNING_KEYS[purpose])
    if named is not None:
        return Signer.load(named)
    file = _own(settings, purpose)
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BadSigningKey(file=file, why=error.strerror) from None
    return Signer.load_or_make(file)


def trusted(settings: Settings, purpose: Purpose) -> list[str]:
    """The known public keys; if there are none, this host's own key, created if it is missing.

    Raises `BadSigningKey`.
    """
    return known(settings, purpose) or [signer(settings, purpose).public]


def known(settings: Settings, purpose: Purpose) -> list[str]:
    """The public keys of the setting, and this host's own key if it exists. Raises `BadSigningKey`."""
    keys = [key for key in getattr(settings, _TRUSTED_KEYS[purpose]).replace(",", " ").split() if key]
    if getattr(settings, _SIGNING_KEYS[purpose]) is not None or _own(settings, purpose).exists():
        keys.append(signer(settings, purpose).public)
    return list(dict.fromkeys(keys))


def _own(settings: Settings, purpose: Purpose) -> Path:
    return settings.home.absolute() / FOLDER / f"{purpose.value}.pem"
