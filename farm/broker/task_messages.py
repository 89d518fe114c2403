"""Which messages a consumer takes from a queue. Everything else is refused before any of it is unpacked.

A program that can write to Redis can write any message, and Celery obeys what a message says: it unpacks a compressed body, kills a
process after a time limit, waits for a date, and sends other tasks when one ends. The farm uses none of that. Of a message that is
taken, the task and the id alone are passed on, in a message that is made here.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Container, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import uuid4

from farm.broker.queues import tasks_of_queue

MAX_BYTES = 8_192
"""Of a message as it lies in Redis. The farm's own have about 1,000."""

MAX_ID = 2**63 - 1
"""As the database counts."""


class Reason(StrEnum):
    """Why a message is refused."""

    SIZE = "size"
    FORM = "form"
    FIELD = "field"
    ENCODING = "encoding"
    EXTRAS = "extras"
    TASK = "task"
    ARGUMENT = "argument"
    KEY = "key"


class MessageRefused(Exception):
    """A message that the farm does not send. `reason` says why not, and `detail` which part of it is to blame."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Message:
    """What the farm sends: the name of a task, and the id that is its one argument."""

    task: str
    number: int

    def payload(self, queue: str) -> dict[str, Any]:
        """The message as kombu delivers one that came through that queue."""
        name = str(uuid4())
        body = [[self.number], {}, dict.fromkeys(_SIGNATURES)]
        return {
            "body": base64.b64encode(json.dumps(body).encode()).decode(),
            "content-type": _CONTENT_TYPE,
            "content-encoding": _CHARACTERS,
            "headers": {
                **dict.fromkeys(_VOID_HEADERS),
                "lang": "py",
                "task": self.task,
                "id": name,
                "root_id": name,
                "retries": 0,
                "timelimit": [None, None],
                "argsrepr": f"({self.number},)",
                "kwargsrepr": "{}",
                "origin": "",
                "ignore_result": True,
            },
            "properties": {
                "correlation_id": name,
                "reply_to": "",
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": queue},
                "priority": 0,
                "body_encoding": _BODY_ENCODING,
                "delivery_tag": name,
            },
        }


_CONTENT_TYPE, _CHARACTERS, _BODY_ENCODING = "application/json", "utf-8", "base64"

_PARTS = {"body", "content-type", "content-encoding", "headers", "properties"}

_VOID_HEADERS = {
    "shadow", "eta", "expires", "group", "group_index", "parent_id", "retries", "timelimit", "replaced_task_nesting",
    "stamped_headers", "stamps",
}  # fmt: skip
"""Headers that Celery writes into every message, and that the farm does not use."""

_HEADERS = _VOID_HEADERS | {"lang", "task", "id", "root_id", "argsrepr", "kwargsrepr", "origin", "ignore_result"}

_VOID_PROPERTIES = {"priority"}

_PROPERTIES = _VOID_PROPERTIES | {
    "correlation_id", "reply_to", "delivery_mode", "delivery_info", "body_encoding", "delivery_tag"
}  # fmt: skip

_SIGNATURES = ("callbacks", "errbacks", "chain", "chord")


def read(raw: bytes, queue: str) -> Message:
    """The message, which came through that queue. Raises `MessageRefused` for any that the farm does not send there."""
    if len(raw) > MAX_BYTES:
        raise MessageRefused(Reason.SIZE, f"{len(raw):,} bytes")
    parts = _object(_json(raw, "message"), _PARTS, "message")
    headers = _object(parts.get("headers"), _HEADERS, "headers")
    properties = _object(parts.get("properties"), _PROPERTIES, "properties")
    found = (parts.get("content-type"), parts.get("content-encoding"), properties.get("body_encoding"))
    if found != (_CONTENT_TYPE, _CHARACTERS, _BODY_ENCODING):
        raise MessageRefused(Reason.ENCODING, "another content type or encoding")
    _require_void(headers, _VOID_HEADERS)
    _require_void(properties, _VOID_PROPERTIES)
    task = headers.get("task")
    if not isinstance(task, str) or task not in tasks_of_queue(queue):
        raise MessageRefused(Reason.TASK, "no task of this queue")
    return Message(task, _number(parts.get("body")))


def _number(body: object) -> int:
    """The one argument of a body."""
    try:
        decoded = base64.b64decode(body, validate=True) if isinstance(body, str) else b""
    except ValueError:
        raise MessageRefused(Reason.ENCODING, "a body that is not base64") from None
    match _json(decoded, "body"):
        case [list(arguments), dict(named), dict(signatures)]:
            _require_void(_object(signatures, _SIGNATURES, "body"), _SIGNATURES)
            if not named and len(arguments) == 1 and type(arguments[0]) is int and 0 < arguments[0] <= MAX_ID:
                return arguments[0]
            raise MessageRefused(Reason.ARGUMENT, "not one id")
    raise MessageRefused(Reason.FORM, "a body of another form")


def _json(raw: bytes, what: str) -> object:
    try:
        return json.loads(raw.decode())
    except (ValueError, RecursionError):  # not UTF-8, not JSON, a number of thousands of digits, or nested too deeply
        raise MessageRefused(Reason.FORM, f"a {what} that is not JSON") from None


def _object(found: object, known: Container[str], what: str) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise MessageRefused(Reason.FORM, f"{what} of another form")
    if not all(name in known for name in found):
        raise MessageRefused(Reason.FIELD, f"{what} with a field that the farm does not write")
    return found


def _require_void(found: Mapping[str, Any], names: Container[str]) -> None:
    for name, value in found.items():
        if name in names and value and value != [None, None]:
            raise MessageRefused(Reason.EXTRAS, name)
