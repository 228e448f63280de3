"""A bundle in the making: levels are compiled one by one, and described once they are all there."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from hmc.artifact.budgets import HeadBudget
from hmc.artifact.bundle import Level, Manifest, Precision, write_manifest
from hmc.artifact.bundle_checks import validate
from hmc.artifact.bundle_files import RESERVED
from hmc.artifact.checkpoint import Checkpoint, checkpoint_digest, load_checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.heads import HeadLayout
from hmc.artifact.shortlist import Lexicon
from hmc.artifact.tokenizer import open_tokenizer
from hmc.artifact.tokenizer_files import tokenizer_digest, write_tokenizer
from hmc.compiler.check import TOLERANCE
from hmc.compiler.layouts import Ranking, Target, choose_layout
from hmc.compiler.level_checks import check_level
from hmc.compiler.pipeline import LevelDraft, compile_level
from hmc.compiler.precise_layers import Quantization
from hmc.compiler.shortlist_text import ShortlistText, lexicon_of

PROBE_SENTENCES, CALIBRATION_SENTENCES = 8, 256
LISTED: frozenset[Precision] = frozenset(("int8", "int4"))
"""Precisions whose levels may have shortlists: their projection is exact in integers, whatever it is computed with."""
GENERATOR = f"hmc {version('hmc')}"


@dataclass(frozen=True)
class LevelRequest:
    """One head layout to compile. `name` None: `full` for every head of the architecture, else `hN`, or what the kinds
    of a budget keep, such as `enc10-dec20-cross24`."""

    checkpoint: Path
    target_heads: Target | None = None
    """None: the checkpoint's own layout."""
    name: str | None = None
    rank_by: Ranking | None = None
    """What the heads of a budget are chosen by; None: gates where there are any, else importance."""


def ignore(_: str) -> None:
    """Default progress: none."""


