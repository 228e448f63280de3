"""`hmc compile`: from checkpoints and level requests to a validated bundle directory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hmc.artifact.bundle import Level, Manifest, Precision, validate, write_manifest
from hmc.artifact.checkpoint import Checkpoint, checkpoint_digest, load_checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.files import replace_directory
from hmc.artifact.tokenizer import open_tokenizer
from hmc.artifact.tokenizer_files import tokenizer_digest, write_tokenizer
from hmc.compiler.pipeline import LevelDraft, compile_level

PROBE_SENTENCES, CALIBRATION_SENTENCES = 8, 256
GENERATOR = "hmc 0.1.0"


@dataclass(frozen=True)
class LevelRequest:
    """One head budget to compile. `name` None: `full` for every head of the architecture, else `hN`."""

    checkpoint: Path
    target_heads: int | None = None
    """None: the checkpoint's own layout."""
    name: str | None = None


def _ignore(_: str) -> None:
    """Default progress: none."""


def compile_bundle(
    requests: Sequence[LevelRequest],
    out: Path,
    *,
    precisions: Sequence[Precision] = ("fp32",),
    calibration: Sequence[str] = (),
    progress: Callable[[str], None] = _ignore,
) -> Manifest:
    """Compiles every request at every precision into the bundle `out`, replacing it whole or not at all.

    calibration: source sentences for int8 activation ranges; also the probes of the parity check.
    Raises InvalidRequestError or InvalidArtifactError; `out` is then as it was before.
    """
    checkpoints = {r.checkpoint: load_checkpoint(r.checkpoint) for r in requests}
    first = next(iter(checkpoints.values()), None)
    if first is None:
        raise InvalidRequestError("nothing to compile: give at least one level")
    _check_compatible(first, checkpoints)
    digests = {path: checkpoint_digest(path) for path in checkpoints}
    sentences = _encode(first, calibration)
    parity: dict[str, float | None] = {}
    with replace_directory(out) as folder:
        levels: list[Level] = []
        for request in requests:
            checkpoint = checkpoints[request.checkpoint]
            target = checkpoint.layout.total if request.target_heads is None else request.target_heads
            for precision in precisions:
                draft = LevelDraft(
                    name=_level_name(request, checkpoint, target, precision),
                    checkpoint=checkpoint,
                    digest=digests[request.checkpoint],
                    target_heads=target,
                    precision=precision,
                    bundle=folder,
                    probe=sentences[:PROBE_SENTENCES] or _synthetic_probe(checkpoint),
                    calibration=sentences[:CALIBRATION_SENTENCES],
                )
                if draft.name in parity:
                    raise InvalidRequestError(f"level {draft.name!r} is asked for twice")
                levels.append(compile_level(draft, progress))
                parity[draft.name] = draft.parity
        write_tokenizer(first.tokenizer, folder)
        manifest = Manifest(
            version=_version(levels),
            created_by=GENERATOR,
            source_language=first.config.source_language,
            target_language=first.config.target_language,
            architecture=first.architecture,
            tokenizer_sha256=tokenizer_digest(first.tokenizer),
            levels=levels,
            default_level=levels[0].name,
            provenance=_provenance(first, parity),
        )
        write_manifest(manifest, folder)
        progress("validate")
        return validate(folder)


def _level_name(request: LevelRequest, checkpoint: Checkpoint, target: int, precision: Precision) -> str:
    whole = target == checkpoint.architecture.full_layout().total
    name = request.name or ("full" if whole else f"h{target}")
    return name if precision == "fp32" else f"{name}-{precision}"


def _check_compatible(first: Checkpoint, checkpoints: dict[Path, Checkpoint]) -> None:
    for path, other in checkpoints.items():
        if other.architecture != first.architecture:
            raise InvalidRequestError(
                f"{path}: its architecture differs from the first checkpoint's; compile it into a bundle of its own"
            )
        if other.tokenizer != first.tokenizer:
            raise InvalidRequestError(
                f"{path}: its tokenizer differs from the first checkpoint's; levels of a bundle share one"
            )


def _encode(checkpoint: Checkpoint, texts: Sequence[str]) -> list[list[int]]:
    tokenizer, arch = open_tokenizer(checkpoint.tokenizer), checkpoint.architecture
    encoded = [tokenizer.encode(text)[: arch.max_positions - 1] for text in texts[: 4 * CALIBRATION_SENTENCES]]
    return [[*ids, arch.eos_id] for ids in encoded if ids]


def _synthetic_probe(checkpoint: Checkpoint) -> list[list[int]]:
    """Pseudo-sentences for the parity check when no text is given: slim ≡ masked must hold for any ids."""
    arch, rng = checkpoint.architecture, np.random.default_rng(0)
    lengths = rng.integers(3, min(20, arch.max_positions), size=PROBE_SENTENCES)
    return [[*rng.integers(0, arch.vocab_size, size=n).tolist(), arch.eos_id] for n in lengths]


def _version(levels: Sequence[Level]) -> str:
    content = json.dumps([[level.name, level.files] for level in levels], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _provenance(checkpoint: Checkpoint, parity: dict[str, float | None]) -> dict[str, Any]:
    return {"slim_vs_masked_max_log_prob_difference": parity, "checkpoint_metrics": checkpoint.metrics}
