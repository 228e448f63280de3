"""What can be said against a level before any is compiled."""

from __future__ import annotations

from collections.abc import Sequence

from hmc.artifact.bundle import ON_CUDA, Precision
from hmc.artifact.errors import InvalidRequestError
from hmc.compiler.pipeline import CALIBRATED


def check_level(precision: Precision, sentences: Sequence[Sequence[int]], *, listed: bool) -> None:
    """Raises InvalidRequestError for a level that cannot be compiled, whatever its heads. sentences: what there is to
    calibrate on. listed: with vocabulary shortlists.
    """
    if listed and precision in ON_CUDA:
        raise InvalidRequestError(f"vocabulary shortlists are for levels on a CPU: leave them out, or {precision}")
    if precision in CALIBRATED and not sentences:
        raise InvalidRequestError(
            f"{precision} needs real source sentences to calibrate on: give --calibrate FILE (a few hundred lines)"
        )
