"""Running a benchmark (`hmc bench`): settings in, a report out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from hmc.artifact.bundle.checks import validate
from hmc.artifact.bundle.manifest import Level, Manifest, Quality, read_manifest, write_manifest
from hmc.artifact.bundle.order import recommend
from hmc.artifact.errors import InvalidRequestError
from hmc.benchmark.load.results import LatencyObjective, LoadCurve
from hmc.benchmark.load.server_load import LoadSettings, load_server, own_server
from hmc.benchmark.measure.latency import FirstToken, LatencyResult, measure_first_token, measure_latency
from hmc.benchmark.measure.levels import MeasuredLevels, choose_levels, reference_level
from hmc.benchmark.measure.machine import this_commit, this_machine
from hmc.benchmark.measure.memory import MemoryRequest, MemoryResult, measure_memory
from hmc.benchmark.measure.quality import Output, Progress, Translates, cut_sources, score, silent, ter, translate_all
from hmc.benchmark.measure.text import TestSet
from hmc.benchmark.peers.engines import divisions, spelled
from hmc.benchmark.peers.peer import Peer, TunedLevel, check_peers, opened_peers
from hmc.benchmark.report.results import (
    BundleInfo,
    Conditions,
    LevelReport,
    PeerReport,
    Report,
    Sentence,
    contract,
    uncertain,
)
from hmc.benchmark.settings import BenchmarkSettings
from hmc.serving import Translator
from hmc.serving.levels.choosing import runs_on

MEMORY_BATCHES = 3
"""Requests that a level translates before its memory is read, at the largest batch and beam."""


@dataclass
class _Measured:
    """What was measured of levels and peers together, by name."""

    latency: list[LatencyResult]
    first_tokens: dict[str, FirstToken]
    quality: dict[str, list[Quality]] = field(default_factory=dict)
    ter: dict[str, float | None] = field(default_factory=dict)
    outputs: dict[str, Output] = field(default_factory=dict)
    """At the headline beam; empty if nothing was translated."""
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    """Level → size of a request → fastest division of the cores, where levels were tuned."""

    def latency_of(self, name: str) -> tuple[LatencyResult, ...]:
        return tuple(result for result in self.latency if result.level == name)

    def translations(self, name: str) -> tuple[str, ...]:
        return self.outputs[name].hypotheses if name in self.outputs else ()


def run_benchmark(
    settings: BenchmarkSettings,
    *,
    say: Callable[[str], None] = silent,
    progress: Progress = silent,
    expect: Callable[[int], None] = lambda _: None,
) -> Report:
    """Measures memory, then latency, then quality, then load.

    say: is called with warnings, and before the measurement with the contract, which states what is measured. progress:
    called with `LEVEL: STEP` when a step begins. expect: called once before, with the number of steps. It is not called
    if load is measured, because the rates to try are not known.

    Raises InvalidRequestError, LevelNotFoundError, InvalidArtifactError, DeviceUnavailableError,
    FailedPreconditionError.
    """
    began = datetime.now(UTC).isoformat(timespec="seconds")
    test_set = TestSet.read(settings.src, settings.ref, name=settings.test_set_name, limit=settings.limit)
    settings = settings.fitted(len(test_set.texts))
    manifest = validate(settings.bundle)
    chosen = _chosen(settings, manifest)
    conditions = _conditions(settings, test_set, manifest, chosen)
    if settings.peers:
        reference = manifest.level(conditions.latency_reference)
        check_peers(settings.peers, settings.checkpoint, reference.source_checkpoint)
    machine = this_machine(list(chosen.devices.values()))
    promise = contract(conditions, chosen.devices)
    say(promise)
    if settings.load_ms is None:
        expect(_steps(settings, test_set, chosen))
    memory = _memory(settings, test_set, chosen, progress) if settings.memory else {}
    with ExitStack() as stack:
        translators = _opened(settings, test_set, manifest, chosen, stack, progress)
        peers = _peers(settings, test_set, stack, progress)
        measured = _measure(settings, test_set, conditions, translators, peers, progress)
    if warning := cut_sources(measured.outputs.values(), test_set):
        say(warning)
    recorded = _recorded(chosen.levels, conditions)
    report = Report(
        contract=promise,
        bundle=BundleInfo(str(settings.bundle), manifest.version, manifest.source_language, manifest.target_language),
        conditions=conditions,
        machine=machine,
        levels=tuple(
            _level_report(level, chosen.devices[level.name], measured, memory, recorded) for level in chosen.levels
        ),
        peers=tuple(_peer_report(peer, measured, conditions) for peer in peers),
        load=_load(settings, conditions, test_set, chosen, progress),
        sentences=_sentences(test_set, measured.outputs.get(conditions.latency_reference)),
        heads=manifest.architecture.heads,
        began=began,
        commit=this_commit(),
    )
    if doubts := uncertain(report):
        say("\n".join(doubts))
    return report


def _recorded(levels: Sequence[Level], conditions: Conditions) -> dict[str, Quality]:
    """The recorded scores of the levels, if all have some that `record` would not replace by those of a report."""
    measured = conditions.sentences if conditions.quality_reference is not None else 0
    recorded = {
        level.name: level.quality
        for level in levels
        if level.quality and level.quality.beam == conditions.headline.beam and level.quality.sentences > measured
    }
    return recorded if len(recorded) == len(levels) else {}


def check_recordable(settings: BenchmarkSettings) -> None:
    """Raises InvalidRequestError, before anything is measured, for results that `record` would refuse."""
    if settings.ref is None:
        return
    test_set = TestSet.read(settings.src, settings.ref, name=settings.test_set_name, limit=settings.limit)
    manifest = read_manifest(settings.bundle)
    names = [level.name for level in _chosen(settings, manifest).levels]
    _check_record(manifest, names, len(test_set.sources), settings.headline.beam)


def record(bundle: Path | str, report: Report) -> Manifest:
    """Writes each level's quality and latency at the headline setting into the manifest, and makes the recommended
    level the default one. The bundle's version stays.

    Raises InvalidRequestError if the bundle was replaced since it was measured, and if the new quality should not
    replace the recorded one, because it has fewer sentences or another beam.
    """
    manifest = read_manifest(bundle)
    conditions = report.conditions
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
    recommend(manifest)
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
                f"record: the bundle has the quality of {name} on {known.sentences} sentences at beam {known.beam}, "
                f"and {sentences} at beam {beam} would replace it: measure as many with beam {known.beam}, or leave "
                "record out; to drop the recorded one, compile the bundle again"
            )


def _conditions(
    settings: BenchmarkSettings, test_set: TestSet, manifest: Manifest, chosen: MeasuredLevels
) -> Conditions:
    names = list(chosen.devices)
    reference = reference_level(manifest)
    if reference not in names:
        reference = names[0]
    most = min(settings.latency_limit, len(test_set.texts))
    timed = tuple(most // batch * batch for batch in settings.sizes)
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
        peers=settings.peers,
        load_ms=settings.load_ms,
        tuned=settings.tuned,
    )


def _steps(settings: BenchmarkSettings, test_set: TestSet, chosen: MeasuredLevels) -> int:
    """How often a measurement without load calls `progress`."""
    levels = len(chosen.levels)
    peers = len(settings.peers)
    tuned = sum(settings.tuned and chosen.devices[level.name] == "cpu" for level in chosen.levels)
    opened = levels * (1 + settings.memory) + tuned + 2 * peers
    timed = len(settings.points) * settings.rounds + levels
    scored = 0
    if test_set.references is not None:
        scored = (len(settings.beams) + 1) * (levels + peers)
    elif peers:
        scored = levels + peers
    return opened + timed + scored


def _memory(
    settings: BenchmarkSettings, test_set: TestSet, chosen: MeasuredLevels, progress: Progress
) -> dict[str, MemoryResult]:
    batch = max(settings.sizes)
    beam = max(settings.beams)
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


def _opened(
    settings: BenchmarkSettings,
    test_set: TestSet,
    manifest: Manifest,
    chosen: MeasuredLevels,
    stack: ExitStack,
    progress: Progress,
) -> dict[str, Translator | TunedLevel]:
    translators = dict[str, Translator | TunedLevel]()
    for level in chosen.levels:
        progress(f"{level.name}: loading and warm-up")
        tuned = settings.tuned and chosen.devices[level.name] == "cpu"
        opened = dict[str, Translator]()
        for workers, threads in divisions() if tuned else [(settings.workers, settings.threads)]:
            translator = Translator(
                settings.bundle,
                level.name,
                device=_device(settings, level),
                threads=threads,
                manifest=manifest,
                workers=workers,
            )
            opened[spelled(workers, threads)] = stack.enter_context(translator)
            translator.warm_up()
        if not tuned:
            [translators[level.name]] = opened.values()
            continue
        progress(f"{level.name}: finding its best settings")
        several = TunedLevel(opened)
        several.probe(test_set.texts[: settings.latency_limit], settings.points)
        translators[level.name] = several
    return translators


def _peers(settings: BenchmarkSettings, test_set: TestSet, stack: ExitStack, progress: Progress) -> list[Peer]:
    if not settings.peers or settings.checkpoint is None:
        return []
    peers = stack.enter_context(opened_peers(settings.peers, settings.checkpoint, progress))
    for peer in peers:
        progress(f"{peer.name}: finding its best settings")
        peer.probe(test_set.texts[: settings.latency_limit], settings.points)
    return peers


def _measure(
    settings: BenchmarkSettings,
    test_set: TestSet,
    conditions: Conditions,
    translators: Mapping[str, Translator | TunedLevel],
    peers: Sequence[Peer],
    progress: Progress,
) -> _Measured:
    systems: dict[str, Translates] = {**translators, **{peer.name: peer for peer in peers}}
    timed = test_set.texts[: settings.latency_limit]
    headline = conditions.headline
    latency = measure_latency(
        systems,
        timed,
        settings.points,
        rounds=settings.rounds,
        reference=conditions.latency_reference,
        progress=progress,
    )
    firsts = {}
    for name, translator in translators.items():
        progress(f"{name}: first token")
        alone = translator.at(headline) if isinstance(translator, TunedLevel) else translator
        firsts[name] = measure_first_token(alone, timed, headline.beam)
    measured = _Measured(latency, firsts)
    for name, translator in translators.items():
        if isinstance(translator, TunedLevel):
            measured.settings[name] = {str(size): setting for size, setting in translator.best.items()}
    if test_set.references is None and not peers:
        return measured
    for beam in settings.beams if test_set.references is not None else (headline.beam,):
        outputs = {}
        for name, system in systems.items():
            progress(f"{name}: quality at beam {beam}")
            outputs[name] = translate_all(system, name, test_set.sources, beam)
        if test_set.references is not None:
            for name in systems:
                scored = score(outputs[name], outputs[conditions.latency_reference], test_set, beam)
                measured.quality.setdefault(name, []).append(scored)
        if beam == headline.beam:
            measured.outputs = outputs
    if test_set.references is not None:
        for name, output in measured.outputs.items():
            progress(f"{name}: TER")
            measured.ter[name] = ter(output, test_set.references)
    return measured


def _load(
    settings: BenchmarkSettings, conditions: Conditions, test_set: TestSet, chosen: MeasuredLevels, progress: Progress
) -> tuple[LoadCurve, ...]:
    """A load curve of every level, each alone on a server of its own."""
    if settings.load_ms is None:
        return ()
    curves = []
    for level in chosen.levels:
        progress(f"{level.name}: starting a server")
        asked = LoadSettings(
            level=level.name,
            beam=conditions.headline.beam,
            seconds=settings.load_seconds,
            objective=LatencyObjective(settings.load_ms),
            deadline_s=max(LoadSettings.deadline_s, settings.load_ms / 1000),
        )
        device = _device(settings, level)
        threads = settings.threads
        workers = settings.workers
        with own_server(settings.bundle, [level.name], device=device, threads=threads, workers=workers) as address:
            curves.append(asyncio.run(load_server(address, test_set.texts, asked, progress)))
    return tuple(curves)


def _sentences(test_set: TestSet, output: Output | None) -> tuple[Sentence, ...]:
    number = len(test_set.sources)
    references = test_set.references or (None,) * number
    tokens: Sequence[int | None] = output.tokens if output else (None,) * number
    return tuple(map(Sentence, test_set.sources, references, tokens))


def _level_report(
    level: Level,
    device: str,
    measured: _Measured,
    memory: Mapping[str, MemoryResult],
    recorded: Mapping[str, Quality],
) -> LevelReport:
    return LevelReport(
        name=level.name,
        heads=level.heads,
        precision=level.precision,
        parameters=level.parameters,
        bytes=level.bytes,
        device=device,
        quality=tuple(measured.quality.get(level.name, ())),
        latency=measured.latency_of(level.name),
        memory=memory.get(level.name),
        ter=measured.ter.get(level.name),
        first_token=measured.first_tokens.get(level.name),
        head_layout=level.head_layout,
        translations=measured.translations(level.name),
        settings=measured.settings.get(level.name, {}),
        recorded=recorded.get(level.name),
    )


def _peer_report(peer: Peer, measured: _Measured, conditions: Conditions) -> PeerReport:
    own = measured.translations(peer.name)
    others = measured.translations(conditions.latency_reference)
    alike = [a == b for a, b in zip(own, others, strict=True) if a.strip() or b.strip()] or [True]
    return PeerReport(
        name=peer.name,
        version=peer.version,
        settings={str(size): setting for size, setting in peer.best.items()},
        quality=tuple(measured.quality.get(peer.name, ())),
        latency=measured.latency_of(peer.name),
        ter=measured.ter.get(peer.name),
        same=sum(alike) / len(alike),
        translations=own,
    )
