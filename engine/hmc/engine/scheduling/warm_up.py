"""The first sentences of a level, translated before it counts as ready: graphs are then open and memory is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any

from hmc.engine.decoding.constraints import Constraints
from hmc.engine.requests.caller import Priority
from hmc.engine.requests.options import DecodeOptions, Sampling
from hmc.engine.runtime.sessions import LevelSessions
from hmc.engine.scheduling.level_engine import LevelEngine

TOKENS = (4, 24, 48)
"""Source lengths translated with each of the usual searches."""
MOST = 8
"""Most tokens of each translation."""


Only = Callable[[LevelSessions], AbstractContextManager[None]]
"""Within its `with` block no sentence starts on any other replica."""


def warm_up(engine: LevelEngine, replicas: Sequence[LevelSessions], only: Only) -> None:
    """Translates sentences of several lengths greedily and with the default beam, on every device. The first requests
    then find the graphs of both open and their memory allocated.

    In device form a step of every other kind runs first, so that what the device lacks shows now. Then batches of both
    kinds and of every priority run every step that they can need (see `Caches.warm_up`), so that later requests find
    all graphs captured. Otherwise the graphs for sampling and for attention open with the first request
    that needs them, while other requests go on.

    Raises what a sentence raises, such as FailedPreconditionError if the device has too little memory.
    """
    for replica in replicas:
        with only(replica):
            if replica.device_form:
                for future in _other_kinds(engine, replica):
                    future.result()
            _usual_kinds(engine, replica)  # last: a device holds the pools of a few modes, of which these stay


def _usual_kinds(engine: LevelEngine, replica: LevelSessions) -> None:
    replica.warming_up = replica.device_form
    try:
        for priority in tuple(Priority) if replica.device_form else (Priority.INTERACTIVE,):
            for beam in sorted({1, min(DecodeOptions().beam_size, engine.max_rows)}):
                options = DecodeOptions(beam_size=beam, max_length=MOST)
                for tokens in TOKENS:
                    engine.submit(_source(replica, tokens), options, block=True, priority=priority).result()
    finally:
        replica.warming_up = False


def _source(sessions: LevelSessions, tokens: int) -> list[int]:
    """Unknown tokens, as many as asked for or as the model takes."""
    arch = sessions.arch
    return [*[arch.unk_id] * min(tokens, arch.max_positions - 1), arch.eos_id]


def _other_kinds(engine: LevelEngine, sessions: LevelSessions) -> Iterator[Future[Any]]:
    """Sampling, alignment, and scoring of a given translation; those of them that the level has."""
    source = _source(sessions, TOKENS[0])
    unknown = sessions.arch.unk_id
    if sessions.has("sampling"):
        options = DecodeOptions(beam_size=1, max_length=MOST, sampling=Sampling(seed=0))
        yield engine.submit(source, options, block=True)
    if sessions.has("attention"):
        yield engine.submit(source, DecodeOptions(beam_size=1, max_length=MOST, alignment=True), block=True)
    if sessions.scores_wanted:
        prefix = Constraints(prefix=(unknown, sessions.arch.eos_id), complete=True)
        yield engine.submit(source, DecodeOptions(beam_size=1, max_length=MOST), prefix, block=True)
