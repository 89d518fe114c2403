"""What was done, told once on the next page: a word of a fixed list and a number, in a cookie that lasts a minute."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response

COOKIE = "farm_said"
SECONDS = 60

WORDS: dict[str, tuple[str, str]] = {
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
"""Of one, and of several or none."""


def say(answer: Response, message: str, count: int) -> None:
    """The next page says it."""
    assert message in WORDS
    answer.set_cookie(COOKIE, f"{message}.{count}", max_age=SECONDS, httponly=True, samesite="lax")


def heard(request: Request) -> str | None:
    """What is to be told now, in words."""
    message, _, count = request.cookies.get(COOKIE, "").partition(".")
    if message not in WORDS or not count.isdecimal() or len(count) > 12:
        return None
    one, several = WORDS[message]
    return (one if int(count) == 1 else several).format(count=f"{int(count):,}")


def forget(answer: Response) -> None:
    answer.delete_cookie(COOKIE, httponly=True, samesite="lax")