class BundleBuilder:
    """Compiles levels one by one into `folder`; what levels have in common is worked out once.

    The folder is a bundle after `finish`; before, `manifest` describes the levels it holds to whoever opens them there.
    """

    def __init__(
        self,
        checkpoints: Iterable[Path],
        folder: Path,
        *,
        calibration: Sequence[str] = (),
        shortlist: ShortlistText | None = None,
        progress: Callable[[str], None] = ignore,
    ) -> None:
        """Raises InvalidArtifactError, and InvalidRequestError for checkpoints that cannot share a bundle."""
        self._checkpoints = {path: load_checkpoint(path) for path in checkpoints}
        self._first = next(iter(self._checkpoints.values()))
        _check_compatible(self._first, self._checkpoints)
        self._digests = {path: checkpoint_digest(path) for path in self._checkpoints}
        self._sentences = _encode(self._first, calibration)
        self._verified: dict[Path, set[HeadLayout]] = {path: set() for path in self._checkpoints}
        self._calibrated: dict[Path, dict[HeadLayout, Quantization]] = {path: {} for path in self._checkpoints}
        self._folder, self._progress, self._shortlist = folder, progress, shortlist
        self.levels: dict[str, Level] = {}
        """The levels in the folder by their names."""
        write_tokenizer(self._first.tokenizer, folder)

    def checkpoint(self, path: Path) -> Checkpoint:
        """A checkpoint that levels are compiled from."""
        return self._checkpoints[path]

    def prepare(self, plan: Iterable[tuple[LevelRequest, Precision, bool]]) -> None:
        """Checks levels before any of them is added, and learns what those with shortlists need (the bool: `listed`).

        Raises InvalidRequestError for the first that cannot be compiled, or not beside the others.
        """
        names = set(self.levels)
        plan = list(plan)
        for request, precision, listed in plan:
            names.add(self._checked_name(request, precision, listed, names))
        if any(listed for _, _, listed in plan):
            _ = self._lexicon

    @cached_property
    def _lexicon(self) -> Lexicon | None:
        if self._shortlist is None:
            return None
        self._progress("shortlists: learn lexicon")
        return lexicon_of(self._shortlist, self._first)

    def add(self, request: LevelRequest, precision: Precision, *, listed: bool = False) -> Level:
        """Compiles a level. Raises InvalidRequestError, also for a level that is there.

        listed: with vocabulary shortlists, not for CUDA. In fp32 the last bits of a score then depend on what else is
        in the batch: such a level is for comparison.
        """
        name = self._checked_name(request, precision, listed, self.levels)
        checkpoint = self._checkpoints[request.checkpoint]
        draft = LevelDraft(
            name=name,
            checkpoint=checkpoint,
            digest=self._digests[request.checkpoint],
            target_heads=request.target_heads,
            rank_by=request.rank_by,
            precision=precision,
            bundle=self._folder,
            probe=self._sentences[:PROBE_SENTENCES] or _synthetic_probe(checkpoint),
            calibration=self._sentences[:CALIBRATION_SENTENCES],
            verified=self._verified[request.checkpoint],
            calibrated=self._calibrated[request.checkpoint],
            lexicon=self._lexicon if listed else None,
        )
        self.levels[name] = compile_level(draft, self._progress)
        return self.levels[name]

    def _checked_name(self, request: LevelRequest, precision: Precision, listed: bool, taken: Container[str]) -> str:
        checkpoint = self._checkpoints[request.checkpoint]
        name = _level_name(request, checkpoint, precision) + ("-shortlist" if listed else "")
        check_level(precision, self._sentences, listed=listed)
        if name in RESERVED:
            raise InvalidRequestError(f"a level cannot be called {name}: a bundle has a file or folder of that name")
        if name in taken:
            raise InvalidRequestError(f"level {name!r} is asked for twice")
        return name

    def discard(self, name: str) -> None:
        """Removes a level, and every file that no other level needs."""
        removed = self.levels.pop(name)
        needed = {file for level in self.levels.values() for file in level.files}
        for file in removed.files.keys() - needed:
            (self._folder / file).unlink()
        shutil.rmtree(self._folder / name)

    def manifest(self, levels: Sequence[Level], default: str | None = None, **provenance: Any) -> Manifest:
        """Describes a bundle of `levels`; default None: the first of them is its default level."""
        first = self._first
        checked = {"log_prob_tolerance": TOLERANCE, "sentences": len(self._sentences[:PROBE_SENTENCES])}
        return Manifest(
            version=_version(levels),
            created_by=GENERATOR,
            source_language=first.config.source_language,
            target_language=first.config.target_language,
            architecture=first.architecture,
            tokenizer_sha256=tokenizer_digest(first.tokenizer),
            levels=list(levels),
            default_level=default or levels[0].name,
            provenance={"slim_vs_masked": checked, "checkpoint_metrics": first.metrics, **provenance},
        )

    def finish(self, levels: Sequence[Level], default: str | None = None, **provenance: Any) -> Manifest:
        """Leaves `levels` alone in the folder, writes their manifest and validates the bundle.

        provenance: what else the manifest shall say about where the levels come from.
        """
        for name in self.levels.keys() - {level.name for level in levels}:
            self.discard(name)
        write_manifest(self.manifest(levels, default, **provenance), self._folder)
        self._progress("validate")
        return validate(self._folder)


def _level_name(request: LevelRequest, checkpoint: Checkpoint, precision: Precision) -> str:
    arch, neurons, target = checkpoint.architecture, checkpoint.ffn_widths, request.target_heads
    try:
        kept = choose_layout(checkpoint, target, request.rank_by).total
    except InvalidRequestError as error:
        raise InvalidRequestError(f"level {request.name!r}: {error}" if request.name else str(error)) from error
    heads = target.name if isinstance(target, HeadBudget) else f"h{kept}"
    heads = "" if kept == arch.full_layout().total else heads
    rest = "" if neurons == arch.full_ffn() else f"f{neurons.total}"
    name = request.name or f"{heads}{rest}" or "full"
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
    beyond = min(20, arch.max_positions)
    lengths = rng.integers(min(3, beyond - 1), beyond, size=PROBE_SENTENCES)
    return [[*rng.integers(0, arch.source_size, size=n).tolist(), arch.eos_id] for n in lengths]


def _version(levels: Sequence[Level]) -> str:
    content = json.dumps([[level.name, level.files] for level in levels], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]
