"""The metrics of `farm serve`: each is declared here once, and counted in `farm.web`."""

from __future__ import annotations

from farm.metrics import Count, Duration

REQUESTS = Count(
    "web_requests",
    "Requests that ended, by class of status; aborted: the client left or the server failed first.",
    "status",
    ("2xx", "3xx", "4xx", "5xx", "aborted"),
)
REQUEST = Duration(
    "web_request",
    "Time of one request of the pages or the API, from its headers to the end of its response.",
    (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)

COUNTS = (REQUESTS,)
DURATIONS = (REQUEST,)
