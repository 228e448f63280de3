"""How many replicas: as many as keep the queued texts of each at a target."""

from __future__ import annotations

from typing import Any

from hmc.serving.ray.replica import PENDING


class QueuedTexts:
    """Ray's scaling policy. Ray applies its delays and bounds to what it returns."""

    def __init__(self, target: float) -> None:
        """target: texts that wait or run at a replica. A call may hold a thousand, so calls are no measure."""
        self._target = target

    def __call__(self, context: Any) -> tuple[float, dict[str, Any]]:
        """The replicas that the present texts want, and no state. context: Ray's `AutoscalingContext`."""
        pending = (context.aggregated_metrics or {}).get(PENDING, {})
        return sum(pending.values()) / self._target, {}
