"""What a step costs on a GPU, and what it would cost otherwise.

    python -m experiments.cuda_probe --out build/cuda [--parts copies,steps,shapes,encoder,profile]
        [--settings 1x1,32x1,32x4,64x4,256x4] [--level full-fp16] [--report FILE] [--libraries FOLDER]

The model is that of `cuda_speed` under the same --out: Transformer-base with random weights. It is loaded as it is
served, and with other options of the CUDA provider: without captured graphs, and with or without cuDNN's attention.
Other options than HMC's own may be refused or give wrong translations; the probe only times them.

- copies: small copies between host and device, and kernels that do nothing, launched one by one and as a captured
  graph: what each launch and each copy costs on this machine. Microseconds.
- steps: (time of a batch for 50 tokens − time for 25) / 25, medians; Python's part of it; the first batch, which
  captures graphs and builds plans.
- shapes: single batches of shapes that were not seen before, three times each: what a new shape costs, and whether it
  is remembered. Milliseconds.
- encoder: one call of the encoder for 1 to 256 sentences of 24 tokens. Microseconds.
- profile: GPU time of a step by kernel (PyTorch's profiler sees the whole process); lists in OUT/profile-….txt.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from onnxruntime import OrtValue

from experiments.cuda_speed import prepare
from experiments.support.counting.steps import Setting, StepTimes
from experiments.support.counting.watching import Run, Watch
from experiments.support.counting.workload import open_level, queue_at_once, random_source
from experiments.support.cuda import (
    WAYS,
    add_libraries_option,
    answer_for,
    device_name,
    over_stand_ins,
    restarted,
    watched,
)
from experiments.support.script import machine_report, run_script, write_report
from hmc.artifact.bundle.checks import validate
from hmc.engine.requests.options import DecodeOptions
from hmc.serving.translator import Translator

TOKENS = 25
COUNTS = (1, 2, 4, 8, 32, 128, 256)
LENGTHS = (17, 40, 72, 104)
"""Source lengths of new shapes."""
KERNELS = 145


@dataclass
class Probe:
    """One level of a bundle, loaded in several ways."""

    bundle: Path
    level: str
    settings: list[Setting]
    watch: Watch
    out: Path
    rounds: int

    def opened(self, way: str) -> Translator:
        """The level with the options of `way`, for the largest of the settings."""
        self.watch.options = WAYS[way]
        rows = max(setting.rows for setting in self.settings)
        return open_level(self.bundle, self.level, max(rows, *COUNTS), longest=2 * max(TOKENS, *LENGTHS))


def copies(_: Probe) -> dict[str, Any]:
    """Small copies and empty kernels."""
    found: dict[str, Any] = {}
    for size in (4, 512, 32_768, 262_144):
        data = np.zeros(size, np.uint8)
        value = OrtValue.ortvalue_from_numpy(data, "cuda", 0)
        found[f"{size} bytes to the device"] = median_us(partial(value.update_inplace, data), 200)
        found[f"{size} bytes to the host"] = median_us(value.numpy, 200)
    return found if over_stand_ins() else found | _kernels()


def _kernels() -> dict[str, float]:
    """Microseconds of a tiny kernel: launched by PyTorch, and in a captured graph."""
    x = torch.zeros(64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    x.add_(1)
    with torch.cuda.graph(graph):
        for _ in range(KERNELS):
            x.add_(1)

    def launched() -> None:
        for _ in range(KERNELS):
            x.add_(1)
        torch.cuda.synchronize()

    def replayed() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return {
        "kernel, launched": median_us(launched, 50) / KERNELS,
        "kernel, captured": median_us(replayed, 50) / KERNELS,
    }


def steps(probe: Probe) -> dict[str, Any]:
    """A step of each setting in each way."""
    found = {}
    for way in WAYS:
        found[way] = attempt(partial(_steps_of, probe, way))
    return found


def _steps_of(probe: Probe, way: str) -> dict[str, Any]:
    with probe.opened(way) as translator:
        return {str(setting): _step(probe, translator, setting) for setting in probe.settings}


def _step(probe: Probe, translator: Translator, setting: Setting) -> dict[str, float]:
    began = time.perf_counter()
    setting.translate(translator, 2 * TOKENS)
    first, times, kept = time.perf_counter() - began, StepTimes(), list(probe.watch.listeners)
    long, short = [], []
    for _ in range(probe.rounds):
        long.append(seconds(partial(setting.translate, translator, 2 * TOKENS)))
        short.append(seconds(partial(setting.translate, translator, TOKENS)))
    probe.watch.listeners[:] = [times.before, *kept, times.after]
    times.begin_batch()
    setting.translate(translator, 2 * TOKENS)
    probe.watch.listeners[:] = kept
    step = (statistics.median(long) - statistics.median(short)) / TOKENS
    python = statistics.median(times.python_s[0]) if times.python_s[0] else 0.0
    return {"step_us": 1e6 * step, "python_us": 1e6 * python, "first_batch_ms": 1e3 * first}


def shapes(probe: Probe) -> dict[str, Any]:
    """Batches of new shapes, three times each: milliseconds."""
    found: dict[str, Any] = {}
    for way in ("served", "uncaptured, cudnn"):
        with probe.opened(way) as translator:
            arch = translator.manifest.architecture
            for beam in (1, 4):
                for length in LENGTHS:
                    source = random_source(arch, length, np.random.default_rng(length))
                    options = DecodeOptions(beam_size=beam, min_length=8, max_length=8)
                    found[f"{way}, 5x{beam}, source {length}"] = [
                        1e3 * seconds(partial(wait, translator, [source] * 5, options)) for _ in range(3)
                    ]
    return found


def encoder(probe: Probe) -> dict[str, Any]:
    """Calls of the encoder for so many sentences."""
    found: dict[str, Any] = {}
    calls: list[float] = []

    def note(run: Run) -> None:
        if run.role == "encoder":
            calls.append(run.ended - run.began)

    probe.watch.listeners.append(note)
    with probe.opened("served") as translator:
        options = DecodeOptions(max_length=1)
        for count in COUNTS:
            rng = np.random.default_rng(count)
            sources = [random_source(translator.manifest.architecture, 24, rng) for _ in range(count)]
            wait(translator, sources, options)
            calls.clear()
            whole = [seconds(partial(wait, translator, sources, options)) for _ in range(3 * probe.rounds)]
            found[str(count)] = {
                "call_us": 1e6 * statistics.median(calls or [0.0]), "calls": len(calls) / len(whole),
                "first_token_us": 1e6 * statistics.median(whole),
            }  # fmt: skip
    probe.watch.listeners.remove(note)
    return found


def profile(probe: Probe) -> dict[str, Any]:
    """GPU time of a step by kernel."""
    if over_stand_ins():
        return {"left out": "kernels take no time over the stand-ins"}
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    found = {}
    for way in ("served", "uncaptured", "uncaptured, cudnn"):
        with probe.opened(way) as translator:
            for setting in probe.settings:
                setting.translate(translator, TOKENS)
                with record(activities=[ProfilerActivity.CUDA]) as kept:
                    setting.translate(translator, TOKENS)
                rows = sorted(kept.key_averages(), key=lambda event: -event.self_device_time_total)
                lines = [
                    f"{e.self_device_time_total / TOKENS:9.1f} us {e.count / TOKENS:6.1f} x {e.key[:160]}" for e in rows
                ]
                name = f"profile-{way.replace(', ', '-')}-{setting}.txt"
                (probe.out / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
                total = sum(event.self_device_time_total for event in rows)
                found[f"{way}, {setting}"] = {
                    "gpu_us_a_step": total / TOKENS, "operations_a_step": sum(e.count for e in rows) / TOKENS
                }  # fmt: skip
    return found


def attempt(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of a call, or its error: time on a GPU is short, so one failure does not end the rest."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - a way that is refused is a finding
        return {"failed": str(error)[:500]}


def wait(translator: Translator, sources: list[list[int]], options: DecodeOptions) -> None:
    """Translates sentences that start together."""
    for future in queue_at_once(translator, sources, options):
        future.result()


def seconds(call: Callable[[], Any]) -> float:
    """How long a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def median_us(call: Callable[[], Any], count: int) -> float:
    """Microseconds that a call takes, after warming up."""
    return 1e6 * statistics.median([seconds(call) for _ in range(count + 8)][8:])


