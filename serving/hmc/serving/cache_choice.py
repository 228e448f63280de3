"""Which caches a batch gets: by its device, its search, and what the processor does with a lone row."""

from __future__ import annotations

from functools import cache

from hmc.artifact.bundle import Level
from hmc.serving.caches import HostCaches
from hmc.serving.company import AccompaniedRows, AccompaniedTree
from hmc.serving.device_caches import DeviceCaches
from hmc.serving.device_rows import DeviceRows
from hmc.serving.device_tree import DeviceTree
from hmc.serving.jobs import Mode
from hmc.serving.machine import instructions
from hmc.serving.row_caches import RowCaches
from hmc.serving.sessions import LevelSessions
from hmc.serving.shortlists import Shortlists
from hmc.serving.tree_caches import TreeCaches

SAME_ALONE = "avx512_vnni"
"""Processors whose 4-bit products give a row the same result alone, as far as was tested."""


def caches_for(sessions: LevelSessions, mode: Mode) -> HostCaches | DeviceCaches:
    """Empty caches of a batch of this mode; opens the mode's decoder if it was not. Raises InvalidArtifactError."""
    greedy = mode.variant == "greedy"
    if sessions.device.kind != "cpu":
        return (DeviceRows if greedy else DeviceTree)(sessions, mode.variant, mode.rows)
    kind: type[HostCaches] = RowCaches if greedy else TreeCaches
    if mode.rows == 1 and differs_alone(sessions.level):
        kind = AccompaniedRows if greedy else AccompaniedTree
    return kind(sessions.decoder(mode.variant), mode.rows, _shortlists(sessions, mode.rows))


def differs_alone(level: Level) -> bool:
    """Whether a row of the level's decoder may have other results here when it is the only one."""
    return level.precision == "int4" and not _same_alone()


@cache
def _same_alone() -> bool:
    return SAME_ALONE in instructions()


def _shortlists(sessions: LevelSessions, rows: int) -> Shortlists | None:
    if not sessions.lexicon:
        return None
    return Shortlists(sessions.output_projection, sessions.arch.vocab_size, sessions.arch.pad_id, rows)
