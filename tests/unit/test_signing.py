"""Signatures on models and kernels."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import ValidationError

from farm import signing_keys
from farm.settings import Settings
from farm.signing import BadPublicKey, BadSigningKey, Purpose, Signer, is_signed
from support.commands import NOWHERE, farm_here


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return Signer.make(tmp_path / "key.pem")


def test_what_was_signed_is_known_by_the_public_key(signer: Signer, tmp_path: Path) -> None:
    signature = Signer.load(tmp_path / "key.pem").sign(Purpose.MODEL, b"content")
    other = Signer.make(tmp_path / "other.pem")
    assert is_signed([other.public, signer.public], Purpose.MODEL, b"content", signature)
    assert not is_signed([signer.public], Purpose.MODEL, b"other content", signature)
    assert not is_signed([signer.public], Purpose.KERNEL, b"content", signature)
    assert not is_signed([other.public], Purpose.MODEL, b"content", signature)
    assert not is_signed([], Purpose.MODEL, b"content", signature)


@pytest.mark.parametrize("signature", ["", "no base64!", "QUJD", "ü" * 88])
def test_what_is_no_signature_is_none(signer: Signer, signature: str) -> None:
    assert not is_signed([signer.public], Purpose.MODEL, b"content", signature)


@pytest.mark.parametrize("key", ["", "QUJD", "no base64!"])
def test_what_is_no_public_key_is_said(key: str) -> None:
    with pytest.raises(BadPublicKey, match="is not a public key"):
        is_signed([key], Purpose.MODEL, b"", "")


def test_a_key_is_readable_by_its_owner_alone_and_never_overwritten(signer: Signer, tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    assert file.stat().st_mode & 0o777 == 0o600
    before = file.read_bytes()
    with pytest.raises(BadSigningKey, match="already"):
        Signer.make(file)
    assert file.read_bytes() == before
    file.chmod(0o640)
    with pytest.raises(BadSigningKey, match="chmod 600"):
        Signer.load(file)


def test_a_file_that_is_no_key_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    with pytest.raises(BadSigningKey, match="No such file"):
        Signer.load(file)
    file.write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    file.chmod(0o600)
    with pytest.raises(BadSigningKey, match=r"key\.pem"):
        Signer.load(file)


def here(tmp_path: Path, **changes: str | Path) -> Settings:
    return Settings.model_validate({"home": tmp_path / "home", "model_signing_key": None, **changes})


@pytest.mark.parametrize("purpose", Purpose)
def test_a_home_makes_its_own_key_once_and_trusts_it(tmp_path: Path, purpose: Purpose) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(lambda _: signing_keys.signer(here(tmp_path), purpose).public, range(16)))
    assert [*made] == signing_keys.trusted(here(tmp_path), purpose)
    folder = tmp_path / "home" / "keys"
    assert [file.name for file in folder.iterdir()] == [f"{purpose.value}.pem"]
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_host_trusts_the_keys_that_it_is_told_and_makes_none(tmp_path: Path) -> None:
    builders = [Signer.make(tmp_path / name).public for name in ("one.pem", "two.pem")]
    told = here(tmp_path, kernel_keys=", ".join(builders))
    assert signing_keys.trusted(told, Purpose.KERNEL) == builders
    assert not told.home.exists()
    assert signing_keys.trusted(told, Purpose.MODEL) == [signing_keys.signer(told, Purpose.MODEL).public]


def test_who_signs_with_a_key_of_its_own_trusts_it(tmp_path: Path) -> None:
    own, other = Signer.make(tmp_path / "own.pem"), Signer.make(tmp_path / "other.pem")
    told = here(tmp_path, kernel_keys=other.public, kernel_signing_key=tmp_path / "own.pem")
    assert signing_keys.signer(told, Purpose.KERNEL).public == own.public
    assert signing_keys.trusted(told, Purpose.KERNEL) == [other.public, own.public]


def test_a_setting_that_is_no_public_key_is_refused() -> None:
    with pytest.raises(ValidationError, match="is not the 44 characters"):
        Settings(kernel_keys="abc")


def test_the_command_makes_a_key_and_lists_those_that_are_trusted(tmp_path: Path) -> None:
    command = farm_here(tmp_path, NOWHERE)
    made = command("keys", "make", str(tmp_path / "key.pem"), "--json")
    public = Signer.load(tmp_path / "key.pem").public
    assert json.loads(made.stdout)["public_key"] == public
    again = command("keys", "make", str(tmp_path / "key.pem"))
    assert again.returncode == 2
    assert "already" in again.stderr
    listed = command("keys", "--json", FARM_KERNEL_KEYS=public)
    assert [one["for"] for one in json.loads(listed.stdout)] == ["model", "kernel", "kernel", "publication"]
    assert {"for": "kernel", "key": public, "own": False} in json.loads(listed.stdout)
