"""Translation quality of levels: BLEU and chrF by sacreBLEU, each against the reference level with its significance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sacrebleu.metrics import BLEU, CHRF

from hmc.artifact.bundle import Quality, read_manifest, write_manifest
from hmc.artifact.bundle_checks import validate
from hmc.artifact.errors import InvalidRequestError
from hmc.benchmark.bootstrap import bleu_counts, paired_bootstrap
from hmc.benchmark.levels import choose_levels, reference_level
from hmc.benchmark.text import TestSet, check_pairs
from hmc.serving import DecodeOptions, Translation, Translator

Progress = Callable[[str], None]


class Translates(Protocol):
    """What quality and latency need of a `Translator`."""

    def translate(self, texts: Sequence[str], options: DecodeOptions | None = None) -> list[Translation]:
        """Translations in the order of the texts."""


@dataclass(frozen=True)
class Output:
    """A level's translations of a test set's sources."""

    level: str
    hypotheses: tuple[str, ...]
    cut: int = 0
    """Sources that are longer than the model takes, of which only the first tokens were translated."""


def silent(_: str) -> None:
    """Progress for those who want none."""


def translate_all(translator: Translates, level: str, sources: Sequence[str], beam: int) -> Output:
    """Translates every source in one call, so that the engine fills its batch as it would for a document."""
    translations = translator.translate(sources, DecodeOptions(beam_size=beam))
    cut = sum(translation.source_truncated for translation in translations)
    return Output(level, tuple(translation.text for translation in translations), cut)


def cut_sources(outputs: Iterable[Output], test_set: TestSet) -> str:
    """What to say where sources were cut, which every level of a bundle cuts alike; otherwise nothing."""
    cut = max((output.cut for output in outputs), default=0)
    if not cut:
        return ""
    return (
        f"{test_set.name}: {cut} of {len(test_set.sources)} sources are longer than the model takes; only their first "
        "tokens are translated. Scores are of such translations: split these lines into sentences"
    )


def score(output: Output, baseline: Output, test_set: TestSet, beam: int) -> Quality:
    """Scores of `output`, and its BLEU difference to `baseline`; both translate the sources of `test_set`.

    Raises InvalidRequestError without references, and for a single sentence: it says nothing of significance.
    """
    if test_set.references is None:
        raise InvalidRequestError(f"test set {test_set.name}: quality needs references; give --ref FILE")
    check_pairs(len(test_set.references), test_set.name)
    bleu, chrf = BLEU(), CHRF()
    hypotheses, references = list(output.hypotheses), list(test_set.references)
    bleu_score = bleu.corpus_score(hypotheses, [references]).score
    chrf_score = chrf.corpus_score(hypotheses, [references]).score
    compared = paired_bootstrap(bleu_counts(hypotheses, references), bleu_counts(baseline.hypotheses, references))
    return Quality(
        test_set=test_set.name,
        sentences=len(references),
        beam=beam,
        bleu=bleu_score,
        chrf=chrf_score,
        bleu_delta=compared.delta,
        ci_low=compared.ci_low,
        ci_high=compared.ci_high,
        p_value=compared.p_value,
        reference_level=baseline.level,
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
    )


def measure_quality(
    bundle: Path | str,
    pairs: TestSet,
    levels: Sequence[str] | None = None,
    *,
    beam: int = 4,
    device: str = "auto",
    progress: Progress = silent,
    warn: Callable[[str], None] = silent,
) -> dict[str, Quality]:
    """Quality of a bundle's `levels` (None: all that run on `device`) on a test set with references.

    The reference level is translated even if it is not asked for; it may then run on another device than `device`.
    warn: hears what keeps scores from being the model's.
    Raises InvalidRequestError, LevelNotFoundError, InvalidArtifactError, DeviceUnavailableError.
    """
    manifest = validate(bundle)
    chosen = [level.name for level in choose_levels(manifest, levels, device).levels]
    reference = reference_level(manifest)
    outputs = {}
    for name in dict.fromkeys([reference, *chosen]):
        progress(f"{name}: translating {len(pairs.sources)} sentences at beam {beam}")
        place = device if name in chosen else "auto"
        with Translator(bundle, name, device=place, manifest=manifest) as translator:
            outputs[name] = translate_all(translator, name, pairs.sources, beam)
    if warning := cut_sources(outputs.values(), pairs):
        warn(warning)
    return {name: score(outputs[name], outputs[reference], pairs, beam) for name in chosen}


def record_quality(bundle: Path | str, measured: Mapping[str, Quality]) -> None:
    """Writes the quality of levels into the manifest; its version stays: no served file changes."""
    manifest = read_manifest(bundle)
    for name, quality in measured.items():
        manifest.level(name).quality = quality
    write_manifest(manifest, bundle)
