"""The jobs of a campaign on the known devices: targets become pools, configurations become jobs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby

from farm.campaign.campaign import Campaign
from farm.campaign.drawing import DomainSource
from farm.campaign.figures import PlanSummary
from farm.campaign.strategies import Search
from farm.campaign.strategies.draws import KernelSample
from farm.campaign.summary import summarise
from farm.campaign.targets import Target, TargetKind
from farm.devices import Backend, DeviceKind, DeviceTraits
from farm.errors import NoSuchTarget, NothingToMeasure, TargetNeedsDevices
from farm.gemm import Problem
from farm.kernels import BASELINES, FAMILIES, Configuration, Kernel
from farm.kernels.binary import Binary
from farm.vendors import kind_named_by


@dataclass(frozen=True, slots=True)
class KnownDevice:
    """The facts of a known device that planning needs."""

    uuid: str
    type: str
    host: str
    traits: DeviceTraits
    backend: Backend


@dataclass(frozen=True, slots=True, order=True)
class PoolSpec:
    """The devices that may take a job: every device of some types, or one device."""

    # type:nvidia-h200 | any:cpu-amd-epyc,nvidia-h200 | device:GPU-…
    name: str
    device_types: tuple[str, ...] | None
    device_uuid: str | None

    @classmethod
    def of_types(cls, types: Sequence[str]) -> PoolSpec:
        names = tuple(sorted(set(types)))
        return cls(f"{'type' if len(names) == 1 else 'any'}:{','.join(names)}", names, None)

    @classmethod
    def of_device(cls, uuid: str) -> PoolSpec:
        return cls(f"device:{uuid}", None, uuid)


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A configuration for a pool. With a reason, it is known beforehand that no device of the pool can run it."""

    configuration: Configuration
    pool: PoolSpec
    invalid_reason: str | None
    # For the target `any`: measured once, however the set of known types (and so the pool) grows later.
    any_device: bool = False
    # What must have been built for it: one binary for each architecture in the pool that can run it.
    binaries: tuple[Binary, ...] = ()
    # Of a search: the round that it belongs to. Of a campaign that learns, 0 is the test set.
    round: int = 0


@dataclass(frozen=True, slots=True)
class Destination:
    """One pool that a target always means. `traits` are the different ones of its devices; none: nothing is known."""

    pool: PoolSpec
    # None: the device has not been seen, and its name does not say.
    kind: DeviceKind | None
    traits: tuple[DeviceTraits, ...]
    # Of these, the traits of devices that execute kernels: what must be built is built for them.
    executing: tuple[DeviceTraits, ...]

    @classmethod
    def of(cls, pool: PoolSpec, devices: Sequence[KnownDevice]) -> Destination:
        """The pool of these devices. There must be at least one, and all must be of one kind."""
        return cls(pool, devices[0].traits.kind, _traits(devices), _executing(devices))

    def job(self, configuration: Configuration) -> PlannedJob | None:
        family = FAMILIES[configuration.kernel.family]
        if self.kind is not None and family.kind is not self.kind:
            return None
        runs_on, reason = _first_valid(configuration, self.traits)
        binaries = () if reason else binaries_for(configuration, self.executing, runs_on)
        return PlannedJob(configuration, self.pool, reason, binaries=binaries)

    def baseline(self, problem: Problem) -> PlannedJob | None:
        """The job of the baseline of a problem; None if devices of the kind have no baseline, or it cannot run."""
        kernel = None if self.kind is None else BASELINES.get(self.kind)
        job = None if kernel is None else self.job(Configuration(problem, kernel))
        return job if job is not None and job.invalid_reason is None else None


@dataclass(frozen=True, slots=True)
class AnyDevice:
    """The target `any`: each configuration goes to the types on which it is valid."""

    # The different traits of each type's devices, by type.
    types: dict[str, tuple[DeviceTraits, ...]]
    # Of these, the traits of devices that execute kernels.
    executing: dict[str, tuple[DeviceTraits, ...]]
    _pools: dict[tuple[str, ...], PoolSpec] = field(default_factory=dict, compare=False)

    def job(self, configuration: Configuration) -> PlannedJob | None:
        kind = FAMILIES[configuration.kernel.family].kind
        of_kind, valid, first_reason = [], [], None
        binaries: dict[Binary, None] = {}
        for name, traits in self.types.items():
            if traits[0].kind is not kind:
                continue
            of_kind.append(name)
            runs_on, reason = _first_valid(configuration, traits)
            if reason is None:
                valid.append(name)
                binaries |= dict.fromkeys(binaries_for(configuration, self.executing[name], runs_on))
            else:
                first_reason = first_reason or reason
        if not of_kind:
            return None
        names = tuple(valid or of_kind)
        pool = self._pools.get(names)
        if pool is None:
            pool = self._pools.setdefault(names, PoolSpec.of_types(names))
        reason = None if valid else first_reason
        return PlannedJob(configuration, pool, reason, any_device=True, binaries=tuple(binaries))


