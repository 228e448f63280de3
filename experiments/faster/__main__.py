"""How much faster pruning by latency makes a Transformer-base of few layers, for at most half a BLEU.

    python -m experiments.faster --out build/faster --data DIR --teacher DIR/marian-en-de [--speedups 1.5x,2x,2.5x,3x]

DIR holds Multi30k (`multi30k/train.en.gz`, `val`, `test_2016_flickr`) and, for more English text, Tatoeba
(`tatoeba/deu-eng.short.tsv.gz`). The steps:

1. The teacher translates the English side of the training text (`hmc distill`).
2. A model (d 512, feed-forward 2048, 3 + 3 layers, 8 heads) is trained on these translations (`hmc train`).
3. It is pruned to each speed-up on this machine, with itself as the teacher (`hmc prune --target-speedup`), and
   compiled at int8.
4. All levels are scored on test_2016_flickr. The fastest that loses at most --loss BLEU against the unpruned int8 level
   is chosen. It is chosen on the test set, so its loss is a little too small.
5. That level, the unpruned one and CTranslate2 int8 of the unpruned model are timed in turn on the first sentences of
   the test set, each with one thread a core and with one worker a core. A ratio is of two times of one round, each
   system at its better use of the cores; the median over the rounds is printed with the smallest and the largest.

An interrupted run goes on when the command is repeated: what is there is not made again. Steps 3 and 5 measure times:
let nothing else run.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.faster.steps import Study, fastest, pruned, scored, trained, translated
from experiments.peers.engines import CORES, Run, ctranslate2_peers
from experiments.sizes import measure, ours
from experiments.support.script import machine_report, run_script, write_report
from hmc.artifact.bundle.checks import validate
from hmc.artifact.checkpoint.checkpoint import load_checkpoint
from hmc.artifact.tokenizer.tokenizer import open_tokenizer

CT2 = "ct2 int8"


def systems_of(bundle: Path, levels: Sequence[str], model: Path, out: Path) -> dict[str, Run]:
    """Levels and CTranslate2 at int8, each at both uses of the cores. Names begin with `LEVEL,` or CT2."""
    found = {
        f"{level}, {workers} worker{'s' if workers > 1 else ''}": ours(bundle, level, None, workers, out / "cache")
        for level in levels
        for workers in sorted({1, CORES})
    }
    peers = ctranslate2_peers(load_checkpoint(model), out, None)
    return found | {name: run for name, run in peers.items() if name.startswith(CT2)}


def ratio(times: dict[str, list[float]], rival: str, own: str) -> tuple[float, float, float]:
    """The time of `rival` divided by that of `own`, each at its better use of the cores: median, smallest, largest.

    times: system → seconds of every round. rival, own: how the names of their systems begin.
    """

    def better(start: str) -> list[float]:
        return min((times[name] for name in times if name.startswith(start)), key=statistics.median)

    each = [a / b for a, b in zip(better(rival), better(own), strict=True)]
    return statistics.median(each), min(each), max(each)


def timed(study: Study, given: argparse.Namespace, bundle: Path, model: Path, levels: list[str]) -> dict[str, Any]:
    """Times the systems at every setting; returns setting → milliseconds, ratios and tokens. levels: unpruned first."""
    systems = systems_of(bundle, levels, model, given.out)
    checkpoint = load_checkpoint(model)
    tokenizer, eos = open_tokenizer(checkpoint.tokenizer), checkpoint.architecture.eos_id
    sources = [[*tokenizer.encode(text), eos] for text in study.test_set().texts[: given.timed]]
    whole, found = levels[0], dict[str, Any]()
    for setting in given.settings.split(","):
        batch, beam = (int(part) for part in setting.split("x"))
        batches = [sources[start : start + batch] for start in range(0, len(sources), batch)]
        times, written = measure(systems, batches, beam, given.rounds, given.pause)
        pairs = [(rival, own) for own in levels for rival in (whole, CT2) if rival != own]
        found[setting] = {
            "milliseconds": {name: 1000 * statistics.median(seconds) for name, seconds in times.items()},
            "tokens": {name: statistics.mean(map(len, ids)) for name, ids in written.items()},
            "ratios": {f"{own} against {rival}": ratio(times, _start(rival), _start(own)) for rival, own in pairs},
        }
        print(f"\nbatch {batch}, beam {beam}: milliseconds a batch, tokens a sentence")
        for name, milliseconds in found[setting]["milliseconds"].items():
            print(f"  {name:30} {milliseconds:9.1f} {found[setting]['tokens'][name]:6.1f}")
        for name, (middle, low, high) in found[setting]["ratios"].items():
            print(f"  {name:60} {middle:5.2f}x  ({low:.2f} to {high:.2f})")
    return found


def _start(system: str) -> str:
    return system if system == CT2 else f"{system},"


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--out", type=Path, required=True, help="folder of all results; kept between runs")
    found.add_argument("--data", required=True, help="folder of the corpora")
    found.add_argument("--teacher", required=True, help="MarianMT directory or checkpoint that translates the text")
    for name, value in (("width", 512), ("neurons", 2048), ("layers", 3), ("heads", 8), ("vocabulary", 8000)):
        found.add_argument(f"--{name}", type=int, default=value, help="of the model (default: %(default)s)")
    found.add_argument("--steps", type=int, default=8000, help="updates of training")
    found.add_argument("--batch-tokens", type=int, default=4096)
    found.add_argument("--rate", type=float, default=7e-4, help="peak learning rate of training")
    found.add_argument("--close-steps", type=int, default=600, help="updates for each speed-up in which gates close")
    found.add_argument("--recover-steps", type=int, default=1000, help="updates for each speed-up after that")
    found.add_argument("--speedups", default="1.5x,2x,2.5x,3x", help="speed-ups to prune to")
    found.add_argument("--batch", type=int, default=1, help="sentences of the requests that pruning measures")
    found.add_argument("--beam", type=int, default=4, help="beam of those requests, and of BLEU")
    found.add_argument("--threads", type=int, default=0, help="threads of those requests; 0: one for each core")
    found.add_argument("--loss", type=float, default=0.5, help="BLEU that the chosen level may lose")
    found.add_argument("--lines", type=int, help="lines of English text; default: all")
    found.add_argument("--dev-sentences", type=int, default=300)
    found.add_argument("--test-sentences", type=int, help="sentences of test_2016_flickr; default: all")
    found.add_argument("--seed", type=int, default=1)
    found.add_argument("--settings", default="1x1,1x4,32x4", help="settings BATCHxBEAM to time")
    found.add_argument("--timed", type=int, default=64, help="sentences that each round times")
    found.add_argument("--rounds", type=int, default=7)
    found.add_argument("--pause", type=float, default=0.3, help="seconds to wait before each system")
    found.add_argument("--report", type=Path, help="write the results to this file, as JSON")
    return found


def main() -> None:
    """Takes the steps."""
    given = parser().parse_args()
    study = Study(**{name: getattr(given, name) for name in Study.__dataclass_fields__})
    study.check(given.out)
    text = translated(study, given.out)
    model = trained(study, given.out, text)
    bundle = pruned(study, given.out, model, text)
    scores = scored(study, given.out, bundle)
    reached = json.loads((given.out / "pruned" / "latency-report.json").read_text(encoding="utf-8"))
    names = [level.name for level in validate(bundle).levels]
    milliseconds = {name: row["ms"] for name, row in zip(names, reached, strict=True)}
    for name, row in zip(names, reached, strict=True):
        print(f"{name:20} {scores[name]:6.2f} BLEU {row['ms']:9.2f} ms {row['speedup']:5.2f}x  {row['sizes']}")
    chosen = fastest(scores, milliseconds, study.loss)
    report: dict[str, Any] = {"machine": machine_report(), "bleu": scores, "reached": reached, "chosen": chosen}
    print(f"chosen: {chosen or f'none, all lose more than {study.loss:g} BLEU'}")
    report["settings"] = timed(study, given, bundle, model, [names[0], *([chosen] if chosen else [])])
    write_report(given.report or given.out / "report.json", report)


if __name__ == "__main__":
    run_script(main)
