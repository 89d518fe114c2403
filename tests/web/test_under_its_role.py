"""`farm serve` under the database role that is its own: every operation works, for whom its token lets do it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import Engine, text

from farm import signing_keys
from farm.api import OPERATIONS, Operation
from farm.api.kernels import BuiltKernel
from farm.db import roles
from farm.db.engine import ASKING, make_engine
from farm.db.service_roles import Service
from farm.db.states import Role
from farm.services import ServiceUrls
from farm.settings import settings
from farm.signing import Purpose
from support.api_farm import KERNEL, Asking, Served, access_to, fill, operation_called, told
from support.kernel_builds import built_of
from support.model_records import record_models
from support.shared_server import urls_of_roles

RECORDING = Path(__file__).parents[2] / "examples/datasets/nvidia-h200-paper-all-tiles.parquet"


@pytest.fixture(scope="session")
def farm_services(services_of_the_owner: ServiceUrls) -> ServiceUrls:
    return services_of_the_owner


@pytest.fixture
def served(engine: Engine, database_url: str, api_registry: str) -> Iterator[Served]:
    """A filled farm whose server has the role of the web. Tokens are made by the owner."""
    fill(engine)
    record_models(api_registry, engine)
    under = make_engine(urls_of_roles(database_url)[Service.WEB], application="test", session=ASKING)
    with Served(access_to(under, under.url.render_as_string(hide_password=False), api_registry), tokens=True) as made:
        made.engine = engine
        for role in Role:
            made.make(role.value, role)
        yield made
    under.dispose()


def _who(asked: Operation) -> str:
    """The campaigns are somebody else's, so that the role operate is needed to steer them."""
    return Role.OPERATE.value if asked.role is Role.SUBMIT else asked.role.value


def test_every_operation_works_but_those_that_need_the_owner(served: Served) -> None:
    failed, refused = {}, set()
    for known in OPERATIONS.values():
        answer = served.asking(_who(known)).ask(known)
        if known.privileged and answer.status_code == 503:
            assert told(answer)["kind"] == "RightMissing", known.name
            refused.add(known.name)
        elif answer.status_code >= 500 or answer.status_code in (401, 403):
            failed[known.name] = answer.text[:300]
    assert failed == {}
    assert refused == {"audit_trim", "hosts_list", "hosts_revoke", "tokens_create", "tokens_revoke"}


def test_it_stores_no_kernel(served: Served) -> None:
    """Not even a signed one: only builders and the owner say what the code of a kernel is."""
    built = built_of(KERNEL).signed(signing_keys.signer(settings(), Purpose.KERNEL))
    answer = served.asking("operate").ask(
        operation_called("kernels_add"), {"built_kernel": BuiltKernel.of(built).model_dump()}
    )
    assert answer.status_code == 503, answer.text
    assert "permission denied for table kernel_code" in told(answer)["message"]


CHANGES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("campaigns_submit", {}),
    ("campaigns_pause", {"campaign": "asked"}),
    ("campaigns_resume", {"campaign": "asked"}),
    ("campaigns_cancel", {"campaign": "asked"}),
    ("jobs_retry", {"campaign": "small", "choice": {"kind": "failed"}}),
    ("devices_drain", {}),
    ("devices_resume", {}),
    ("devices_quarantine", {}),
    ("deletions_restore", {}),
    ("deletions_delete", {"deletion": {"kind": "campaign", "name": "done", "cancel": True}}),
    ("deletions_restore", {"restoring": {"kind": "campaign", "name": "done"}}),
    ("deletions_delete", {"deletion": {"kind": "campaign", "name": "done", "cancel": True}}),
    ("trainings_request", {}),
    ("sessions_revoke", {}),
    ("imports_import", {"upload": RECORDING.read_bytes()}),
    ("deletions_vacuum", {"limits": {"older_than_s": 0, "dry_run": False}}),
)


def test_what_it_changes_is_changed(served: Served) -> None:
    for name, given in CHANGES:
        known = operation_called(name)
        answer = served.asking(_who(known)).ask(known, given)
        assert answer.status_code < 300, f"{name}: {answer.text}"
    with served.engine.connect() as connection:
        assert connection.execute(text("SELECT state FROM campaigns WHERE name = 'asked'")).scalar_one() == "cancelled"
        assert connection.execute(text("SELECT count(*) FROM measurements WHERE source = 'imported'")).scalar_one()
        assert connection.execute(text("SELECT count(*) FROM deletions")).scalar_one() == 0
        assert connection.execute(text("SELECT last_used_at FROM tokens WHERE name = 'operate'")).scalar_one()


@pytest.fixture
def of_the_owner(engine: Engine, database_url: str, api_registry: str) -> Iterator[Asking]:
    """An administrator of a farm whose server has the role of the owner."""
    access = access_to(engine, database_url, api_registry)
    access.settings = access.settings.model_copy(update={"database_url": SecretStr(database_url)})
    with Served(access, tokens=True) as made:
        made.make("admin", Role.ADMIN)
        yield made.asking("admin")


def test_under_the_owner_a_host_gets_its_settings_once_and_is_revoked(
    of_the_owner: Asking, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "farm")

    def ask(operation: str, **given: Any) -> Any:
        answer = of_the_owner.ask(operation_called(operation), given)
        assert answer.status_code == 200, answer.text
        return answer.json()

    new_host = {"name": "gpu-7", "prefix": "apitest"}
    added = ask("hosts_add", new_host=new_host)
    password = added["password"]
    assert added["login"] == "apitest_host_gpu-7"
    assert [one["variable"] for one in added["settings"]] == [
        "FARM_DATABASE_URL", "FARM_BROKER_URL", "FARM_KERNEL_KEYS",
    ]  # fmt: skip
    assert password in added["settings"][0]["value"]
    again = ask("hosts_add", new_host=new_host)
    assert (again["new"], again["password"]) == (False, None)
    assert [one["host"] for one in ask("hosts_list")] == ["gpu-7"]
    assert ask("hosts_revoke", host="gpu-7")["logins"] == ["apitest_host_gpu-7"]
    with engine.connect() as connection:
        assert not roles.exists(connection, "apitest_host_gpu-7")
        rows = connection.execute(text("SELECT CAST(to_jsonb(audit) AS text) FROM audit ORDER BY id")).scalars().all()
    assert '"hosts_revoke"' in rows[-1]
    assert not [kept for kept in (caplog.text, *rows) if password in kept]
