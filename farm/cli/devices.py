"""`farm devices`: every device the farm has heard of, and what it does now."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from farm.cli.output import JsonOption, console, emit_json, seconds_text, table
from farm.cli.session import session
from farm.db import devices as queries


def devices(as_json: JsonOption = False) -> None:
    """Devices and hosts: type, state, what each measures now, and when it was last heard of."""
    with session() as opened, opened.engine.connect() as connection:
        rows = queries.overview(connection, silent_after=opened.settings.silent_after_seconds)
    if as_json:
        emit_json(rows)
        return
    if not rows:
        console.print("No device has been announced yet. Start a worker: farm-worker, or everything here: farm up")
        return
    lines = [(r["host"], r["type"], r["uuid"], _state(r), _now(r), r["measurements"], _seen(r)) for r in rows]
    columns = ["host", "type", "uuid", "state", "now", "measurements", "last heard of"]
    console.print(table(None, columns, lines, right=["measurements"]))


def _state(row: dict[str, Any]) -> str:
    if row["state"] != "active":
        return f"{row['state']}: {row['state_reason'] or 'no reason given'}"
    if row["last_seen_at"] is None:
        return "stopped"
    return "live" if row["live"] else "silent"


def _now(row: dict[str, Any]) -> str:
    if row["batch_id"] is None:
        return "idle" if row["live"] else "–"
    return f"{row['campaign']}, batch {row['batch_id']} for {seconds_text(row['busy_s'])}"


def _seen(row: dict[str, Any]) -> str:
    if row["last_seen_at"] is None:
        return "stopped in order"
    return f"{seconds_text((datetime.now(UTC) - row['last_seen_at']).total_seconds())} ago"