def binaries_for(
    configuration: Configuration, traits: Sequence[DeviceTraits], runs_on: DeviceTraits | None = None
) -> tuple[Binary, ...]:
    """The binaries that must be built for devices with these traits; none for families that are not built ahead of time.

    `runs_on` are traits with which the configuration is known to be valid: checking takes most of the time of a large plan.
    """
    if FAMILIES[configuration.kernel.family].binary is None:
        return ()
    valid = (device for device in traits if device is runs_on or configuration.why_invalid(device) is None)
    needed = (configuration.binary(device) for device in valid)
    return tuple(dict.fromkeys(binary for binary in needed if binary is not None))


def why_invalid_on_all(configuration: Configuration, traits: Sequence[DeviceTraits]) -> str | None:
    """Why the first of these devices cannot run it; None if one of them can."""
    return _first_valid(configuration, traits)[1]


def _first_valid(
    configuration: Configuration, traits: Sequence[DeviceTraits]
) -> tuple[DeviceTraits, None] | tuple[None, str | None]:
    """The first traits with which it is valid, or why it is not with the first of them. Without traits, neither is known."""
    first: str | None = None
    for device in traits:
        reason = configuration.why_invalid(device)
        if reason is None:
            return device, None
        first = first or reason
    return None, first


@dataclass(frozen=True)
class Plan:
    """The jobs of a campaign on the known devices."""

    campaign: Campaign
    # By pool name, or `any`.
    destinations: dict[str, Destination | AnyDevice]
    # Which target to write for the recorded devices that `any` leaves out; empty if it leaves none out.
    recorded_hint: str = ""

    def jobs(self) -> Iterator[PlannedJob]:
        """Every job, lazily, in the order of the configurations. Two blocks that share a configuration yield it twice.

        Raises:
            NothingToMeasure: At the end, if there was no job.
        """
        return self.jobs_of(self.configurations())

    def configurations(self) -> Iterator[Configuration]:
        """Every configuration of the campaign. Problems that are drawn from a domain run on a device of the targets."""
        return self.campaign.expand(self._runs, test_set=self.test_set)

    @cached_property
    def test_set(self) -> tuple[Problem, ...]:
        """The problems of the test set of a campaign that learns, drawn once; none otherwise."""
        return self.campaign.test_set(self._runs)

    def domain(self) -> DomainSource:
        """The domain, with the problems that run on a device of the targets."""
        return self.campaign.domain(self._runs)

    def _runs(self, configuration: Configuration) -> bool:
        return any(job.invalid_reason is None for job in self.grid([configuration]))

    def jobs_of(self, configurations: Iterable[Configuration]) -> Iterator[PlannedJob]:
        """The jobs of these configurations: for each, one for each pool that the targets mean.

        Of a search, those of its first round. One that draws its kernels draws among those that can run; the others are
        jobs too, and invalid. If the first round is also the last, it has the baseline of each problem.

        Raises:
            NothingToMeasure: At the end, if there was no job, or none to learn from.
        """
        search = self.campaign.search
        learns = self.campaign.learns
        test = frozenset(self.test_set)
        some = some_to_learn_from = False
        for job in self.grid(configurations) if search is None else self._searched(configurations, search):
            some = True
            if learns and job.configuration.problem not in test:
                some_to_learn_from = True
                yield replace(job, round=1)
            else:
                yield job
        if not some:
            raise NothingToMeasure(path=self.campaign.where, why=self._why_nothing())
        if learns and not some_to_learn_from:
            raise NothingToMeasure(path=self.campaign.where, why=self._why_nothing_to_learn_from())

    def grid(self, configurations: Iterable[Configuration]) -> Iterator[PlannedJob]:
        """The jobs of these configurations if all are measured."""
        for configuration in configurations:
            seen = set()
            for destination in self.destinations.values():
                job = destination.job(configuration)
                if job is not None and job.pool.name not in seen:
                    seen.add(job.pool.name)
                    yield job

    def _searched(self, configurations: Iterable[Configuration], search: Search) -> Iterator[PlannedJob]:
        """The jobs problem by problem. Only the kernels that are drawn for one problem are in memory."""
        for problem, of_problem in groupby(configurations, key=lambda configuration: configuration.problem):
            drawn: dict[PoolSpec, KernelSample] = {}
            for job in self.grid(of_problem):
                if job.invalid_reason is not None:
                    # A kernel cannot run many problems of a domain, and the file does not name them.
                    if not self.campaign.draws:
                        yield job
                    continue
                draw = drawn.get(job.pool) or search.draw(from_domain=self.campaign.draws)
                if draw is None:
                    yield job
                else:
                    draw.add(job.configuration)
                    drawn[job.pool] = draw
            for pool, draw in drawn.items():
                yield from (job for job in self.grid(draw.drawn()) if job.pool == pool)
            if not search.short_rounds and not self.campaign.draws:
                yield from self.baselines(problem)

    def baselines(self, problem: Problem) -> Iterator[PlannedJob]:
        """The jobs of the baseline of a problem, for each pool whose devices can run it."""
        for destination in self.destinations.values():
            if isinstance(destination, Destination) and (job := destination.baseline(problem)) is not None:
                yield job

    def summary(self) -> PlanSummary:
        """Counts, reasons and an upper estimate of the time. Iterates over the plan once."""
        return summarise(self)

    def targets_without(self, kind: DeviceKind) -> list[str]:
        """The pools (or `any`) on whose devices no family of that kind runs."""
        return [name for name, destination in self.destinations.items() if kind not in _kinds(destination)]

    def _why_nothing_to_learn_from(self) -> str:
        problems = len(self.test_set)
        return (
            f"the domain has {problems:,} problem{'' if problems == 1 else 's'} that its constraints keep and a kernel runs, and "
            "all are in the test set, from which no model learns; widen the domain, or lower search.test_problems"
        )

    def _why_nothing(self) -> str:
        left = next(self.campaign.expand(), None)
        texts = "; ".join(c.text for c in self.campaign.constraints)
        if left is None and self.campaign.draws:
            return f"its constraints ({texts}) leave none of the configurations that were drawn from its domain; relax them"
        if left is None:
            return f"its constraints ({texts}) leave none of {self.campaign.size:,} configurations"
        if self.campaign.draws:
            reasons = (f": {job.invalid_reason}" for job in self.grid([left]) if job.invalid_reason)
            example = f"; for example, {left.canonical}{next(reasons, ' is for another kind of device')}"
            return f"none of its kernels runs a problem of its domain on the devices of its targets{example}{self.recorded_hint}"
        return f"none of the configurations that its constraints leave runs on the devices of its targets{self.recorded_hint}"


