"""Which fault strikes when, and whom? A pure function of a seed, so that a run can be repeated."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What is done to the farm."""

    # The processes of a device.
    KILL_CHILD = "the measuring child is killed"
    KILL_PARENT = "the Celery parent is killed"
    FREEZE_CHILD = "the measuring child stands still for good"
    PAUSE_WORKER = "parent and child are paused for longer than the lease"
    # `farm-worker`.
    KILL_HOST = "farm-worker is killed"
    STOP_HOST = "farm-worker is stopped in good order"
    # Coordinators.
    KILL_COORDINATOR = "the coordinator is killed"
    SECOND_COORDINATOR = "a second coordinator waits, and the leader is killed"
    KILL_BEFORE_SENDING = "the coordinator is killed between commit and send"
    PAUSE_COORDINATOR = "the coordinator is paused"
    # Redis.
    FLUSH_REDIS = "Redis forgets everything"
    KILL_REDIS = "Redis is killed and comes back empty"
    STOP_REDIS = "Redis is away"
    FREEZE_REDIS = "Redis does not answer"
    # Postgres.
    CRASH_POSTGRES = "Postgres stops at once, and recovers"
    KILL_POSTGRES = "the postmaster is killed"
    RESTART_POSTGRES = "Postgres is stopped in good order"
    DROP_CONNECTIONS = "every connection to Postgres is cut"
    # Messages.
    REPEAT_MESSAGES = "messages of batches in every state come twice more"
    JUNK_MESSAGES = "messages that mean nothing"
    LOSE_MESSAGES = "messages are lost from the queues"
    # People.
    PAUSE_CAMPAIGN = "a campaign is paused and resumed"
    CANCEL_CAMPAIGN = "a campaign is cancelled and submitted again"
    DRAIN_DEVICE = "a device is drained and resumed"
    RETRY_DEAD = "dead jobs are opened again"
    # A device that answers nothing but its canary, from then on.
    SICKEN_DEVICE = "a device fails everything"


class Victim(StrEnum):
    """What a fault keeps busy: two faults of one victim do not overlap."""

    DEVICE = "device"
    HEALTHY_DEVICE = "device that is not the sick one"
    HOST = "host"
    COORDINATOR = "coordinator"
    REDIS = "Redis"
    POSTGRES = "Postgres"
    CAMPAIGN = "campaign"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class _Trait:
    victim: Victim
    # Seconds until it is made good: the least and the most.
    lasts_s: tuple[float, float] = (0.0, 0.0)
    # How often it comes, compared with others.
    weight: int = 1


_TRAITS = {
    Kind.KILL_CHILD: _Trait(Victim.DEVICE, weight=3),
    Kind.FREEZE_CHILD: _Trait(Victim.DEVICE),
    Kind.KILL_PARENT: _Trait(Victim.DEVICE),
    Kind.PAUSE_WORKER: _Trait(Victim.DEVICE, (4.0, 6.0)),
    Kind.KILL_HOST: _Trait(Victim.HOST, (0.5, 2.0)),
    Kind.STOP_HOST: _Trait(Victim.HOST, (0.5, 2.0)),
    Kind.KILL_COORDINATOR: _Trait(Victim.COORDINATOR, (0.5, 3.0)),
    Kind.SECOND_COORDINATOR: _Trait(Victim.COORDINATOR, (3.0, 5.0)),
    Kind.KILL_BEFORE_SENDING: _Trait(Victim.COORDINATOR, (0.5, 2.0)),
    Kind.PAUSE_COORDINATOR: _Trait(Victim.COORDINATOR, (1.0, 4.0)),
    Kind.FLUSH_REDIS: _Trait(Victim.REDIS),
    Kind.KILL_REDIS: _Trait(Victim.REDIS),
    Kind.STOP_REDIS: _Trait(Victim.REDIS, (2.0, 4.0)),
    Kind.FREEZE_REDIS: _Trait(Victim.REDIS, (1.0, 3.0)),
    Kind.CRASH_POSTGRES: _Trait(Victim.POSTGRES, (1.0, 4.0)),
    Kind.KILL_POSTGRES: _Trait(Victim.POSTGRES, (1.0, 4.0)),
    Kind.RESTART_POSTGRES: _Trait(Victim.POSTGRES),
    Kind.DROP_CONNECTIONS: _Trait(Victim.POSTGRES),
    Kind.REPEAT_MESSAGES: _Trait(Victim.NOTHING),
    Kind.JUNK_MESSAGES: _Trait(Victim.NOTHING),
    Kind.LOSE_MESSAGES: _Trait(Victim.NOTHING),
    Kind.PAUSE_CAMPAIGN: _Trait(Victim.CAMPAIGN, (1.0, 4.0)),
    Kind.CANCEL_CAMPAIGN: _Trait(Victim.CAMPAIGN, (2.0, 5.0)),
    Kind.DRAIN_DEVICE: _Trait(Victim.HEALTHY_DEVICE, (1.0, 4.0)),
    Kind.RETRY_DEAD: _Trait(Victim.CAMPAIGN),
}
_WEIGHTED = [kind for kind, trait in _TRAITS.items() for _ in range(trait.weight)]

GAP_S = (0.5, 1.5)
"""Between two faults."""

SICK_AFTER = 0.15
"""The share of the run after which the sick device fails."""


@dataclass(frozen=True, slots=True)
class Fault:
    at_s: float  # since the start
    kind: Kind
    # Which device or host, counted from 0; 0 where there is only one.
    target: int
    # Until it is made good.
    lasts_s: float


def victim_of(kind: Kind) -> Victim:
    """What a fault of that kind keeps busy."""
    return _TRAITS[kind].victim if kind in _TRAITS else Victim.NOTHING


def make_plan(seed: int, seconds: float, *, hosts: int, devices: int, sick: int) -> list[Fault]:
    """The faults of a run of that length, in order of time; every kind at least once. Device `sick` falls ill.

    Raises `ValueError` where the time is too short for that.
    """
    chance = random.Random(seed)
    targets = defaultdict[Victim, Sequence[int]](lambda: [0])
    targets |= {Victim.DEVICE: range(devices), Victim.HOST: range(hosts)}
    targets[Victim.HEALTHY_DEVICE] = [device for device in range(devices) if device != sick]
    found = [Fault(round(SICK_AFTER * seconds, 2), Kind.SICKEN_DEVICE, sick, 0.0)]
    free_at: defaultdict[tuple[Victim, int], float] = defaultdict(float)
    deck, at = chance.sample(list(_TRAITS), len(_TRAITS)), 1.0
    while at < seconds:
        drawn = [(kind, chance.choice(targets[_TRAITS[kind].victim])) for kind in deck]
        kind, target = next(((k, t) for k, t in drawn if free_at[_TRAITS[k].victim, t] <= at), (None, 0))
        if kind is None:
            at += 0.25
            continue
        deck.remove(kind)
        deck = deck or chance.sample(_WEIGHTED, len(_WEIGHTED))
        trait, lasts_s = _TRAITS[kind], round(chance.uniform(*_TRAITS[kind].lasts_s), 2)
        found.append(Fault(round(at, 2), kind, target, lasts_s))
        if trait.victim is not Victim.NOTHING:
            free_at[trait.victim, target] = at + lasts_s + GAP_S[1]
        at += chance.uniform(*GAP_S)
    missing = set(Kind) - {fault.kind for fault in found}
    if missing:
        raise ValueError(f"{seconds:g} s are too short for every kind of fault; missing: {', '.join(sorted(missing))}")
    return sorted(found, key=lambda fault: fault.at_s)
