"""What the tests of the API share: a farm to ask, somebody who asks, and a request for each operation."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal
from sqlalchemy import Engine, text

from farm.api import OPERATIONS, PREFIX, Operation
from farm.api.access import Access
from farm.api.kernels import BuiltKernel
from farm.api.operation import FILE
from farm.campaign import Campaign, plan
from farm.db import batches, campaigns, deletions, devices, tokens, trainings, web_sessions
from farm.db.batches import Failure
from farm.db.campaigns import Stored
from farm.db.states import FailureKind, Role
from farm.devices import traits_of_capability
from farm.kernels import Configuration
from farm.measurement import Source
from farm.services import ServiceUrls
from farm.services.session import Session
from farm.settings import Settings
from farm.web.app import make_app
from farm.web.security import Policy
from support.kernel_builds import built_of
from support.samples import card, cpu, document, landed, row

HERE = "http://localhost:8000"

KERNEL = Configuration.parse("cutlass(stages=3) 64x64x32 f16").binary(traits_of_capability((9, 0)))
assert KERNEL is not None

CAMPAIGN = """\
name: asked
owner: ann
targets: any
problems: {m: 64, n: [64, 128], k: 64, types: f32}
kernels: [{family: blas, threads: 1}]
"""

EXAMPLES: dict[str, Any] = {
    "submission": {"text": CAMPAIGN},
    "chosen": {"which": ["CPU-1"]},
    "choice": {},
    "prediction": {"configurations": ["tiled(tile=16) 512x512x512 f32"]},
    "query": {"side": ["GPU-1", "GPU-2"]},
    "step_query": {"gemms": [{"name": "layer", "problem": "512x512x512 f32"}], "tokens": [512], "on": ["nvidia-test"]},
    "promotion": {"version": "1", "force": True},
    "rollback_request": {},
    "deletion": {"kind": "campaign", "name": "small", "dry_run": True},
    "restoring": {"kind": "campaign", "name": "gone"},
    "limits": {"dry_run": True},
    "candidates": {"device_type": "nvidia-test", "configurations": ["tiled(tile=16) 512x512x512 f32"]},
    "quota": {"open_jobs": 10, "device_seconds": None},
    "new_token": {"name": "eve"},
    "token_name": "spare",
    "sessions": {"of": "spare"},
    "new_host": {"name": "gpu-7"},
    "host": "gpu-7",
    "trimming": {"before": "365d"},
    "wanted": {},
    "training": 1,
    "file_format": "dataset",
    "farm": "b",
    "upload": b"no recording",
    "built_kernel": BuiltKernel.of(built_of(KERNEL)).model_dump(),
    "owner": "ann",
    "campaign": "small",
    "name": "nvidia-h200",
    "shape": "512x512x512",
}
"""What an operation must be given, by the parameter's name."""


def fill(engine: Engine) -> None:
    """Two devices, a campaign with results, a failure and jobs that wait, one that is done, a deleted one, a sentinel."""
    with engine.begin() as connection:
        device_id = devices.register(connection, host="here", host_facts={}, device=cpu())
        card_id, other_id = (
            devices.register(connection, host="there", host_facts={}, device=card(number)) for number in (1, 2)
        )
    _, stored = _submit(engine, "done", 64), _submit(engine, "small", 65)
    with engine.begin() as connection:
        lane = next(one for one in batches.candidates(connection) if one.campaign_id == stored.campaign_id)
        assert batches.lock(connection, lane.lane_id)
        batch_id = batches.form(connection, lane, queue="gpu.cpu-test", jobs=3)
        assert batch_id
        lease = batches.claim(connection, batch_id, device_id=device_id, lease_seconds=60)
        assert lease is not None
        first, *rest = lease.jobs
        failure = Failure(FailureKind.FAILED, "out of memory")
        batches.land(connection, lease, [(job, row()) for job in rest], {first.id: failure})
        batches.fold(connection)
    of_card = "tiled(tile=16) 512x512x512 f32:f32:f32 nn alpha=1 beta=0"
    landed(engine, card_id, [(of_card, row(power_w=300.0)), (of_card, row(source=Source.SENTINEL))], campaign_id=1)
    landed(engine, other_id, [(of_card, row(2.0, power_w=300.0))], campaign_id=1)
    _submit(engine, "gone", 64)
    with engine.begin() as connection:
        deletions.delete_campaign(connection, "gone", by="ann", cancel=True)
        trainings.request(connection, device_type="nvidia-test")
        made = tokens.create(connection, "spare", Role.READ, by="test")
        spare = tokens.bearer(connection, made)
        assert spare is not None
        limits = web_sessions.SessionLimits(idle=timedelta(hours=1), absolute=timedelta(hours=1))
        holder = web_sessions.SessionHolder(token_id=spare.id)
        web_sessions.create(connection, holder, origin=HERE, address="127.0.0.1", browser="none", limits=limits)