PARTS: dict[str, Callable[[Probe], dict[str, Any]]] = {
    "copies": copies, "steps": steps, "shapes": shapes, "encoder": encoder, "profile": profile,
}  # fmt: skip


def show(name: str, found: Any, indent: int = 0) -> None:
    """Prints nested results, a line for each row of numbers."""
    rows = isinstance(found, dict) and any(isinstance(value, dict | list) for value in found.values())
    if rows:
        print(f"{' ' * indent}{name}")
        for key, value in found.items():
            show(key, value, indent + 2)
    else:
        values = found.items() if isinstance(found, dict) else [("", found)]
        print(f"{' ' * indent}{name:34} " + "  ".join(f"{key} {_short(value)}".strip() for key, value in values))


def _short(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_short, value))
    return f"{value:,.1f}" if isinstance(value, float) else str(value)


def main() -> int | None:
    """Parses arguments, measures, prints tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the models; kept between runs")
    parser.add_argument("--parts", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--settings", default="1x1,32x1,32x4,64x4,256x4", help="settings BATCHxBEAM, by commas")
    parser.add_argument("--level", default="full-fp16")
    parser.add_argument("--rounds", type=int, default=7, help="how often each batch is timed")
    parser.add_argument("--report", type=Path, help="write the results to this file, as JSON")
    add_libraries_option(parser)
    options = parser.parse_args()
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--parts {', '.join(sorted(unknown))}: choose of {', '.join(PARTS)}")
    if (status := restarted("experiments.cuda_probe", options.libraries)) is not None:
        return status
    print(__doc__)
    prepare(options.out, ["fp16", "bf16"], with_transformers=False)
    bundle = options.out / "bundle"
    watch = watched()
    answer_for(watch, validate(bundle).architecture)
    settings = [Setting.parse(text) for text in options.settings.split(",")]
    probe = Probe(bundle, options.level, settings, watch, options.out, options.rounds)
    report: dict[str, Any] = {"machine": machine_report(), "device": device_name()}
    for part in parts:
        began = time.perf_counter()
        report[part] = attempt(partial(PARTS[part], probe))
        print()
        show(part, report[part])
        print(f"  ({time.perf_counter() - began:.1f} s)")
        write_report(options.report, report)
    return None


if __name__ == "__main__":
    run_script(main)
