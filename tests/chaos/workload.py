"""What the farm measures under chaos: recordings that serve as devices, campaigns, and the poisonous jobs in them."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.mischief import Poison, write_poisons
from farm.campaign import Campaign
from farm.campaign.strategies import Halving
from farm.devices import Backend, DeviceIdentity, DeviceKind, DeviceTraits
from farm.kernels import Configuration
from farm.provenance import Provenance
from farm.vendors import device_type_of
from workers.devices import discover
from workers.devices.recording import write_recording

NAME = "chaos card"
TYPE = device_type_of(NAME, Backend.RECORDED)
TRAITS = DeviceTraits(kind=DeviceKind.CPU, memory_bytes=2**36, threads=8)

COST_S = 0.1
"""Mean seconds of a job."""

JOB_SECONDS = 3.0
MAX_ATTEMPTS = 4
"""A healthy job may be unlucky: killed, and killed again. One that dies of it four times is one in millions."""

SECOND_SHARE = 0.5
"""The share of the jobs that are of the second campaign, which people pause, cancel and submit again."""

COLUMNS = 20

MORE_ROWS = 10
"""The most rows that a campaign of `more` has."""

SEARCH = Halving(keep=0.5, finalists=2)
SEARCHED_KERNELS, SEARCH_SHARE = 8, 0.2
"""Kernels of each problem that is searched, and about how many jobs of searching there are for one of the others."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Devices by their recordings, what each answers, and what is asked of them."""

    recordings: tuple[Path, ...]
    devices: tuple[DeviceIdentity, ...]
    # runtime_ms by device UUID and configuration id.
    answers: dict[str, dict[uuid.UUID, float]]
    poisons: dict[uuid.UUID, Poison]
    # The first holds the poisonous jobs, the last is a search; none where there is only `more`.
    campaigns: tuple[Campaign, ...]


def make_workload(folder: Path, seed: int, *, jobs: int, devices: int, poisons: int) -> Workload:
    """About that many jobs, and that many of each kind of poison; none of either where `jobs` is 0.

    Writes the recordings into the folder. Devices know the configurations of `more`, too.
    """
    chance = random.Random(seed)
    half = round(jobs * SECOND_SHARE / 2)  # of the second campaign is for any card, the other half for one card
    recorded, poisonous, asked = list[Configuration](), dict[uuid.UUID, Poison](), list[Campaign]()
    if jobs:
        asked.append(_campaign("steady", "ann", round(jobs * (1 - SECOND_SHARE)), k=256, targets=[{"type": TYPE}]))
        recorded += asked[0].expand()
        chosen = iter(chance.sample(recorded[1:], poisons * len(Poison)))  # the first is the canary of every device
        poisonous = {next(chosen).id: poison for poison in Poison for _ in range(poisons)}
        asked.append(_search(max(2, round(SEARCH_SHARE * jobs / sum(SEARCH.rounds(SEARCHED_KERNELS))))))
        recorded += _campaign("second", "bob", half, k=320, targets=[{"type": TYPE}]).expand()
        recorded += asked[1].expand()
    recorded += more("all", "nobody", rows=MORE_ROWS).expand()
    write_poisons(folder, {str(i): poison for i, poison in poisonous.items()})
    known = [c for c in recorded if poisonous.get(c.id) is not Poison.UNKNOWN]
    files, identities, answers = list[Path](), list[DeviceIdentity](), dict[str, dict[uuid.UUID, float]]()
    for number in range(devices):
        file = folder / f"card-{number}.parquet"
        runtimes = {c.id: round(0.5 + chance.random(), 6) for c in known}
        _record(file, number, known, runtimes, chance)
        (identity,) = discover(f"recorded:{file}")
        files.append(file)
        identities.append(identity)
        answers[identity.uuid] = runtimes
    if jobs:
        targets = [{"type": TYPE}, {"device": identities[0].uuid}]
        asked.insert(1, _campaign("second", "bob", half, k=320, targets=targets))
    return Workload(tuple(files), tuple(identities), answers, poisonous, tuple(asked))


def more(name: str, owner: str, *, rows: int = 1, columns: int = COLUMNS) -> Campaign:
    """A campaign of healthy jobs for any card: two for each row and column, of which there are at most `MORE_ROWS` and 20."""
    return _campaign(name, owner, 2 * columns * rows, k=448, targets=[{"type": TYPE}], columns=columns)


def _campaign(
    name: str, owner: str, configurations: int, *, k: int, targets: list[dict[str, str]], columns: int = COLUMNS
) -> Campaign:
    rows = -(-configurations // (2 * columns))
    return Campaign.from_document(
        {
            "name": name,
            "owner": owner,
            "targets": targets,
            "problems": {
                "m": [16 * (i + 1) for i in range(rows)],
                "n": [16 * (i + 1) for i in range(columns)],
                "k": k,
                "types": ["f32"],
            },
            "kernels": [{"family": "blas", "threads": [1, 2]}],
            "measure": {"job_seconds": JOB_SECONDS, "max_attempts": MAX_ATTEMPTS},
        }
    )


def _search(problems: int) -> Campaign:
    return Campaign.from_document(
        {
            "name": "search",
            "owner": "eve",
            "targets": [{"type": TYPE}],
            "problems": {"m": [16 * (i + 1) for i in range(problems)], "n": 16, "k": 384, "types": ["f32"]},
            "kernels": [{"family": "blas", "threads": list(range(1, SEARCHED_KERNELS + 1))}],
            "search": SEARCH.to_document(),
            "measure": {"job_seconds": JOB_SECONDS, "max_attempts": MAX_ATTEMPTS},
        }
    )


def _record(
    file: Path, number: int, known: list[Configuration], runtimes: dict[uuid.UUID, float], chance: random.Random
) -> None:
    rows: list[dict[str, Any]] = [
        {"configuration": c, "runtime_ms": runtimes[c.id], "cost_s": COST_S * chance.uniform(0.5, 1.5)} for c in known
    ]
    origin = Provenance(
        device_type="chaos-card", device_name=NAME, traits=TRAITS, provenance=f"card {number}, made up for chaos"
    )
    write_recording(file, rows, origin)
