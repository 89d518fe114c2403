"""Tokens: made once, known by a hash, valid until they expire or are revoked (who reads them: test_roles)."""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from farm.db import tokens
from farm.db.states import Role
from farm.db.tokens import BadLifetime, BadTokenName, NoSuchToken, TokenExists
from support.commands import farm_here, refused


def holder(engine: Engine, token: str) -> tokens.Bearer | None:
    with engine.begin() as connection:
        return tokens.bearer(connection, token)


def make(engine: Engine, name: str = "ann", role: Role = Role.READ, lifetime: timedelta | None = None) -> str:
    with engine.begin() as connection:
        return tokens.create(connection, name, role, by="bob", lifetime=lifetime)


@pytest.mark.parametrize("role", Role)
def test_who_holds_a_token_is_known_by_it(engine: Engine, role: Role) -> None:
    token = make(engine, "ann", role)
    found = holder(engine, token)
    assert found is not None
    assert (found.name, found.role) == ("ann", role)


def test_a_token_has_256_bits_and_a_beginning_to_be_found_by(engine: Engine) -> None:
    one, other = make(engine, "one"), make(engine, "other")
    assert one.startswith("gfarm_")
    assert len(one) == len("gfarm_") + 43  # 32 bytes in base 64
    assert one != other


def test_of_a_token_its_hash_alone_is_kept(engine: Engine) -> None:
    token = make(engine)
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT tokens.*, CAST(to_jsonb(tokens) AS text) AS written FROM tokens")).all()
    assert rows[0].sha256 == hashlib.sha256(token.encode()).digest()
    assert token not in rows[0].written
    assert token.removeprefix("gfarm_") not in rows[0].written


def test_something_like_a_token_is_none(engine: Engine) -> None:
    token = make(engine)
    for wrong in (
        "",
        "gfarm_",
        token[:-1],
        token + "x",
        token.upper(),
        token.removeprefix("gfarm_"),
        "\x00",
        "%",
        "\ud7ff",
    ):
        assert holder(engine, wrong) is None


def test_a_token_ends_when_its_time_is_over_and_not_before(engine: Engine) -> None:
    token = make(engine, lifetime=timedelta(hours=2))
    assert holder(engine, token) is not None
    for age, held in (("119 min", True), ("121 min", False)):
        with engine.begin() as connection:
            connection.execute(
                text("UPDATE tokens SET expires_at = clock_timestamp() + interval '2 h' - CAST(:age AS interval)"),
                {"age": age},
            )
        assert (holder(engine, token) is not None) is held


@pytest.mark.parametrize(
    "lifetime", [timedelta(), timedelta(seconds=-1), timedelta(days=36_501), timedelta(days=3_000_000)]
)
def test_a_lifetime_that_makes_no_sense_is_refused(engine: Engine, lifetime: timedelta) -> None:
    with pytest.raises(BadLifetime, match="36,500 days"):
        make(engine, lifetime=lifetime)


def test_a_revoked_token_is_none_and_its_name_is_free_again(engine: Engine) -> None:
    old = make(engine)
    with pytest.raises(TokenExists, match="'ann' already"):
        make(engine)
    with engine.begin() as connection:
        tokens.revoke(connection, "ann")
    assert holder(engine, old) is None
    new = make(engine)
    assert holder(engine, old) is None
    assert holder(engine, new) is not None
    with engine.connect() as connection:
        assert [(token.name, token.valid) for token in tokens.list_tokens(connection)] == [
            ("ann", True),
            ("ann", False),
        ]


def test_one_that_is_not_there_cannot_be_revoked(engine: Engine) -> None:
    make(engine)
    with engine.begin() as connection, pytest.raises(NoSuchToken, match="Known: ann"):
        tokens.revoke(connection, "bob")


@pytest.mark.parametrize("name", ["", " ", "-x", "a b", "a\n", "ann\x00", "x" * 101, "é", "{0}", "[red]"])
def test_names_are_plain(engine: Engine, name: str) -> None:
    with pytest.raises(BadTokenName):
        make(engine, name)


# --- the command -----------------------------------------------------------------------------------------


def test_the_command_shows_a_token_once(engine: Engine, database_url: str, tmp_path: Path) -> None:
    farm = farm_here(tmp_path, database_url)
    made = farm("tokens", "create", "ann", "--role", "submit", "--expires", "30d")
    assert made.returncode == 0, made.stderr
    token = made.stdout.strip()
    found = holder(engine, token)
    assert found is not None
    assert found.role is Role.SUBMIT
    assert token not in made.stderr
    assert "It is not shown again" in made.stderr
    for listed in (farm("tokens"), farm("tokens", "--json")):
        assert "ann" in listed.stdout
        assert token not in listed.stdout
        assert hashlib.sha256(token.encode()).hexdigest() not in listed.stdout
    (row,) = json.loads(farm("tokens", "--json").stdout)
    assert (row["role"], row["valid"], row["revoked_at"]) == ("submit", True, None)
    assert farm("tokens", "revoke", "ann").returncode == 0
    assert holder(engine, token) is None
    assert "revoked" in farm("tokens").stdout


def test_its_mistakes_are_told(engine: Engine, database_url: str, tmp_path: Path) -> None:
    farm = farm_here(tmp_path, database_url)
    refused(farm("tokens", "create", "a b"), 2, "cannot name a token")
    refused(farm("tokens", "create", "ann", "--expires", "soon"), 2, "is not a length of time")
    refused(farm("tokens", "create", "ann", "--expires", "0s"), 2, "for more than no time")
    refused(farm("tokens", "create", "ann", "--expires", "99999999w"), 2)
    refused(farm("tokens", "revoke", "ann"), 4, "There is no token 'ann'")
