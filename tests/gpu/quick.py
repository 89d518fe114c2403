"""Rules under which a test on a card takes little time."""

from farm.measurement import MeasuringRules, TimingRules

QUICK = MeasuringRules(timing=TimingRules(min_samples=5, max_seconds=0.05, warmup_seconds=0.005))
