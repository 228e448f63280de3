"""Predicts what a server carries and how long calls take, and compares that with what it does.

    python -m experiments.load.capacity BUNDLE --source FILE [--level full-int8] [--beam 4] [--workers 2] [--cores 2]
        [--seconds 30] [--loads 0.3,0.6,0.85] [--report FILE]

1. *Measured beforehand*, in this process: seconds of a decoder step with few and many rows, and of encoding, by
   translating copies of sentences together; the tokens of each translation.
2. *Measured at the server*: its processor time for a call besides the translation, and the caller's.
3. *Predicted*: calls a second at saturation (four times as many calls come as one worker could serve one by one), and
   the 95th percentile of the latency at each load, a share of the predicted saturation.
4. *Compared*: the same calls, at the same times, at the real server. Difference: (measured - predicted) / measured.

No number of step 4 is used in steps 1 to 3.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.load.open_loop import due_times
from experiments.load.served import Served, served
from experiments.load.simulation import Costs, Curve, Machine, Simulation, answered_per_second, at, latencies
from experiments.support.script import machine_report, run_script, write_report
from experiments.support.worker import Worker
from hmc.benchmark.measure.text import TestSet
from hmc.serving.requests.options import DecodeOptions
from hmc.serving.translator import Translator

COPIES = (1, 2, 4, 8, 12, 16)
"""Copies of a sentence that are translated together."""
SENTENCES, REPEATS = 6, 3
ALONE_CALLS = 300


@dataclass(frozen=True)
class Engine:
    """What was measured in process."""

    step: Curve
    encode: Curve
    steps: tuple[int, ...]
    """Decoder steps of each text."""


def measure_engine(bundle: Path, level: str, texts: Sequence[str], beam: int) -> Engine:
    """Measures decoder steps and encoding."""
    options = DecodeOptions(beam_size=beam)
    with Translator(bundle, level, device="cpu", threads=1, workers=1) as translator:
        translator.warm_up()
        steps = tuple(answer.target_tokens + 1 for answer in translator.translate(texts, options))
        usual = sorted(range(len(texts)), key=lambda n: steps[n])[len(texts) // 2 :][:SENTENCES]
        rows, encoding = [], []
        for copies in COPIES * REPEATS:
            for n in usual:
                before = translator.work.total
                translator.translate([texts[n]] * copies, options)
                after = translator.work.total
                step_s = (after.decoder_seconds - before.decoder_seconds) / steps[n]
                rows.append((copies * beam, step_s))
                encoding.append((copies, after.encoder_seconds - before.encoder_seconds))
    return Engine(medians(rows), medians(encoding), steps)


def medians(points: Sequence[tuple[float, float]]) -> Curve:
    """The median of the y of each x."""
    by_x: dict[float, list[float]] = {}
    for x, y in points:
        by_x.setdefault(x, []).append(y)
    return tuple((x, float(np.median(by_x[x]))) for x in sorted(by_x))


def call_costs(server: Served, client: Worker, asked: dict[str, Any], engine: Engine) -> tuple[float, float]:
    """Processor time of a call in the server, besides its translation, and in the caller. Calls come seldom."""
    before = server.cpu_s()
    answer = client.ask(asked)
    used, number = server.cpu_s() - before, len(answer["calls"])
    steps = [engine.steps[n % len(engine.steps)] for n in range(number)]
    rows = asked["beam"]
    translating = sum(s * at(engine.step, rows) + at(engine.encode, 1) for s in steps)
    return max(0.0, used - translating) / number, answer["cpu_s"] / number


def main() -> None:
    """Parses arguments, measures, predicts, compares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--source", type=Path, required=True, help="file with one text on each line")
    parser.add_argument("--level", default="full-int8")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--loads", default="0.3,0.6,0.85")
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    print(__doc__)
    report: dict[str, Any] = {"machine": machine_report()}
    texts = TestSet.read(options.source).texts
    engine = measure_engine(options.bundle, options.level, texts, options.beam)
    how = ["--levels", options.level, "--device", "cpu", "--threads", "1", "--workers", str(options.workers)]
    asked = {"texts": texts, "level": options.level, "beam": options.beam, "deadline_s": 60.0}
    with ExitStack() as stack:
        server = stack.enter_context(served(options.bundle, how))
        client = stack.enter_context(Worker("experiments.load.open_loop", [server.address]))
        client.ask({**asked, "rate": 20.0, "seconds": 5.0, "seed": 9})  # warms up
        seldom = {**asked, "rate": 15.0, "seconds": 20.0, "seed": 8}
        call_s, caller_s = call_costs(server, client, seldom, engine)
        costs = Costs(engine.step, engine.encode, call_s, caller_s)
        machine = Machine(options.cores, options.workers, 128 // options.workers, 1024)
        report |= {"costs": costs._asdict(), "server": machine._asdict(), "loads": []}
        for name, curve in (("step", costs.step), ("encoding", costs.encode)):
            print(f"{name}, by number:", ", ".join(f"{x:g}: {1000 * y:.2f} ms" for x, y in curve))
        print(f"a call: {1000 * call_s:.2f} ms in the server, {1000 * caller_s:.2f} ms in the caller")

        def predicted(rate: float, seconds: float, seed: int) -> tuple[float, float]:
            due = due_times(rate, seconds, seed)
            steps = [engine.steps[n % len(engine.steps)] for n in range(len(due))]
            jobs = Simulation(costs, machine, options.beam).run(due, steps)
            return answered_per_second(jobs, seconds), 1000 * float(np.percentile(latencies(jobs), 95))

        def measured(rate: float, seconds: float, seed: int) -> tuple[float, float]:
            answer = client.ask({**asked, "rate": rate, "seconds": seconds, "seed": seed})
            ended = [(due + took, took) for due, took, status, *_ in answer["calls"] if status == "OK"]
            return (
                len(ended) / max(seconds, *(end for end, _ in ended)),
                1000 * float(np.percentile([took for _, took in ended], 95)),
            )

        one = float(np.mean(engine.steps)) * at(engine.step, options.beam)
        flood = 4 * options.workers / one
        guess, _ = predicted(flood, 10.0, seed=1)
        real, _ = measured(flood, 10.0, seed=1)
        report["saturation"] = {"predicted": guess, "measured": real, "difference": (real - guess) / real}
        print(f"saturation: predicted {guess:.1f} calls/s, measured {real:.1f}; {(real - guess) / real:+.0%}")
        for seed, share in enumerate(map(float, options.loads.split(",")), start=2):
            rate = share * guess
            (_, guess_ms), (_, real_ms) = predicted(rate, options.seconds, seed), measured(rate, options.seconds, seed)
            row = {"rate": rate, "predicted_ms": guess_ms, "measured_ms": real_ms}
            report["loads"].append({**row, "difference": (real_ms - guess_ms) / real_ms})
            print(
                f"{rate:.1f} calls/s ({share:.0%}): p95 predicted {guess_ms:.1f} ms, measured {real_ms:.1f} ms; "
                f"{(real_ms - guess_ms) / real_ms:+.0%}",
                flush=True,
            )
    write_report(options.report, report | {"engine": asdict(engine)})


if __name__ == "__main__":
    run_script(main)
