"""The settings of an OpenID provider: mistakes are one message that names each, and groups give the strongest role."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import pytest
from pydantic import SecretStr

from farm.db.states import Role
from farm.settings import Settings
from farm.web.oidc.configuration import BadOidcSettings, configured

GOOD: dict[str, Any] = {
    "public_url": "https://farm.example",
    "oidc_issuer": "https://id.example/realms/gpu",
    "oidc_client_id": "gemm-farm",
    "oidc_roles": "admins=admin, gpu=submit",
}


def test_no_issuer_is_no_provider() -> None:
    assert configured(Settings()) is None


def test_good_settings_name_the_provider_by_its_host() -> None:
    found = configured(Settings(**GOOD, oidc_client_secret=SecretStr("hidden")))
    assert found is not None
    assert (found.name, found.url, str(found.origin)) == (
        "id.example",
        "https://farm.example",
        "https://farm.example:443",
    )
    assert found.roles == (("admins", Role.ADMIN), ("gpu", Role.SUBMIT))
    assert "hidden" not in repr(found)
    assert pickle.loads(pickle.dumps(found)) == found  # for the processes of expensive operations


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"oidc_issuer": None}, "FARM_OIDC_CLIENT_ID, FARM_OIDC_ROLES without FARM_OIDC_ISSUER"),
        ({"oidc_client_id": None}, "FARM_OIDC_CLIENT_ID is missing"),
        ({"public_url": None}, "FARM_PUBLIC_URL is missing"),
        ({"oidc_roles": ""}, "FARM_OIDC_ROLES is missing"),
        ({"oidc_roles": "gpu=submitter"}, "'submitter' in 'gpu=submitter' is no role. Roles are read, submit"),
        ({"oidc_roles": "gpu"}, "'gpu' is no group and role"),
        ({"oidc_roles": "=read"}, "'=read' is no group and role"),
        ({"oidc_roles": "gpu=read,gpu=submit"}, "'gpu' is there twice"),
        ({"oidc_scopes": "profile"}, "FARM_OIDC_SCOPES lacks openid"),
        ({"oidc_issuer": "http://id.example"}, "FARM_OIDC_ISSUER must begin with https://"),
        ({"oidc_issuer": "id.example"}, "FARM_OIDC_ISSUER is no URL"),
        ({"oidc_issuer": "https://[id"}, "FARM_OIDC_ISSUER is no URL"),
        ({"oidc_issuer": "https://id.example:x"}, "FARM_OIDC_ISSUER is no URL"),
        ({"oidc_issuer": "https://u:p@id.example"}, "FARM_OIDC_ISSUER must have no user"),
        ({"public_url": "http://farm.example"}, "FARM_PUBLIC_URL must begin with https://"),
        ({"public_url": "https://farm.example/gemm"}, "FARM_PUBLIC_URL has a path"),
        ({"public_url": "https://farm.example/?a"}, "FARM_PUBLIC_URL must have no user, query or fragment"),
    ],
)
def test_a_mistake_is_one_message_that_names_it(change: dict[str, Any], named: str) -> None:
    settings = {name: value for name, value in {**GOOD, **change}.items() if value is not None}
    with pytest.raises(BadOidcSettings) as refused:
        configured(Settings(**settings))
    assert named in str(refused.value)
    assert str(refused.value).count("\n- ") <= 1


def test_all_mistakes_are_in_one_message() -> None:
    with pytest.raises(BadOidcSettings) as refused:
        configured(Settings(oidc_issuer="http://id.example", oidc_roles="gpu=boss,x"))
    text = str(refused.value)
    assert all(one in text for one in ("ISSUER must", "CLIENT_ID is", "PUBLIC_URL is", "'boss'", "'x' is no"))


@pytest.mark.parametrize(
    ("roles", "groups", "expected"),
    [
        ("gpu=submit,ops=operate,all=read", ("all", "ops", "gpu"), Role.OPERATE),
        ("gpu=submit", (), None),
        ("gpu=submit", ("GPU", "gpu "), None),
        ("*=read,gpu=submit", ("x",), Role.READ),
        ("*=read,gpu=submit", ("gpu",), Role.SUBMIT),
        ("cn=gpu,ou=x=submit;cn=ops,ou=x=operate", ("cn=ops,ou=x",), Role.OPERATE),
    ],
)
def test_the_strongest_role_of_all_groups_counts(roles: str, groups: tuple[str, ...], expected: Role | None) -> None:
    found = configured(Settings(**{**GOOD, "oidc_roles": roles}))
    assert found is not None
    assert found.role_of(groups) is expected


def test_nothing_of_openid_is_imported_without_a_provider() -> None:
    program = (
        "import sys, farm.web.app, farm.web.pages, farm.cli.serve, farm.web.oidc.configuration\n"
        "print([one for one in sys.modules if one.split('.')[0] in ('authlib', 'joserfc') or one == 'farm.web.oidc.provider'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
