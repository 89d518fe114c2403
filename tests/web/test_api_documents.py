"""What the API answers: documents as they are described, JSON whatever is stored, pages of rows, and errors in one form."""

from __future__ import annotations

import json
import math
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Engine, event, text

from farm.api import OPERATIONS, PREFIX, campaigns, results
from farm.api.access import Access
from farm.db.states import Role
from farm.web.errors import ErrorResponse
from support.api_farm import Asking, Served, no_constant, operation_called, told
from support.samples import landed, row

OF_CARD = "tiled(tile=16) 512x512x512 f32:f32:f32 nn alpha=1 beta=0"


REFUSALS = {
    "models_rollback": "NoChampionBefore",
    "hosts_add": "BadRole",  # the database is the embedded one
    "hosts_revoke": "NoSuchHost",
    "imports_import": "BadRecording",
}
"""Operations that the farm of these tests refuses."""


def test_every_operation_answers_its_document(api_access_with_model: Access) -> None:
    with Served(api_access_with_model, tokens=True) as served:
        served.make("boss", Role.ADMIN)
        # A campaign that is cancelled is neither resumed nor tried again: that comes last.
        for known in sorted(OPERATIONS.values(), key=lambda known: known.name == "campaigns_cancel"):
            answer = served.asking("boss").ask(known)
            if known.name in REFUSALS:
                assert told(answer)["kind"] == REFUSALS[known.name], known.name
                continue
            assert answer.status_code == 200, (known.name, answer.text)
            if known.sends is None:
                TypeAdapter(known.hints["return"]).validate_json(answer.content)
            else:
                assert answer.headers["content-type"].startswith(known.sends)
                assert answer.content


