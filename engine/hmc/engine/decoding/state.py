"""The state of a decode batch: what the rows of every sentence have written, and which hypotheses have ended."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hmc.engine.arrays import NEG_INF, Floats, Ints
from hmc.engine.decoding.attention_trace import AttentionTrace, coverage_score
from hmc.engine.requests.options import DecodeOptions
from hmc.engine.requests.results import DecodedHypothesis


@dataclass(frozen=True)
class Rules:
    """When the search of one sentence ends, and how its hypotheses are scored."""

    limit: int
    """Most tokens, EOS included."""
    length_penalty: float = 1.0
    min_length: int = 1
    """Fewest tokens, EOS included."""
    enough: int | None = None
    """Ended hypotheses that stop the search (Kasai et al. 2022); None: see `beam.advance`."""
    coverage_penalty: float = 0.0

    @classmethod
    def from_options(cls, options: DecodeOptions, limit: int, *, only_scored: bool = False) -> Rules:
        """The rules that a request's options ask for. only_scored: whether the whole target is given. `min_length` then
        does not apply."""
        shortest = 1 if only_scored else options.min_length
        return cls(limit, options.length_penalty, shortest, options.enough, options.coverage_penalty)


@dataclass
class DecodeState:
    """N sentences of k rows each; row r belongs to sentence r // k. Arrays grow and shrink as sentences join and leave.

    A row whose score is -inf does not run: its tokens and attention mean nothing.
    """

    beam: int
    pad_id: int
    eos_id: int
    start_id: int | None = None
    """What every row reads first; None: pad."""
    scores: Floats = field(init=False)
    """`[N, k]` summed log-probabilities of the running hypotheses."""
    tokens: npt.NDArray[np.int32] = field(init=False)
    """`[N, k, T]` tokens so far, in the first `lengths[n]` columns."""
    token_scores: npt.NDArray[np.float32] = field(init=False)
    """`[N, k, T]` log-probability of each of them."""
    lengths: Ints = field(init=False)
    """`[N]` tokens generated so far."""
    minimums: Ints = field(init=False)
    """`[N]` fewest tokens, EOS included."""
    limits: Ints = field(init=False)
    """`[N]` most tokens, EOS included."""
    penalties: Floats = field(init=False)
    """`[N]` length penalty."""
    last: npt.NDArray[np.int32] = field(init=False)
    """`[N, k]` the last token of every row, `start_id` before the first: the decoder's next input."""
    rules: list[Rules] = field(default_factory=list)
    traces: list[AttentionTrace | None] = field(default_factory=list)
    """The attention of each sentence's rows, where the sentence asks for it."""
    finished: list[list[DecodedHypothesis]] = field(default_factory=list)
    """Each sentence's best ended hypotheses, best first: at most k, or `Rules.enough` if that is more."""

    def __post_init__(self) -> None:
        self.scores = np.zeros((0, self.beam))
        self.tokens = np.zeros((0, self.beam, 32), np.int32)
        self.token_scores = np.zeros((0, self.beam, 32), np.float32)
        self.lengths, self.minimums, self.limits = (np.zeros(0, np.int64) for _ in range(3))
        self.penalties = np.zeros(0)
        self.last = np.zeros((0, self.beam), np.int32)

    @property
    def _start(self) -> int:
        return self.pad_id if self.start_id is None else self.start_id

    def __len__(self) -> int:
        return len(self.lengths)

    def add(
        self,
        rules: Sequence[Rules],
        traces: Sequence[AttentionTrace | None] | None = None,
        *,
        independent: bool = False,
    ) -> None:
        """Appends sentences that have generated nothing yet.

        independent: each row writes a hypothesis of its own (sampling). Otherwise a sentence's rows are equal at first,
        so only the first of them runs (beam search).
        """
        new = len(rules)
        start = np.full((new, self.beam), 0.0 if independent else NEG_INF)
        start[:, 0] = 0.0
        self.scores = np.concatenate([self.scores, start])
        shape = (new, self.beam, self.tokens.shape[2])
        self.tokens = np.concatenate([self.tokens, np.zeros(shape, np.int32)])
        self.token_scores = np.concatenate([self.token_scores, np.zeros(shape, np.float32)])
        self.lengths = np.concatenate([self.lengths, np.zeros(new, np.int64)])
        self.minimums = np.concatenate([self.minimums, np.array([r.min_length for r in rules], np.int64)])
        self.limits = np.concatenate([self.limits, np.array([r.limit for r in rules], np.int64)])
        self.penalties = np.concatenate([self.penalties, np.array([r.length_penalty for r in rules], np.float64)])
        self.last = np.concatenate([self.last, np.full((new, self.beam), self._start, np.int32)])
        self.rules += rules
        self.traces += traces if traces is not None else [None] * new
        self.finished += [[] for _ in range(new)]

    def keep(self, order: Sequence[int]) -> None:
        """Keeps the sentences of `order`, in that order."""
        index = np.asarray(order, np.int64)
        self.scores = self.scores[index]
        self.tokens = self.tokens[index]
        self.token_scores = self.token_scores[index]
        self.lengths = self.lengths[index]
        self.minimums = self.minimums[index]
        self.limits = self.limits[index]
        self.penalties = self.penalties[index]
        self.last = self.last[index]
        self.rules = [self.rules[i] for i in order]
        self.traces = [self.traces[i] for i in order]
        self.finished = [self.finished[i] for i in order]

    def row(self, sentence: int, row: int) -> tuple[int, ...]:
        """The tokens of one row."""
        return tuple(self.tokens[sentence, row, : self.lengths[sentence]].tolist())

    def extend(self, parents: Ints, tokens: Ints, scores: npt.NDArray[np.float32]) -> None:
        """Row r continues row parents[n, r] of its sentence with a token and its log-probability; all `[N, k]`.
        `lengths` already counts the token."""
        if self.beam > 1 and (parents != np.arange(self.beam)).any():
            rows = (parents + np.arange(0, self.scores.size, self.beam)[:, None]).reshape(-1)
            shape = self.tokens.shape
            self.tokens = self.tokens.reshape(len(rows), -1).take(rows, axis=0).reshape(shape)
            self.token_scores = self.token_scores.reshape(len(rows), -1).take(rows, axis=0).reshape(shape)
        self.write(tokens[..., None], scores[..., None])
        if any(self.traces):
            for trace, moved in zip(self.traces, parents, strict=True):
                if trace is not None:
                    trace.reorder(moved)

    def write(self, tokens: Ints, scores: npt.NDArray[np.float32]) -> None:
        """Every row appends tokens and their log-probabilities; both `[N, k, T]`. `lengths` already counts them."""
        count = tokens.shape[2]
        while int(self.lengths.max()) > self.tokens.shape[2]:
            self.tokens = np.concatenate([self.tokens, np.zeros_like(self.tokens)], axis=2)
            self.token_scores = np.concatenate([self.token_scores, np.zeros_like(self.token_scores)], axis=2)
        sentences = np.arange(len(tokens))[:, None]
        at = self.lengths[:, None] + np.arange(-count, 0)
        self.tokens[sentences, :, at] = tokens.swapaxes(1, 2)
        self.token_scores[sentences, :, at] = scores.swapaxes(1, 2)
        self.last[...] = tokens[:, :, -1]

    def end(self, sentence: int, row: int, total: float, final: float | None) -> None:
        """Ends the hypothesis of a row, of summed log-probability `total`, and keeps it if it is among the best.

        final: the log-probability of its EOS, which `lengths` already counts; None for a hypothesis cut off without.
        """
        rules = self.rules[sentence]
        kept = int(self.lengths[sentence]) - (final is not None)
        ids = tuple(self.tokens[sentence, row, :kept].tolist())
        token_scores = self.token_scores[sentence, row, :kept].tolist() + ([] if final is None else [final])
        score = total / max(len(token_scores), 1) ** rules.length_penalty
        trace = self.traces[sentence]
        attention = None if trace is None else trace.weights(row, len(token_scores))
        if attention is not None and rules.coverage_penalty:
            score += coverage_score(attention, rules.coverage_penalty)
        hypothesis = DecodedHypothesis(ids, score, final is not None, tuple(token_scores), attention)
        ranked = sorted([*self.finished[sentence], hypothesis], key=lambda h: -h.score)
        self.finished[sentence] = ranked[: max(self.beam, rules.enough or 0)]

    def fail(self, sentence: int) -> None:
        """Ends the search of a sentence for which the graph gave NaN as log-probabilities.

        Its only hypothesis then is empty with the score NaN, which is not a translation: the caller reports an error.
        """
        self.finished[sentence] = [DecodedHypothesis((), math.nan, complete=False)]
        self.scores[sentence] = NEG_INF

    def failed(self, sentence: int) -> bool:
        """Whether a search that has ended gave NaN or +inf as a score."""
        return not all(hypothesis.score < math.inf for hypothesis in self.finished[sentence])


class StepResult(NamedTuple):
    """What one step of the search decided."""

    parents: Ints
    """`[N·k]` the row that each row continues."""
    done: Ints
    """Indices of sentences whose search has ended; their hypotheses are in `state.finished`."""
