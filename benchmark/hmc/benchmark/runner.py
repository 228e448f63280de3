"""Running a benchmark (`hmc bench`): settings in, a report out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from hmc.artifact.bundle.checks import validate
from hmc.artifact.bundle.manifest import Level, Manifest, Quality, read_manifest, write_manifest
from hmc.artifact.errors import InvalidRequestError
from hmc.benchmark.measure.latency import LatencyResult, measure_latency
from hmc.benchmark.measure.levels import MeasuredLevels, choose_levels, reference_level
from hmc.benchmark.measure.machine import this_machine
from hmc.benchmark.measure.memory import MemoryRequest, MemoryResult, measure_memory
from hmc.benchmark.measure.quality import Output, Progress, cut_sources, score, silent, translate_all
from hmc.benchmark.measure.text import TestSet
from hmc.benchmark.report.results import BundleInfo, Conditions, LevelReport, Report, contract
from hmc.benchmark.settings import BenchmarkSettings
from hmc.serving import Translator
from hmc.serving.levels.choosing import runs_on

MEMORY_BATCHES = 3
"""Requests that a level translates before its memory is read, at the largest batch and beam."""


def run_benchmark(
    settings: BenchmarkSettings, *, say: Callable[[str], None] = silent, progress: Progress = silent
) -> Report:
    """Measures memory, then latency, then quality.

    say: called with the contract, which states what is measured, before anything is; and with warnings. progress:
    called with `LEVEL: STEP` when a step begins.

    Raises InvalidRequestError, LevelNotFoundError, InvalidArtifactError, DeviceUnavailableError.
    """
    test_set = TestSet.read(settings.src, settings.ref, name=settings.test_set_name, limit=settings.limit)
    settings = settings.fitted(len(test_set.texts))
    manifest = validate(settings.bundle)
    chosen = _chosen(settings, manifest)
    conditions = _conditions(settings, test_set, manifest, chosen)
    machine = this_machine(list(chosen.devices.values()))
    promise = contract(conditions, chosen.devices)
    say(promise)
    memory = _memory(settings, test_set, chosen, progress) if settings.memory else {}
    with ExitStack() as stack:
        translators = {}
        for level in chosen.levels:
            progress(f"{level.name}: loading and warm-up")
            translator = Translator(
                settings.bundle,
                level.name,
                device=_device(settings, level),
                threads=settings.threads,
                manifest=manifest,
                workers=settings.workers,
            )
            translators[level.name] = stack.enter_context(translator)
            translator.warm_up()
        latency = measure_latency(
            translators,
            test_set.texts[: settings.latency_limit],
            settings.points,
            rounds=settings.rounds,
            reference=conditions.latency_reference,
            progress=progress,
        )
        quality = _quality(settings, test_set, conditions.latency_reference, translators, say, progress)
    reports = [_level_report(level, chosen.devices[level.name], quality, latency, memory) for level in chosen.levels]
    info = BundleInfo(str(settings.bundle), manifest.version, manifest.source_language, manifest.target_language)
    return Report(promise, info, conditions, machine, tuple(reports))


def check_recordable(settings: BenchmarkSettings) -> None:
    """Raises InvalidRequestError, before anything is measured, for what `record` would refuse."""
    if settings.ref is None:
        return
    test_set = TestSet.read(settings.src, settings.ref, name=settings.test_set_name, limit=settings.limit)
    manifest = read_manifest(settings.bundle)
    names = [level.name for level in _chosen(settings, manifest).levels]
    _check_record(manifest, names, len(test_set.sources), settings.headline.beam)


def record(bundle: Path | str, report: Report) -> Manifest:
    """Writes each level's quality and latency at the headline setting into the manifest. The bundle's version stays.

    Raises InvalidRequestError if the bundle was replaced since it was measured, and for quality that should not replace
    what is recorded: of fewer sentences, or of another beam.
    """
    manifest, conditions = read_manifest(bundle), report.conditions
    if manifest.version != report.bundle.version:
        raise InvalidRequestError(
            f"{bundle} has been compiled again since its levels were measured (version {report.bundle.version}, now "
            f"{manifest.version}): nothing is recorded; measure it again"
        )
    if conditions.quality_reference is not None:
        names = [level.name for level in report.levels]
        _check_record(manifest, names, conditions.sentences, conditions.headline.beam)
    for measured in report.levels:
        level = manifest.level(measured.name)
        level.latency = report.recorded_latency(measured)
        level.quality = measured.quality_at(conditions.headline.beam) or level.quality
    write_manifest(manifest, bundle)
    return manifest


def _chosen(settings: BenchmarkSettings, manifest: Manifest) -> MeasuredLevels:
    """The levels to measure. Where BLEU is measured, `reference_level` is one of them, so that BLEU and times are
    compared with the same level."""
    chosen = choose_levels(manifest, settings.levels, settings.device)
    if settings.ref is None or (name := reference_level(manifest)) in chosen.devices:
        return chosen
    reference = choose_levels(manifest, (name,), _device(settings, manifest.level(name)))
    left_out = tuple(other for other in chosen.left_out if other != name)
    return MeasuredLevels(reference.levels + chosen.levels, reference.devices | chosen.devices, left_out)


def _device(settings: BenchmarkSettings, level: Level) -> str:
    """The device asked for, except for a reference level that is not made for it."""
    return settings.device if runs_on(settings.device, level) else "auto"


def _check_record(manifest: Manifest, names: Sequence[str], sentences: int, beam: int) -> None:
    for name in names:
        known = manifest.level(name).quality
        if known and (sentences < known.sentences or beam != known.beam):
            raise InvalidRequestError(
                f"--record: the bundle has the quality of {name} on {known.sentences} sentences at beam {known.beam}, "
                f"and {sentences} at beam {beam} would replace it: measure as many with --beam {known.beam}, or leave "
                "out --record; to drop the recorded one, compile the bundle again"
            )


def _conditions(
    settings: BenchmarkSettings, test_set: TestSet, manifest: Manifest, chosen: MeasuredLevels
) -> Conditions:
    names, reference = list(chosen.devices), reference_level(manifest)
    if reference not in names:
        reference = names[0]
    there = min(settings.latency_limit, len(test_set.texts))
    timed = tuple(there // batch * batch for batch in settings.sizes)
    return Conditions(
        test_set=test_set.name,
        sentences=len(test_set.sources),
        timed_sentences=max(timed),
        timed_at_batch=timed,
        rounds=settings.rounds,
        batches=settings.sizes,
        beams=settings.beams,
        headline=settings.headline,
        threads=settings.threads,
        workers=settings.workers,
        quality_reference=reference if test_set.references is not None else None,
        latency_reference=reference,
        memory=settings.memory,
        left_out=chosen.left_out,
    )


def _memory(
    settings: BenchmarkSettings, test_set: TestSet, chosen: MeasuredLevels, progress: Progress
) -> dict[str, MemoryResult]:
    batch, beam = max(settings.sizes), max(settings.beams)
    measured = {}
    for level in chosen.levels:
        progress(f"{level.name}: memory")
        measured[level.name] = measure_memory(
            MemoryRequest(
                bundle=str(settings.bundle),
                level=level.name,
                device=_device(settings, level),
                threads=settings.threads,
                workers=settings.workers,
                batch=batch,
                beam=beam,
                sentences=test_set.texts[: MEMORY_BATCHES * batch],
            )
        )
    return measured


def _quality(
    settings: BenchmarkSettings,
    test_set: TestSet,
    reference: str,
    translators: Mapping[str, Translator],
    say: Callable[[str], None],
    progress: Progress,
) -> dict[str, list[Quality]]:
    if test_set.references is None:
        return {}
    measured: dict[str, list[Quality]] = {name: [] for name in translators}
    outputs: dict[str, Output] = {}
    for beam in settings.beams:
        outputs = {}
        for name, translator in translators.items():
            progress(f"{name}: quality at beam {beam}")
            outputs[name] = translate_all(translator, name, test_set.sources, beam)
        for name in translators:
            measured[name].append(score(outputs[name], outputs[reference], test_set, beam))
    if warning := cut_sources(outputs.values(), test_set):
        say(warning)
    return measured


def _level_report(
    level: Level,
    device: str,
    quality: Mapping[str, list[Quality]],
    latency: list[LatencyResult],
    memory: Mapping[str, MemoryResult],
) -> LevelReport:
    return LevelReport(
        name=level.name,
        heads=level.heads,
        precision=level.precision,
        parameters=level.parameters,
        bytes=level.bytes,
        device=device,
        quality=tuple(quality.get(level.name, ())),
        latency=tuple(result for result in latency if result.level == level.name),
        memory=memory.get(level.name),
    )
