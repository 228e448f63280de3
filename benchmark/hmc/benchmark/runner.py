"""Running a benchmark (`hmc bench`): settings in, a report out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from hmc.artifact.bundle.checks import validate
from hmc.artifact.bundle.manifest import Level, Manifest, Quality, read_manifest, write_manifest
from hmc.artifact.errors import InvalidRequestError
from hmc.benchmark.measure.latency import LatencyResult, measure_latency
from hmc.benchmark.measure.levels import Chosen, choose_levels, reference_level
from hmc.benchmark.measure.machine import this_machine
from hmc.benchmark.measure.memory import MemoryRequest, MemoryResult, measure_memory
from hmc.benchmark.measure.quality import Output, Progress, cut_sources, score, silent, translate_all
from hmc.benchmark.measure.text import TestSet
from hmc.benchmark.report.results import BundleInfo, Conditions, LevelReport, Report, contract
from hmc.benchmark.settings import BenchmarkSettings
from hmc.serving import Translator

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
    chosen = choose_levels(manifest, settings.levels, settings.device)
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
                device=settings.device,
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
        quality = _quality(settings, test_set, manifest, translators, say, progress)
    reports = [_level_report(level, chosen.devices[level.name], quality, latency, memory) for level in chosen.levels]
    info = BundleInfo(str(settings.bundle), manifest.version, manifest.source_language, manifest.target_language)
    return Report(promise, info, conditions, machine, tuple(reports))


def record(bundle: Path | str, report: Report) -> Manifest:
    """Writes each level's quality and latency at the headline setting into the manifest. The bundle's version stays.

    Raises InvalidRequestError if the bundle was replaced since it was measured.
    """
    manifest = read_manifest(bundle)
    if manifest.version != report.bundle.version:
        raise InvalidRequestError(
            f"{bundle} has been compiled again since its levels were measured (version {report.bundle.version}, now "
            f"{manifest.version}): nothing is recorded; measure it again"
        )
    for measured in report.levels:
        level = manifest.level(measured.name)
        level.latency = report.recorded_latency(measured)
        level.quality = measured.quality_at(report.conditions.headline.beam) or level.quality
    write_manifest(manifest, bundle)
    return manifest


def _conditions(settings: BenchmarkSettings, test_set: TestSet, manifest: Manifest, chosen: Chosen) -> Conditions:
    reference = reference_level(manifest)
    names = list(chosen.devices)
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
        latency_reference=reference if reference in names else names[0],
        memory=settings.memory,
        left_out=chosen.left_out,
    )


def _memory(
    settings: BenchmarkSettings, test_set: TestSet, chosen: Chosen, progress: Progress
) -> dict[str, MemoryResult]:
    batch, beam = max(settings.sizes), max(settings.beams)
    measured = {}
    for level in chosen.levels:
        progress(f"{level.name}: memory")
        measured[level.name] = measure_memory(
            MemoryRequest(
                bundle=str(settings.bundle),
                level=level.name,
                device=settings.device,
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
    manifest: Manifest,
    translators: Mapping[str, Translator],
    say: Callable[[str], None],
    progress: Progress,
) -> dict[str, list[Quality]]:
    if test_set.references is None:
        return {}
    reference = reference_level(manifest)
    measured: dict[str, list[Quality]] = {name: [] for name in translators}
    outputs: dict[str, Output] = {}
    with ExitStack() as stack:
        every = dict(translators)
        if reference not in every:
            every[reference] = stack.enter_context(
                Translator(settings.bundle, reference, threads=settings.threads, manifest=manifest)
            )
        for beam in settings.beams:
            outputs = {}
            for name, translator in every.items():
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
