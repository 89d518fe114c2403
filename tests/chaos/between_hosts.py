"""How faults between the hosts of a farm are done, and made good again."""

from __future__ import annotations

from chaos.faults import Faults, Mend, NotNow
from chaos.hosts import FarmOfHosts
from chaos.network import Unavailable
from chaos.plan import Kind
from chaos.recovery import half_of

SLOW_KBIT = 64
"""What a slow link passes on to its host, in kilobits a second."""


class FaultsBetweenHosts(Faults):
    """All that can be done on one machine, and cuts of the links between hosts."""

    def __init__(self, farm: FarmOfHosts) -> None:
        super().__init__(farm)
        self._network, self._disk = farm.network, farm.disk
        self._others = (*farm.hosts_of_coordinators, *farm.hosts_of_devices)
        self._strike |= {
            Kind.FULL_DISK: self._full_disk,
            Kind.CUT_LEADER: lambda _: self._cut_off(self.leader().host),
            Kind.CUT_FROM_LEADER: lambda _: self._cut(self._from(self.leader().host)),
            Kind.CUT_TO_LEADER: lambda _: self._cut(self._to(self.leader().host)),
            Kind.CUT_HOST: lambda host: self._cut_off(farm.name_of(host)),
            Kind.CUT_FROM_HOST: lambda host: self._cut(self._from(farm.name_of(host))),
            Kind.CUT_TO_HOST: lambda host: self._cut(self._to(farm.name_of(host))),
            Kind.CUT_LANDING: self._cut_landing,
            Kind.CUT_HALF: self._cut_half,
            Kind.CUT_DATABASE: lambda _: self._cut_off(*self._others),
            Kind.SLOW_HOST: self._slow_host,
        }

    def _from(self, host: str) -> tuple[str, str]:
        return host, self._farm.services_host

    def _to(self, host: str) -> tuple[str, str]:
        return self._farm.services_host, host

    def _cut_off(self, *hosts: str) -> Mend:
        return self._cut(*(way for host in hosts for way in (self._from(host), self._to(host))))

    def _cut(self, *ways: tuple[str, str]) -> Mend:
        for way in ways:
            self._network.cut(*way)
        left = list(ways)

        def heal() -> None:
            while left:
                self._network.heal(*left.pop())

        return heal

    def _cut_landing(self, host: int) -> Mend:
        _, landing = self.in_a_landing(self._farm.devices_at(host)[0])
        heal = self._cut_off(self._farm.name_of(host))
        landing.unlink(missing_ok=True)
        return heal

    def _cut_half(self, _: int) -> Mend:
        half = half_of(range(len(self._farm.devices_of)))
        return self._cut_off(self.leader().host, *map(self._farm.name_of, half))

    def _slow_host(self, host: int) -> Mend:
        name = self._farm.name_of(host)
        try:
            self._network.slow(name, kbit=SLOW_KBIT)
        except Unavailable as why:
            raise NotNow(f"links cannot be slowed down here: {why}") from None
        return lambda: self._network.hasten(name)

    def _full_disk(self, _: int) -> Mend:
        self._disk.fill()

        def free() -> None:
            self._disk.free()
            self._farm.start_postgres()

        return free
