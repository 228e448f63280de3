"""Beam search as arithmetic on one state: no model, no threads. Greedy search is beam size 1.

The caller owns the model. Each turn it runs one decoder step for every row, hands the candidates to `advance`, and
moves its caches as the returned `Turn` says. Sentences may join and leave between turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hmc.serving.options import Hypothesis

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
NEVER = -np.inf


def candidates_needed(beam: int) -> int:
    """K: candidates per row. 2 · beam always leave `beam` that are not EOS; one more, because pad never counts."""
    return 2 * beam + 1


@dataclass
class BeamState:
    """N sentences of k rows each; row r belongs to sentence r // k. Arrays grow and shrink as sentences come and go."""

    beam: int
    pad_id: int
    eos_id: int
    scores: Floats = field(init=False)
    """`[N, k]` summed log-probabilities of the running hypotheses."""
    tokens: npt.NDArray[np.int32] = field(init=False)
    """`[N, k, T]` tokens so far; the first `lengths[n]` columns are real."""
    lengths: Ints = field(init=False)
    """`[N]` tokens generated so far."""
    limits: Ints = field(init=False)
    """`[N]` most tokens allowed, EOS included."""
    penalties: Floats = field(init=False)
    """`[N]` length penalty."""
    finished: list[list[Hypothesis]] = field(default_factory=list)
    """Per sentence the best ended hypotheses, at most k, best first."""

    def __post_init__(self) -> None:
        self.scores = np.zeros((0, self.beam))
        self.tokens = np.zeros((0, self.beam, 32), np.int32)
        self.lengths, self.limits, self.penalties = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)

    def __len__(self) -> int:
        return len(self.lengths)

    def add(self, limits: Sequence[int], penalties: Sequence[float]) -> None:
        """Appends sentences that have generated nothing yet."""
        new = len(limits)
        start = np.full((new, self.beam), NEVER)
        start[:, 0] = 0.0  # all rows of a sentence are alike at first: only one may propose
        self.scores = np.concatenate([self.scores, start])
        room = np.zeros((new, self.beam, self.tokens.shape[2]), np.int32)
        self.tokens = np.concatenate([self.tokens, room])
        self.lengths = np.concatenate([self.lengths, np.zeros(new, np.int64)])
        self.limits = np.concatenate([self.limits, np.asarray(limits, np.int64)])
        self.penalties = np.concatenate([self.penalties, np.asarray(penalties, np.float64)])
        self.finished += [[] for _ in range(new)]

    def keep(self, order: Sequence[int]) -> None:
        """Keeps the sentences of `order`, in that order."""
        index = np.asarray(order, np.int64)
        self.scores, self.tokens = self.scores[index], self.tokens[index]
        self.lengths, self.limits, self.penalties = self.lengths[index], self.limits[index], self.penalties[index]
        self.finished = [self.finished[i] for i in order]

    def last_tokens(self) -> npt.NDArray[np.int32]:
        """`[N·k]` decoder input of the next step: pad for sentences that have generated nothing."""
        last = np.take_along_axis(self.tokens, np.maximum(self.lengths - 1, 0)[:, None, None], axis=2)[:, :, 0]
        tokens: npt.NDArray[np.int32] = np.where(self.lengths[:, None] > 0, last, np.int32(self.pad_id)).reshape(-1)
        return tokens


@dataclass(frozen=True)
class Turn:
    """What one turn decided."""

    parents: Ints
    """`[N·k]` the row each row continues."""
    done: Ints
    """Indices of sentences whose search has ended; their hypotheses are in `state.finished`."""


def advance(state: BeamState, log_probs: npt.NDArray[np.float32], ids: Ints) -> Turn:
    """One turn of beam search. log_probs and ids `[N·k, K]`: each row's best next tokens, K = candidates_needed(k).

    Ended hypotheses rank by log P / length ** penalty. A sentence is done when k have ended and none that runs can
    beat the worst of them at its present length, or when it reaches its limit: then what runs is taken as it is.
    """
    count, beam = state.scores.shape
    if not count:
        return Turn(np.zeros(0, np.int64), np.zeros(0, np.int64))
    width = log_probs.shape[1]
    step = np.where(ids == state.pad_id, NEVER, log_probs.astype(np.float64)).reshape(count, beam, width)
    total = (state.scores[:, :, None] + step).reshape(count, beam * width)
    order = np.argsort(-total, axis=1, kind="stable")[:, : 2 * beam]
    top = np.take_along_axis(total, order, axis=1)
    parents = order // width  # row within the sentence
    tokens = np.take_along_axis(ids.reshape(count, beam * width), order, axis=1)
    is_eos = tokens == state.eos_id
    state.lengths += 1
    norm = state.lengths.astype(np.float64) ** state.penalties
    for sentence, column in zip(*np.nonzero(is_eos[:, :beam] & (top[:, :beam] > NEVER)), strict=True):
        _end(state, sentence, parents[sentence, column], top[sentence, column] / norm[sentence])
    running = np.argsort(is_eos, axis=1, kind="stable")[:, :beam]
    state.scores = np.where(
        np.take_along_axis(is_eos, running, axis=1), NEVER, np.take_along_axis(top, running, axis=1)
    )
    chosen = np.take_along_axis(parents, running, axis=1)
    _extend(state, chosen, np.take_along_axis(tokens, running, axis=1))
    done = [n for n in range(count) if _is_done(state, n, norm[n])]
    rows = (np.arange(count)[:, None] * beam + chosen).reshape(-1)
    return Turn(rows, np.asarray(done, np.int64))


def _end(state: BeamState, sentence: int, parent: int, score: float) -> None:
    """A hypothesis ended with EOS: its tokens are the parent's."""
    ids = tuple(state.tokens[sentence, parent, : state.lengths[sentence] - 1].tolist())
    _insert(state, sentence, Hypothesis(ids, float(score), complete=True))


def _insert(state: BeamState, sentence: int, hypothesis: Hypothesis) -> None:
    ranked = sorted([*state.finished[sentence], hypothesis], key=lambda h: -h.score)
    state.finished[sentence] = ranked[: state.beam]


def _extend(state: BeamState, parents: Ints, tokens: Ints) -> None:
    if int(state.lengths.max()) > state.tokens.shape[2]:
        state.tokens = np.concatenate([state.tokens, np.zeros_like(state.tokens)], axis=2)
    state.tokens = np.take_along_axis(state.tokens, parents[:, :, None], axis=1)
    np.put_along_axis(state.tokens, (state.lengths - 1)[:, None, None], tokens[:, :, None].astype(np.int32), axis=2)


def _is_done(state: BeamState, sentence: int, norm: float) -> bool:
    best = float(state.scores[sentence, 0]) / norm
    ended = state.finished[sentence]
    if best == NEVER or (len(ended) == state.beam and best <= ended[-1].score):
        return True
    if state.lengths[sentence] < state.limits[sentence]:
        return False
    for row in range(state.beam):
        score = float(state.scores[sentence, row])
        if score > NEVER:
            ids = tuple(state.tokens[sentence, row, : state.lengths[sentence]].tolist())
            _insert(state, sentence, Hypothesis(ids, score / norm, complete=False))
    return True
