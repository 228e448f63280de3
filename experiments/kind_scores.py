"""Scores levels of a bundle on every kind of text that `experiments.kinds` has prepared.

    python -m experiments.kind_scores BUNDLE --text text [--part dev] [--levels full,h58] [--beam 4] [--record] \
        [--checkpoint DIR] [--ship cli/hmc/cli/demo_data/scores.json] [--kept DIR] [--out scores.json]

Prints BLEU by kind and its mean over the kinds, and the difference to the reference level (`full` at fp32) with a 95 %
interval by paired bootstrap. That of the mean follows from those of the kinds, which are independent texts. Choose on
dev; --part test is for telling. --record writes the means, each kind's scores and this command into the bundle, whose
recommended level follows from them. --checkpoint, the weights of the reference level, scores CTranslate2 with them too.
--ship writes the scores of the embedded model for `hmc demo`, and what each level makes of the demo's sentences. --kept
names a folder for the translations: when the command is repeated, it goes on with the levels that are not there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from experiments.kinds import KINDS, table
from experiments.support.script import machine_report, run_script, write_report
from hmc.artifact.bundle.checks import validate
from hmc.artifact.bundle.manifest import Quality, read_manifest
from hmc.artifact.checkpoint.checkpoint import checkpoint_digest
from hmc.artifact.storage.files import write_whole
from hmc.benchmark.measure.latency import RequestSize
from hmc.benchmark.measure.levels import choose_levels, reference_level
from hmc.benchmark.measure.quality import Output, Translates, over_kinds, record_quality, score, translate_all
from hmc.benchmark.measure.text import TestSet
from hmc.benchmark.peers.engines import ENGINES
from hmc.benchmark.peers.peer import Peer, check_peers, opened_peers
from hmc.benchmark.report.results import json_text
from hmc.cli import demo_steps
from hmc.cli.demo_scores import ShippedScores, sample_of
from hmc.serving import Translator

PEER = "ctranslate2"
PEER_BATCH = 32
"""Sentences in a request to the other engine."""
NAMES = {"test": "six kinds of text", "dev": "six kinds of text, dev"}
"""What the test sets of a part are called together."""
DEMO = "demo"
"""The demo's sentences, beside the kinds."""

Outputs = dict[str, dict[str, Output]]
"""Level or engine → kind of text → translations."""


def texts(folder: Path, part: str) -> dict[str, TestSet]:
    """The sentences of each kind."""
    found = {}
    for kind in KINDS:
        sources, references = zip(*table(folder / f"{part}.{kind}.tsv.gz"), strict=True)
        found[kind] = TestSet(f"{kind}.{part}", sources, references)
    return found


def translated(
    bundle: Path, sets: Mapping[str, TestSet], levels: list[str] | None, beam: int, checkpoint: Path | None, kept: Path
) -> Outputs:
    """The translations by levels, the reference level first, and by the other engine if there is a checkpoint.

    kept: folder with the translations that there are already, to which others are added.
    """
    manifest = validate(bundle)
    reference = reference_level(manifest)
    chosen = [level.name for level in choose_levels(manifest, levels, "cpu").levels]
    texts = "".join(repr(each) for each in sets.values())
    key = hashlib.sha256(f"{manifest.version} {beam} {texts}".encode()).hexdigest()[:16]
    found = Outputs()
    for name in dict.fromkeys([reference, *chosen]):
        level = partial(Translator, bundle, name, device="cpu", manifest=manifest)
        found[name] = _kept(kept / f"{name}-{key}.json", name, level, sets, beam)
    if checkpoint is not None:
        check_peers((PEER,), checkpoint, manifest.level(reference).source_checkpoint)
        title = ENGINES[PEER].title
        peer = partial(opened_peer, checkpoint, next(iter(sets.values())), beam)
        found[title] = _kept(kept / f"{title}-{key}.json", title, peer, sets, beam)
    return found


@contextmanager
def opened_peer(checkpoint: Path, some: TestSet, beam: int) -> Iterator[Peer]:
    """The other engine, at the setting that is fastest for requests of some sentences."""
    with opened_peers((PEER,), checkpoint, print) as [peer]:
        peer.probe(some.texts[:PEER_BATCH], [RequestSize(PEER_BATCH, beam)])
        print(f"{peer.name} {peer.version}: {', '.join(peer.best.values())}")
        yield peer


