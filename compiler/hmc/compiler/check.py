"""Parity: the slim graph against the full graph with the same heads masked, on real sentences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hmc.artifact.architecture import Architecture
from hmc.artifact.bundle import Variant
from hmc.artifact.checkpoint import Checkpoint
from hmc.artifact.errors import HmcError
from hmc.artifact.heads import HeadLayout
from hmc.artifact.slimming import masked_tensors
from hmc.compiler.head_width import slim_model
from hmc.compiler.linears import FloatLinears
from hmc.compiler.runner import GraphRunner

TOLERANCE = 1e-4
"""Largest difference of fp32 log-probabilities: sums run in another order, nothing else differs."""


RUN_STEPS = 4
"""Tokens that the written graphs have to translate."""
GREEDY: Variant = "greedy"


class ParityError(HmcError):
    """Slim and masked graphs disagree: a defect of the compiler, never of the user's model."""


def check_parity(
    checkpoint: Checkpoint, layout: HeadLayout, sentences: Sequence[Sequence[int]], max_length: int = 32
) -> float:
    """Largest absolute difference of log-probabilities between slim and masked along the slim model's greedy
    translations of `sentences` (ids with EOS). With no head closed, and heads as wide as they were, both are the same
    graph: it only has to compute numbers. Raises ParityError above TOLERANCE."""
    arch, current = checkpoint.architecture, checkpoint.layout
    graph_arch, tensors = slim_model(checkpoint, layout)
    slim = GraphRunner.author(graph_arch, layout, tensors, FloatLinears())
    targets = slim.greedy(sentences, min(max_length, arch.max_positions - 1))
    reached = expected = slim.log_probs(sentences, targets)
    if layout != current or graph_arch != arch:
        masked = masked_tensors(checkpoint.tensors, arch, current, layout)
        expected = GraphRunner.author(arch, current, masked, FloatLinears()).log_probs(sentences, targets)
    difference = np.abs(reached - expected)
    real = np.arange(difference.shape[1])[None] < np.array([len(t) for t in targets])[:, None]
    worst = float(difference[real].max())
    if not worst <= TOLERANCE:
        raise ParityError(
            f"slim and masked graphs differ by {worst:.2e} in log-probability (allowed {TOLERANCE:.0e}); "
            "this is a defect of the compiler, please report it"
        )
    return worst


class BrokenGraphError(HmcError):
    """A written graph cannot be run: a defect of the compiler, never of the user's model."""


def check_runs(
    arch: Architecture, layout: HeadLayout, bundle: Path, level: str, sentences: Sequence[Sequence[int]]
) -> None:
    """Translates the first tokens of `sentences` (ids with EOS) with the graphs of a level in a bundle on disk.

    Raises BrokenGraphError where ONNX Runtime cannot use them or scores are not numbers.
    """
    try:
        plain, greedy = (GraphRunner.of_level(arch, layout, bundle, level, v) for v in (None, GREEDY))
        targets = plain.greedy(sentences, min(RUN_STEPS, arch.max_positions - 1))
        scores = np.stack([runner.log_probs(sentences, [t[:1] for t in targets]) for runner in (plain, greedy)])
    except Exception as error:  # ONNX Runtime raises its own types; whatever it is, the graphs do not run
        raise BrokenGraphError(f"level {level}: {error}; this is a defect of the compiler, please report it") from error
    if not np.isfinite(scores.max(axis=-1)).all():
        raise BrokenGraphError(f"level {level}: its scores are not numbers; check the checkpoint's weights for NaN")
