"""What the engine answers for a sentence, and what it holds of a device."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt


@dataclass(slots=True)  # not frozen: that takes ten times as long to make, and there is one for each sentence
class DecodedHypothesis:
    """One finished translation of a sentence, as the engine returns it. Nobody changes it."""

    ids: tuple[int, ...]
    """Target token ids without EOS."""
    score: float
    """log P / length ** length_penalty (natural logarithm), plus the coverage penalty if there is one."""
    complete: bool
    """False if the hypothesis reached max_length before EOS."""
    token_scores: tuple[float, ...] = field(default=(), compare=False)
    """Log-probability of each token (natural logarithm); EOS is the last one if `complete`."""
    attention: npt.NDArray[np.float32] | None = field(default=None, compare=False)
    """`[T, S]`: attention of each of those T tokens over the S source tokens. None if it was not requested."""


@dataclass(slots=True)
class Decoded:
    """All hypotheses of one sentence, best first, as the engine returns them. Nobody changes it."""

    hypotheses: tuple[DecodedHypothesis, ...]
    queue_s: float
    """Seconds from submission to the first computation."""
    compute_s: float
    """Seconds from the first computation to the end. Sentences of one batch are computed in the same seconds."""


@dataclass(frozen=True)
class DeviceUse:
    """The memory of one device, as a server uses it."""

    device: str
    """Such as `cuda:0`."""
    reserved: int
    """Bytes that weights and caches of all levels of the server have."""
    budget: int
    """The most bytes that they may have. 0 if there is no known limit."""
    free: int
    """Bytes of the device that no process uses. 0 if unknown."""
