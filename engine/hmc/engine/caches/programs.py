"""Caches of executors of step programs: what a graph's outputs would be, from one step of a program."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import chain, repeat

import numpy as np

from hmc.engine.arithmetic import Float32, exp
from hmc.engine.arrays import Arrays, Ints
from hmc.engine.caches.interface import Caches
from hmc.engine.caches.shortlists import in_lists
from hmc.engine.choosing import NEVER, best_tokens, draw, log_sum_exp, penalise_repetition
from hmc.engine.decoding.state import Rules
from hmc.engine.native.level import NativeBatch, NativeLevel
from hmc.engine.reference import OwnCaches, ReferenceLevel, Source
from hmc.engine.requests.options import MAX_TOKENS
from hmc.engine.runtime.programs import ProgramSessions


def program_caches(sessions: ProgramSessions, rows: int) -> Caches:
    """Empty caches of a batch of `rows` rows a sentence."""
    if isinstance(sessions.program, NativeLevel):
        return NativeCaches(sessions, sessions.program, rows)
    return ReferenceCaches(sessions, sessions.program, rows)


class ProgramCaches(Caches):
    """`run` has the inputs and outputs of the graphs."""

    def __init__(self, sessions: ProgramSessions, rows: int) -> None:
        """rows: of each sentence."""
        self.sessions = sessions
        self.rows = rows
        self.lengths: list[int] = []
        """Source tokens of each sentence."""
        self.listed: list[Ints] = []
        """Of each sentence: the tokens of its shortlist. Empty for a level without shortlists."""

    @abstractmethod
    def admit(self, sources: Sequence[Sequence[int]], lists: Sequence[Ints], limits: Sequence[int]) -> None:
        """Encodes sentences and appends them. lists: the shortlist of each sentence; empty for a level without
        shortlists."""

    @abstractmethod
    def step(self, tokens: Ints, lengths: Ints, *, attention: bool) -> tuple[Float32, Float32 | None]:
        """One step of all rows, which have read `lengths` tokens before.

        Returns logits `[R, V]`; with shortlists `[R, L]`, L the longest list, of each row's list in its order, and −∞
        behind its end. With `attention` also the weights of all open cross heads, layer by layer: `[B, H, k, S]`, 0
        behind the end of a source; None if no cross head is open."""

    @abstractmethod
    def rank(self, logits: Float32, count: int) -> tuple[Ints, Float32]:
        """What `best_tokens` and `log_sum_exp` give."""

    @abstractmethod
    def exp(self, values: Float32) -> Float32:
        """What `hmc.engine.arithmetic.exp` gives."""

    def groups(self, lengths: Sequence[int]) -> list[list[int]]:
        """One group of all sentences, because each sentence is encoded as if it were alone."""
        return [list(range(len(lengths)))]

    def add(
        self, sources: Sequence[Sequence[int]], prefixes: Sequence[Sequence[int]], limits: Sequence[int] = ()
    ) -> None:
        lists: list[Ints] = []
        if self.sessions.lexicon:
            choose = self.sessions.lexicon.candidates
            lists = [choose(source, prefix) for source, prefix in zip(sources, prefixes, strict=True)]
        self.admit(sources, lists, limits or [min(MAX_TOKENS, self.sessions.arch.max_positions - 1)] * len(sources))
        self.lengths += map(len, sources)
        self.listed += lists

    def keep(self, order: Sequence[int]) -> None:
        self.lengths = [self.lengths[index] for index in order]
        if self.listed:
            self.listed = [self.listed[index] for index in order]

    def clean(self, sentences: Sequence[int]) -> None:
        """Does nothing, because this memory is always written before another sentence reads it."""

    @property
    def steps_ahead(self) -> int:
        return 0

    def run_next(self, tokens: Ints) -> Arrays:
        del tokens
        raise AssertionError("no step runs ahead here")

    def run(self, step: Arrays) -> Arrays:
        asked = "penalised" in step  # as the graph that also returns attention
        logits, attention = self.step(
            step["tokens"].astype(np.int64), step["lengths"].astype(np.int64), attention=asked
        )
        count = int(step["candidates"][0])
        ids: Ints | None = None
        if self.listed:
            logits, ids = self._listed_logits(logits, count)
            step = step | in_lists(step, self.listed)
        if "penalised" in step:
            logits = penalise_repetition(logits, step["penalised"], step["penalties"])
        best, sums = self.rank(logits, count)
        sums = sums[:, None]
        outputs: Arrays = {"scores": np.take_along_axis(logits, best, axis=1) - sums, "ids": best}
        wanted = step.get("wanted", np.zeros(len(logits), np.int64))[:, None]
        outputs["wanted_scores"] = (np.take_along_axis(logits, wanted, axis=1) - sums)[:, 0]
        if attention is not None:
            outputs["attention"] = attention
        if "uniforms" in step:
            log_probs = logits - sums
            block = self.sessions.program.candidates.block
            sampling = step["banned"], step["temperatures"], step["uniforms"], block
            drawn, weights = draw(log_probs, *sampling, exponential=self.exp)
            outputs["sampled"] = drawn
            outputs["sampled_scores"] = np.take_along_axis(log_probs, drawn[:, None], axis=1)[:, 0]
            outputs["weights"] = np.take_along_axis(weights, best, axis=1)
        if ids is not None:
            outputs["ids"] = np.take_along_axis(ids, best, axis=1)
            if "sampled" in outputs:
                outputs["sampled"] = np.take_along_axis(ids, outputs["sampled"][:, None], axis=1)[:, 0]
        return outputs

    def _listed_logits(self, logits: Float32, count: int) -> tuple[Float32, Ints]:
        """Logits `[R, L]` of lists, with room for `count` candidates and for a token that is in no list; and the token
        ids of their places. Both are of the same shape; a place without a token has the logit −∞."""
        width = max(logits.shape[1] + 1, count)
        wide = np.full((len(logits), width), NEVER)
        wide[:, : logits.shape[1]] = logits
        ids = np.full((len(self.listed), width), self.sessions.arch.pad_id)
        for sentence, listed in enumerate(self.listed):
            ids[sentence, : len(listed)] = listed
        return wide, np.repeat(ids, self.rows, axis=0)


class ReferenceCaches(ProgramCaches):
    """Of the reference executor."""

    def __init__(self, sessions: ProgramSessions, level: ReferenceLevel, rows: int) -> None:
        super().__init__(sessions, rows)
        self.level = level
        self.own = OwnCaches()
        self.sources: list[Source] = []

    def admit(self, sources: Sequence[Sequence[int]], lists: Sequence[Ints], limits: Sequence[int]) -> None:
        del limits
        for index, source in enumerate(sources):
            self.sources.append(self.level.encode(source, lists[index] if lists else None))
        self.own.add(len(sources) * self.rows)

    def keep(self, order: Sequence[int]) -> None:
        super().keep(order)
        kept = np.asarray(order, np.int64)
        self.own.take((kept[:, None] * self.rows + np.arange(self.rows)).reshape(-1))
        self.sources = [self.sources[index] for index in order]

    def reorder(self, parents: Ints) -> None:
        self.own.take(parents)

    def step(self, tokens: Ints, lengths: Ints, *, attention: bool) -> tuple[Float32, Float32 | None]:
        by_row = list(chain.from_iterable(repeat(source, self.rows) for source in self.sources))
        result = self.level.step(tokens, lengths, self.own, by_row)
        layers = [result.attention[layer] for layer in sorted(result.attention)]
        return result.logits, self._attention(layers) if attention and layers else None

    def rank(self, logits: Float32, count: int) -> tuple[Ints, Float32]:
        return best_tokens(logits, count), log_sum_exp(logits, self.level.candidates.block)

    def exp(self, values: Float32) -> Float32:
        return exp(values)

    def _attention(self, layers: list[list[Float32]]) -> Float32:
        """`[B, H, k, S]`, from each row's weights `[H, S]` of its own source."""
        open_heads = sum(len(rows[0]) for rows in layers)
        weights = np.zeros((len(self.lengths), open_heads, self.rows, max(self.lengths)), np.float32)
        first = 0
        for rows in layers:
            last = first + len(rows[0])
            for row, of_row in enumerate(rows):
                sentence, beam = divmod(row, self.rows)
                source = self.lengths[sentence]
                weights[sentence, first:last, beam, :source] = of_row[:, :source]
            first = last
        return weights


