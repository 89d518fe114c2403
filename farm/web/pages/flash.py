"""Messages about completed actions, shown once on the next page. A cookie has the key of the message and a number."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response

COOKIE = "farm_said"
SECONDS = 60

MESSAGES: dict[str, tuple[str, str]] = {
    "submitted": ("Submitted: {count} job.", "Submitted: {count} jobs."),
    "known": ("This campaign was submitted before. No jobs were added.",) * 2,
    "more": (
        "This campaign was submitted before. {count} job was added.",
        "This campaign was submitted before. {count} jobs were added.",
    ),
    "paused": (
        "Paused. Running jobs finish, at most one on each device. No further job starts until you resume the campaign.",
    )
    * 2,
    "resumed": ("Resumed.",) * 2,
    "cancelled": ("Cancelled. Running jobs finish, at most one on each device. No further job starts. Results stay.",)
    * 2,
    "deleted": ("Deleted. You can restore it below until farm vacuum removes it.",) * 2,
    "restored": ("Restored.",) * 2,
    "unchanged": ("Already in that state. No change.",) * 2,
    "retried": (
        "{count} job is open again with its full number of attempts.",
        "{count} jobs are open again with their full number of attempts.",
    ),
    "drained": (
        "{count} device drained. It finishes its current batch and gets no new work.",
        "{count} devices drained. They finish their current batches and get no new work.",
    ),
    "quarantined": (
        "{count} device quarantined. It finishes its current job and gets no new work.",
        "{count} devices quarantined. They finish their current jobs and get no new work.",
    ),
    "taken-back": ("{count} device resumed.", "{count} devices resumed."),
    "ended": ("{count} session ended.", "{count} sessions ended."),
    "signed-out": ("Signed out.",) * 2,
}
"""The message for one item, and for none or several, by key."""


def set_message(answer: Response, message: str, count: int) -> None:
    """Makes the next page show a message."""
    assert message in MESSAGES
    answer.set_cookie(COOKIE, f"{message}.{count}", max_age=SECONDS, httponly=True, samesite="lax")


def message_in(request: Request) -> str | None:
    """The message that the request's cookie asks for."""
    message, _, count = request.cookies.get(COOKIE, "").partition(".")
    if message not in MESSAGES or not count.isdecimal() or len(count) > 12:
        return None
    one, several = MESSAGES[message]
    return (one if int(count) == 1 else several).format(count=f"{int(count):,}")


def clear(answer: Response) -> None:
    answer.delete_cookie(COOKIE, httponly=True, samesite="lax")
