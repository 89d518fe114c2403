"""`make chaos`: breaks a farm for some minutes, and says what it found.

python -m chaos [--seed 7] [--seconds 300] [--on-hosts] [--owners 10] [--alone] [--kinds kill_child,cut_host] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import logging
import random
import signal
import sys
import tempfile
from pathlib import Path

from chaos.network import Unavailable
from chaos.plan import ALONE, ON_ONE_MACHINE, Kind
from chaos.run import report, run, strike_alone


def kinds_of(words: str) -> tuple[Kind, ...]:
    try:
        return tuple(Kind[word.strip().upper()] for word in words.split(","))
    except KeyError as unknown:
        known = ", ".join(kind.name.lower() for kind in Kind)
        raise argparse.ArgumentTypeError(f"there is no fault {str(unknown).lower()}; there are {known}") from None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos", description="Break a farm, and audit it.")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--seconds", type=float, default=180.0, help="of chaos")
    parser.add_argument("--on-hosts", action="store_true", help="on seven hosts of its own, in network namespaces")
    parser.add_argument("--owners", type=int, default=2, help="who keep the farm busy")
    parser.add_argument("--kinds", type=kinds_of, help="faults, by name with commas; all that can be done by default")
    parser.add_argument(
        "--alone", action="store_true", help="one fault after the other, on hosts, with the farm's own times"
    )
    logs = Path(tempfile.gettempdir()) / "farm-chaos-logs"
    parser.add_argument("--keep", type=Path, default=logs, help=f"where logs go if something is found ({logs})")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("chaos").setLevel(logging.INFO)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    logging.getLogger("chaos").info("seed %d", options.seed)
    try:
        if options.alone:
            kinds = options.kinds or ALONE
            outcome = strike_alone(seed=options.seed, keep=options.keep, kinds=kinds)
        else:
            kinds = options.kinds or (tuple(Kind) if options.on_hosts else ON_ONE_MACHINE)
            outcome = run(
                seed=options.seed,
                seconds=options.seconds,
                keep=options.keep,
                kinds=kinds,
                owners=options.owners,
                on_hosts=options.on_hosts,
            )
    except Unavailable as why:
        sys.stderr.write(f"No hosts can be made: {why}\n")
        return 2
    sys.stdout.write(report(outcome) + "\n")
    if outcome.findings:
        sys.stdout.write(f"logs: {options.keep}\n")
    return 1 if outcome.findings else 0


if __name__ == "__main__":
    sys.exit(main())
