"""What `farm hosts add` prints for a host: enough to connect, and no password but those of the host."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from farm import signing_keys
from farm.errors import BadServiceUrl
from farm.services import host_settings, urls
from farm.services.host_settings import HostSetting
from farm.settings import Settings
from farm.signing import Purpose, Signer

LOGIN = "farm_host_gpu-7"
KEY = "A" * 43 + "="


def of_database(url: str, password: str | None = "made") -> HostSetting:
    return host_settings.database(urls.database_url(url), name="gpu-7", login=LOGIN, password=password, database="farm")


def of_broker(url: str | None, password: str | None = "of/workers") -> HostSetting:
    given = Settings.model_construct(
        broker_url=None if url is None else SecretStr(url),
        redis_worker_password=None if password is None else SecretStr(password),
    )
    return host_settings.broker(given, name="gpu-7")


def of_keys(home: Path, kernel_keys: str = "", file: Path | None = None) -> HostSetting:
    return host_settings.kernel_keys(
        Settings.model_construct(home=home, kernel_keys=kernel_keys, kernel_signing_key=file)
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("postgresql://farm_owner:secret@db.example:5432/farm", f"postgresql://{LOGIN}:made@db.example:5432/farm"),
        ("postgresql://db.example/?user=farm_owner&password=secret", f"postgresql://{LOGIN}:made@db.example/farm"),
        (
            "postgresql://farm_owner:secret@db.example/farm?sslmode=verify-full&sslrootcert=system&sslkey=secret&"
            "sslpassword=secret&passfile=secret&options=-c%20a.b%3Dsecret",
            f"postgresql://{LOGIN}:made@db.example/farm?sslmode=verify-full&sslrootcert=system",
        ),
        (
            "postgresql://farm_owner:secret@/farm?host=db1.example,db2.example&target_session_attrs=read-write",
            f"postgresql://{LOGIN}:made@/farm?host=db1.example%2Cdb2.example&target_session_attrs=read-write",
        ),
    ],
)
def test_a_host_gets_address_and_tls_of_the_owners_url_with_its_own_login(given: str, expected: str) -> None:
    assert of_database(given) == HostSetting(variable="FARM_DATABASE_URL", value=expected)


@pytest.mark.parametrize(
    ("given", "note"),
    [
        ("postgresql://o:secret@/farm", "HOST in FARM_DATABASE_URL is the address at which gpu-7 reaches Postgres"),
        ("postgresql://o:secret@localhost/farm", "localhost in FARM_DATABASE_URL is known on this machine only"),
        ("postgresql://o:secret@postgres:5432/farm", "postgres in FARM_DATABASE_URL is known on this machine only"),
        ("postgresql://o:secret@/farm?host=/run/pg", "/run/pg in FARM_DATABASE_URL is known on this machine only"),
        ("postgresql://o:secret@db.example/farm?host=::1", "::1 in FARM_DATABASE_URL is known on this machine only"),
        (
            "postgresql://o:secret@db.example/farm?sslrootcert=/etc/farm/ca.pem",
            "/etc/farm/ca.pem in FARM_DATABASE_URL is a file that gpu-7 must have too",
        ),
    ],
)
def test_what_a_host_cannot_use_of_the_database_url_is_named(given: str, note: str) -> None:
    (found,) = of_database(given).notes
    assert found.startswith(note)
    assert "secret" not in found


def test_the_password_of_a_login_that_exists_is_left_to_fill_in() -> None:
    found = of_database("postgresql://farm_owner:secret@db.example/farm", password=None)
    assert found.value == f"postgresql://{LOGIN}:PASSWORD@db.example/farm"
    (note,) = found.notes
    assert note.endswith("If it is lost: farm hosts revoke gpu-7, then farm hosts add gpu-7")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            "redis://farm_coordinator:secret@redis.example:6379/0",
            "redis://farm_worker:of%2Fworkers@redis.example:6379/0",
        ),
        ("redis://:secret@redis.example/2", "redis://farm_worker:of%2Fworkers@redis.example/2"),
        ("redis://redis.example?password=secret&username=x", "redis://farm_worker:of%2Fworkers@redis.example"),
        (
            "rediss://farm_coordinator:secret@[2001:db8::1]:6379/0?ssl_keyfile=secret",
            "rediss://farm_worker:of%2Fworkers@[2001:db8::1]:6379/0?ssl_cert_reqs=required",
        ),
    ],
)
def test_a_host_gets_the_workers_user_of_redis_and_not_that_of_the_coordinator(given: str, expected: str) -> None:
    found = of_broker(given)
    assert found == HostSetting(variable="FARM_BROKER_URL", value=expected)
    assert urls.broker_url(found.value) == found.value


@pytest.mark.parametrize("given", [None, "redis+socket://:secret@/run/redis.sock?virtual_host=3"])
def test_a_redis_without_an_address_is_left_to_fill_in(given: str | None) -> None:
    found = of_broker(given)
    assert found.value == f"redis://farm_worker:of%2Fworkers@HOST:6379/{3 if given else 0}"
    assert found.notes == ("HOST in FARM_BROKER_URL is the address at which gpu-7 reaches Redis",)


def test_an_unknown_password_of_redis_and_its_certificates_are_named() -> None:
    found = of_broker("rediss://farm_coordinator:secret@127.0.0.1:6379/0?ssl_ca_certs=/etc/farm/ca.pem", password=None)
    options = "ssl_ca_certs=/etc/farm/ca.pem&ssl_cert_reqs=required"
    assert found.value == f"rediss://farm_worker:PASSWORD@127.0.0.1:6379/0?{options}"
    address, password, file = found.notes
    assert address.startswith("127.0.0.1 in FARM_BROKER_URL is known on this machine only")
    assert "REDIS_WORKER_PASSWORD in .env" in password
    assert "farm redis users" in password
    assert file == "/etc/farm/ca.pem in FARM_BROKER_URL is a file that gpu-7 must have too"


def test_a_broker_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(BadServiceUrl):
        of_broker("amqp://:secret@redis.example")


def test_public_keys_are_those_that_are_trusted_here(tmp_path: Path) -> None:
    assert of_keys(tmp_path, f"{KEY} {KEY}") == HostSetting(variable="FARM_KERNEL_KEYS", value=KEY)
    own = Signer.make(tmp_path / "builder.pem").public
    assert of_keys(tmp_path, KEY, tmp_path / "builder.pem").value == f"{KEY},{own}"


def test_a_key_that_is_not_known_is_left_to_fill_in_and_none_is_made(tmp_path: Path) -> None:
    found = of_keys(tmp_path)
    assert found.value == "KEY"
    assert "farm keys" in found.notes[0]
    assert list(tmp_path.iterdir()) == []


def test_the_key_of_this_machine_alone_is_said_to_be_that(tmp_path: Path) -> None:
    own = signing_keys.signer(Settings.model_construct(home=tmp_path, kernel_signing_key=None), Purpose.KERNEL).public
    found = of_keys(tmp_path)
    assert found.value == own
    assert found.notes[0].startswith("FARM_KERNEL_KEYS is this machine's key")
