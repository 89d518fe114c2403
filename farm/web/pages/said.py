"""What was done, told once on the next page: a word of a fixed list and a number, in a cookie that lasts a minute."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response

COOKIE = "farm_said"
SECONDS = 60

WORDS = {
    "submitted": "Submitted: {count} jobs.",
    "known": "This campaign was known already, with all its jobs: nothing is measured again.",
    "more": "This campaign was known already, and {count} jobs were added to it.",
    "paused": "Paused: what is in hand still lands, and no further job starts until it is resumed.",
    "resumed": "It goes on.",
    "cancelled": "Cancelled: nothing more of it is measured. Its results stay.",
    "unchanged": "It was so already; nothing changed.",
    "retried": "{count} jobs are open again, with all their attempts before them.",
    "drained": "{count} devices get no more work; what they hold they finish.",
    "quarantined": "{count} devices finish the job in hand and are used no more.",
    "taken-back": "{count} devices take work again.",
    "signed-out": "Signed out.",
}


def say(answer: Response, message: str, count: int) -> None:
    """The next page says it."""
    assert message in WORDS
    answer.set_cookie(COOKIE, f"{message}.{count}", max_age=SECONDS, httponly=True, samesite="lax")


def heard(request: Request) -> str | None:
    """What is to be told now, in words."""
    message, _, count = request.cookies.get(COOKIE, "").partition(".")
    if message not in WORDS or not count.isdecimal() or len(count) > 12:
        return None
    text = WORDS[message].format(count=f"{int(count):,}")
    return text.replace("1 jobs are", "1 job is").replace("1 devices", "1 device") if int(count) == 1 else text


def forget(answer: Response) -> None:
    answer.delete_cookie(COOKIE, httponly=True, samesite="lax")
