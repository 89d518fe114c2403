"""Health rules: one module each, registered here. Findings with equal verdicts keep this order."""

from __future__ import annotations

from farm.compare.health.rules.clocks import Clocks
from farm.compare.health.rules.corrupting import Corrupting
from farm.compare.health.rules.drifting import Drifting
from farm.compare.health.rules.energy import Energy
from farm.compare.health.rules.failing import Failing
from farm.compare.health.rules.heat import Heat
from farm.compare.health.rules.power_limit import PowerLimit
from farm.compare.health.rules.power_throttled import PowerThrottled
from farm.compare.health.rules.regressed import Regressed
from farm.compare.health.rules.rule import HealthRule
from farm.compare.health.rules.slow import Slow
from farm.compare.health.rules.state import State
from farm.compare.health.rules.throttled import Throttled

RULES: list[HealthRule] = [
    State(),
    Corrupting(),
    Slow(),
    Drifting(),
    Regressed(),
    Energy(),
    Heat(),
    Throttled(),
    PowerThrottled(),
    PowerLimit(),
    Clocks(),
    Failing(),
]
