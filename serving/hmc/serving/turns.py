"""One turn of a batch around one run of the graph: what goes in, and what becomes of what comes out. By beam search, or
by sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hmc.artifact.architecture import Architecture
from hmc.serving import greedy, sampling, search
from hmc.serving.constraints import Ints
from hmc.serving.jobs import Job
from hmc.serving.options import Sampling
from hmc.serving.sessions import Arrays
from hmc.serving.state import DecodeState, Turn

STEP = 16
"""Sizes that follow the sentences come in multiples of this, so that buffers seldom change."""


class Turns(Protocol):
    """One way of choosing tokens. Both calls see the same state and jobs, index for index."""

    independent: bool
    """Whether the rows of a sentence run each on its own."""

    def inputs(self, state: DecodeState, jobs: Sequence[Job]) -> Arrays:
        """The graph's inputs, but those that the caches hold."""
        ...

    def turn(self, state: DecodeState, jobs: Sequence[Job], answer: Arrays) -> Turn:
        """Chooses by the graph's outputs."""
        ...


class BeamTurns:
    """Beam search, exact under every constraint: banned tokens are made up for by as many more candidates."""

    independent = False

    def __init__(self, arch: Architecture) -> None:
        self.arch = arch
        self._banned: dict[int, Ints] = {}

    def inputs(self, state: DecodeState, jobs: Sequence[Job]) -> Arrays:
        """See `Turns`."""
        self._banned = _banned(state, jobs)
        needed = search.candidates_needed(state.beam) + _spare(self._banned)
        inputs = _common_inputs(state, jobs)
        inputs["candidates"] = _candidates(needed, self.arch)
        return inputs

    def turn(self, state: DecodeState, jobs: Sequence[Job], answer: Arrays) -> Turn:
        """See `Turns`."""
        scores, ids = answer["scores"], answer["ids"]
        for row, tokens in self._banned.items():
            scores[row, np.isin(ids[row], tokens)] = -np.inf
        for sentence, token in _forced(state, jobs):
            rows = slice(sentence * state.beam, (sentence + 1) * state.beam)
            scores[rows], ids[rows] = -np.inf, state.pad_id
            scores[rows, 0], ids[rows, 0] = answer["wanted_scores"][rows], token
        return self._advance(state, scores, ids)

    def _advance(self, state: DecodeState, scores: npt.NDArray[np.float32], ids: Ints) -> Turn:
        return search.advance(state, scores, ids)


class GreedyTurns(BeamTurns):
    """The same for one row a sentence."""

    def _advance(self, state: DecodeState, scores: npt.NDArray[np.float32], ids: Ints) -> Turn:
        return greedy.advance(state, scores, ids)


class SampleTurns:
    """Sampling: among all tokens by the graph, or among the best few here."""

    independent = True

    def __init__(self, arch: Architecture) -> None:
        self.arch = arch

    def inputs(self, state: DecodeState, jobs: Sequence[Job]) -> Arrays:
        """See `Turns`."""
        beam, banned = state.beam, _banned(state, jobs)
        ends = [self.arch.pad_id], [self.arch.pad_id, self.arch.eos_id]
        short = np.repeat(state.lengths + 1 < state.minimums, beam)
        rows = [np.concatenate([ends[int(short[r])], banned.get(r, [])]).astype(np.int64) for r in range(len(short))]
        temperatures = np.array([_sampling(job).temperature for job in jobs], np.float32)
        needed = max(sampling.candidates_needed(_sampling(job)) for job in jobs) + 2  # pad and EOS
        return _common_inputs(state, jobs) | {
            "candidates": _candidates(needed + _spare(banned), self.arch),
            "banned": _matrix(rows, self.arch.pad_id),
            "temperatures": np.repeat(temperatures, beam),
            "uniforms": _next_uniforms(state, jobs),
        }

    def turn(self, state: DecodeState, jobs: Sequence[Job], answer: Arrays) -> Turn:
        """See `Turns`."""
        tokens, scores, beam = answer["sampled"], answer["sampled_scores"], state.beam
        stuck = ~(answer["weights"].max(axis=1) > 0)
        rows = np.repeat([_sampling(job).truncated for job in jobs], beam) & ~stuck
        if rows.any():
            top_k = np.repeat([_sampling(job).top_k or 0 for job in jobs], beam)[rows]
            top_p = np.repeat([_sampling(job).top_p for job in jobs], beam)[rows]
            places = sampling.draw(answer["weights"][rows], top_k, top_p, _next_uniforms(state, jobs)[rows])
            tokens[rows] = answer["ids"][rows, places]
            scores[rows] = answer["scores"][rows, places]
        tokens[stuck], scores[stuck] = state.eos_id, 0.0
        for sentence, token in _forced(state, jobs):
            forced = slice(sentence * beam, (sentence + 1) * beam)
            tokens[forced], scores[forced], stuck[forced] = token, answer["wanted_scores"][forced], False
        return sampling.advance_samples(state, tokens, scores, stuck)


def _common_inputs(state: DecodeState, jobs: Sequence[Job]) -> Arrays:
    beam = state.beam
    inputs: Arrays = {
        "tokens": state.last.reshape(-1),
        "lengths": (state.lengths if beam == 1 else state.lengths.repeat(beam)).astype(np.int32),
    }
    if forced := _forced(state, jobs):
        inputs["wanted"] = wanted = np.full(len(jobs) * beam, state.eos_id, np.int64)
        for sentence, token in forced:
            wanted[sentence * beam : (sentence + 1) * beam] = token
    if jobs[0].mode.variant in ("attention", "sampling"):
        inputs |= _penalised(state, jobs)
    return inputs


def _penalised(state: DecodeState, jobs: Sequence[Job]) -> Arrays:
    """Every row's tokens so far, and by how much to penalise them; a row's first token fills up shorter ones."""
    longest = min(_rounded(max(int(state.lengths.max()), 1)), state.tokens.shape[2])
    written = np.arange(longest) < state.lengths[:, None, None]
    ids = np.where(written, state.tokens[:, :, :longest], state.tokens[:, :, :1]).astype(np.int64)
    theta = np.array([job.options.repetition_penalty for job in jobs], np.float32)
    theta[state.lengths == 0] = 1.0
    return {"penalised": ids.reshape(-1, longest), "penalties": np.repeat(theta, state.beam)}


def _forced(state: DecodeState, jobs: Sequence[Job]) -> list[tuple[int, int]]:
    """(sentence, token) of every sentence that is still within its prefix."""
    prefixes = ((n, job.constraints.prefix) for n, job in enumerate(jobs) if job.constraints.prefix)
    return [(n, prefix[state.lengths[n]]) for n, prefix in prefixes if state.lengths[n] < len(prefix)]


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


def _spare(banned: dict[int, Ints]) -> int:
    return _rounded(max(map(len, banned.values()))) if banned else 0


def _rounded(size: int) -> int:
    return -(-size // STEP) * STEP


def _matrix(rows: Sequence[Ints], fill: int) -> Ints:
    """`[R, N]`: the rows, padded with `fill`."""
    matrix = np.full((len(rows), _rounded(max(map(len, rows)))), fill, np.int64)
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