def test_the_description_has_every_operation_with_its_role_its_errors_and_its_tokens(api_with_tokens: Served) -> None:
    told_of = api_with_tokens.asking().get(f"{PREFIX}/openapi.json").json()
    for known in OPERATIONS.values():
        found = told_of["paths"][PREFIX + known.path][known.method.lower()]
        assert found["operationId"] == known.name
        assert f"Needs the role {known.role}." in found["description"]
        assert found["summary"]
        for status in ("400", "401", "403", "404", "413", "422", "503"):
            schema = found["responses"][status]["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/ErrorResponse"}
        assert found["security"] == [{"HTTPBearer": []}]
    assert told_of["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"


def test_where_no_token_is_asked_for_the_description_names_none(api: Asking) -> None:
    told_of = api.get(f"{PREFIX}/openapi.json").json()
    assert "securitySchemes" not in told_of["components"]
    assert set(told_of["paths"]) == {PREFIX + known.path for known in OPERATIONS.values()}


def test_what_is_no_number_is_null_in_json(api: Asking, engine: Engine) -> None:
    """Rows of imports and old recordings may hold NaN, for which JSON has no word."""
    landed(engine, 2, [(OF_CARD, row(power_w=math.nan, details={"spread": 1.5}))])
    answer = api.get(f"{PREFIX}/results", params={"where": "source == 'measured'", "limit": 100})
    rows = json.loads(answer.text, parse_constant=no_constant)["rows"]
    assert None in [one["power_w"] for one in rows if one["device_type"] == "nvidia-test"]


def test_rows_come_in_pages(api: Asking) -> None:
    everything = api.get(f"{PREFIX}/results").json()
    assert everything["next"] is None
    after, seen = 0, []
    while after is not None:
        page = api.get(f"{PREFIX}/results", params={"limit": 2, "after": after}).json()
        seen += page["rows"]
        after = page["next"]
    assert seen == everything["rows"]


def test_devices_come_in_pages_and_are_counted(api: Asking, engine: Engine) -> None:
    everything = api.get(f"{PREFIX}/devices").json()
    assert len(everything) > 2
    for at in range(len(everything) + 1):
        page = api.get(f"{PREFIX}/devices", params={"limit": 1, "offset": at}).json()
        assert [one["uuid"] for one in page] == [one["uuid"] for one in everything[at : at + 1]]
    for state in ("drained", "quarantined", "probation"):
        with engine.begin() as connection:
            changed = "UPDATE devices SET state = :state WHERE id = :id"
            connection.execute(text(changed), {"state": state, "id": everything[0]["device_id"]})
        listed = api.get(f"{PREFIX}/devices").json()
        counted = api.get(f"{PREFIX}/devices/counts").json()
        workers = [one for one in listed if one["presence"] != "imported"]
        active = [one for one in workers if (one["state"], one["presence"]) == ("active", "live")]
        assert counted == {
            "announced": len(workers),
            "busy": sum(one["batch_id"] is not None for one in active),
            "idle": sum(one["batch_id"] is None for one in active),
            **{name: sum(one["presence"] == name for one in workers) for name in ("live", "silent")},
            **{name: sum(one["state"] == name for one in workers) for name in ("probation", "drained", "quarantined")},
        }
        assert counted[state] == 1


def test_a_page_of_devices_is_one_of_a_host_and_a_type_and_reads_no_others(api: Asking, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("UPDATE devices SET uuid = 'IMP-CPU-1' WHERE uuid = 'CPU-1'"))
        connection.execute(text("UPDATE devices SET last_seen_at = now() - interval '1 day' WHERE uuid = 'GPU-2'"))
    read = list[int]()

    def note(_: object, cursor: Any, *__: object) -> None:
        read.append(cursor.rowcount)

    def uuids(**params: object) -> list[str]:
        return [one["uuid"] for one in api.get(f"{PREFIX}/devices", params=params).json()]

    assert uuids() == ["GPU-2", "GPU-1", "IMP-CPU-1"], "silent ones first, imported ones last"
    assert uuids(type="cpu-test") == uuids(host="here") == ["IMP-CPU-1"]
    assert uuids(host="here", type="nvidia-test") == uuids(host="nowhere") == []
    event.listen(engine, "after_cursor_execute", note)
    assert uuids(host="there", limit=1, offset=1) == ["GPU-1"]
    event.remove(engine, "after_cursor_execute", note)
    assert max(read) == 1


def test_campaigns_come_in_pages(api: Asking) -> None:
    first = api.get(f"{PREFIX}/campaigns", params={"limit": 1}).json()
    second = api.get(f"{PREFIX}/campaigns", params={"limit": 1, "before": first[0]["id"]}).json()
    assert [one["name"] for one in first + second] == ["small", "done"]


MISTAKES = (
    ("campaigns/nothing", "NoSuchCampaign", 404, "There is no campaign 'nothing'. Known: small, done"),
    ("results?where=no_such > 1", "BadFilter", 400, "there is no column no_such"),
    ("results?sort=nothing", "BadParameter", 400, "no such column"),
    ("results?since=yesterday", "BadMoment", 400, "'yesterday' is not a time"),
    ("results?device=GPU-9", "UnknownDevice", 404, "GPU-1"),
    ("results?limit=20001", "BadRequest", 422, "query.limit: Input should be less than or equal to 20000"),
    ("results?after=9223372036854775808", "BadRequest", 422, "query.after"),
    ("campaigns?before=99999999999999999999", "BadRequest", 422, "query.before"),
    ("campaigns?limit=501", "BadRequest", 422, "query.limit"),
    ("campaigns/small/jobs?job=9223372036854775808", "BadRequest", 422, "query.job"),
    ("campaigns/small/jobs?job=9223372036854775807", "NoSuchJob", 404, "9223372036854775807"),
    ("campaigns/small/jobs?limit=1000001", "BadRequest", 422, "query.limit"),
    ("campaigns?search=%00", "BadRequest", 400, "NUL"),
    ("recommend?shape=0x1x1", "BadShape", 400, "0x1x1"),
    ("recommend?shape=8x8x8&alpha=nan", "BadScalar", 400, "finite"),
    ("recommend?shape=8x8x8&batch=0", "BadRequest", 422, "query.batch: Input should be greater than or equal to 1"),
    ("costs?shape=8x8x8&batch=2147483648", "BadRequest", 422, "query.batch"),
    ("recommend?shape=8x8x8&scale=2x128", "BadRequest", 422, "query.scale: Input should be 'none', 'tensor'"),
    ("costs?shape=8x8x8&fused=swish", "BadRequest", 422, "query.fused: Input should be 'none', 'bias'"),
    ("recommend?shape=8x8x8&groups=4*3", "BadGroups", 400, "they have 12 rows together, and m is 8"),
    ("costs?shape=8x8x8&groups=8&batch=2", "BadGroups", 400, "a batch has no groups"),
    ("models/nothing", "NoSuchModel", 404, "nothing"),
    ("nothing", "HttpError", 404, "Not Found"),
)


def test_a_mistake_is_told_as_on_the_command_line(api: Asking) -> None:
    for asked, kind, status, says in MISTAKES:
        answer = api.get(f"{PREFIX}/{asked}")
        error = told(answer)
        assert (answer.status_code, error["kind"]) == (status, kind), answer.text
        assert says in error["message"]
        ErrorResponse.model_validate_json(answer.content)


def test_rows_with_kernels_that_cannot_exist_are_not_predicted(api_access_with_model: Access) -> None:
    row = {"m": 512, "n": 512, "k": 512, "ab": "f32", "family": "tiled"}
    with Served(api_access_with_model, tokens=False) as served:
        for tile, says in (
            (0, "tiled does not accept tile=0: tile goes from 1 to 32 (the rows, row 2)."),
            (-8, "tiled does not accept tile=-8: tile goes from 1 to 32 (the rows, row 2)."),
            (8.5, "tiled does not accept tile=8.5: tile is a whole number (the rows, row 2)."),
            ([8], "the rows, row 2: tile is [8]; it must be a number or a text."),
        ):
            rows = [{**row, "tile": 16}, row, {**row, "tile": tile}]
            answer = served.asking().post(f"{PREFIX}/predict", {"rows": rows, "device_type": "nvidia-h200"})
            assert (answer.status_code, told(answer)["message"]) == (400, says), answer.text


def test_every_mistake_of_a_body_is_told_at_once(api: Asking) -> None:
    answer = api.post(f"{PREFIX}/devices/drain", {"which": [], "reason": "x" * 501})
    error = told(answer)
    assert answer.status_code == 422
    assert [mistake["where"] for mistake in error["mistakes"]] == ["body.which", "body.reason"]
    assert "x" * 20 not in answer.text


def test_a_campaign_is_submitted_once_and_checked_without_a_trace(api: Asking) -> None:
    check, submit = operation_called("campaigns_check"), operation_called("campaigns_submit")
    assert api.ask(check).json()["plan"]["configurations"] == 2
    assert [one["name"] for one in api.get(f"{PREFIX}/campaigns").json()] == ["small", "done"]
    first, second = api.ask(submit).json(), api.ask(submit).json()
    assert (first["new"], first["new_jobs"], second["new"], second["new_jobs"]) == (True, 2, False, 0)


def test_a_campaign_without_an_owner_is_the_tokens(api_with_tokens: Served) -> None:
    text = (
        "name: mine\ntargets: any\nproblems: {m: 64, n: 64, k: 64, types: f32}\nkernels: [{family: blas, threads: 1}]\n"
    )
    submit = operation_called("campaigns_submit")
    assert api_with_tokens.asking("submit").ask(submit, {"submission": {"text": text}}).status_code == 200
    assert api_with_tokens.asking("read").get(f"{PREFIX}/campaigns/mine").json()["owner"] == "submit"


def test_what_is_asked_over_http_is_what_is_asked_here(api: Asking, api_access: Access) -> None:
    here = [one.model_dump(mode="json") for one in campaigns.list_(api_access)]
    there = api.get(f"{PREFIX}/campaigns").json()
    for one in (*here, *there):
        del one["jobs_per_minute"], one["seconds_left"]  # they change while time goes by
    assert there == here
    assert api.get(f"{PREFIX}/results").json() == json.loads(results.rows(api_access).model_dump_json())
