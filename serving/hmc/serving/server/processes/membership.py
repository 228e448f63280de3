"""What a server has besides its own parts when it is one process of several."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from hmc.serving.server.access.rates import Allowance
from hmc.serving.server.handlers import Handlers
from hmc.serving.server.processes.admin import GroupAdminServicer, PrivateDoor
from hmc.serving.server.processes.group import Group
from hmc.serving.server.processes.metrics import GroupMetrics
from hmc.serving.server.processes.rates import SharedAllowances


class Membership:
    """A server's part in its group, between `begin` and `end`."""

    def __init__(
        self, group: Group, handlers: Handlers, own: CollectorRegistry, check_running: Callable[[], None]
    ) -> None:
        """own: the metrics of this process alone. check_running: raises if it takes no calls."""
        self.servicer = GroupAdminServicer(handlers, group)
        """AdminService, which changes all processes."""
        self.registry = CollectorRegistry()
        """The metrics of all processes."""
        self.registry.register(GroupMetrics(group, own))
        self._door = PrivateDoor(group, handlers, own, check_running)

    async def begin(self) -> None:
        """Makes the changes that the others have made, and takes part from now on. Call it when the levels are loaded.
        Raises what a change raises that this process cannot make."""
        await self._door.open()

    async def end(self) -> None:
        """Takes no more part."""
        await self._door.close()


def allowances_of(group: Group | None) -> Callable[[str, float, int], Allowance]:
    """Makes the allowances of callers: one for all processes of a group, or one in this process."""
    if group is None:
        return lambda _name, rate, burst: Allowance(rate, burst)
    return SharedAllowances(group.folder)
