"""A bundle in the making: levels are compiled one by one, and described once they are all there."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np

from hmc.artifact.bundle.checks import validate
from hmc.artifact.bundle.manifest import Level, Manifest, replace_bundle, write_manifest
from hmc.artifact.bundle.order import recommended
from hmc.artifact.bundle.shortlist import Lexicon
from hmc.artifact.checkpoint.checkpoint import Checkpoint
from hmc.artifact.distribution import VERSION
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.heads import HeadLayout
from hmc.artifact.precisions import Precision
from hmc.artifact.tokenizer.files import tokenizer_digest, write_tokenizer
from hmc.artifact.tokenizer.tokenizer import open_tokenizer
from hmc.compiler.bundle.requests import LINES, SENTENCES, LevelRequest, check_level, in_device_form
from hmc.compiler.checks.parity import TOLERANCE
from hmc.compiler.checks.runner import Ids
from hmc.compiler.lexicon import ShortlistText, encode_line, lexicon_of
from hmc.compiler.nesting import share_weights
from hmc.compiler.pipeline import ChosenLevel, LevelSource, Sentences, compile_level
from hmc.compiler.serialize import BundleFolder

PROBE_SENTENCES = 8
"""Calibration sentences that the checks translate."""
GENERATOR = f"hmc {VERSION}"


def ignore(_: str) -> None:
    """Default progress: none."""


class BundleBuilder:
    """Compiles levels one by one into a bundle. Common parts of levels are computed once.

        with BundleBuilder.open(out, [checkpoint]) as builder:
            builder.finish([builder.add(LevelRequest(checkpoint, heads), "fp32") for heads in (144, 36)])

    Files are written to a working folder. It takes the place of `out` when the block ends without an error, after
    `finish` has validated it. Before `finish`, `manifest` describes the levels so far, so that they can be measured.
    """

    @classmethod
    @contextmanager
    def open(
        cls,
        out: Path,
        checkpoints: Sequence[Path],
        *,
        inputs: Iterable[Path] = (),
        calibration: Iterable[str] = (),
        shortlist: ShortlistText | None = None,
        device_form: bool | None = None,
        progress: Callable[[str], None] = ignore,
    ) -> Iterator[Self]:
        """A builder that writes the bundle `out` whole or not at all.

        checkpoints: the checkpoints of the levels; the first one gives the tokenizer. inputs: other files that are
        read; it is refused to replace them. calibration: source sentences; no more are read than are needed. shortlist:
        the text from which vocabulary shortlists are learned. device_form: whether levels get the graphs of a device.
        None: levels whose precision is for CUDA get them. progress: is called with each step as it begins.

        Raises InvalidArtifactError; InvalidRequestError for checkpoints that cannot share a bundle, and where `out`
        cannot be replaced; RuntimeError where the block ends without `finish`. `out` is then as it was before.
        """
        with replace_bundle(out, [*checkpoints, *inputs]) as folder:
            builder = cls(
                checkpoints,
                folder,
                calibration=calibration,
                shortlist=shortlist,
                device_form=device_form,
                progress=progress,
            )
            yield builder
            if not builder._finished:
                raise RuntimeError(f"{out}: its bundle was not finished; call `finish` before the block ends")

    def __init__(
        self,
        checkpoints: Iterable[Path],
        folder: Path,
        *,
        calibration: Iterable[str] = (),
        shortlist: ShortlistText | None = None,
        device_form: bool | None = None,
        progress: Callable[[str], None] = ignore,
    ) -> None:
        """As `open`, but writes straight into `folder`, which must exist."""
        written = BundleFolder(folder)
        self._sources = {path: LevelSource(path, written) for path in checkpoints}
        self._first = next(iter(self._sources.values())).checkpoint
        _check_compatible(self._first, self._sources)
        real = _encode(self._first, calibration)
        self._sentences = Sentences(real[:PROBE_SENTENCES] or _synthetic_probe(self._first), real)
        self._layouts: dict[LevelRequest, HeadLayout] = {}
        self._shortlist = shortlist
        self._device_form = device_form
        self._finished = False
        self.folder = folder
        """Where the files are until the bundle is complete."""
        self.progress = progress
        """Is called with each step as it begins. It may be exchanged."""
        self.levels: dict[str, Level] = {}
        """The levels in the folder by their names."""
        write_tokenizer(self._first.tokenizer, folder)

    def checkpoint(self, path: Path) -> Checkpoint:
        """A checkpoint that levels are compiled from."""
        return self._sources[path].checkpoint

    def prepare(self, plan: Iterable[tuple[LevelRequest, Precision, bool]]) -> None:
        """Checks levels before any of them is compiled, and learns the lexicon if one of them has shortlists. Heads are
        then ordered so that the weights of narrower levels are parts of the weights of wider levels.

        plan: (request, precision, whether with vocabulary shortlists). Raises InvalidRequestError for the first level
        that cannot be compiled or whose name is taken.
        """
        names = set(self.levels)
        plan = list(plan)
        for request, precision, with_shortlist in plan:
            name = self._check(request, precision, with_shortlist=with_shortlist)
            _check_free(name, names)
            names.add(name)
            self._sources[request.checkpoint].planned.append((self._layout(request), precision))
        if any(with_shortlist for _, _, with_shortlist in plan):
            _ = self._lexicon

    def add(self, request: LevelRequest, precision: Precision, *, with_shortlist: bool = False) -> Level:
        """Compiles a level. Raises InvalidRequestError, also for a level that is there already.

        with_shortlist: it has vocabulary shortlists, which only levels on a CPU can have. In fp32, the last bits of a
        score then depend on the other sentences of the batch: such a level is for comparison.
        """
        name = self._check(request, precision, with_shortlist=with_shortlist)
        _check_free(name, self.levels)
        source = self._sources[request.checkpoint]
        layout = self._layout(request)
        lexicon = self._lexicon if with_shortlist else None
        chosen = ChosenLevel(name, source, layout, precision, lexicon, in_device_form(precision, self._device_form))
        self.levels[name] = compile_level(chosen, self._sentences, self.progress)
        return self.levels[name]

    def discard(self, name: str) -> None:
        """Removes a level, and every file that no other level needs."""
        removed = self.levels.pop(name)
        needed = set[str]().union(*(level.files for level in self.levels.values()))
        for file in removed.files.keys() - needed:
            (self.folder / file).unlink()
        shutil.rmtree(self.folder / name)

    def manifest(self, levels: Sequence[Level], default: str | None = None, **provenance: Any) -> Manifest:
        """Describes a bundle of `levels`. default: name of the default level; None: the recommended one."""
        first = self._first
        digest = tokenizer_digest(first.tokenizer)
        real = self._sentences.calibration
        checked = {"log_prob_tolerance": TOLERANCE, "sentences": len(real[:PROBE_SENTENCES])}
        return Manifest(
            version=bundle_version(levels, digest),
            created_by=GENERATOR,
            source_language=first.config.source_language,
            target_language=first.config.target_language,
            architecture=first.architecture,
            tokenizer_sha256=digest,
            levels=list(levels),
            default_level=default or recommended(levels).name,
            provenance={"slim_vs_masked": checked, "checkpoint_metrics": first.metrics, **provenance},
        )

    def finish(self, levels: Sequence[Level], default: str | None = None, **provenance: Any) -> Manifest:
        """Removes all levels but `levels` from the folder, writes the manifest and validates the bundle.

        provenance: further facts in the manifest about the origin of the levels.
        """
        for name in self.levels.keys() - {level.name for level in levels}:
            self.discard(name)
        levels = share_weights(self.folder, levels)
        write_manifest(self.manifest(levels, default, **provenance), self.folder)
        self.progress("validate")
        manifest = validate(self.folder)
        self._finished = True
        return manifest

    @cached_property
    def _lexicon(self) -> Lexicon | None:
        if self._shortlist is None:
            return None
        self.progress("shortlists: learn lexicon")
        return lexicon_of(self._shortlist, self._first)

    def _layout(self, request: LevelRequest) -> HeadLayout:
        """The heads of a request, chosen once for all precisions."""
        if request not in self._layouts:
            self._layouts[request] = request.layout(self._sources[request.checkpoint].checkpoint)
        return self._layouts[request]

    def _check(self, request: LevelRequest, precision: Precision, *, with_shortlist: bool) -> str:
        """The name of a level that can be compiled. Raises InvalidRequestError for one that cannot."""
        source = self._sources[request.checkpoint]
        layout = self._layout(request)
        source.rank_by = source.rank_by or request.rank_by
        checkpoint = source.checkpoint
        check_level(
            precision, self._sentences.calibration, with_shortlist=with_shortlist, device_form=self._device_form
        )
        return request.level_name(checkpoint, layout, precision, with_shortlist=with_shortlist)


def bundle_version(levels: Sequence[Level], tokenizer: str | dict[str, str]) -> str:
    """16 hex digits that differ where a level's name or files, or the tokenizer, differ.

    tokenizer: as `Manifest.tokenizer_sha256` has it.
    """
    content = json.dumps([[[level.name, level.files] for level in levels], tokenizer], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _check_free(name: str, taken: Iterable[str]) -> None:
    if name in taken:
        raise InvalidRequestError(f"level {name!r} is requested twice")


def _check_compatible(first: Checkpoint, sources: dict[Path, LevelSource]) -> None:
    for path, source in sources.items():
        if source.checkpoint.architecture != first.architecture:
            raise InvalidRequestError(
                f"{path}: its architecture differs from the first checkpoint's; compile it into a bundle of its own"
            )
        if source.checkpoint.tokenizer != first.tokenizer:
            raise InvalidRequestError(
                f"{path}: its tokenizer differs from the first checkpoint's; levels of a bundle share one"
            )
        ours, others = (f"{c.source_language} to {c.target_language}" for c in (first.config, source.checkpoint.config))
        if ours != others:
            raise InvalidRequestError(f"{path}: it translates {others}, but the first checkpoint translates {ours}")


def _encode(checkpoint: Checkpoint, texts: Iterable[str]) -> Ids:
    """Ids with EOS of the first SENTENCES texts that have tokens, among the first LINES."""
    tokenizer = open_tokenizer(checkpoint.tokenizer)
    arch = checkpoint.architecture
    encoded = (encode_line(tokenizer, text, "calibration")[: arch.max_positions - 1] for text in islice(texts, LINES))
    return [[*ids, arch.eos_id] for ids in islice(filter(None, encoded), SENTENCES)]


def _synthetic_probe(checkpoint: Checkpoint) -> Ids:
    """Random sentences for the checks, where no text is given: slim ≡ masked must hold for any ids."""
    arch = checkpoint.architecture
    rng = np.random.default_rng(0)
    beyond = min(20, arch.max_positions)
    lengths = rng.integers(min(3, beyond - 1), beyond, size=PROBE_SENTENCES)
    return [[*rng.integers(0, arch.source_size, size=n).tolist(), arch.eos_id] for n in lengths]
