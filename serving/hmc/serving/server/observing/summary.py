"""What a server says of itself when it serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hmc.serving.server.app import Server


def summary_of(server: Server) -> dict[str, Any]:
    """Addresses, and what the first model is and has loaded. `models` has the loaded levels of every model."""
    statuses = server.models.statuses()
    models = {s.model: [level.name for level in s.levels if level.loaded] for s in statuses}
    first = statuses[0]
    return {
        "address": server.address,
        "admin_address": server.admin_address,
        "metrics_port": server.metrics_port,
        "http_address": server.http_address,
        "bundle_version": first.manifest.version,
        "device": first.device,
        "levels": models[first.model],
        "models": models,
        "processes": server.settings.processes,
    }
