"""16-bit levels on a GPU: Transformer-base (6+6, 512/2048/8, V = 16 000), interleaved with Transformers on the same
GPU, and the time of a step beside the bytes that it moves.

    python benchmarks/cuda_speed.py --out build/cuda [--settings 1x1,32x1,32x4,64x4] [--precisions fp16,bf16]
        [--rounds 7] [--no-transformers] [--json FILE]

Timed as in base_size.py: ids to ids, encoding and search included, every system made to write `--target` tokens, one
sentence as a stream. A step is a difference: the time of twice as many tokens, less that of `--target`, over
`--target`, which leaves out the encoder and what comes once. Its floor is what it reads, all weights of the decoder
and the caches half filled, over the speed at which this GPU copies memory (PyTorch, read and written bytes counted),
measured in the same run. Weights are random. Needs a CUDA device, and PyTorch that sees it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from base_size import agreement, measure, ours
from peers import Ids, Run, generate
from random_checkpoint import base_size_checkpoint
from scripts import machine_report, run_script, write_report

from hmc.artifact.bundle import Level
from hmc.artifact.bundle_checks import validate
from hmc.artifact.checkpoint import load_checkpoint
from hmc.artifact.errors import DeviceUnavailableError
from hmc.artifact.marian.writer import export_marian
from hmc.compiler.bundle_builder import LevelRequest
from hmc.compiler.bundle_writer import compile_bundle
from hmc.serving.sessions import cuda_available

COPIED = 1 << 30
"""Bytes of the copy that tells the speed of the memory."""


def copy_speed() -> float:
    """Bytes a second that the GPU reads and writes in a large copy."""
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
    """What a decoder step reads: its weights, and keys and values of sources and of half the target, 2 bytes each."""
    graph = (bundle / level.name / "decoder.onnx").read_bytes()
    weights = [name for name in level.files if name.endswith(".bin") and Path(name).name.encode() in graph]
    arch, layout = validate(bundle).architecture, level.layout
    cross, own = (sum(map(len, kind)) for kind in (layout.cross, layout.decoder_self))
    values = sentences * (cross * source + own * beam * target // 2) * 2 * arch.head_dim
    return sum((bundle / name).stat().st_size for name in weights) + 2 * values


def prepare(out: Path, precisions: list[str], with_transformers: bool) -> None:
    """Builds what is missing under `out`."""
    if not (out / "checkpoint").is_dir():
        base_size_checkpoint(out / "checkpoint", text=[])
    checkpoint = load_checkpoint(out / "checkpoint")
    if not (out / "bundle").is_dir():
        requests = [LevelRequest(out / "checkpoint", n) for n in (None, checkpoint.layout.total // 4)]
        compile_bundle(requests, out / "bundle", precisions=precisions)  # type: ignore[arg-type]
    if with_transformers and not (out / "marian").is_dir():
        export_marian(checkpoint, out / "marian", masked=True)


def systems_for(out: Path, precisions: list[str], target: int, with_transformers: bool) -> dict[str, Run]:
    """Everything that runs, made to write `target` tokens."""
    manifest = validate(out / "bundle")
    found = {f"hmc {x.name}": ours(out / "bundle", x.name, target, device="cuda") for x in manifest.levels}
    if with_transformers:
        for precision in precisions:
            run = generate("transformers", out / "marian", manifest.architecture, target, precision=precision)
            found[f"transformers {precision}"] = run
    return found


def measure_setting(
    out: Path, systems: dict[str, Run], longer: dict[str, Run], setting: str, options: argparse.Namespace, speed: float
) -> dict[str, Any]:
    """One row of the table."""
    manifest = validate(out / "bundle")
    arch, rng = manifest.architecture, np.random.default_rng(1)
    batch, beam = (int(part) for part in setting.split("x"))
    count = options.stream if batch == 1 else batch
    sources: Ids = [[*rng.integers(3, arch.vocab_size, options.source - 1).tolist(), arch.eos_id] for _ in range(count)]
    batches = [sources[start : start + batch] for start in range(0, count, batch)]
    times, written = measure(systems, batches, beam, options.rounds, 0.0)
    twice, _ = measure(longer, batches, beam, options.rounds, 0.0)
    agreed = agreement(written, options.target)
    row: dict[str, Any] = {}
    print(f"\nbatch {batch}, beam {beam} (median of {options.rounds} rounds)")
    for name, seconds in times.items():
        found: dict[str, Any] = {"milliseconds": statistics.median(seconds) * 1000, "agreement": agreed[name]}
        if name in twice:
            level = manifest.level(name.removeprefix("hmc "))
            step = (statistics.median(twice[name]) - statistics.median(seconds)) / options.target
            floor = step_bytes(out / "bundle", level, batch, beam, options.source, options.target) / speed
            found |= {"step_us": step * 1e6, "floor_us": floor * 1e6}
            rival = f"transformers {level.precision}"
            if rival in times:
                each = [theirs / mine for theirs, mine in zip(times[rival], seconds, strict=True)]
                found["over_transformers"] = (statistics.median(each), min(each), max(each))
        row[name] = found
        print(f"  {name:24} " + "  ".join(f"{key} {_short(value)}" for key, value in found.items()))
    return row


def _short(value: Any) -> str:
    return f"{value[0]:.2f} ({value[1]:.2f} to {value[2]:.2f})" if isinstance(value, tuple) else f"{value:.2f}"


def main() -> None:
    """Parses arguments, measures, prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the models; kept between runs")
    parser.add_argument("--settings", default="1x1,32x1,32x4,64x4", help="batch x beam, with commas")
    parser.add_argument("--precisions", default="fp16,bf16", help="of fp16 and bf16")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--stream", type=int, default=8, help="sentences one after the other, where the batch is one")
    parser.add_argument("--source", type=int, default=24, help="source tokens, EOS included")
    parser.add_argument("--target", type=int, default=25, help="target tokens, EOS included")
    parser.add_argument("--no-transformers", action="store_true", help="only HMC")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(__doc__)
    if not (cuda_available() and torch.cuda.is_available()):
        raise DeviceUnavailableError("this needs a CUDA device that ONNX Runtime and PyTorch see")
    precisions = options.precisions.split(",")
    prepare(options.out, precisions, not options.no_transformers)
    systems = systems_for(options.out, precisions, options.target, not options.no_transformers)
    longer = systems_for(options.out, precisions, 2 * options.target, with_transformers=False)
    speed = copy_speed()
    report: dict[str, Any] = {
        "machine": machine_report(), "device": torch.cuda.get_device_name(), "copy_bytes_a_second": speed
    }  # fmt: skip
    print(f"{report['device']}: {speed / 1e9:.0f} GB/s read and written")
    report["settings"] = {
        setting: measure_setting(options.out, systems, longer, setting, options, speed)
        for setting in options.settings.split(",")
    }
    write_report(options.json, report)


if __name__ == "__main__":
    run_script(main)
