"""`python -m chaos.coordinator`: the coordinator, whose host's clock can step."""

import sys

from chaos.mischief import follow_the_clock
from farm.coordinator.__main__ import main

if __name__ == "__main__":
    follow_the_clock()
    sys.exit(main())
