"""Decoding strategies: they prepare the graph's inputs of a step and choose tokens by its outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hmc.artifact.bundle.manifest import Variant
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.rounding import round_up
from hmc.engine.arrays import NEG_INF, Arrays, Ints
from hmc.engine.decoding import beam, greedy, sampling
from hmc.engine.decoding.job import Job
from hmc.engine.decoding.state import DecodeState, StepResult
from hmc.engine.requests.options import Sampling

ROUND_SIZES = 16
"""Sizes that depend on the sentences are multiples of this, so that buffers seldom change."""


class Strategy(Protocol):
    """One way of choosing tokens. Both calls get the same state and jobs, index for index."""

    independent: bool
    """Whether each row of a sentence writes a hypothesis of its own (see `DecodeState.add`)."""

    def inputs(self, state: DecodeState, jobs: Sequence[Job]) -> Arrays:
        """The graph's inputs, without the inputs that the caches add."""

    def advance(self, state: DecodeState, jobs: Sequence[Job], outputs: Arrays) -> StepResult:
        """Chooses tokens by the graph's outputs, which it may change, and writes them to the state."""


def strategy_for(variant: Variant | None, arch: Architecture) -> Strategy:
    """The strategy of a batch that runs this variant of the decoder."""
    if variant == "sampling":
        return SamplingStrategy(arch)
    return GreedyStrategy(arch) if variant == "greedy" else BeamStrategy(arch)


class BeamStrategy:
    """Beam search, exact under every constraint: for each banned token the graph is asked for one more candidate."""

    independent = False

    def __init__(self, arch: Architecture) -> None:
        self.arch = arch
        self._banned: dict[int, Ints] = {}

    def inputs(self, state: DecodeState, jobs: Sequence[Job]) -> Arrays:
        """See `Strategy`."""
        self._banned = _banned(state, jobs)
        needed = beam.candidates_needed(state.beam) + _most_banned(self._banned)
        inputs = _common_inputs(state, jobs)
        inputs["candidates"] = _candidates(needed, self.arch)
        return inputs

    def advance(self, state: DecodeState, jobs: Sequence[Job], outputs: Arrays) -> StepResult:
        """See `Strategy`."""
        scores = outputs["scores"]
        ids = outputs["ids"]
        for row, tokens in self._banned.items():
            scores[row, np.isin(ids[row], tokens)] = NEG_INF
        for sentence, token in _forced(state, jobs):
            rows = slice(sentence * state.beam, (sentence + 1) * state.beam)
            scores[rows] = NEG_INF
            ids[rows] = state.pad_id
            scores[rows, 0] = _forced_scores(state, jobs, outputs, sentence)
            ids[rows, 0] = token
        return self._search(state, scores, ids)

    def _search(self, state: DecodeState, scores: npt.NDArray[np.float32], ids: Ints) -> StepResult:
        return beam.advance(state, scores, ids)


class GreedyStrategy(BeamStrategy):
    """Beam search with one row a sentence, in fewer operations."""

    def _search(self, state: DecodeState, scores: npt.NDArray[np.float32], ids: Ints) -> StepResult:
        return greedy.advance(state, scores, ids)


