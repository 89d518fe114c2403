"""Signatures on models and kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.signing import BadPublicKey, BadSigningKey, Purpose, Signer, is_signed


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
