"""Which fault strikes when, and whom? A pure function of a seed, so that a run can be repeated."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto


class Kind(StrEnum):
    """What is done to the farm."""

    # The processes of a device.
    KILL_CHILD = "the measuring child is killed"
    KILL_PARENT = "the Celery parent is killed"
    FREEZE_CHILD = "the measuring child stands still for good"
    PAUSE_WORKER = "parent and child are paused for longer than the lease"
    FREEZE_LANDING = "the measuring child stands still for good in the middle of a landing"
    KILL_LANDING = "the measuring child is killed in the middle of a landing"
    HOLD_DEVICE = "a foreign session holds the row of a device"
    HOLD_BATCH = "a foreign session holds the batch that a device has in hand"
    # `farm-worker`.
    KILL_HOST = "farm-worker is killed"
    STOP_HOST = "farm-worker is stopped in good order"
    FREEZE_HOST = "all processes of a host stand still for longer than their leases"
    OLD_WORKER = "farm-worker is replaced by an older version that cannot read every job, and upgraded again"
    SECOND_WORKER = "a second farm-worker is started for the same devices"
    STEP_HOST_CLOCK = "the clock of a host of devices steps an hour ahead"
    # Coordinators.
    KILL_COORDINATOR = "the coordinator is killed"
    SECOND_COORDINATOR = "a second coordinator waits, and the leader is killed"
    KILL_BEFORE_SENDING = "the coordinator is killed between commit and send"
    PAUSE_COORDINATOR = "the coordinator is paused"
    FREEZE_COORDINATOR = "the coordinator stands still for longer than its term"
    STEP_LEADER_CLOCK = "the clock of the coordinator's host steps an hour back"
    # Redis.
    FLUSH_REDIS = "Redis forgets everything"
    KILL_REDIS = "Redis is killed and comes back empty"
    STOP_REDIS = "Redis is away"
    FREEZE_REDIS = "Redis does not answer"
    FULL_REDIS = "Redis is full, and refuses to write"
    READ_ONLY_REDIS = "Redis is a replica, and refuses to write"
    # Postgres.
    CRASH_POSTGRES = "Postgres stops at once, and recovers"
    KILL_POSTGRES = "the postmaster is killed"
    RESTART_POSTGRES = "Postgres is stopped in good order"
    DROP_CONNECTIONS = "every connection to Postgres is cut"
    FREEZE_POSTGRES = "Postgres does not answer"
    READ_ONLY_POSTGRES = "Postgres is read-only"
    FULL_DISK = "the disk of Postgres is full"
    # Messages.
    REPEAT_MESSAGES = "messages of batches in every state come twice more"
    JUNK_MESSAGES = "messages that mean nothing"
    LOSE_MESSAGES = "messages are lost from the queues"
    # People.
    PAUSE_CAMPAIGN = "a campaign is paused and resumed"
    CANCEL_CAMPAIGN = "a campaign is cancelled and submitted again"
    DRAIN_DEVICE = "a device is drained and resumed"
    RETRY_DEAD = "dead jobs are opened again"
    HOLD_LANE = "a foreign session holds a lane"
    HOLD_CAMPAIGN = "a foreign session holds a campaign"
    STOP_SUBMISSION = "farm submit is stopped in the middle of its jobs (Ctrl-Z), and killed"
    FIFTY_OWNERS = "fifty owners submit a campaign each"
    # Between hosts.
    CUT_LEADER = "the leading coordinator is cut off from the database"
    CUT_FROM_LEADER = "what the leading coordinator sends to the database is lost"
    CUT_TO_LEADER = "what the database sends to the leading coordinator is lost"
    CUT_HOST = "a host of devices is cut off from the database"
    CUT_FROM_HOST = "what a host of devices sends to the database is lost"
    CUT_TO_HOST = "what the database sends to a host of devices is lost"
    CUT_LANDING = "a host of devices is cut off in the middle of a landing"
    CUT_HALF = "the leading coordinator and half of the hosts of devices are cut off"
    CUT_DATABASE = "the database is cut off from every host"
    SLOW_HOST = "a host of devices has a slow link"
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


class Holds(Enum):
    """Who cannot measure while a fault lasts. All others are healthy, and so are these when it is over."""

    NOBODY = auto()
    VICTIM = auto()
    EVERYBODY = auto()
    HALF = auto()


@dataclass(frozen=True, slots=True)
class Trait:
    """What there is to know of a kind of fault."""

    victim: Victim
    # Seconds until it is made good in a random run, whose times are hurried: the least and the most.
    lasts_s: tuple[float, float] = (0.0, 0.0)
    # Seconds until it is made good where recovery is measured, with the farm's own times.
    strike_s: float = 0.0
    # How often it comes, compared with others.
    weight: int = 1
    holds: Holds = Holds.NOBODY
    # It takes the lead from the coordinator that has it.
    takes_lead: bool = False
    # It can only be done between hosts of a test's own.
    needs_hosts: bool = False


TRAITS = {
    Kind.KILL_CHILD: Trait(Victim.DEVICE, weight=3),
    Kind.FREEZE_CHILD: Trait(Victim.DEVICE, holds=Holds.VICTIM),
    Kind.KILL_PARENT: Trait(Victim.DEVICE),
    Kind.PAUSE_WORKER: Trait(Victim.DEVICE, (4.0, 6.0), 35.0, holds=Holds.VICTIM),
    Kind.FREEZE_LANDING: Trait(Victim.HEALTHY_DEVICE, holds=Holds.VICTIM),
    Kind.KILL_LANDING: Trait(Victim.HEALTHY_DEVICE),
    Kind.HOLD_DEVICE: Trait(Victim.DEVICE, (3.0, 8.0), 25.0, holds=Holds.VICTIM),
    Kind.HOLD_BATCH: Trait(Victim.HEALTHY_DEVICE, (3.0, 8.0), 25.0, holds=Holds.VICTIM),
    Kind.KILL_HOST: Trait(Victim.HOST, (0.5, 2.0), 2.0, holds=Holds.VICTIM),
    Kind.STOP_HOST: Trait(Victim.HOST, (0.5, 2.0), 2.0, holds=Holds.VICTIM),
    Kind.FREEZE_HOST: Trait(Victim.HOST, (4.0, 6.0), 35.0, holds=Holds.VICTIM),
    Kind.OLD_WORKER: Trait(Victim.HOST, (8.0, 12.0), 20.0, holds=Holds.VICTIM),
    Kind.SECOND_WORKER: Trait(Victim.HOST, (6.0, 10.0), 20.0, holds=Holds.VICTIM),
    Kind.STEP_HOST_CLOCK: Trait(Victim.HOST, (4.0, 8.0), 20.0),
    Kind.KILL_COORDINATOR: Trait(Victim.COORDINATOR, (0.5, 3.0), 20.0, takes_lead=True),
    Kind.SECOND_COORDINATOR: Trait(Victim.COORDINATOR, (3.0, 5.0), 5.0, takes_lead=True),
    Kind.KILL_BEFORE_SENDING: Trait(Victim.COORDINATOR, (0.5, 2.0), 2.0, holds=Holds.EVERYBODY),
    Kind.PAUSE_COORDINATOR: Trait(Victim.COORDINATOR, (1.0, 4.0), 4.0),
    Kind.FREEZE_COORDINATOR: Trait(Victim.COORDINATOR, (13.0, 16.0), 25.0, takes_lead=True),
    Kind.STEP_LEADER_CLOCK: Trait(Victim.COORDINATOR, (4.0, 8.0), 20.0),
    Kind.FLUSH_REDIS: Trait(Victim.REDIS),
    Kind.KILL_REDIS: Trait(Victim.REDIS),
    Kind.STOP_REDIS: Trait(Victim.REDIS, (2.0, 4.0), 20.0, holds=Holds.EVERYBODY),
    Kind.FREEZE_REDIS: Trait(Victim.REDIS, (1.0, 3.0), 20.0, holds=Holds.EVERYBODY),
    Kind.FULL_REDIS: Trait(Victim.REDIS, (2.0, 4.0), 20.0, holds=Holds.EVERYBODY),
    Kind.READ_ONLY_REDIS: Trait(Victim.REDIS, (2.0, 4.0), 20.0, holds=Holds.EVERYBODY),
    Kind.CRASH_POSTGRES: Trait(Victim.POSTGRES, (1.0, 4.0), 20.0, holds=Holds.EVERYBODY),
    Kind.KILL_POSTGRES: Trait(Victim.POSTGRES, (1.0, 4.0), 20.0, holds=Holds.EVERYBODY),
    Kind.RESTART_POSTGRES: Trait(Victim.POSTGRES),
    Kind.DROP_CONNECTIONS: Trait(Victim.POSTGRES),
    Kind.FREEZE_POSTGRES: Trait(Victim.POSTGRES, (1.0, 4.0), 20.0, holds=Holds.EVERYBODY),
    Kind.READ_ONLY_POSTGRES: Trait(Victim.POSTGRES, (2.0, 4.0), 20.0, holds=Holds.EVERYBODY),
    Kind.FULL_DISK: Trait(Victim.POSTGRES, (2.0, 4.0), 20.0, holds=Holds.EVERYBODY, needs_hosts=True),
    Kind.REPEAT_MESSAGES: Trait(Victim.NOTHING),
    Kind.JUNK_MESSAGES: Trait(Victim.NOTHING),
    Kind.LOSE_MESSAGES: Trait(Victim.NOTHING),
    Kind.PAUSE_CAMPAIGN: Trait(Victim.CAMPAIGN, (1.0, 4.0), 10.0),
    Kind.CANCEL_CAMPAIGN: Trait(Victim.CAMPAIGN, (2.0, 5.0), 10.0),
    Kind.HOLD_LANE: Trait(Victim.CAMPAIGN, (3.0, 8.0), 25.0),
    Kind.HOLD_CAMPAIGN: Trait(Victim.CAMPAIGN, (3.0, 8.0), 25.0),
    Kind.STOP_SUBMISSION: Trait(Victim.NOTHING, (5.0, 10.0), 25.0),
    Kind.FIFTY_OWNERS: Trait(Victim.NOTHING),
    Kind.DRAIN_DEVICE: Trait(Victim.HEALTHY_DEVICE, (1.0, 4.0), 10.0, holds=Holds.VICTIM),
    Kind.RETRY_DEAD: Trait(Victim.CAMPAIGN),
    Kind.SICKEN_DEVICE: Trait(Victim.DEVICE, strike_s=25.0, holds=Holds.VICTIM),
    Kind.CUT_LEADER: Trait(Victim.COORDINATOR, (4.0, 16.0), 25.0, takes_lead=True, needs_hosts=True),
    Kind.CUT_FROM_LEADER: Trait(Victim.COORDINATOR, (4.0, 16.0), 25.0, takes_lead=True, needs_hosts=True),
    Kind.CUT_TO_LEADER: Trait(Victim.COORDINATOR, (4.0, 16.0), 25.0, takes_lead=True, needs_hosts=True),
    Kind.CUT_HOST: Trait(Victim.HOST, (3.0, 8.0), 40.0, holds=Holds.VICTIM, needs_hosts=True),
    Kind.CUT_FROM_HOST: Trait(Victim.HOST, (3.0, 8.0), 40.0, holds=Holds.VICTIM, needs_hosts=True),
    Kind.CUT_TO_HOST: Trait(Victim.HOST, (3.0, 8.0), 40.0, holds=Holds.VICTIM, needs_hosts=True),
    Kind.CUT_LANDING: Trait(Victim.HOST, (3.0, 8.0), 40.0, holds=Holds.VICTIM, needs_hosts=True),
    Kind.CUT_HALF: Trait(Victim.COORDINATOR, (4.0, 16.0), 25.0, holds=Holds.HALF, takes_lead=True, needs_hosts=True),
    Kind.CUT_DATABASE: Trait(Victim.POSTGRES, (2.0, 8.0), 20.0, holds=Holds.EVERYBODY, needs_hosts=True),
    Kind.SLOW_HOST: Trait(Victim.HOST, (4.0, 8.0), 20.0, holds=Holds.VICTIM, needs_hosts=True),
}

BETWEEN_HOSTS = tuple(kind for kind, trait in TRAITS.items() if trait.needs_hosts)
ON_ONE_MACHINE = tuple(kind for kind in TRAITS if kind not in BETWEEN_HOSTS)

# On hosts there are two coordinators anyway, and where no job is poisonous none is dead.
ALONE = tuple(kind for kind in TRAITS if kind not in (Kind.SECOND_COORDINATOR, Kind.RETRY_DEAD))
"""What can strike alone."""

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


def make_plan(
    seed: int, seconds: float, *, hosts: int, devices: int, sick: int, kinds: Sequence[Kind] = ON_ONE_MACHINE
) -> list[Fault]:
    """The faults of a run of that length, in order of time; each of the kinds at least once.

    Device `sick` falls ill for good, where that is one of the kinds. Raises `ValueError` where the time is too short.
    """
    chance = random.Random(seed)
    targets = defaultdict[Victim, Sequence[int]](lambda: [0])
    targets |= {Victim.DEVICE: range(devices), Victim.HOST: range(hosts)}
    targets[Victim.HEALTHY_DEVICE] = [device for device in range(devices) if device != sick]
    found = list[Fault]()
    if Kind.SICKEN_DEVICE in kinds:
        found.append(Fault(round(SICK_AFTER * seconds, 2), Kind.SICKEN_DEVICE, sick, math.inf))
    drawn_kinds = [kind for kind in kinds if kind is not Kind.SICKEN_DEVICE]
    weighted = [kind for kind in drawn_kinds for _ in range(TRAITS[kind].weight)]
    free_at: defaultdict[tuple[Victim, int], float] = defaultdict(float)
    deck, at = chance.sample(drawn_kinds, len(drawn_kinds)), 1.0
    while at < seconds:
        drawn = [(kind, chance.choice(targets[TRAITS[kind].victim])) for kind in deck]
        kind, target = next(((k, t) for k, t in drawn if free_at[TRAITS[k].victim, t] <= at), (None, 0))
        if kind is None:
            at += 0.25
            continue
        deck.remove(kind)
        deck = deck or chance.sample(weighted, len(weighted))
        trait, lasts_s = TRAITS[kind], round(chance.uniform(*TRAITS[kind].lasts_s), 2)
        found.append(Fault(round(at, 2), kind, target, lasts_s))
        if trait.victim is not Victim.NOTHING:
            free_at[trait.victim, target] = at + lasts_s + GAP_S[1]
        at += chance.uniform(*GAP_S)
    missing = set(kinds) - {fault.kind for fault in found}
    if missing:
        raise ValueError(f"{seconds:g} s are too short for every kind of fault; missing: {', '.join(sorted(missing))}")
    return sorted(found, key=lambda fault: fault.at_s)
