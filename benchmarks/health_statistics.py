"""Do the intervals of `farm compare` and `farm health` hold what they claim, and is the health check silent where nothing is wrong?

    python -m benchmarks.health_statistics [--fleets 400] [--seed 1]

Simulated fleets, of which the truth is known. A card's time of a configuration is that of the configuration, times what the
card differs by, times what the card differs by on that shape (0.5%, the same for the three kernels of a shape), times noise
with heavy tails (0.4% times Student's t with 3 degrees of freedom); power, temperature and throttle reasons have spreads of
their own. The configurations were measured in the window once and in three nights before, each night of each card 0.3% off,
and a sentinel every hour of twelve before and in the window.

Coverage: how often an interval holds the truth, which for a card beside its peers is the median over 100,000 shapes. False
alarms: fleets with any finding, where the cards are equal; where they have a natural spread of 1%; where one is slower by
exactly the tolerance; and where all are at the edge at once, which is equal cards in equal nights and a tolerance of nothing.
Power: how often one card that is 5% slower is found, by name where there are more than two.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from statistics import NormalDist
from typing import Any

import numpy as np

from benchmarks.common import markdown, write
from farm.compare.health import ALPHA, TOLERANCE, FleetReport, HealthQuery, HealthVerdict
from farm.compare.health.assessment import Member
from farm.compare.health.diagnosis import diagnose
from farm.compare.health.fleet_rows import Fleet, FleetRows
from farm.compare.health.peers import medians_of_others
from farm.compare.statistics import ratio_of

DEVICES = (2, 4, 8, 64)
SHAPES = (8, 30, 100)
KERNELS = 3  # of each shape
OF_SHAPE, OF_ROW, OF_NIGHT = 0.005, 0.004, 0.003
SPREAD = 0.01
NIGHTS, SENTINELS = 3, 12
LARGE = 64
"""From so many cards on a tenth of the fleets are simulated: each has that many more chances, and takes as much longer."""

UNTIL = datetime(2026, 11, 22, 12, tzinfo=UTC)
SINCE = UNTIL - timedelta(days=1)


def noise(rng: np.random.Generator, devices: int, shapes: int) -> Any:
    """Logarithms of what each card's time of each configuration is off by: [devices, shapes, kernels]."""
    of_shape = rng.normal(0, OF_SHAPE, (devices, shapes, 1))
    return of_shape + OF_ROW * rng.standard_t(3, (devices, shapes, KERNELS))


def natural(devices: int) -> Any:
    """What cards of a fleet differ by, as logarithms: quantiles of a normal distribution in a fixed shuffle."""
    quantiles = [NormalDist().inv_cdf((n + 0.5) / devices) for n in range(devices)]
    return SPREAD * np.random.default_rng(7).permutation(quantiles)


def fleet(rng: np.random.Generator, apart: Any, shapes: int, *, steady: bool = False) -> Fleet:
    """A fleet whose cards differ by `apart` [devices], in logarithms, always: rows of the window and of nights before."""
    of_configuration = rng.uniform(-3, 3, shapes * KERNELS)
    of_night = 0.0 if steady else OF_NIGHT
    parts = [_night(rng, apart, of_configuration, shapes, night, of_night) for night in range(NIGHTS + 1)]
    rows = FleetRows(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in FleetRows.__dataclass_fields__}
    )
    return Fleet(
        rows=rows,
        sentinels=_sentinels(rng, apart, of_night),
        shapes=np.repeat(np.arange(shapes), KERNELS),
        configurations=np.arange(shapes * KERNELS),
        environments=[{"driver": "580"}],
        clocks=["default"],
    )


def _rows(device: Any, cell: Any, when: Any, log_ms: Any, power_w: Any, temperature_c: Any) -> FleetRows:
    count = len(device)
    return FleetRows(
        device=device,
        cell=cell,
        clocks=np.zeros(count, np.int64),
        environment=np.zeros(count, np.int64),
        when=when,
        runtime_ms=np.exp(log_ms),
        power_w=power_w,
        runtime_settled_ms=np.full(count, np.nan),
        temperature_c=temperature_c,
        power_limit_w=np.full(count, 700.0),
        reasons=np.zeros(count, np.int64),
        power_limited=np.full(count, -1),
    )