class NativeCaches(ProgramCaches):
    """Caches of the native executor, if the search is on the host."""

    def __init__(self, sessions: ProgramSessions, level: NativeLevel, rows: int) -> None:
        super().__init__(sessions, rows)
        self.level = level
        self.batch = NativeBatch(level, rows, sessions.threads)

    def admit(self, sources: Sequence[Sequence[int]], lists: Sequence[Ints], limits: Sequence[int]) -> None:
        self.batch.admit(sources, [Rules(limit) for limit in limits], lists)

    def keep(self, order: Sequence[int]) -> None:
        super().keep(order)
        self.batch.keep(order)

    def reorder(self, parents: Ints) -> None:
        self.batch.reorder(parents)

    def step(self, tokens: Ints, lengths: Ints, *, attention: bool) -> tuple[Float32, Float32 | None]:
        del lengths  # the batch knows them
        logits, layers = self.batch.step(tokens, attention=attention)
        if not layers:
            return logits, None
        weights = np.concatenate(layers, axis=1)
        by_sentence = weights.reshape(len(self.lengths), self.rows, *weights.shape[1:])
        return logits, by_sentence.transpose(0, 2, 1, 3)

    def rank(self, logits: Float32, count: int) -> tuple[Ints, Float32]:
        return self.level.rank(logits, count)

    def exp(self, values: Float32) -> Float32:
        return self.level.exp(values)

    def close(self) -> None:
        self.batch.close()
