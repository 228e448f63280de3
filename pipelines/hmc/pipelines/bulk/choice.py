"""Starts the engine that a user names."""

from __future__ import annotations

from hmc.pipelines.bulk.engines import Engine, EngineName, Level, LocalEngine
from hmc.pipelines.bulk.settings import BulkSettings


def open_engine(name: EngineName, level: Level, settings: BulkSettings) -> Engine:
    """Starts an engine; close it. Raises as `Translator`, and InvalidRequestError if Ray is not installed."""
    if name == "local":
        return LocalEngine(level, settings)
    from hmc.pipelines.bulk.on_ray import RayEngine

    return RayEngine(level, settings)
