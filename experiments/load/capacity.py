"""Predicts what a server carries and how long calls take, and compares that with what it does.

    python -m experiments.load.capacity BUNDLE --source FILE [--level full-int8] [--beam 4] [--workers 2] [--cores 2]
        [--seconds 30] [--loads 0.3,0.6,0.85] [--rounds 3] [--report FILE]

1. *Measured beforehand*, in this process: seconds of a decoder step by its rows, with so many sentences of the text
   running all the time, a new one for each that ends; of encoding, with copies of a sentence; the part of a step
   outside ONNX Runtime; how much longer a sentence takes after a pause; the decoder steps of each text.
2. *Measured at the server*, half loaded: its processor time for a call besides the translation, and the caller's.
3. *Predicted*: calls a second at saturation (four times as many calls come as one worker could serve one by one), and
   the 95th percentile of the latency at each load, a share of the predicted saturation.
4. *Compared*: the same calls, at the same times, at the real server, several rounds of all loads with other times in
   each; of both, the median over the rounds. Difference: (measured - predicted) / measured.

No number of step 4 is used in steps 1 to 3.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Semaphore
from typing import Any

import numpy as np
import onnxruntime as ort

from experiments.load.open_loop import due_times
from experiments.load.served import Served, served
from experiments.load.simulation import Costs, Curve, Machine, Simulation, answered_per_second, at, latencies
from experiments.support.script import machine_report, run_script, write_report
from experiments.support.worker import Worker
from hmc.benchmark.measure.text import TestSet
from hmc.serving.requests.options import DecodeOptions
from hmc.serving.translator import Translator

RUNNING = (1, 2, 4, 8, 16, 32)
"""Sentences that run at the same time."""
EACH = 24
"""Sentences that are translated for each one that runs."""
COPIES = (1, 2, 4, 8, 16)
"""Copies of a sentence that are encoded together."""
SENTENCES, REPEATS = 6, 3
PAUSE_S, PAUSED = 0.06, 100
"""Seconds of a pause, and sentences that are translated after one."""


@dataclass(frozen=True)
class Engine:
    """What was measured in process."""

    step: Curve
    encode: Curve
    steps: tuple[int, ...]
    """Decoder steps of each text."""
    python_s: float
    """Seconds of a step outside ONNX Runtime, with one sentence."""
    waking_s: float
    """Seconds that a sentence takes longer after a pause than right after another one."""


@contextmanager
def graph_seconds() -> Iterator[list[float]]:
    """Yields a list to which every run of a graph by a binding adds its seconds."""
    found: list[float] = []
    run = ort.InferenceSession.run_with_iobinding

    def timed(*args: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return run(*args, **named)
        finally:
            found.append(time.perf_counter() - began)

    ort.InferenceSession.run_with_iobinding = timed
    try:
        yield found
    finally:
        ort.InferenceSession.run_with_iobinding = run


def measure_engine(bundle: Path, level: str, texts: Sequence[str], beam: int) -> Engine:
    """Measures decoder steps and encoding."""
    options = DecodeOptions(beam_size=beam)
    with Translator(bundle, level, device="cpu", threads=1, workers=1) as translator:
        translator.warm_up()
        steps = tuple(answer.target_tokens + 1 for answer in translator.translate(texts, options))
        usual = sorted(range(len(texts)), key=lambda n: steps[n])[len(texts) // 2 :][:SENTENCES]
        stepping = [
            tuple(np.median([running_step(translator, texts, steps, options, number) for _ in range(REPEATS)], axis=0))
            for number in RUNNING
        ]
        encoding = []
        for copies in COPIES * REPEATS:
            for n in usual:
                before = translator.work.total.encoder_seconds
                translator.translate([texts[n]] * copies, options)
                encoding.append((copies, translator.work.total.encoder_seconds - before))
        before = translator.work.total.decoder_seconds
        with graph_seconds() as runs:
            for n in usual * REPEATS:
                translator.translate([texts[n]], options)
        outside = translator.work.total.decoder_seconds - before - sum(runs)
        paused = alone_s(translator, texts[:PAUSED], options, PAUSE_S) - alone_s(translator, texts[:PAUSED], options)
    of_a_step = max(0.0, outside) / (REPEATS * sum(steps[n] for n in usual))
    return Engine(tuple(stepping), medians(encoding), steps, of_a_step, max(0.0, paused))


def running_step(
    translator: Translator, texts: Sequence[str], steps: Sequence[int], options: DecodeOptions, running: int
) -> tuple[float, float]:
    """Rows of a decoder step and its seconds, both on average, while so many sentences run."""
    before, free = translator.work.total, Semaphore(running)
    chosen = [n % len(texts) for n in range(EACH * (running + 1))]
    futures = []
    for n in chosen:
        free.acquire()
        futures.append(translator.submit(texts[n], options, block=True))
        futures[-1].add_done_callback(lambda _: free.release())
    for future in futures:
        future.result()
    after = translator.work.total
    seconds = after.decoder_seconds - before.decoder_seconds
    rows = (after.row_seconds - before.row_seconds) / seconds
    return rows, seconds * rows / (options.beam_size * sum(steps[n] for n in chosen))


def alone_s(translator: Translator, texts: Sequence[str], options: DecodeOptions, pause_s: float = 0.0) -> float:
    """Seconds of encoding and decoding of a text, the median over texts that are translated one by one."""
    found = []
    for text in texts:
        time.sleep(pause_s)
        before = translator.work.total
        translator.translate([text], options)
        after = translator.work.total
        found.append(after.encoder_seconds + after.decoder_seconds - before.encoder_seconds - before.decoder_seconds)
    return statistics.median(found)


def medians(points: Sequence[tuple[float, float]]) -> Curve:
    """The median of the y of each x."""
    by_x: dict[float, list[float]] = {}
    for x, y in points:
        by_x.setdefault(x, []).append(y)
    return tuple((x, float(np.median(by_x[x]))) for x in sorted(by_x))


def call_costs(server: Served, client: Worker, asked: dict[str, Any]) -> tuple[float, float]:
    """Processor time of a call in the server, besides its translation, and in the caller."""
    used, translating = server.cpu_s(), translating_s(server)
    answer = client.ask(asked)
    used, translating = server.cpu_s() - used, translating_s(server) - translating
    number = len(answer["calls"])
    return max(0.0, used - translating) / number, answer["cpu_s"] / number


def translating_s(server: Served) -> float:
    """Seconds that the workers of a server have encoded and decoded so far, by its metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.announced['metrics_port']}/metrics", timeout=10) as page:
        found = re.findall(r"^hmc_(?:en|de)coder_seconds_total.* (\S+)$", page.read().decode(), re.MULTILINE)
    return sum(map(float, found))


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
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    print(__doc__)
    report: dict[str, Any] = {"machine": machine_report()}
    texts = TestSet.read(options.source).texts
    engine = measure_engine(options.bundle, options.level, texts, options.beam)
    how = ["--levels", options.level, "--device", "cpu", "--threads", "1", "--workers", str(options.workers)]
    how += ["--metrics-port", "0"]
    asked = {"texts": texts, "level": options.level, "beam": options.beam, "deadline_s": 60.0}
    with ExitStack() as stack:
        server = stack.enter_context(served(options.bundle, how))
        client = stack.enter_context(Worker("experiments.load.open_loop", [server.address]))
        client.ask({**asked, "rate": 20.0, "seconds": 5.0, "seed": 9})  # warms up
        one = float(np.mean(engine.steps)) * at(engine.step, options.beam)
        call_s, caller_s = call_costs(server, client, {**asked, "rate": 0.5 / one, "seconds": 10.0, "seed": 8})
        costs = Costs(engine.step, engine.encode, call_s, caller_s, engine.python_s, engine.waking_s)
        machine = Machine(options.cores, options.workers, 128 // options.workers, 1024)
        report |= {"costs": costs._asdict(), "server": machine._asdict(), "loads": []}
        for name, curve in (("step", costs.step), ("encoding", costs.encode)):
            print(f"{name}, by number:", ", ".join(f"{x:g}: {1000 * y:.2f} ms" for x, y in curve))
        print(f"of a step, outside ONNX Runtime: {1000 * engine.python_s:.2f} ms")
        print(f"a sentence after a pause: {1000 * engine.waking_s:.2f} ms more")
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

        flood = 4 * options.workers / one
        guess, _ = predicted(flood, 10.0, seed=1)
        real, _ = measured(flood, 10.0, seed=1)
        report["saturation"] = {"predicted": guess, "measured": real, "difference": (real - guess) / real}
        print(f"saturation: predicted {guess:.1f} calls/s, measured {real:.1f}; {(real - guess) / real:+.0%}")
        shares = [float(share) for share in options.loads.split(",")]
        pairs: dict[float, list[tuple[float, float]]] = {share: [] for share in shares}
        for turn in range(options.rounds):
            for seed, share in enumerate(shares, start=2 + turn * len(shares)):
                when = share * guess, options.seconds, seed
                pairs[share].append((predicted(*when)[1], measured(*when)[1]))
        for share in shares:
            guess_ms, real_ms = map(statistics.median, zip(*pairs[share], strict=True))
            each, apart = [real for _, real in pairs[share]], (real_ms - guess_ms) / real_ms
            row = {"rate": share * guess, "predicted_ms": guess_ms, "measured_ms": real_ms, "rounds": pairs[share]}
            report["loads"].append({**row, "difference": apart})
            spread = f"{min(each):.1f} to {max(each):.1f} ms"
            print(
                f"{share * guess:.1f} calls/s ({share:.0%}): p95 predicted {guess_ms:.1f} ms, measured {real_ms:.1f} "
                f"({spread}); {apart:+.0%}",
                flush=True,
            )
    write_report(options.report, report | {"engine": asdict(engine)})


if __name__ == "__main__":
    run_script(main)
