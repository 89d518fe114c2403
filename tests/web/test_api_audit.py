"""What is done to models, and what fills a comparison, is recorded (all other operations: tests/security/test_ownership)."""

from __future__ import annotations

from sqlalchemy import text

from farm.api.access import Access
from farm.db import audit
from farm.db.states import Role
from support.api_farm import Asking, Served, operation_called
from support.samples import landed, row


def recorded(engine_of: Access) -> list[audit.ChangeRecord]:
    with engine_of.connect() as connection:
        return [one for one in audit.records(connection, after=0, limit=100) if one.operation != "db_upgrade"]


def test_what_is_done_to_models_is_recorded(api_access_with_model: Access) -> None:
    with Served(api_access_with_model, tokens=True) as served:
        served.make("boss", Role.OPERATE)
        boss = served.asking("boss")
        assert boss.ask(operation_called("models_promote")).status_code == 200
        (promoted,) = recorded(api_access_with_model)
        assert (promoted.operation, promoted.kind, promoted.who) == ("models_promote", "model", "boss")
        assert promoted.name.startswith("gemm-forest-nvidia-h200/")
        # There was no champion before: nothing is changed, and nothing recorded.
        assert boss.ask(operation_called("models_rollback")).status_code == 404
        assert len(recorded(api_access_with_model)) == 1


def test_what_fills_a_comparison_is_recorded(api: Asking, api_access: Access) -> None:
    with api_access.connect() as connection:
        device = connection.execute(text("SELECT id FROM devices WHERE uuid = 'GPU-1'")).scalar_one()
    more = "tiled(tile=32) 512x512x512 f32:f32:f32 nn alpha=1 beta=0"
    landed(api_access.session.engine, device, [(more, row(power_w=300.0))], campaign_id=1)
    answer = api.ask(operation_called("comparing_fill"), {"query": {"side": ["GPU-1", "GPU-2"]}})
    assert answer.status_code == 200, answer.text
    (filled,) = recorded(api_access)
    assert (filled.operation, filled.kind) == ("comparing_fill", "campaign")
    assert filled.name == answer.json()["fills"][0]["campaign"]
