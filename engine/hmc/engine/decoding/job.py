"""One sentence on its way through the engine. Plain data; `hmc.engine.scheduling.planning` makes it from a request."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hmc.artifact.bundle.manifest import Variant
from hmc.engine.decoding.attention_trace import AttentionTrace
from hmc.engine.decoding.constraints import UNCONSTRAINED, Constraints
from hmc.engine.decoding.state import Rules
from hmc.engine.requests.options import DecodeOptions
from hmc.engine.requests.results import Decoded

Finish = Callable[[Decoded], Any]
"""Makes what the caller of a sentence gets from its hypotheses."""
Progress = Callable[[tuple[int, ...]], None]
"""Gets the target tokens that no later step can change, each time there are more of them."""


class SentenceFuture(Future[Any]):
    """The future of a sentence. A done callback that looks for cancellation would be called for every sentence."""

    on_cancel: Callable[[Future[Any]], None] | None = None
    """Called once if it is cancelled, after its done callbacks."""

    def cancel(self) -> bool:
        cancelled = super().cancel()
        if cancelled:
            tell = self.__dict__.pop("on_cancel", None)  # at once, as two threads may cancel
            if tell is not None:
                tell(self)
        return cancelled


class EncodedSentence(NamedTuple):
    """What a caller wants translated."""

    source: Sequence[int]
    """Source token ids, EOS last."""
    constraints: Constraints = UNCONSTRAINED
    finish: Finish | None = None
    """None: the caller gets the hypotheses as they are."""


class Mode(NamedTuple):
    """The properties that all sentences of one batch share."""

    rows: int
    """Hypotheses of each sentence."""
    variant: Variant | None = None
    """The decoder graph that they need; None: the plain one."""
    interactive: bool = True
    """Whether they are of `Priority.INTERACTIVE`. Their batches are small, and so their steps are quick."""


@dataclass(eq=False, slots=True)
class Job:
    """One sentence."""

    source: Sequence[int]
    """Source token ids, EOS last."""
    options: DecodeOptions
    constraints: Constraints
    rules: Rules
    mode: Mode
    heads: npt.NDArray[np.int64] | None = None
    """Cross-attention heads to trace; None traces none."""
    uniforms: npt.NDArray[np.float32] | None = None
    """`[rows, limit]` random numbers of a sampled sentence."""
    progress: Progress | None = None
    finish: Finish | None = None
    """None: the caller gets the hypotheses as they are."""
    future: SentenceFuture = field(default_factory=SentenceFuture)
    """Ends with what `finish` makes."""
    submitted: float = field(default_factory=time.monotonic)
    started: float = 0.0
    """When the sentence joined its batch, on the clock of `submitted`. On a device it may have been encoded before."""
    reported: int = 0
    """Target tokens that `progress` was given last."""
    longest: int = field(init=False)
    """Positions that its caches may need for a row: of the source, or of the longest target."""

    def __post_init__(self) -> None:
        self.longest = max(len(self.source), self.rules.limit)

    @property
    def watched(self) -> bool:
        """Whether the search has to see every step: the sentence has `progress`, a prefix or banned tokens."""
        return self.progress is not None or bool(self.constraints.prefix or self.constraints.bans)

    def report(self, tokens: tuple[int, ...]) -> None:
        """Gives the caller the tokens that are certain."""
        if self.progress is not None and not self.future.cancelled():
            self.progress(tokens)

    def trace(self) -> AttentionTrace | None:
        """An empty trace, if the sentence asks for one."""
        return None if self.heads is None else AttentionTrace(len(self.source), self.heads)
