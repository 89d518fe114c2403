"""Logging of the farm's processes: text lines, or one JSON object per line, with the ids of campaigns, batches and jobs."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from types import TracebackType

from farm.control_characters import REPLACEMENT, LineFormatter, neutralised
from farm.errors import FarmError
from farm.masking import masked
from farm.settings import Settings, unknown_variables

log = logging.getLogger(__name__)

_PLAIN = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def _ids(record: logging.LogRecord) -> dict[str, object]:
    """The `extra` of a record: campaign_id, batch_id, job_id, device …"""
    return {key: value for key, value in vars(record).items() if key not in _PLAIN and not key.startswith("_")}


class _Human(LineFormatter):
    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        ids = masked(" ".join(f"{key}={value}" for key, value in _ids(record).items() if key != "data"))
        return f"{line} {neutralised(ids).replace(chr(10), REPLACEMENT)}" if ids else line


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_ids(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(_masked(entry))


def _masked(value: object) -> object:
    """Text without passwords, and everything else as JSON has it."""
    if isinstance(value, dict):
        return {str(key): _masked(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(one) for one in value]
    return value if value is None or isinstance(value, bool | int | float) else masked(str(value))


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.stderr.write(neutralised(masked("".join(traceback.format_exception(kind, error, trace)))))


def print_error(error: FarmError) -> int:
    """Prints the error of a service on stderr, without control characters and passwords. Returns its exit status."""
    sys.stderr.write(f"{neutralised(masked(str(error)))}\n")
    return error.exit_code


def set_up_logging(settings: Settings, program: str) -> None:
    """Sends this process's log to stderr in the configured format. Libraries log from WARNING on."""
    handler = logging.StreamHandler(sys.stderr)
    human = _Human(f"%(asctime)s %(levelname)-7s {program}: %(message)s", datefmt="%H:%M:%S")
    handler.setFormatter(_Json() if settings.log_json else human)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    sys.excepthook = _report
    for name in ("farm", "workers", "trainer"):
        logging.getLogger(name).setLevel(settings.log_level)


def warn_of_unknown_variables() -> None:
    """Logs a warning for each `FARM_*` variable that is not a setting."""
    for warning in unknown_variables():
        log.warning(warning)
