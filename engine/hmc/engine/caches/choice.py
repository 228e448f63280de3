"""Chooses the caches of a batch by its device, its decoder variant, and how the processor computes a lone row."""

from __future__ import annotations

from functools import cache

from hmc.artifact.bundle.manifest import Level, Variant
from hmc.engine.caches import host
from hmc.engine.caches.device import DeviceCaches
from hmc.engine.caches.geometry import Chain
from hmc.engine.caches.host import HostCaches, LoneRowCaches
from hmc.engine.caches.interface import Caches
from hmc.engine.caches.pools import MASKED
from hmc.engine.caches.positions import Positions, RowPositions, TreePositions, most_heads
from hmc.engine.caches.programs import program_caches
from hmc.engine.requests.options import MAX_TOKENS
from hmc.engine.runtime.processor import instructions
from hmc.engine.runtime.programs import ProgramSessions
from hmc.engine.runtime.sessions import DeviceSessions, LevelSessions

SAME_RESULT_ALONE = "avx512_vnni"
"""With these instructions a row with 4-bit weights has the same results alone as in a batch, as far as was tested."""


def caches_for(
    sessions: LevelSessions, variant: Variant | None, rows: int, max_rows: int = 128, max_tokens: int = MAX_TOKENS
) -> Caches:
    """Empty caches of a batch of `rows` rows a sentence; opens the decoder variant if it was not open.

    max_rows, max_tokens: of the batch (see `Chain`); they bound the memory on a device. Raises InvalidArtifactError.
    """
    if isinstance(sessions, ProgramSessions):
        return program_caches(sessions, rows)
    if isinstance(sessions, DeviceSessions):
        return device_caches(sessions, variant, rows, max_rows, max_tokens)
    return host_caches(sessions, variant, rows)


def host_caches(sessions: LevelSessions, variant: Variant | None, rows: int) -> HostCaches:
    """In the memory of the CPU; as `caches_for`."""
    decoder = sessions.decoder(variant)
    positions: Positions
    if variant == "greedy":
        positions = RowPositions(host.ROUND_TARGET)
    else:
        positions = TreePositions(rows, most_heads(decoder), host.ROUND_TARGET)
    kind = LoneRowCaches if rows == 1 and differs_alone(sessions.level) else HostCaches
    return kind(sessions, decoder, rows, positions)


def device_caches(
    sessions: DeviceSessions, variant: Variant | None, rows: int, max_rows: int = 128, max_tokens: int = MAX_TOKENS
) -> DeviceCaches:
    """In the memory of `sessions.device`; as `caches_for`."""
    chain = Chain(rows, max_rows, max_tokens, sessions.arch.max_positions, tree=variant != "greedy")
    positions: Positions
    if variant == "greedy":
        positions = RowPositions(0, fixed_total=True)
    else:
        heads = max(map(len, sessions.level.layout.decoder_self))
        positions = TreePositions(rows, heads, 0, MASKED)
    return DeviceCaches(sessions, variant, chain, positions)


def differs_alone(level: Level) -> bool:
    """Whether the level's decoder may give a row other results on this processor when it runs alone."""
    return level.precision == "int4" and not _same_alone()


@cache
def _same_alone() -> bool:
    return SAME_RESULT_ALONE in instructions()
