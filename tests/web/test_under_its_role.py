"""`farm serve` under the database role that is its own: every operation works, for whom its token lets do it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, text

from farm.api import OPERATIONS, Operation
from farm.db.engine import ASKING, make_engine
from farm.db.service_roles import Service
from farm.db.states import Role
from farm.services import ServiceUrls
from support.api_farm import Served, access_to, fill, operation_called
from support.model_records import record_models
from support.shared_server import server_of_the_owner, urls_of_roles


@pytest.fixture(scope="module")
def farm_services() -> Iterator[ServiceUrls]:
    with server_of_the_owner() as urls:
        yield urls


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
    return Role.READ.value if asked.role is Role.READ else Role.OPERATE.value


def test_every_operation_works(served: Served) -> None:
    failed = {}
    for known in OPERATIONS.values():
        answer = served.asking(_who(known)).ask(known)
        if answer.status_code >= 500 or answer.status_code in (401, 403):
            failed[known.name] = answer.text[:300]
    assert failed == {}


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
    ("deletions_vacuum", {"limits": {"older_than_s": 0, "dry_run": False}}),
)


def test_what_it_changes_is_changed(served: Served) -> None:
    for name, given in CHANGES:
        known = operation_called(name)
        answer = served.asking(_who(known)).ask(known, given)
        assert answer.status_code < 300, f"{name}: {answer.text}"
    with served.engine.connect() as connection:
        assert connection.execute(text("SELECT state FROM campaigns WHERE name = 'asked'")).scalar_one() == "cancelled"
        assert connection.execute(text("SELECT count(*) FROM deletions")).scalar_one() == 0
        assert connection.execute(text("SELECT last_used_at FROM tokens WHERE name = 'operate'")).scalar_one()
