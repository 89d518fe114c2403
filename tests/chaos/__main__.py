"""`make chaos`: breaks a farm for some minutes, and says what it found.

python -m chaos [--seed 7] [--seconds 300] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import logging
import random
import signal
import sys
import tempfile
from pathlib import Path

from chaos.run import report, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos", description="Break a farm, and audit it.")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--seconds", type=float, default=180.0, help="of chaos")
    logs = Path(tempfile.gettempdir()) / "farm-chaos-logs"
    parser.add_argument("--keep", type=Path, default=logs, help=f"where logs go if something is found ({logs})")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("chaos").setLevel(logging.INFO)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    logging.getLogger("chaos").info("seed %d", options.seed)
    outcome = run(seed=options.seed, seconds=options.seconds, keep=options.keep)
    sys.stdout.write(report(outcome) + "\n")
    if outcome.findings:
        sys.stdout.write(f"logs: {options.keep}\n")
    return 1 if outcome.findings else 0


if __name__ == "__main__":
    sys.exit(main())