class SamplingStrategy:
    """Sampling: the graph draws among all tokens; top-k and top-p draw here, among the graph's best candidates."""

    independent = True

    def __init__(self, arch: Architecture) -> None:
        self.arch = arch

    def inputs(self, state: DecodeState, jobs: Sequence[Job]) -> Arrays:
        """See `Strategy`."""
        k = state.beam
        banned = _banned(state, jobs)
        never = [self.arch.pad_id], [self.arch.pad_id, self.arch.eos_id]
        short = np.repeat(state.lengths + 1 < state.minimums, k)
        rows = [np.concatenate([never[int(short[r])], banned.get(r, [])]).astype(np.int64) for r in range(len(short))]
        temperatures = np.array([_sampling(job).temperature for job in jobs], np.float32)
        needed = max(sampling.candidates_needed(_sampling(job)) for job in jobs) + 2  # pad and EOS
        return _common_inputs(state, jobs) | {
            "candidates": _candidates(needed + _most_banned(banned), self.arch),
            "banned": _matrix(rows, self.arch.pad_id),
            "temperatures": np.repeat(temperatures, k),
            "uniforms": _next_uniforms(state, jobs),
        }

    def advance(self, state: DecodeState, jobs: Sequence[Job], outputs: Arrays) -> StepResult:
        """See `Strategy`."""
        tokens = outputs["sampled"]
        scores = outputs["sampled_scores"]
        k = state.beam
        dead = ~(outputs["weights"].max(axis=1) > 0)  # where all tokens are banned, weights are 0 or NaN
        rows = np.flatnonzero(np.repeat([_sampling(job).truncated for job in jobs], k) & ~dead)
        if len(rows):
            options = [_sampling(jobs[row // k]) for row in rows.tolist()]
            drawn = sampling.draw(outputs["weights"][rows], options, _next_uniforms(state, jobs)[rows])
            tokens[rows] = outputs["ids"][rows, drawn]
            scores[rows] = outputs["scores"][rows, drawn]
        if dead.any():
            failed = ~(outputs["scores"].max(axis=1) < np.inf)  # NaN weights may also come from NaN log-probabilities
            tokens[dead] = state.eos_id
            scores[dead] = 0.0
            scores[failed] = np.nan
            dead = dead & ~failed
        for sentence, token in _forced(state, jobs):
            forced = slice(sentence * k, (sentence + 1) * k)
            tokens[forced] = token
            dead[forced] = False
            scores[forced] = _forced_scores(state, jobs, outputs, sentence)
        return sampling.advance(state, tokens, scores, dead)


def _common_inputs(state: DecodeState, jobs: Sequence[Job]) -> Arrays:
    k = state.beam
    inputs: Arrays = {
        "tokens": state.last.reshape(-1),
        "lengths": (state.lengths if k == 1 else state.lengths.repeat(k)).astype(np.int32),
    }
    if forced := _forced(state, jobs):
        inputs["wanted"] = wanted = np.full(len(jobs) * k, state.eos_id, np.int64)
        for sentence, token in forced:
            wanted[sentence * k : (sentence + 1) * k] = token
    if jobs[0].mode.variant in ("attention", "sampling"):
        inputs |= _penalised(state, jobs)
    return inputs


def _penalised(state: DecodeState, jobs: Sequence[Job]) -> Arrays:
    """Every row's tokens so far `[R, T]`, and its repetition penalty `[R]` (Keskar et al. 2019). A row that is shorter
    than T is filled with its first token, which is penalised anyway. A row without tokens has the penalty 1."""
    longest = min(round_up(max(int(state.lengths.max()), 1), ROUND_SIZES), state.tokens.shape[2])
    written = np.arange(longest) < state.lengths[:, None, None]
    ids = np.where(written, state.tokens[:, :, :longest], state.tokens[:, :, :1]).astype(np.int64)
    theta = np.array([job.options.repetition_penalty for job in jobs], np.float32)
    theta[state.lengths == 0] = 1.0
    return {"penalised": ids.reshape(-1, longest), "penalties": np.repeat(theta, state.beam)}


def _forced(state: DecodeState, jobs: Sequence[Job]) -> list[tuple[int, int]]:
    """The next token of every sentence that is still within its prefix: (sentence, token)."""
    prefixes = ((n, job.constraints.prefix) for n, job in enumerate(jobs) if job.constraints.prefix)
    return [(n, prefix[state.lengths[n]]) for n, prefix in prefixes if state.lengths[n] < len(prefix)]


def _forced_scores(state: DecodeState, jobs: Sequence[Job], outputs: Arrays, sentence: int) -> npt.NDArray[np.float32]:
    """Log-probability of a sentence's forced token in each of its rows, `[k]`; 0 for a free token.

    A score that is no number stays so, and ends the search.
    """
    scores: npt.NDArray[np.float32] = outputs["wanted_scores"][sentence * state.beam : (sentence + 1) * state.beam]
    if state.lengths[sentence] < jobs[sentence].constraints.free:
        return np.where(np.isfinite(scores), np.float32(0), scores)
    return scores


def _banned(state: DecodeState, jobs: Sequence[Job]) -> dict[int, Ints]:
    """Row → tokens that may not come next, for rows that have any and are past their prefix."""
    banned: dict[int, Ints] = {}
    for sentence, job in enumerate(jobs):
        length = int(state.lengths[sentence])
        if not job.constraints.bans or length < len(job.constraints.prefix):
            continue
        for row in range(state.beam):
            tokens = job.constraints.banned(state.tokens[sentence, row, :length])
            if len(tokens):
                banned[sentence * state.beam + row] = tokens
    return banned


def _most_banned(banned: dict[int, Ints]) -> int:
    return round_up(max(map(len, banned.values())), ROUND_SIZES) if banned else 0


def _matrix(rows: Sequence[Ints], fill: int) -> Ints:
    """`[R, N]`: the rows, padded with `fill`."""
    matrix = np.full((len(rows), round_up(max(map(len, rows)), ROUND_SIZES)), fill, np.int64)
    for row, values in enumerate(rows):
        matrix[row, : len(values)] = values
    return matrix


def _candidates(needed: int, arch: Architecture) -> Ints:
    return np.array([min(needed, arch.vocab_size)], np.int64)


def _sampling(job: Job) -> Sampling:
    assert job.options.sampling is not None
    return job.options.sampling


def _next_uniforms(state: DecodeState, jobs: Sequence[Job]) -> sampling.Uniforms:
    """`[N·k]`: every row's random number for this step."""
    numbers = [job.uniforms[:, n] for job, n in zip(jobs, state.lengths, strict=True) if job.uniforms is not None]
    return np.concatenate(numbers)
