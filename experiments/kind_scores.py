"""Scores levels of a bundle on every kind of text that `experiments.kinds` has prepared.

    python -m experiments.kind_scores BUNDLE --text text [--part dev] [--levels full,h58] [--beam 4] [--record] \
        [--out scores.json]

Prints BLEU by kind and its mean over the kinds, and the difference to the reference level (`full` at fp32) with a 95 %
interval by paired bootstrap. That of the mean follows from those of the kinds, which are independent texts. Choose on
dev; --part test is for telling. --record writes the means, each kind's scores and this command into the bundle, whose
recommended level follows from them.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from experiments.kinds import KINDS, table
from experiments.support.script import machine_report, run_script, write_report
from hmc.artifact.bundle.manifest import Quality
from hmc.benchmark.measure.quality import measure_quality, over_kinds, record_quality
from hmc.benchmark.measure.text import TestSet


def scores(bundle: Path, text: Path, part: str, levels: list[str] | None, beam: int) -> dict[str, dict[str, Quality]]:
    """Level → kind → its scores."""
    found = dict[str, dict[str, Quality]]()
    for kind in KINDS:
        sources, references = zip(*table(text / f"{part}.{kind}.tsv.gz"), strict=True)
        pairs = TestSet(f"{kind}.{part}", sources, references)
        for level, quality in measure_quality(bundle, pairs, levels, beam=beam, device="cpu").items():
            found.setdefault(level, {})[kind] = quality
    return found


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
            whole = over_kinds(kinds, "")
            mean = f"{whole.bleu_delta:+.2f}[{whole.ci_low:+.1f},{whole.ci_high:+.1f}]"
            lines.append("".join(f"{cell:>16}" for cell in ("", *cells, mean)))
    return "\n".join(lines)


def main() -> None:
    """Scores, prints the table and writes the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--part", choices=("dev", "test"), default="dev")
    parser.add_argument("--levels", help="names, separated by commas; all by default")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--record", action="store_true", help="write the scores into the bundle")
    given = parser.parse_args()
    machine = machine_report()
    found = scores(given.bundle, given.text, given.part, given.levels and given.levels.split(","), given.beam)
    print(printed(found))
    plain = {level: {kind: q.model_dump() for kind, q in kinds.items()} for level, kinds in found.items()}
    if given.record:
        command = f"python -m experiments.kind_scores BUNDLE --text TEXT --part {given.part} --beam {given.beam}"
        record_quality(given.bundle, {level: over_kinds(kinds, command) for level, kinds in found.items()})
    write_report(given.out, {"machine": machine, "part": given.part, "beam": given.beam, "levels": plain})


if __name__ == "__main__":
    run_script(main)
