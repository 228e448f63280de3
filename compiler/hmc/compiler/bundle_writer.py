"""`hmc compile`: from checkpoints and level requests to a validated bundle directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from hmc.artifact.bundle import Manifest, Precision
from hmc.artifact.bundle_files import replace_bundle
from hmc.artifact.errors import InvalidRequestError
from hmc.compiler.bundle_builder import LISTED, BundleBuilder, LevelRequest, ignore
from hmc.compiler.pipeline import PASSES
from hmc.compiler.shortlist_text import ShortlistText


def compile_bundle(
    requests: Sequence[LevelRequest],
    out: Path,
    *,
    precisions: Sequence[Precision] = ("fp32",),
    calibration: Sequence[str] = (),
    shortlist: ShortlistText | None = None,
    progress: Callable[[str], None] = ignore,
) -> Manifest:
    """Compiles every request at every precision into the bundle `out`, replacing it whole or not at all.

    calibration: source sentences for int8 activation ranges; also the probes of the parity check. shortlist:
    every int8 and int4 level gets a twin `NAME-shortlist` that chooses among the tokens that a sentence may need.
    The same input gives the same bytes. `progress` is called `progress_steps` times.
    Raises InvalidRequestError or InvalidArtifactError; `out` is then as it was before.
    """
    if not requests:
        raise InvalidRequestError("nothing to compile: give at least one level")
    checkpoints = list(dict.fromkeys(request.checkpoint for request in requests))
    with replace_bundle(out, checkpoints) as folder:
        builder = BundleBuilder(checkpoints, folder, calibration=calibration, shortlist=shortlist, progress=progress)
        plan = [(request, *form) for request in requests for form in forms(precisions, shortlist)]
        builder.prepare(plan)
        return builder.finish([builder.add(request, precision, listed=listed) for request, precision, listed in plan])


def forms(precisions: Sequence[Precision], shortlist: ShortlistText | None) -> list[tuple[Precision, bool]]:
    """The forms of a level: each precision and, with text for shortlists, its twin that has them (True)."""
    twins: frozenset[Precision] = LISTED if shortlist else frozenset()
    return [(p, listed) for p in precisions for listed in ((False, True) if p in twins else (False,))]


def progress_steps(requests: int, precisions: Sequence[Precision], *, shortlist: bool = False) -> int:
    """How often `compile_bundle` reports progress."""
    listed = len(LISTED.intersection(precisions)) if shortlist else 0
    return requests * (len(precisions) + listed) * len(PASSES) + 1 + bool(listed)