def _kept(
    file: Path,
    name: str,
    opened: Callable[[], AbstractContextManager[Translates]],
    sets: Mapping[str, TestSet],
    beam: int,
) -> dict[str, Output]:
    """Kind of text → translations, read from a file, or made and written there."""
    if file.is_file():
        lines = json.loads(file.read_text(encoding="utf-8"))
        return {kind: Output(name, tuple(lines[kind])) for kind in sets}
    with opened() as system:
        found = {kind: translate_all(system, name, each.sources, beam) for kind, each in sets.items()}
    write_whole(file, json.dumps({kind: output.hypotheses for kind, output in found.items()}, ensure_ascii=False))
    return found


def scores(made: Outputs, sets: Mapping[str, TestSet], beam: int) -> dict[str, dict[str, Quality]]:
    """Level → kind → its scores."""
    reference = next(iter(made.values()))
    return {
        level: {kind: score(output, reference[kind], sets[kind], beam) for kind, output in outputs.items()}
        for level, outputs in made.items()
    }


def printed(found: dict[str, dict[str, Quality]]) -> str:
    """A table: BLEU of each kind and their mean, and below it the differences."""
    lines = ["".join(f"{name:>16}" for name in ("level", *KINDS, "mean"))]
    for level, kinds in found.items():
        bleu = [kinds[kind].bleu for kind in KINDS]
        lines.append(
            "".join(f"{cell:>16}" for cell in (level, *(f"{b:.2f}" for b in bleu), f"{statistics.mean(bleu):.2f}"))
        )
        delta = [kinds[kind] for kind in KINDS]
        if any(each.bleu_delta for each in delta):
            cells = [f"{q.bleu_delta:+.2f}[{q.ci_low:+.1f},{q.ci_high:+.1f}]" for q in delta]
            whole = over_kinds({kind: kinds[kind] for kind in KINDS}, "", "")
            mean = f"{whole.bleu_delta:+.2f}[{whole.ci_low:+.1f},{whole.ci_high:+.1f}]"
            lines.append("".join(f"{cell:>16}" for cell in ("", *cells, mean)))
    return "\n".join(lines)


def shipped(bundle: Path, made: Outputs, found: dict[str, dict[str, Quality]], means: dict[str, Quality]) -> str:
    """The scores for the demo, as JSON."""
    digests = {level.name: level.source_checkpoint for level in read_manifest(bundle).levels}
    other = checkpoint_digest(demo_steps.CHECKPOINT)
    ships = {
        name: ShippedScores(
            checkpoint=digests.get(name, other),
            quality=quality,
            sample=sample_of(made[name][DEMO].hypotheses, found[name][DEMO]),
        )
        for name, quality in means.items()
    }
    return json_text({name: each.model_dump(mode="json") for name, each in ships.items()})


def main() -> None:
    """Scores, prints the table and writes the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--part", choices=("dev", "test"), default="dev")
    parser.add_argument("--levels", help="names, separated by commas; all by default")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--checkpoint", type=Path, help="weights of the reference level, for CTranslate2")
    parser.add_argument("--kept", type=Path, help="folder for the translations, to go on with")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--record", action="store_true", help="write the scores into the bundle")
    parser.add_argument("--ship", type=Path, help="write the scores of the embedded model for the demo")
    given = parser.parse_args()
    machine = machine_report()
    sets = texts(given.text, given.part)
    if given.ship:
        sets[DEMO] = TestSet.read(demo_steps.SRC, demo_steps.REF, name="the demo test set")
    levels = given.levels and given.levels.split(",")
    with TemporaryDirectory() as own:
        kept = given.kept or Path(own)
        kept.mkdir(parents=True, exist_ok=True)
        made = translated(given.bundle, sets, levels, given.beam, given.checkpoint, kept)
    found = scores(made, sets, given.beam)
    print(printed(found))
    plain = {level: {kind: q.model_dump() for kind, q in kinds.items()} for level, kinds in found.items()}
    write_report(given.out, {"machine": machine, "part": given.part, "beam": given.beam, "levels": plain})
    command = f"python -m experiments.kind_scores BUNDLE --text TEXT --part {given.part} --beam {given.beam}"
    name = NAMES[given.part]
    means = {level: over_kinds({kind: kinds[kind] for kind in KINDS}, name, command) for level, kinds in found.items()}
    if given.record:
        known = {level.name for level in read_manifest(given.bundle).levels}
        record_quality(given.bundle, {level: quality for level, quality in means.items() if level in known})
    if given.ship:
        write_whole(given.ship, shipped(given.bundle, made, found, means))


if __name__ == "__main__":
    run_script(main)