def _submit(engine: Engine, name: str, m: int) -> Stored:
    with engine.begin() as connection:
        known = campaigns.known_devices(connection)
        problems = {"m": m, "n": 64, "k": [32, 64], "types": ["f32"]}
        campaign = Campaign.from_document(document(name=name, problems=problems))
        return campaigns.store(connection, campaign, plan(campaign, known, allow_missing=False).jobs())


class Client:
    """Requests to an application in this process, which works in a thread of its own."""

    def __init__(self, app: Any, portal: BlockingPortal) -> None:
        self._portal = portal
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url=HERE)

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        return self._portal.call(partial(self._client.request, method, path, **more))

    def close(self) -> None:
        self._portal.call(self._client.aclose)


@dataclass
class Asking:
    """Somebody with or without a token."""

    client: Client
    headers: dict[str, str] = field(default_factory=dict)

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.request("GET", path, **more)

    def post(self, path: str, document: object = None, **more: Any) -> httpx.Response:
        return self.request("POST", path, **({"json": document} if document is not None else {}), **more)

    def request(self, method: str, path: str, *, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
        return self.client.request(method, path, headers={**self.headers, **(headers or {})}, **more)

    def ask(self, known: Operation, given: dict[str, Any] | None = None, **more: Any) -> httpx.Response:
        """What an operation answers to the parameters that it must have, and those given."""
        asked = request_of(known, given or {})
        headers = asked.pop("headers", {}) | (more.pop("headers", None) or {})
        return self.request(known.method, **asked, headers=headers, **more)


def request_of(known: Operation, given: dict[str, Any]) -> dict[str, Any]:
    path, query, body, file = PREFIX + known.path, dict[str, Any](), None, None
    for parameter in known.parameters:
        needed = parameter.default is parameter.empty
        if parameter.name not in given and not needed:
            continue
        value = given.get(parameter.name, EXAMPLES.get(parameter.name))
        assert value is not None, f"EXAMPLES has nothing for {parameter.name} of {known.name}"
        if known.in_path(parameter):
            path = path.replace(f"{{{parameter.name}}}", quote(str(value), safe=""))
        elif known.is_upload(parameter):
            file = value
        elif known.is_model(parameter) and known.method == "GET":
            query |= value
        elif known.is_model(parameter):
            body = value
        else:
            query[parameter.name] = value
    sent: dict[str, Any] = {} if body is None else {"json": body}
    if file is not None:
        sent = {"content": file, "headers": {"Content-Type": FILE}}
    return {"path": path, "params": query, **sent}


def operation_called(name: str) -> Operation:
    return next(known for known in OPERATIONS.values() if known.name == name)


class Served:
    """A farm's application in this process."""

    def __init__(self, access: Access, *, tokens: bool, **policy: Any) -> None:
        self.app = make_app(access, policy=Policy(tokens=tokens, **policy))
        self.engine = access.session.engine
        self.tokens: dict[str, str] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        portal = self._stack.enter_context(start_blocking_portal())
        self._stack.enter_context(portal.wrap_async_context_manager(self.app.router.lifespan_context(self.app)))
        self._client = Client(self.app, portal)
        self._stack.callback(self._client.close)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def make(self, name: str, role: Role, lifetime: timedelta | None = None) -> str:
        with self.engine.begin() as connection:
            self.tokens[name] = tokens.create(connection, name, role, by="test", lifetime=lifetime)
        return self.tokens[name]

    def asking(self, token: str | None = None) -> Asking:
        """Somebody with the token of that name, or with none."""
        return Asking(self._client, {} if token is None else {"Authorization": f"Bearer {self.tokens[token]}"})

    def execute(self, statement: str) -> None:
        with self.engine.begin() as connection:
            connection.execute(text(statement))


def told(answer: httpx.Response) -> dict[str, Any]:
    """The error of an answer, which must be one in the form that all have."""
    assert answer.headers["content-type"] == "application/json"
    found: dict[str, Any] = json.loads(answer.text, parse_constant=no_constant)["error"]
    assert {"kind", "message", "exit_code"} <= set(found)
    assert "Traceback" not in found["message"]
    return found


def no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def access_to(engine: Engine, database_url: str, tracking_uri: str) -> Access:
    settings = Settings.model_construct(**{**Settings().model_dump(), "mlflow_tracking_uri": tracking_uri})
    return Access(settings, who="test", opened=Session(settings, ServiceUrls(database_url, None, tracking_uri), engine))
