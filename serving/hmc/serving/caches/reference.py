"""Caches of the reference executor: what a graph's outputs would be, from one step of a program."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hmc.engine.choosing import NEVER, best_tokens, draw, log_sum_exp, penalise_repetition
from hmc.engine.reference import OwnCaches, Source, Step
from hmc.serving.arrays import Arrays, Ints
from hmc.serving.caches.interface import Caches
from hmc.serving.runtime.reference import ReferenceSessions


class ReferenceCaches(Caches):
    """Sources and keys and values of every row. The inputs and outputs of `run` are those of the graphs."""

    def __init__(self, sessions: ReferenceSessions, rows: int) -> None:
        """rows: of each sentence."""
        self.sessions = sessions
        self.rows = rows
        self.own = OwnCaches()
        self.sources: list[Source] = []
        self.listed: list[Ints] = []
        """Of each sentence: the tokens of its shortlist. Empty for a level without shortlists."""

    def groups(self, lengths: Sequence[int]) -> list[list[int]]:
        """All together: each sentence is encoded alone anyway."""
        return [list(range(len(lengths)))]

    def add(
        self, sources: Sequence[Sequence[int]], prefixes: Sequence[Sequence[int]], limits: Sequence[int] = ()
    ) -> None:
        del limits
        self.sources += [self.sessions.program.encode(source) for source in sources]
        self.own.add(len(sources) * self.rows)
        if self.sessions.lexicon:
            choose = self.sessions.lexicon.candidates
            self.listed += [choose(source, prefix) for source, prefix in zip(sources, prefixes, strict=True)]

    def keep(self, order: Sequence[int]) -> None:
        kept = np.asarray(order, np.int64)
        self.own.take((kept[:, None] * self.rows + np.arange(self.rows)).reshape(-1))
        self.sources = [self.sources[index] for index in order]
        if self.listed:
            self.listed = [self.listed[index] for index in order]

    def clean(self, sentences: Sequence[int]) -> None:
        """Nothing: no other sentence ever gets this memory."""

    def reorder(self, parents: Ints) -> None:
        self.own.take(parents)

    @property
    def steps_ahead(self) -> int:
        return 0

    def run_next(self, tokens: Ints) -> Arrays:
        del tokens
        raise AssertionError("no step runs ahead here")

    def run(self, step: Arrays) -> Arrays:
        level = self.sessions.program
        by_row = [source for source in self.sources for _ in range(self.rows)]
        lengths = step["lengths"].astype(np.int64)
        found = level.step(step["tokens"].astype(np.int64), lengths, self.own, by_row)
        logits = found.logits
        if self.listed:
            hidden = np.ones(logits.shape, np.bool_)
            for row in range(len(logits)):
                hidden[row, self.listed[row // self.rows]] = False
            logits = np.where(hidden, NEVER, logits)
        if "penalised" in step:
            logits = penalise_repetition(logits, step["penalised"], step["penalties"])
        log_probs = logits - log_sum_exp(logits, level.candidates.block)[:, None]
        best = best_tokens(log_probs, int(step["candidates"][0]))
        outputs: Arrays = {"scores": np.take_along_axis(log_probs, best, axis=1), "ids": best}
        wanted = step.get("wanted", np.zeros(len(logits), np.int64))
        outputs["wanted_scores"] = np.take_along_axis(log_probs, wanted[:, None], axis=1)[:, 0]
        if found.attention:
            outputs["attention"] = self._attention(found)
        if "uniforms" in step:
            drawn, weights = draw(
                log_probs, step["banned"], step["temperatures"], step["uniforms"], level.candidates.block
            )
            outputs["sampled"] = drawn
            outputs["sampled_scores"] = np.take_along_axis(log_probs, drawn[:, None], axis=1)[:, 0]
            outputs["weights"] = np.take_along_axis(weights, best, axis=1)
        return outputs

    def _attention(self, step: Step) -> npt.NDArray[np.float32]:
        """`[B, H, k, S]`: of all open cross heads, layer by layer; 0 after the end of a source."""
        longest = max(source.length for source in self.sources)
        heads = sum(len(rows[0]) for rows in step.attention.values())
        weights = np.zeros((len(self.sources), heads, self.rows, longest), np.float32)
        first = 0
        for layer in sorted(step.attention):
            rows = step.attention[layer]
            for row, attention in enumerate(rows):
                sentence, beam = divmod(row, self.rows)
                last = first + len(attention)
                weights[sentence, first:last, beam, : attention.shape[1]] = attention
            first += len(rows[0])
        return weights
