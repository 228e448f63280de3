"""A level is run as it was written: all decoders translate real sentences, and must agree with one another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hmc.artifact.bundle.manifest import Level, Variant, decoder_path
from hmc.artifact.errors import HmcError
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.precisions import PRECISIONS
from hmc.compiler.checks.device_form import search_problems, slot_problems
from hmc.compiler.checks.runner import GraphRunner, Ids, by_token
from hmc.compiler.checks.session import Arrays, OpenGraph

STEPS = 4
"""Tokens of each sentence that the graphs translate."""
UNIFORM = 0.5
"""The number that every row samples with."""
SAME = {"float32": 1e-3, "float16": 0.1}
"""By the type of activations: how far the log-probabilities of two decoders may lie apart, nats. ONNX Runtime may fuse
their operators differently; 1e-5 and 0.005 are usual."""
GREEDY_QUANTISED = 1.0
"""The same between the plain and the greedy decoder of int8 and int4 levels, which round keys and queries differently:
0.1 is usual, and a graph that computes something else is off by several nats."""
PROBABILITY = 1e-3
"""How far probabilities, and their sums, may be off."""
LIKELY = 10.0
"""Tokens more than this many nats below the best are not compared: their scores carry larger rounding errors."""
Check = Callable[[list[Arrays], npt.NDArray[np.float32], float, Architecture, Ids], list[str]]
"""(The outputs of each step, the plain decoder's log-probabilities `[T, R, V]`, tolerance, architecture, sentences) →
problems of a variant."""


class BrokenGraphError(HmcError):
    """A written graph does not run, or two graphs of a level contradict each other: a defect of the compiler."""


def check_runs(arch: Architecture, level: Level, bundle: Path, sentences: Ids) -> None:
    """Translates the first tokens of `sentences` (ids with EOS) with every decoder that a level has on disk.

    - All scores must be numbers.
    - "greedy" must give the scores of the plain decoder, up to rounding, and its best token must be one that the plain
      decoder finds as good.
    - "attention" must give the plain decoder's scores; each head's weights must sum to 1 over the source, and be 0 on
      padding.
    - "sampling" must give the plain decoder's scores; its probabilities must be the softmax of them without banned
      tokens, the sampled token the one that the uniform number selects, and its score that token's log-probability.
    - In device form, the encoder must write into the slots that it is given (`hmc.compiler.checks.device_form`).
    - "search_greedy" and "search_beam" must pass `search_problems`.

    Raises BrokenGraphError.
    """
    layout = level.layout
    traits = PRECISIONS[level.precision]
    same = SAME[traits.floats]
    try:
        runner = GraphRunner.for_level(arch, layout, bundle, level.name)
        cross = runner.encode(sentences)
        slots = slot_problems(runner.encoder, *runner.padded(sentences)) if runner.encoder else []
        targets = runner.greedy(sentences, min(STEPS, arch.max_positions - 1))
        plain = _log_probs(_along(runner, cross, targets))
        runner.close()
        if not np.isfinite(plain.max(axis=-1)).all():
            raise BrokenGraphError(
                f"level {level.name}: its scores are not numbers; check the checkpoint's weights for NaN"
            )
        problems = slots
        for variant, check in CHECKS.items():
            if (path := decoder_path(level.name, variant)) in level.files:
                runner.decoder = OpenGraph.read(bundle, path)
                outputs = _along(runner, cross, targets)
                runner.decoder.close()
                tolerance = GREEDY_QUANTISED if variant == "greedy" and traits.quantised else same
                problems += check(outputs, plain, tolerance, arch, sentences)
        problems += search_problems(runner, cross, level, bundle, same)
    except HmcError:
        raise
    except Exception as error:  # ONNX Runtime raises types of its own; whatever it is, the graphs do not run
        raise BrokenGraphError(
            f"level {level.name}: {error}; this is a defect of the compiler, please report it"
        ) from error
    if problems:
        raise BrokenGraphError(
            f"level {level.name}: {'; '.join(problems)}; this is a defect of the compiler, please report it"
        )


def _along(runner: GraphRunner, cross: Arrays, targets: Ids) -> list[Arrays]:
    """All outputs of the decoder at each position of `targets`, with every token as a candidate."""
    rows = len(targets)
    cache = runner.empty_cache(rows, max(map(len, targets)))
    inputs = {"candidates": np.array([runner.arch.vocab_size]), "uniforms": np.full(rows, UNIFORM, np.float32)}
    tokens = runner.first_tokens(rows)
    outputs = []
    for position in range(max(map(len, targets))):
        outputs.append(runner.step(tokens, position, cross, cache, inputs))
        tokens = runner.tokens_at(targets, position)
    return outputs


def _log_probs(outputs: list[Arrays]) -> npt.NDArray[np.float32]:
    """`[T, R, V]` by token id."""
    return np.stack([by_token(out) for out in outputs])


def _scores_differ(
    variant: Variant, outputs: list[Arrays], plain: npt.NDArray[np.float32], tolerance: float
) -> list[str]:
    """Compares the mean distance over the likely tokens of a step; the worst step counts."""
    likely = plain >= plain.max(axis=-1, keepdims=True) - LIKELY
    distances = np.where(likely, np.abs(_log_probs(outputs) - plain), 0).sum(axis=-1) / likely.sum(axis=-1)
    worst = float(distances.max())
    if worst <= tolerance:
        return []
    return [f"decoder {variant!r} differs from the plain one by {worst:.2e} in log-probability (allowed {tolerance:g})"]


def _check_greedy(
    outputs: list[Arrays], plain: npt.NDArray[np.float32], tolerance: float, arch: Architecture, sources: Ids
) -> list[str]:
    del arch, sources
    chosen = np.stack([out["ids"][:, :1] for out in outputs])
    lost = float((plain.max(axis=-1) - np.take_along_axis(plain, chosen, axis=-1)[..., 0]).max())
    problems = _scores_differ("greedy", outputs, plain, tolerance)
    if not lost <= 2 * tolerance:  # both tokens may be off
        problems.append(f"decoder 'greedy' chooses a token that is {lost:.2e} nats less probable in the plain one")
    return problems


def _check_attention(
    outputs: list[Arrays], plain: npt.NDArray[np.float32], tolerance: float, arch: Architecture, sources: Ids
) -> list[str]:
    del arch
    problems = _scores_differ("attention", outputs, plain, tolerance)
    if "attention" not in outputs[0]:  # no cross head is open
        return problems
    weights = np.stack([out["attention"] for out in outputs])  # [T, B, H, 1, S]
    off = float(np.abs(weights.sum(axis=-1) - 1).max())
    if not off <= PROBABILITY:
        problems.append(f"decoder 'attention': the weights of a head sum to 1 ± {off:.2e}")
    for row, source in enumerate(sources):
        if weights[:, row, ..., len(source) :].any():
            problems.append(f"decoder 'attention': sentence {row} attends to padding")
    return problems


def _check_sampling(
    outputs: list[Arrays], plain: npt.NDArray[np.float32], tolerance: float, arch: Architecture, sources: Ids
) -> list[str]:
    del sources
    problems = _scores_differ("sampling", outputs, plain, tolerance)
    own = _log_probs(outputs)
    expected = np.exp(own.astype(np.float64))
    expected[..., arch.pad_id] = 0  # banned
    expected /= expected.sum(axis=-1, keepdims=True)
    shares = np.empty_like(own)
    np.put_along_axis(
        shares, np.stack([out["ids"] for out in outputs]), np.stack([out["weights"] for out in outputs]), -1
    )
    if not np.abs(shares - expected).max() <= PROBABILITY:
        problems.append("decoder 'sampling': its probabilities are not the softmax of its scores")
    sampled = np.stack([out["sampled"] for out in outputs])[..., None]  # [T, R, 1]
    scores = np.stack([out["sampled_scores"] for out in outputs])
    if not np.array_equal(scores, np.take_along_axis(own, sampled, -1)[..., 0]):
        problems.append("decoder 'sampling': a sampled token's score is not its log-probability")
    below = np.cumsum(expected, axis=-1)
    upper = np.take_along_axis(below, sampled, -1)
    lower = upper - np.take_along_axis(expected, sampled, -1)
    if not ((lower <= UNIFORM + PROBABILITY) & (upper >= UNIFORM - PROBABILITY)).all():
        problems.append("decoder 'sampling': a sampled token is not the one that its uniform number selects")
    return problems


CHECKS: dict[Variant, Check] = {"greedy": _check_greedy, "attention": _check_attention, "sampling": _check_sampling}
