"""The caches that a decoder of a level runs with."""

from __future__ import annotations

from hmc.serving.device_rows import DeviceRows
from hmc.serving.device_tree import DeviceTree
from hmc.serving.jobs import Mode
from hmc.serving.row_caches import RowCaches
from hmc.serving.sessions import LevelSessions
from hmc.serving.shortlists import Shortlists
from hmc.serving.tree_caches import TreeCaches

AnyCaches = RowCaches | TreeCaches | DeviceRows | DeviceTree


def empty_caches(sessions: LevelSessions, mode: Mode) -> AnyCaches:
    """Without sentences, on the device of the level. Opens the mode's decoder if it was not. Raises
    InvalidArtifactError."""
    if sessions.device.kind != "cpu":
        return (DeviceRows if mode.variant == "greedy" else DeviceTree)(sessions, mode.variant, mode.rows)
    if mode.variant == "greedy":
        return greedy_caches(sessions)
    return TreeCaches(sessions.decoder(mode.variant), mode.rows, _shortlists(sessions, mode.rows))


def greedy_caches(sessions: LevelSessions) -> RowCaches:
    """The same for greedy search on a CPU."""
    chain = (lambda: sessions.decoder("chain")) if sessions.has("chain") else None
    return RowCaches(sessions.decoder("greedy"), 1, _shortlists(sessions, 1), chain)


def _shortlists(sessions: LevelSessions, rows: int) -> Shortlists | None:
    if not sessions.lexicon:
        return None
    return Shortlists(sessions.output_projection, sessions.arch.vocab_size, sessions.arch.pad_id, rows)
