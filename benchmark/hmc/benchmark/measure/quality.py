"""Translation quality of levels by sacreBLEU: BLEU, chrF, TER, and the BLEU difference to the reference level."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import erfc, hypot, sqrt
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Protocol

from sacrebleu.metrics import CHRF, TER

from hmc.artifact.bundle.checks import validate
from hmc.artifact.bundle.manifest import KindQuality, Quality, Significance, read_manifest, write_manifest
from hmc.artifact.bundle.order import recommend
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.significance import (
    RESAMPLES,
    TEST,
    TRIALS,
    bleu,
    bleu_signature,
    bleu_statistics,
    default_seed,
    difference,
    p_value,
    tokenizer_of,
)
from hmc.benchmark.measure.levels import choose_levels, reference_level
from hmc.benchmark.measure.text import TestSet, check_pairs
from hmc.serving import DecodeOptions, Translation, Translator

Progress = Callable[[str], None]


class Translates(Protocol):
    """The methods of `Translator` that measurements use."""

    def translate(
        self, texts: Sequence[str], options: DecodeOptions | None = None, *, segmentation: str = "auto"
    ) -> list[Translation]:
        """Returns translations in the order of the texts. Each text is measured as one sentence: segmentation none."""


@dataclass(frozen=True)
class Output:
    """The translations of a test set at one level."""

    level: str
    hypotheses: tuple[str, ...]
    cut: int = 0
    """Number of sources that are longer than the model accepts. Only their first tokens were translated."""
    tokens: tuple[int, ...] = ()
    """Source tokens of each sentence, end of sentence included; 0 for a blank one."""


def silent(_: str) -> None:
    """Ignores progress."""


def translate_all(translator: Translates, level: str, sources: Sequence[str], beam: int) -> Output:
    """Translates every source in one call, so that the engine fills its batch as it would for a document."""
    translations = translator.translate(sources, DecodeOptions(beam_size=beam), segmentation="none")
    cut = sum(translation.source_truncated for translation in translations)
    tokens = tuple(translation.source_tokens for translation in translations)
    return Output(level, tuple(translation.text for translation in translations), cut, tokens)


def cut_sources(outputs: Iterable[Output], test_set: TestSet) -> str:
    """A warning if sources were cut, else an empty string. All levels of a bundle cut the same sources."""
    cut = max((output.cut for output in outputs), default=0)
    if not cut:
        return ""
    return (
        f"{test_set.name}: {cut} of {len(test_set.sources)} sources are longer than the model takes; only their first "
        "tokens are translated, which lowers the scores: split these lines into sentences"
    )


def score(output: Output, baseline: Output, test_set: TestSet, beam: int) -> Quality:
    """Scores `output`, and compares its BLEU with the BLEU of `baseline`. Both are translations of `test_set`.

    Raises InvalidRequestError without references, and for a single sentence, which has no significance.
    """
    if test_set.references is None:
        raise InvalidRequestError(f"references: the quality on {test_set.name} needs them")
    check_pairs(len(test_set.references), test_set.name)
    seed = default_seed()
    chrf = CHRF()
    references = list(test_set.references)
    chrf_score = chrf.corpus_score(list(output.hypotheses), [references]).score
    system, reference = (bleu_statistics(one.hypotheses, references) for one in (output, baseline))
    compared = difference(system, reference, bleu, seed=seed)
    return Quality(
        test_set=test_set.name,
        sentences=len(references),
        beam=beam,
        bleu=float(bleu(system.sum(axis=0))),
        chrf=chrf_score,
        bleu_delta=compared.value,
        ci_low=compared.low,
        ci_high=compared.high,
        p_value=p_value(system, reference, bleu, seed=seed),
        reference_level=baseline.level,
        bleu_signature=bleu_signature(references),
        chrf_signature=str(chrf.get_signature()),
        significance=Significance(test=TEST, trials=TRIALS, resamples=RESAMPLES, seed=seed),
    )


def ter(output: Output, references: Sequence[str]) -> float | None:
    """The translation edit rate in percent: edits and shifts for each word of the reference, or character of Chinese.
    Lower is better. None for other text without spaces (see `tokenizer_of`), whose words sacreBLEU does not divide."""
    tokenizer = tokenizer_of(references)
    if tokenizer == "char":
        return None
    metric = TER(normalized=True, asian_support=True) if tokenizer == "zh" else TER()
    return float(metric.corpus_score(list(output.hypotheses), [list(references)]).score)


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
    """Scores levels of a bundle on a test set with references. Returns level name → quality.

    levels: names; None: all that run on `device`. The reference level is translated too, even if it is not among them;
    it may then run on another device. progress: called with `LEVEL: STEP` when a step begins. warn: is called with each
    reason that makes the scores lower than the model's. Raises InvalidRequestError, LevelNotFoundError,
    InvalidArtifactError, DeviceUnavailableError.
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


def over_kinds(kinds: Mapping[str, Quality], name: str, command: str) -> Quality:
    """The mean over kinds of text. One level was scored on a test set of each kind.

    The half-widths of the kinds' intervals add up as standard errors do, since the texts are independent. name: of the
    test sets together. command: what repeats the scores.
    """
    scores = list(kinds.values())
    first = scores[0]
    mean = fmean(quality.bleu_delta for quality in scores)
    half = hypot(*((quality.ci_high - quality.ci_low) / 2 for quality in scores)) / len(scores)
    names = KindQuality.model_fields
    return Quality(
        test_set=name,
        sentences=sum(quality.sentences for quality in scores),
        beam=first.beam,
        bleu=fmean(quality.bleu for quality in scores),
        chrf=fmean(quality.chrf for quality in scores),
        bleu_delta=mean,
        ci_low=mean - half,
        ci_high=mean + half,
        p_value=erfc(abs(mean) / half * NormalDist().inv_cdf(0.975) / sqrt(2)) if half else 1.0,
        reference_level=first.reference_level,
        bleu_signature=first.bleu_signature,
        chrf_signature=first.chrf_signature,
        kinds={kind: KindQuality(**quality.model_dump(include=set(names))) for kind, quality in kinds.items()},
        command=command,
    )


def record_quality(bundle: Path | str, measured: Mapping[str, Quality]) -> None:
    """Writes the quality of levels into the manifest, and makes the recommended level the default one. The bundle's
    version stays, since no graph or weight changes."""
    manifest = read_manifest(bundle)
    for name, quality in measured.items():
        manifest.level(name).quality = quality
    recommend(manifest)
    write_manifest(manifest, bundle)