def plan(campaign: Campaign, devices: Sequence[KnownDevice], *, allow_missing: bool) -> Plan:
    """Resolves the targets of a campaign against the known devices.

    Args:
        allow_missing: Accept the targets `type` and `device` without a known device. Their jobs wait for one.

    Raises:
        NoSuchTarget: A target that no device matches.
        NothingToMeasure: No kernel of the campaign runs on a device of its targets.
    """
    destinations: dict[str, Destination | AnyDevice] = {}
    for target in campaign.targets:
        for destination in _resolved(target, devices, campaign, allow_missing):
            name = destination.pool.name if isinstance(destination, Destination) else "any"
            destinations.setdefault(name, destination)
    types = {name for one in destinations.values() for name in _types(one)}
    hint = _recorded_hint(campaign, devices, types)
    if not any(_applies(family, destination) for family in campaign.families for destination in destinations.values()):
        needs = " and ".join(f"{family} runs on {FAMILIES[family].kind} devices" for family in campaign.families)
        kinds = sorted({kind for destination in destinations.values() for kind in _kinds(destination)})
        instead = _families_instead(campaign, destinations.values())
        why = f"{needs}, its targets are {' and '.join(kinds)} devices{hint}{instead}"
        raise NothingToMeasure(path=campaign.where, why=why)
    return Plan(campaign, destinations, hint)


def _recorded_hint(campaign: Campaign, devices: Sequence[KnownDevice], taken: Iterable[str]) -> str:
    """Which target to write for recorded devices that run a family of the campaign, and that `any` leaves out."""
    if not any(target.kind is TargetKind.ANY for target in campaign.targets):
        return ""
    kinds = {FAMILIES[family].kind for family in campaign.families}
    left_out = {d.type for d in devices if d.backend is Backend.RECORDED and d.traits.kind in kinds} - set(taken)
    if not left_out:
        return ""
    written = " or ".join(f"targets: {{type: {name}}}" for name in sorted(left_out))
    return (
        f". The target any takes recorded devices only if no other device is known; to use a recording, write {written}"
    )


