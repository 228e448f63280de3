"""Which levels of a bundle are measured, where they run, and which one the others are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hmc.artifact.bundle import Level, Manifest
from hmc.artifact.errors import DeviceUnavailableError
from hmc.serving.selection import runs_on
from hmc.serving.sessions import resolve_device


@dataclass(frozen=True)
class Chosen:
    """The levels to measure."""

    levels: tuple[Level, ...]
    devices: dict[str, str]
    """Level name → device it runs on."""
    left_out: tuple[str, ...]
    """Names of levels that do not run on the device; empty where levels were named."""


def choose_levels(manifest: Manifest, names: Sequence[str] | None, device: str) -> Chosen:
    """Levels by name; None: all that run on `device`, as `hmc serve` has it.

    Raises LevelNotFoundError, InvalidRequestError, and DeviceUnavailableError if a named level, or none, can run.
    """
    if names is not None:
        levels = tuple(manifest.level(name) for name in dict.fromkeys(names))
        return Chosen(levels, {level.name: str(resolve_device(device, level)) for level in levels}, ())
    devices, reason = {}, DeviceUnavailableError(f"no level of this bundle is for {device}; see `hmc levels BUNDLE`")
    for level in manifest.levels:
        if runs_on(device, level):
            try:
                devices[level.name] = str(resolve_device(device, level))
            except DeviceUnavailableError as error:
                reason = error
    if not devices:
        raise reason
    return Chosen(
        tuple(level for level in manifest.levels if level.name in devices),
        devices,
        tuple(level.name for level in manifest.levels if level.name not in devices),
    )


def reference_level(manifest: Manifest) -> str:
    """The level that others are compared with: `full` in fp32 or, failing that, the first level."""
    names = [level.name for level in manifest.levels if level.name == "full" and level.precision == "fp32"]
    return names[0] if names else manifest.levels[0].name
