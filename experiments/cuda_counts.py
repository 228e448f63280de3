"""Counts what HMC asks of CUDA, without a GPU: launches, copies, waits, plans, captured graphs, bytes.

    python -m experiments.cuda_counts --libraries FOLDER [BUNDLE | --out build/cuda-counts] [--report FILE]
        [--parts steps,encoder,natural,memory,long] [--settings 1x1,32x1,32x4,256x4] [--rows 128]
        [--queued 1500] [--sentences 5000] [--text SRC TGT]
    python -m experiments.cuda_counts --compare BEFORE.json AFTER.json

FOLDER holds stand-ins for CUDA's libraries. They compute nothing and count every call, and the real CUDA provider of
ONNX Runtime and the real engine run over them, in processes of their own. Answers of the model are made up: sentences
end at natural lengths, or where a part says so at a fixed one. Without BUNDLE the model is Transformer-base (6+6,
512/2048/8, V = 16 000) with random weights, with all heads and with a quarter of them, at fp16. Lengths are those of
--text, or of the embedded model's test set.

- steps: of full batches BATCHxBEAM, 24 source and 40 target tokens. With `+prefix` each translation begins with a given
  token, so that the search sees every token. `served` is as HMC sets CUDA up, `uncaptured` and `captured` without and
  with captured graphs, `cudnn` without captured graphs and with any attention kernel. Python's time is a step without
  the run itself; the time of a run means nothing here. Times mean something only when nothing else runs.
- encoder: calls of the encoder for sentences that are all queued at first, greedy and with beam 4.
- natural: what is held after loading, warming up, and more and more sentences of natural lengths in waves, half of them
  greedy and half with beam 4, half of each interactive and half bulk; then idle for so long (by a clock that is put
  ahead) that pools are given back, and used again.
- memory: device bytes of the first two 16-bit levels with all graphs, beside one copy of the weights that they use.
- long: large copies between host and device while translations grow to 150 tokens: caches moved through the host.

--compare prints a Markdown table of two reports.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from experiments.support.counting.child import fresh
from experiments.support.counting.libraries import HELP, check_folder
from experiments.support.counting.process import Task
from experiments.support.counting.steps import Setting
from experiments.support.counting.table import comparison
from experiments.support.random_checkpoint import sized_checkpoint
from experiments.support.script import machine_report, run_script, write_report
from hmc.artifact.bundle.checks import validate
from hmc.artifact.errors import InvalidRequestError
from hmc.compiler.bundle.requests import LevelRequest
from hmc.compiler.bundle.writer import compile_bundle

WAYS: dict[str, dict[str, str]] = {
    "served": {},
    "uncaptured": {"enable_cuda_graph": "0"},
    "captured": {"enable_cuda_graph": "1"},
    "cudnn": {"enable_cuda_graph": "0", "sdpa_kernel": "0"},
}
"""Name → options of the CUDA provider that replace HMC's own."""
PARTS = ("steps", "encoder", "natural", "memory", "long")
SETTINGS = "1x1,32x1,32x4,256x4,32x1+prefix,32x4+prefix"


def prepared(bundle: Path | None, out: Path) -> Path:
    """The bundle, or one of Transformer-base that is built under `out` if it is not there yet."""
    if bundle is not None:
        return bundle
    if not (out / "checkpoint").is_dir():
        sized_checkpoint(out / "checkpoint")
    if not (out / "bundle").is_dir():
        requests = [LevelRequest(out / "checkpoint", heads) for heads in (None, 36)]
        compile_bundle(requests, out / "bundle", precisions=("fp16",))
    return out / "bundle"


def measure(part: str, task: Task, libraries: Path) -> dict[str, Any]:
    """One part, in as many processes as it needs."""
    if part == "steps":
        return {way: fresh(task.but(part=part, provider=WAYS[way]), libraries) for way in WAYS}
    if part == "encoder":
        return {str(beam): fresh(task.but(part=part, beam=beam), libraries) for beam in (1, 4)}
    return fresh(task.but(part=part), libraries)


def show(part: str, found: dict[str, Any]) -> None:
    """Prints the numbers of one part."""
    print(f"\n{part}")
    if part == "steps":
        for way, rows in found.items():
            for name, row in rows.items():
                print(f"  {way:10} {name:13} {step_line(row)}")
        return
    for name, row in found.items():
        values = [f"{key} {_short(value)}" for key, value in row.items()] if isinstance(row, dict) else [_short(row)]
        print(f"  {name:24} {'  '.join(values)}")


def step_line(row: dict[str, Any]) -> str:
    """A step's counts: of the middle step, and where steps differ much the mean."""
    middle, mean = row["middle"], row["mean"]
    return (
        f"launches {middle['launches']:3.0f} (mean {mean['launches']:5.1f})  copies {middle['copies_to_device']:.0f}+"
        f"{middle['copies_to_host']:.0f}  bytes {middle['bytes']:9,.0f} (mean {mean['bytes']:11,.1f})  "
        f"waits {middle['waits']:3.0f} (mean {mean['waits']:4.1f})  Python {row['python_us']['median']:5.0f} µs"
    )


def _short(value: Any) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


def main() -> None:
    """Parses arguments, measures, prints tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, nargs="?", help="a bundle with levels for CUDA; default: Transformer-base")
    parser.add_argument("--libraries", type=Path, help=HELP)
    parser.add_argument("--out", type=Path, default=Path("build/cuda-counts"), help="folder for Transformer-base")
    parser.add_argument("--parts", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--settings", default=SETTINGS, help="settings BATCHxBEAM or BATCHxBEAM+prefix, by commas")
    parser.add_argument("--rows", type=int, default=128, help="rows decoded together, except in steps and long")
    parser.add_argument("--queued", type=int, default=1500, help="sentences of the part encoder")
    parser.add_argument("--sentences", type=int, default=5000, help="sentences of the part natural")
    parser.add_argument("--text", type=Path, nargs=2, metavar=("SRC", "TGT"), help="parallel text that gives lengths")
    parser.add_argument("--report", type=Path, help="write the results to this file, as JSON")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"), help="compare two reports")
    options = parser.parse_args()
    if options.compare:
        print(comparison(*(json.loads(path.read_text(encoding="utf-8")) for path in options.compare)))
        return
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--parts {', '.join(sorted(unknown))}: choose of {', '.join(PARTS)}")
    libraries = check_folder(options.libraries)
    bundle = prepared(options.bundle, options.out)
    names = tuple(level.name for level in validate(bundle).levels if level.on_cuda)[:2]
    if not names:
        raise InvalidRequestError(f"bundle {bundle} has no level for CUDA: compile it with --precision fp16")
    print(__doc__)
    report: dict[str, Any] = {"machine": machine_report(), "bundle": str(bundle), "levels": names}
    text = tuple(str(path.absolute()) for path in options.text) if options.text else ()
    settings = options.settings.split(",")
    task = Task(
        part="", bundle=str(bundle.absolute()), levels=names, provider={}, settings=tuple(settings),
        rows=options.rows, text=text,
    )  # fmt: skip
    sizes = {"encoder": options.queued, "natural": options.sentences}
    for part in parts:
        chosen = task.but(sentences=sizes.get(part, 0))
        if part == "long":
            chosen = task.but(settings=tuple(s for s in settings if not Setting.parse(s).prefix))
        report[part] = measure(part, chosen, libraries)
        show(part, report[part])
    write_report(options.report, report)


if __name__ == "__main__":
    run_script(main)
