"""How each fault is done, and made good again: a module for each of those that it happens to."""

from chaos.faults.base import Closed, Mend, NotNow
from chaos.faults.coordinators import FaultsOfCoordinators
from chaos.faults.devices import FaultsOfDevices
from chaos.faults.hosts import FaultsOfHosts
from chaos.faults.locks import ForeignLocks
from chaos.faults.messages import FaultsOfMessages
from chaos.faults.people import FaultsOfPeople
from chaos.faults.services import FaultsOfServices

__all__ = ["Closed", "Faults", "Mend", "NotNow"]


class Faults(
    FaultsOfDevices,
    ForeignLocks,
    FaultsOfHosts,
    FaultsOfCoordinators,
    FaultsOfServices,
    FaultsOfMessages,
    FaultsOfPeople,
):
    """All that can be done to a farm on one machine."""