def _night(
    rng: np.random.Generator, apart: Any, of_configuration: Any, shapes: int, night: int, off: float
) -> FleetRows:
    """Night 0 is that of the window."""
    devices, cells = len(apart), len(of_configuration)
    of_night = rng.normal(0, off, (devices, 1)) if night else np.zeros((devices, 1))
    logs = apart[:, None] + of_night + of_configuration + noise(rng, devices, shapes).reshape(devices, cells)
    warm = rng.normal(0, 2, (devices, 1)) + rng.normal(60, 1, (devices, cells))
    begins = (UNTIL - timedelta(days=night, hours=6)).timestamp()
    return _rows(
        np.repeat(np.arange(devices), cells),
        np.tile(np.arange(cells), devices),
        np.tile(begins + np.arange(cells), devices),
        logs.ravel(),
        500 * np.exp(rng.normal(0, 0.02, devices * cells)),
        np.round(warm).ravel(),
    )


def _sentinels(rng: np.random.Generator, apart: Any, off: float) -> FleetRows:
    devices, count = len(apart), 2 * SENTINELS
    hours = np.concatenate([np.arange(-SENTINELS, 0), np.arange(1, SENTINELS + 1)]) * 3600.0
    wander = np.cumsum(rng.normal(0, off / 4, (devices, count)), axis=1)
    logs = apart[:, None] + wander + rng.normal(0, OF_NIGHT, (devices, count))
    nothing = np.full(devices * count, np.nan)
    return _rows(
        np.repeat(np.arange(devices), count),
        np.zeros(devices * count, np.int64),
        np.tile(SINCE.timestamp() + hours, devices),
        logs.ravel(),
        nothing,
        nothing,
    )


def members(devices: int) -> list[Member]:
    return [Member(id=n, uuid=f"GPU-{n}", type="nvidia-test", host=f"host{n % 8}") for n in range(devices)]


def judged(rng: np.random.Generator, apart: Any, shapes: int) -> FleetReport:
    return diagnose(members(len(apart)), fleet(rng, apart, shapes), HealthQuery(), since=SINCE, until=UNTIL)


def judged_at_the_edge(rng: np.random.Generator, devices: int, shapes: int) -> FleetReport:
    """Every test of a time is of a difference that is the tolerance, and no more."""
    steady = fleet(rng, np.zeros(devices), shapes, steady=True)
    return diagnose(members(devices), steady, HealthQuery(tolerance=0.0), since=SINCE, until=UNTIL)


