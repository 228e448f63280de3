"""Which levels of a bundle are measured, on which device, and with which level they are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hmc.artifact.bundle.manifest import Level, Manifest
from hmc.artifact.errors import DeviceUnavailableError
from hmc.artifact.precisions import PRECISIONS, Precision, names_for
from hmc.engine.runtime import device as devices
from hmc.serving.levels.choosing import runs_on


@dataclass(frozen=True)
class MeasuredLevels:
    """The levels to measure."""

    levels: tuple[Level, ...]
    devices: dict[str, str]
    """Level name → device that it runs on."""
    left_out: tuple[str, ...]
    """Names of levels that do not run on the device. Empty where levels were named."""


def choose_levels(manifest: Manifest, names: Sequence[str] | None, device: str) -> MeasuredLevels:
    """The named levels. None: all levels that run on `device`, as `hmc serve` loads them.

    Raises LevelNotFoundError, InvalidRequestError, and DeviceUnavailableError if a named level cannot run here or if no
    level can.
    """
    if names is not None:
        levels = tuple(map(manifest.level, dict.fromkeys(names)))
        return MeasuredLevels(levels, {level.name: str(devices.resolve_device(device, level)) for level in levels}, ())
    chosen = {}
    reason = DeviceUnavailableError(f"no level of this bundle is for {device}; see `hmc levels BUNDLE`")
    for level in manifest.levels:
        if runs_on(device, level):
            try:
                chosen[level.name] = str(devices.resolve_device(device, level))
            except DeviceUnavailableError as error:
                reason = error
    if not chosen:
        raise reason
    return MeasuredLevels(
        tuple(level for level in manifest.levels if level.name in chosen),
        chosen,
        tuple(level.name for level in manifest.levels if level.name not in chosen),
    )


def runs_here(precision: Precision) -> bool:
    """Whether this machine can run levels of a precision: the 16-bit ones need a CUDA device."""
    return PRECISIONS[precision].device == "cpu" or devices.cuda_available()


def reference_level(manifest: Manifest) -> str:
    """Name of the level that the other levels are compared with.

    It is `full` in fp32 or, where the bundle has no such level, the first one that this machine can run, in fp32 if
    there is such a level of the same heads and parameters. Raises DeviceUnavailableError if this machine can run no
    level.
    """
    runnable = [level for level in manifest.levels if runs_here(level.precision)]
    if not runnable:
        raise DeviceUnavailableError(
            f"every level of this bundle is in {names_for('cuda')}, which need a CUDA device, and this machine has "
            f"none: measure on a machine that has one, or compile the bundle in {names_for('cpu')} too"
        )
    exact = [level for level in runnable if level.precision == "fp32"]
    full = [level for level in exact if level.name == "full"]
    first = runnable[0]
    alike = [x for x in exact if x.head_layout == first.head_layout and x.parameters == first.parameters]
    return (*full, *alike, first)[0].name
