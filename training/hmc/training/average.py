"""Checkpoint averaging (Vaswani et al. 2017, section 6.1): the mean of several checkpoints of one run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hmc.artifact.checkpoint import Checkpoint, Tensors
from hmc.artifact.errors import InvalidRequestError


def average_tensors(checkpoints: Sequence[Checkpoint]) -> Tensors:
    """Mean of every tensor. Raises InvalidRequestError when the checkpoints differ in architecture or layout."""
    first = checkpoints[0]
    for other in checkpoints[1:]:
        if other.architecture != first.architecture or other.layout != first.layout:
            raise InvalidRequestError("checkpoints to average must share one architecture and one head layout")
    names = first.tensors
    return {n: np.mean([c.tensors[n] for c in checkpoints], axis=0, dtype=np.float32) for n in names}
