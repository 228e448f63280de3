"""Parity: the slim graph computes what the full graph computes with the same heads masked."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hmc.artifact.checkpoint.checkpoint import Checkpoint
from hmc.artifact.checkpoint.slimming import masked_tensors
from hmc.artifact.errors import HmcError
from hmc.compiler.checks.runner import GraphRunner, Ids
from hmc.compiler.derived import DerivedArrays
from hmc.compiler.precisions.linears import FloatLinears
from hmc.compiler.weights import SlimModel

TOLERANCE = 1e-4
"""Largest difference of fp32 log-probabilities up to USUAL in size. The two graphs add in different orders; nothing
else differs."""
USUAL = 100.0
"""Log-probabilities that are larger may differ by as much of their size: fp32 has no finer numbers."""
MAX_LENGTH = 32
"""Tokens of the longest translation along which they are compared."""


class ParityError(HmcError):
    """Slim and masked graphs disagree: a defect of the compiler, never of the user's model."""


def check_parity(
    checkpoint: Checkpoint, slim: SlimModel, sentences: Ids, derived: DerivedArrays | None = None
) -> float:
    """The largest absolute difference of log-probabilities between the slim and the masked graph, in fp32.

    Both run along the slim graph's greedy translations of `sentences` (ids with EOS). Where no head is closed,
    moved or widened, both would be the same graph, so the slim one only has to give numbers. Raises ParityError above
    TOLERANCE.
    """
    arch = checkpoint.architecture
    layout = checkpoint.layout
    linears = FloatLinears(derived=derived or DerivedArrays())
    limit = min(MAX_LENGTH, arch.max_positions - 1)
    runner = GraphRunner.author(slim.arch, slim.layout, slim.tensors, linears)
    targets, reached = runner.greedy_log_probs(sentences, limit)
    runner.close()  # before the next one is opened
    differences = [_difference(scores, scores, targets, position) for position, scores in enumerate(reached)]
    if slim.layout != layout or slim.arch != arch or slim.reordered:
        masked = masked_tensors(checkpoint.tensors, arch, layout, slim.layout)
        runner = GraphRunner.author(arch, layout, masked, linears)
        steps = enumerate(zip(reached, runner.log_probs_by_step(sentences, targets, once=True), strict=True))
        differences = [_difference(scores, expected, targets, position) for position, (scores, expected) in steps]
        runner.close()
    worst = float(np.max(differences))  # NaN if one of them is
    if not worst <= TOLERANCE:
        raise ParityError(
            f"slim and masked graphs differ by {worst:.2e} in log-probability (allowed {TOLERANCE:.0e}); "
            "this is a defect of the compiler, please report it"
        )
    return worst


def _difference(
    reached: npt.NDArray[np.float32], expected: npt.NDArray[np.float32], targets: Ids, position: int
) -> float:
    """Largest difference of two scores `[B, V]` over the targets that have a token at `position`, or NaN. That of large
    scores is divided by their size / USUAL."""
    real = [row for row, target in enumerate(targets) if position < len(target)]
    size = np.maximum(np.abs(expected[real]) / np.float32(USUAL), np.float32(1))
    return float((np.abs(reached[real] - expected[real]) / size).max())
