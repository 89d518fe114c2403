"""How faults between the hosts of a farm are done, and made good again."""

from __future__ import annotations

from chaos.faults import Faults, Mend, NotNow
from chaos.faults.base import does
from chaos.hosts import FarmOfHosts
from chaos.network import Unavailable
from chaos.plan import Kind
from chaos.recovery import half_of

SLOW_KBIT = 64
"""What a slow link passes on to its host, in kilobits a second."""


class FaultsBetweenHosts(Faults):
    """All that can be done on one machine, cuts of the links between hosts, and a full disk."""

    farm: FarmOfHosts

    @does(Kind.CUT_LEADER)
    def _cut_leader(self, _: int) -> Mend:
        return self._cut_off(self.leader().host)

    @does(Kind.CUT_FROM_LEADER)
    def _cut_from_leader(self, _: int) -> Mend:
        return self._cut(self._from(self.leader().host))

    @does(Kind.CUT_TO_LEADER)
    def _cut_to_leader(self, _: int) -> Mend:
        return self._cut(self._to(self.leader().host))

    @does(Kind.CUT_HOST)
    def _cut_host(self, host: int) -> Mend:
        return self._cut_off(self.farm.name_of(host))

    @does(Kind.CUT_FROM_HOST)
    def _cut_from_host(self, host: int) -> Mend:
        return self._cut(self._from(self.farm.name_of(host)))

    @does(Kind.CUT_TO_HOST)
    def _cut_to_host(self, host: int) -> Mend:
        return self._cut(self._to(self.farm.name_of(host)))

    @does(Kind.CUT_LANDING)
    def _cut_landing(self, host: int) -> Mend:
        _, landing = self.in_a_landing(self.farm.devices_at(host)[0])
        heal = self._cut_off(self.farm.name_of(host))
        landing.unlink(missing_ok=True)
        return heal

    @does(Kind.CUT_HALF)
    def _cut_half(self, _: int) -> Mend:
        half = half_of(range(len(self.farm.devices_of)))
        return self._cut_off(self.leader().host, *map(self.farm.name_of, half))

    @does(Kind.CUT_DATABASE)
    def _cut_database(self, _: int) -> Mend:
        return self._cut_off(*self.farm.hosts_of_coordinators, *self.farm.hosts_of_devices)

    @does(Kind.SLOW_HOST)
    def _slow_host(self, host: int) -> Mend:
        name = self.farm.name_of(host)
        try:
            self.farm.network.slow(name, kbit=SLOW_KBIT)
        except Unavailable as why:
            raise NotNow(f"links cannot be slowed down here: {why}") from None
        return lambda: self.farm.network.hasten(name)

    @does(Kind.FULL_DISK)
    def _full_disk(self, _: int) -> Mend:
        self.farm.disk.fill()

        def free() -> None:
            self.farm.disk.free()
            self.farm.start_postgres()

        return free

    def _from(self, host: str) -> tuple[str, str]:
        return host, self.farm.services_host

    def _to(self, host: str) -> tuple[str, str]:
        return self.farm.services_host, host

    def _cut_off(self, *hosts: str) -> Mend:
        return self._cut(*(way for host in hosts for way in (self._from(host), self._to(host))))

    def _cut(self, *ways: tuple[str, str]) -> Mend:
        for way in ways:
            self.farm.network.cut(*way)
        left = list(ways)

        def heal() -> None:
            while left:
                self.farm.network.heal(*left.pop())

        return heal
