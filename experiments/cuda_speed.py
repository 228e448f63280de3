"""16-bit levels on a GPU against Transformers and CTranslate2 there, and a step against the bytes that it must read.

The model is Transformer-base (6+6, 512/2048/8, V = 16 000) with random weights. The systems take turns on one GPU.

    python -m experiments.cuda_speed --out build/cuda [--settings 1x1,32x1,32x4,64x4,256x4] [--precisions fp16,bf16]
        [--rounds 5] [--no-peers] [--report FILE] [--libraries FOLDER]

Timed as in sizes: ids to ids, encoding and search included; every system writes exactly `--target` tokens, and
one sentence is timed as a stream. The time of a step is (time for twice as many tokens − time for `--target`) /
`--target`, which leaves out the encoder and everything that happens once. Its floor is the bytes that a step reads,
which are all weights of the decoder and half-filled caches, divided by the speed at which this GPU copies memory
(PyTorch, bytes read and written), measured in the same run. Ratios compare times of the same round: median, smallest,
largest. Tokens a second count what is written. Needs a CUDA device that PyTorch can use.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.peers.engines import Ids, Run, ctranslate2_on_cuda, generate
from experiments.sizes import agreement, measure, ours
from experiments.support.counting.steps import Setting
from experiments.support.cuda import add_libraries_option, answer_for, device_name, over_stand_ins, restarted, watched
from experiments.support.random_checkpoint import sized_checkpoint
from experiments.support.script import machine_report, run_script, write_report
from hmc.artifact.bundle.checks import validate
from hmc.artifact.bundle.manifest import Level
from hmc.artifact.checkpoint.checkpoint import load_checkpoint
from hmc.artifact.marian.writer import export_marian
from hmc.compiler.bundle.requests import LevelRequest
from hmc.compiler.bundle.writer import compile_bundle

COPIED = 1 << 30
"""Bytes that are copied to measure the speed of the memory."""


def copy_speed() -> float:
    """Bytes a second that the GPU reads and writes in a large copy. Over the stand-ins: a number without meaning."""
    if over_stand_ins():
        return 1e12
    source = torch.zeros(COPIED, dtype=torch.uint8, device="cuda")
    target, times = torch.empty_like(source), []
    for _ in range(12):
        torch.cuda.synchronize()
        began = time.perf_counter()
        target.copy_(source)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return 2 * COPIED / statistics.median(times)


def step_bytes(bundle: Path, level: Level, sentences: int, beam: int, source: int, target: int) -> int:
    """Bytes that a decoder step reads: its weights, and keys and values of the source and of half the target."""
    graph = (bundle / level.name / "decoder.onnx").read_bytes()
    weights = [name for name in level.files if name.endswith(".bin") and Path(name).name.encode() in graph]
    arch, layout = validate(bundle).architecture, level.layout
    cross, own = (sum(map(len, kind)) for kind in (layout.cross, layout.decoder_self))
    values = sentences * (cross * source + own * beam * target // 2) * 2 * arch.head_dim
    return sum((bundle / name).stat().st_size for name in weights) + 2 * values


def prepare(out: Path, precisions: list[str], with_transformers: bool) -> None:
    """Builds what is missing under `out`."""
    if not (out / "checkpoint").is_dir():
        sized_checkpoint(out / "checkpoint", text=[])
    checkpoint = load_checkpoint(out / "checkpoint")
    if not (out / "bundle").is_dir():
        requests = [LevelRequest(out / "checkpoint", n) for n in (None, checkpoint.layout.total // 4)]
        compile_bundle(requests, out / "bundle", precisions=precisions)  # type: ignore[arg-type]
    if with_transformers and not (out / "marian").is_dir():
        export_marian(checkpoint, out / "marian", masked=True)


def levels_for(out: Path, precisions: list[str], target: int, rows: int) -> dict[str, Run]:
    """The levels of these precisions. Each writes exactly `target` tokens, of so many rows together."""
    levels = [level for level in validate(out / "bundle").levels if level.precision in precisions]
    return {f"hmc {x.name}": ours(out / "bundle", x.name, target, device="cuda", rows=rows) for x in levels}


def peers_for(out: Path, precisions: list[str], target: int) -> dict[str, Run]:
    """Transformers, and CTranslate2 if it is installed and sees the GPU; each with all heads."""
    arch = validate(out / "bundle").architecture
    found = {
        f"transformers {precision}": generate("transformers", out / "marian", arch, target, precision=precision)
        for precision in precisions
    }
    rivals = ctranslate2_on_cuda(load_checkpoint(out / "checkpoint"), out, target)
    if not rivals:
        print("CTranslate2 is left out: it is not installed, or it sees no GPU")
    return found | rivals


def measure_setting(
    out: Path, systems: dict[str, Run], longer: dict[str, Run], setting: str, options: argparse.Namespace, speed: float
) -> dict[str, Any]:
    """Measures one setting, prints it and returns it."""
    manifest = validate(out / "bundle")
    arch, rng = manifest.architecture, np.random.default_rng(1)
    batch, beam = (int(part) for part in setting.split("x"))
    count = options.stream if batch == 1 else batch
    sources: Ids = [[*rng.integers(3, arch.vocab_size, options.source - 1).tolist(), arch.eos_id] for _ in range(count)]
    batches = [sources[start : start + batch] for start in range(0, count, batch)]
    times, written = measure(systems, batches, beam, options.rounds, 0.0)
    twice, _ = measure(longer, batches, beam, options.rounds, 0.0)
    # The stand-ins write nothing, so translations that a graph on the device collects are empty there.
    agreed = dict.fromkeys(written, 0.0) if over_stand_ins() else agreement(written, options.target)
    row: dict[str, Any] = {}
    print(f"\nbatch {batch}, beam {beam} (median of {options.rounds} rounds)")
    for name, seconds in times.items():
        middle = statistics.median(seconds)
        found: dict[str, Any] = {
            "milliseconds": middle * 1000, "tokens_a_second": batch * options.target / middle, "agreement": agreed[name]
        }  # fmt: skip
        if name.startswith("hmc "):
            level = manifest.level(name.removeprefix("hmc "))
            step = (statistics.median(twice[name]) - middle) / options.target
            floor = step_bytes(out / "bundle", level, batch, beam, options.source, options.target) / speed
            found |= {"step_us": step * 1e6, "floor_us": floor * 1e6}
            found |= {f"over_{rival}": ratio(times[rival], seconds) for rival in rivals_of(level.precision, times)}
            if (whole := f"hmc full-{level.precision}") != name:
                found["over_all_heads"] = ratio(times[whole], seconds)
        row[name] = found
        print(f"  {name:24} " + "  ".join(f"{key} {_short(value)}" for key, value in found.items()))
    return row


def rivals_of(precision: str, times: dict[str, list[float]]) -> list[str]:
    """The systems that a level of this precision is compared with: Transformers at the same, CTranslate2 at fp16."""
    return [name for name in times if name in (f"transformers {precision}", "ct2 fp16")]


def ratio(theirs: list[float], mine: list[float]) -> tuple[float, float, float]:
    """Their time over mine in the same rounds: median, smallest, largest."""
    each = [a / b for a, b in zip(theirs, mine, strict=True)]
    return statistics.median(each), min(each), max(each)


def _short(value: Any) -> str:
    return f"{value[0]:.2f} ({value[1]:.2f} to {value[2]:.2f})" if isinstance(value, tuple) else f"{value:,.2f}"


def main() -> int | None:
    """Parses arguments, measures, prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the models; kept between runs")
    parser.add_argument("--settings", default="1x1,32x1,32x4,64x4,256x4", help="settings BATCHxBEAM, by commas")
    parser.add_argument("--precisions", default="fp16,bf16", help="fp16, bf16 or both, separated by commas")
    parser.add_argument("--rounds", type=int, default=5, help="rounds; each runs every system once")
    parser.add_argument("--stream", type=int, default=8, help="at batch 1: sentences sent one after the other")
    parser.add_argument("--source", type=int, default=24, help="tokens of each source, EOS included")
    parser.add_argument("--target", type=int, default=25, help="tokens of each translation, EOS included")
    parser.add_argument("--no-peers", action="store_true", help="measure HMC alone")
    parser.add_argument("--report", type=Path, help="write the results to this file, as JSON")
    add_libraries_option(parser)
    options = parser.parse_args()
    if (status := restarted("experiments.cuda_speed", options.libraries)) is not None:
        return status
    print(__doc__)
    precisions, settings = options.precisions.split(","), options.settings.split(",")
    with_peers = not options.no_peers and not over_stand_ins()
    prepare(options.out, precisions, with_peers)
    watch = watched()
    answer_for(watch, validate(options.out / "bundle").architecture)
    rows = max(Setting.parse(setting).rows for setting in settings)
    systems = levels_for(options.out, precisions, options.target, rows)
    if with_peers:
        systems |= peers_for(options.out, precisions, options.target)
    longer, speed = levels_for(options.out, precisions, 2 * options.target, rows), copy_speed()
    report: dict[str, Any] = {
        "machine": machine_report(), "device": device_name(), "copy_bytes_a_second": speed, "settings": {}
    }  # fmt: skip
    print(f"{report['device']}: {speed / 1e9:.0f} GB/s read and written")
    for setting in settings:
        report["settings"][setting] = measure_setting(options.out, systems, longer, setting, options, speed)
        write_report(options.report, report)
    return None


if __name__ == "__main__":
    run_script(main)
