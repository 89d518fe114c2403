"""`python -m workers.process`: the Celery worker of one device. `farm-worker` starts it.

Celery's child imports this module too, so it imports what only the parent needs when it runs.
"""

from __future__ import annotations

import sys


def main() -> None:
    from farm.services.process_groups import end_with_starter

    end_with_starter()
    from workers import parent

    sys.exit(parent.serve())


if __name__ == "__main__":
    main()
