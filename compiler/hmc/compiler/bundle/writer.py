"""From checkpoints and level requests to a validated bundle directory: what `hmc compile` runs; and bundles to time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from hmc.artifact.bundle.manifest import Level, Manifest
from hmc.artifact.checkpoint.checkpoint import Checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.precisions import PRECISIONS, Precision
from hmc.compiler.bundle.builder import PROBE_SENTENCES, BundleBuilder, ignore
from hmc.compiler.bundle.requests import LevelRequest, check_level
from hmc.compiler.lexicon import ShortlistText
from hmc.compiler.pipeline import STEPS, ChosenLevel, LevelSource, Sentences, compile_trial


def compile_bundle(
    requests: Sequence[LevelRequest],
    out: Path,
    *,
    precisions: Sequence[Precision] = ("fp32",),
    calibration: Iterable[str] = (),
    shortlist: ShortlistText | None = None,
    device_form: bool | None = None,
    progress: Callable[[str], None] = ignore,
) -> Manifest:
    """Compiles every request at every precision into the bundle `out`, and replaces it whole or not at all.

    calibration: source sentences. int8 and int4 fit their activation ranges to the first 256 that have tokens, of at
    most 1024; the checks translate the first 8. No more are read. Without any, the checks translate random tokens.
    shortlist: every int8 and int4 level gets a twin `NAME-shortlist`, which chooses among the few tokens that a
    sentence may need. device_form: whether levels get the graphs of a device, which write caches in place and hold the
    search. None: levels whose precision is for CUDA get them. True, with fp32, is for running such graphs on a CPU.
    progress: is called `progress_steps` times, with the level and what is done to it.

    The same input gives the same bytes. Raises InvalidRequestError for levels that cannot be compiled, and
    InvalidArtifactError for a checkpoint that cannot be read; `out` is then as it was before.
    """
    checkpoints = checkpoints_of(requests)
    with BundleBuilder.open(
        out, checkpoints, calibration=calibration, shortlist=shortlist, device_form=device_form, progress=progress
    ) as builder:
        return compile_levels(builder, requests, forms(precisions, shortlist))


def compile_levels(
    builder: BundleBuilder, requests: Sequence[LevelRequest], forms: Sequence[tuple[Precision, bool]]
) -> Manifest:
    """Compiles every request in every form, (precision, with vocabulary shortlists), and finishes the bundle.

    All levels are checked before the first one is compiled. Raises InvalidRequestError.
    """
    plan = [(request, *form) for request in requests for form in forms]
    builder.prepare(plan)
    return builder.finish([builder.add(request, precision, with_shortlist=short) for request, precision, short in plan])


def checkpoints_of(requests: Sequence[LevelRequest]) -> list[Path]:
    """Checkpoints that levels are cut from, each once. Raises InvalidRequestError where no level is requested."""
    if not requests:
        raise InvalidRequestError("nothing to compile: give at least one level")
    return list(dict.fromkeys(request.checkpoint for request in requests))


def forms(precisions: Sequence[Precision], shortlist: ShortlistText | None) -> list[tuple[Precision, bool]]:
    """The forms of a level, (precision, with shortlists): each precision, and its twin where there is text for one."""
    chosen: list[tuple[Precision, bool]] = []
    for precision in precisions:
        chosen.append((precision, False))
        if shortlist and PRECISIONS[precision].shortlists:
            chosen.append((precision, True))
    return chosen


def progress_steps(requests: int, precisions: Sequence[Precision], *, shortlist: bool = False) -> int:
    """How often `compile_bundle` reports progress."""
    twins = sum(PRECISIONS[precision].shortlists for precision in precisions) if shortlist else 0
    return requests * (len(precisions) + twins) * len(STEPS) + 1 + bool(twins)


class TrialBuilder(BundleBuilder):
    """Adds models that exist in memory alone. Their translations mean nothing, unless the models were trained."""

    def add_trial(self, name: str, model: Checkpoint, precision: Precision, fp32_layers: Sequence[str] = ()) -> Level:
        """Compiles a model of the architecture and the tokenizer of the builder's checkpoint as the level `name`.

        fp32_layers: the layers that stay in fp32 in int8 and int4 levels. Raises InvalidRequestError.
        """
        if model.architecture != self._first.architecture:
            raise InvalidRequestError(f"{name}: its architecture differs from the first checkpoint's")
        check_level(precision, self._sentences.calibration, with_shortlist=False, device_form=self._device_form)
        folder = next(iter(self._sources.values())).folder
        some = Sentences(self._sentences.probe, self._sentences.calibration[:PROBE_SENTENCES])
        self.progress(f"{name}: compile")
        chosen = ChosenLevel(name, LevelSource.from_checkpoint(model, folder), model.layout, precision, None)
        self.levels[name] = compile_trial(chosen, some, fp32_layers)
        return self.levels[name]