def _families_instead(campaign: Campaign, destinations: Collection[Destination | AnyDevice]) -> str:
    """Which families compute the first problem of a campaign on the devices of its targets, or why none does."""
    first = next(campaign.expand(), None)
    if first is None:
        return ""
    reasons: dict[str, str | None] = {}
    for name, family in FAMILIES.items():
        if family.worker is None or family.untrusted:
            continue
        configuration = Configuration(first.problem, Kernel.of(name))
        jobs = [job for one in destinations if (job := one.job(configuration)) is not None]
        if jobs:
            reasons[name] = next((None for job in jobs if job.invalid_reason is None), jobs[0].invalid_reason)
    able = [name for name, reason in reasons.items() if reason is None]
    if able:
        return (
            f". To use these devices, name a family that runs there, under kernels or with --family: {', '.join(able)}"
        )
    whys = "; ".join(reason for reason in reasons.values() if reason is not None)
    elsewhere = " or ".join(sorted({FAMILIES[family].kind for family in campaign.families}))
    return (
        f". Measure it on {elsewhere} devices: on its targets, no family computes its first problem ({whys})"
        if whys
        else ""
    )


def _types(destination: Destination | AnyDevice) -> Iterable[str]:
    return destination.types if isinstance(destination, AnyDevice) else destination.pool.device_types or ()


def _kinds(destination: Destination | AnyDevice) -> set[DeviceKind]:
    if isinstance(destination, AnyDevice):
        return {traits[0].kind for traits in destination.types.values()}
    return set(DeviceKind) if destination.kind is None else {destination.kind}


def _applies(family: str, destination: Destination | AnyDevice) -> bool:
    return FAMILIES[family].kind in _kinds(destination)


def _resolved(
    target: Target, devices: Sequence[KnownDevice], campaign: Campaign, allow_missing: bool
) -> Sequence[Destination | AnyDevice]:
    matching = [d for d in devices if _matches(target, d)]
    if not matching:
        return [_missing(target, devices, campaign, allow_missing)]
    match target.kind:
        case TargetKind.ANY:
            # Recorded devices take part in `any` only if no device measures.
            measuring = [d for d in matching if d.backend.runs_kernels] or matching
            of = {name: [d for d in measuring if d.type == name] for name in sorted({d.type for d in measuring})}
            if campaign.search is not None:  # which kernel is best differs from type to type
                return [Destination.of(PoolSpec.of_types([name]), of[name]) for name in of]
            return [AnyDevice({n: _traits(of[n]) for n in of}, {n: _executing(of[n]) for n in of})]
        case TargetKind.TYPE:
            return [Destination.of(PoolSpec.of_types([target.value]), matching)]
        case TargetKind.EACH | TargetKind.HOST | TargetKind.DEVICE:
            in_order = sorted(matching, key=lambda d: d.uuid)
            return [Destination.of(PoolSpec.of_device(d.uuid), [d]) for d in in_order]


def _matches(target: Target, device: KnownDevice) -> bool:
    match target.kind:
        case TargetKind.ANY:
            return True
        case TargetKind.TYPE | TargetKind.EACH:
            return device.type == target.value
        case TargetKind.HOST:
            return device.host == target.value
        case TargetKind.DEVICE:
            return device.uuid == target.value


def _traits(devices: Sequence[KnownDevice]) -> tuple[DeviceTraits, ...]:
    return tuple(dict.fromkeys(d.traits for d in devices))


def _executing(devices: Sequence[KnownDevice]) -> tuple[DeviceTraits, ...]:
    return _traits([d for d in devices if d.backend.runs_kernels])


def _missing(target: Target, devices: Sequence[KnownDevice], campaign: Campaign, allow_missing: bool) -> Destination:
    """The pool of a device that is not known yet, if the target names one and it may be missing."""
    if allow_missing and target.kind is TargetKind.TYPE:
        return Destination(PoolSpec.of_types([target.value]), kind_named_by(target.value), (), ())
    if allow_missing and target.kind is TargetKind.DEVICE:
        return Destination(PoolSpec.of_device(target.value), kind_named_by(target.value), (), ())
    needs_devices = target.kind not in (TargetKind.TYPE, TargetKind.DEVICE)
    error = TargetNeedsDevices if needs_devices else NoSuchTarget
    raise error(path=campaign.where, line=campaign.line_of(target), target=target, known=_known(devices))


def _known(devices: Sequence[KnownDevice]) -> str:
    if not devices:
        return "none, no worker has announced a device yet"
    types = ", ".join(sorted({d.type for d in devices}))
    hosts = ", ".join(sorted({d.host for d in devices}))
    return f"types {types}; hosts {hosts}"
