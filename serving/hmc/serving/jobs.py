"""One sentence on its way through the engine: what it asks, checked against the level that serves it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hmc.artifact.bundle import Variant
from hmc.artifact.errors import FailedPreconditionError, InvalidRequestError
from hmc.serving.attention import AttentionTrace, chosen_heads
from hmc.serving.constraints import Constraints
from hmc.serving.options import DecodeOptions
from hmc.serving.results import Decoded
from hmc.serving.sampling import uniforms
from hmc.serving.sessions import LevelSessions
from hmc.serving.state import Rules

Progress = Callable[[tuple[int, ...]], None]
"""Hears the target tokens that are certain, each time there are more; called on the engine's thread."""


@dataclass(frozen=True)
class Mode:
    """Sentences of one mode run in one batch: rows per sentence, and the decoder's variant that they need."""

    rows: int
    variant: Variant | None = None
    patient: bool = False
    """Whether others may pass; batches of the hurried are small, and so quick."""


@dataclass
class Job:
    """One sentence."""

    source: Sequence[int]
    options: DecodeOptions
    constraints: Constraints
    rules: Rules
    mode: Mode
    heads: npt.NDArray[np.int64] | None = None
    """Cross heads to trace."""
    uniforms: npt.NDArray[np.float32] | None = None
    """`[rows, limit]` random numbers of a sampled sentence."""
    progress: Progress | None = None
    future: Future[Decoded] = field(default_factory=Future)
    submitted: float = field(default_factory=time.monotonic)
    started: float = 0.0
    told: int = 0
    """Tokens that `progress` has heard of."""

    @property
    def longest(self) -> int:
        """Positions that its caches may need for a row: of the source, or of the longest target."""
        return max(len(self.source), self.rules.limit)

    @property
    def watched(self) -> bool:
        """Whether each token matters as it comes: to the caller, or to what may come next."""
        return self.progress is not None or bool(self.constraints.prefix or self.constraints.bans)

    def trace(self) -> AttentionTrace | None:
        """An empty trace, if the sentence asks for one."""
        return None if self.heads is None else AttentionTrace(len(self.source), self.heads)


def plan_job(
    sessions: LevelSessions,
    source: Sequence[int],
    options: DecodeOptions,
    constraints: Constraints,
    progress: Progress | None = None,
    *,
    patient: bool = False,
) -> Job:
    """Checks a request against the model, settles its limits. Raises InvalidRequestError, FailedPreconditionError."""
    limit = _limit(options, len(source), len(constraints.prefix), sessions.arch.max_positions - 1)
    mode = Mode(options.rows, _variant(options), patient)
    searched = not constraints.complete  # a score is that of the beams' graph, to the last bits
    if mode == Mode(1, None, patient) and options.enough in (None, 1) and searched and sessions.has("greedy"):
        mode = Mode(1, "greedy", patient)
    elif mode.variant is not None and not sessions.has(mode.variant):
        raise FailedPreconditionError(
            f"level {sessions.level.name!r} was compiled without the {mode.variant} decoder, which sampling, "
            "repetition and coverage penalties and alignment need: compile the bundle again with this version"
        )
    if constraints.prefix and not sessions.scores_wanted:
        raise FailedPreconditionError(
            f"level {sessions.level.name!r} was compiled before target prefixes and scoring: compile the bundle again"
        )
    if options.attention_heads and not options.needs_attention:
        raise InvalidRequestError("attention_heads serve alignment and coverage_penalty: ask for one of them")
    sampling, minimum = options.sampling, 1 if constraints.complete else options.min_length
    return Job(
        source,
        options,
        constraints,
        Rules(limit, options.length_penalty, minimum, options.enough, options.coverage_penalty),
        mode,
        chosen_heads(sessions.level.layout, options.attention_heads) if options.needs_attention else None,
        None if sampling is None else uniforms(sampling, options.rows, limit),
        progress,
    )


def _variant(options: DecodeOptions) -> Variant | None:
    if options.sampling is not None:
        if options.needs_attention:
            raise InvalidRequestError(
                "alignment cannot be traced while sampling: score the sampled translation with alignment instead"
            )
        return "sampling"
    return "attention" if options.needs_attention or options.repetition_penalty != 1.0 else None


def _limit(options: DecodeOptions, source: int, prefix: int, longest: int) -> int:
    """Most target tokens, EOS included."""
    for name, value in (("min_length", options.min_length), ("target", prefix)):
        most = min(options.max_length or longest, longest)
        if value > most:
            raise InvalidRequestError(f"{name} of {value} tokens: at most {most} fit here")
    default = max(2 * source + 10, options.min_length, prefix + 10)
    return min(options.max_length or default, longest)
