"""What was done, told once on the next page: a word of a fixed list and a number, in a cookie that lasts a minute."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response

COOKIE = "farm_said"
SECONDS = 60

WORDS: dict[str, tuple[str, str]] = {
    "submitted": ("Submitted: {count} job.", "Submitted: {count} jobs."),
    "known": ("This campaign was known already, with all its jobs: nothing is measured again.",) * 2,
    "more": (
        "This campaign was known already, and {count} job was added to it.",
        "This campaign was known already, and {count} jobs were added to it.",
    ),
    "paused": ("Paused: what is in hand still lands, and no further job starts until it is resumed.",) * 2,
    "resumed": ("It goes on.",) * 2,
    "cancelled": ("Cancelled: nothing more of it is measured. Its results stay.",) * 2,
    "deleted": ("Deleted. It can be restored below until a vacuum removes it.",) * 2,
    "restored": ("Restored as it was.",) * 2,
    "unchanged": ("It was so already; nothing changed.",) * 2,
    "retried": (
        "{count} job is open again, with all its attempts before it.",
        "{count} jobs are open again, with all their attempts before them.",
    ),
    "drained": (
        "{count} device gets no more work; what it holds it finishes.",
        "{count} devices get no more work; what they hold they finish.",
    ),
    "quarantined": (
        "{count} device finishes the job in hand and is used no more.",
        "{count} devices finish the job in hand and are used no more.",
    ),
    "taken-back": ("{count} device takes work again.", "{count} devices take work again."),
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