def truth(apart: Any, *, shapes: int = 100_000) -> Any:
    """How far each card is from the median of the others: the median over very many shapes, in logarithms: [devices]."""
    rng, devices = np.random.default_rng(11), len(apart)
    parts = []
    at_once = max(1, 2_000_000 // (devices * KERNELS))
    for begin in range(0, shapes, at_once):
        count = min(at_once, shapes - begin)
        values = apart[:, None, None] + noise(rng, devices, count)
        groups = np.broadcast_to(np.arange(count * KERNELS), (devices, count * KERNELS))
        others = medians_of_others(values.ravel(), groups.ravel())[0].reshape(values.shape)
        parts.append(np.median(values - others, axis=2))
    return np.median(np.concatenate(parts, axis=1), axis=1)


def share(count: int, of: int) -> dict[str, Any]:
    """A share in %, with its standard error."""
    part = count / of
    return {"pct": round(100 * part, 3), "se": round(100 * math.sqrt(part * (1 - part) / of), 3), "of": of}


def of_compare(rng: np.random.Generator, shapes: int, pairs: int) -> tuple[int, int]:
    """How many intervals of `farm compare` hold that one card takes 1.02 times as long, and how many there were."""
    held = 0
    for _ in range(pairs):
        apart = noise(rng, 2, shapes).reshape(2, -1)
        found = ratio_of(math.log(1.02) + apart[1] - apart[0], np.repeat(np.arange(shapes), KERNELS))
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 1.02 <= found.high
    return held, pairs


def of_health(rng: np.random.Generator, devices: int, shapes: int, fleets: int) -> dict[str, Any]:
    spread, equal = natural(devices), np.zeros(devices)
    one = np.eye(devices)[devices // 2]
    expected = np.exp(truth(spread))
    told = held = 0
    confidence = None
    spread_alarms = 0
    for _ in range(fleets):
        found = judged(rng, spread, shapes)
        spread_alarms += bool(found.unwell)
        for device, ratio in zip(found.devices, expected, strict=True):
            if device.time is not None and device.time.low is not None and device.time.high is not None:
                confidence = device.time.confidence
                told += 1
                held += device.time.low <= ratio <= device.time.high
    alarms = {
        name: sum(bool(judged(rng, apart, shapes).unwell) for _ in range(fleets))
        for name, apart in (("equal", equal), ("one", math.log1p(TOLERANCE) * one))
    }
    alarms["edge"] = sum(bool(judged_at_the_edge(rng, devices, shapes).unwell) for _ in range(fleets))
    slow = [judged(rng, math.log(1.05) * one, shapes).devices[devices // 2].verdict for _ in range(fleets)]
    named = sum(verdict is (HealthVerdict.SLOW if devices > 2 else HealthVerdict.DIFFERS) for verdict in slow)
    return {
        "devices": devices,
        "shapes": shapes,
        "confidence_pct": None if confidence is None else round(100 * confidence, 4),
        "coverage": share(held, told) if told else None,
        "false_alarms_equal": share(alarms["equal"], fleets),
        "false_alarms_spread": share(spread_alarms, fleets),
        "false_alarms_one": share(alarms["one"], fleets),
        "false_alarms_edge": share(alarms["edge"], fleets),
        "found_5_pct": share(named, fleets),
    }


def _pooled(found: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    parts = [one[name] for one in found if one[name] is not None]
    return share(round(sum(p["pct"] * p["of"] / 100 for p in parts)), sum(p["of"] for p in parts))


def _cell(found: dict[str, Any] | None) -> str:
    return "–" if found is None else f"{found['pct']:.2f} ± {found['se']:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleets", type=int, default=400, help="of each size, and of each truth")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    rng = np.random.default_rng(asked.seed)
    began = time.monotonic()
    compared = {shapes: share(*of_compare(rng, shapes, 10 * asked.fleets)) for shapes in SHAPES}
    fleets = [
        of_health(rng, devices, shapes, asked.fleets // 10 if devices >= LARGE else asked.fleets)
        for devices in DEVICES
        for shapes in SHAPES
    ]
    pooled = {name: _pooled(fleets, f"false_alarms_{name}") for name in ("equal", "spread", "one", "edge")}
    table = "\n\n".join(
        [
            markdown(
                ["shapes", "intervals of `farm compare`", "hold the truth, % (95 claimed)"],
                [[n, f["of"], _cell(f)] for n, f in compared.items()],
            ),
            markdown(
                [
                    "cards", "shapes", "fleets", "confidence of an interval, %", "hold the truth, %",
                    "false alarms, % of fleets: equal cards", "1% natural spread", "one at the tolerance", "all at the edge",
                    "5% slower found, %",
                ],
                [
                    [
                        f["devices"], f["shapes"], f["found_5_pct"]["of"], f"{f['confidence_pct']}", _cell(f["coverage"]),
                        *(_cell(f[f"false_alarms_{name}"]) for name in pooled), _cell(f["found_5_pct"]),
                    ]
                    for f in fleets
                ],
            ),
        ]
    )  # fmt: skip
    of_pairs = share(
        round(sum(f["pct"] * f["of"] / 100 for f in compared.values())), sum(f["of"] for f in compared.values())
    )
    write(
        "health_statistics",
        {
            "coverage_pct": of_pairs["pct"],
            "coverage_se": of_pairs["se"],
            "coverage_claimed_pct": 95.0,
            "health_coverage_pct": _pooled(fleets, "coverage")["pct"],
            "false_alarm_pct": pooled["equal"]["pct"],
            "false_alarm_se": pooled["equal"]["se"],
            "false_alarm_claimed_pct": 100 * ALPHA,
            "false_alarm_spread_pct": pooled["spread"]["pct"],
            "false_alarm_one_pct": pooled["one"]["pct"],
            "false_alarm_edge_pct": pooled["edge"]["pct"],
            "false_alarm_edge_se": pooled["edge"]["se"],
            "false_alarm_edge_largest_pct": max(f["false_alarms_edge"]["pct"] for f in fleets),
            "tolerance_pct": 100 * TOLERANCE,
            "compare": {str(n): f for n, f in compared.items()},
            "fleets": fleets,
            "seconds": round(time.monotonic() - began),
        },
        table,
        repetitions=asked.fleets,
    )


if __name__ == "__main__":
    main()
