"""Predicts what a server carries and how long calls take, and compares that with what it does.

    python -m experiments.load.capacity BUNDLE --source FILE [--level full-int8] [--beam 4] [--workers 2] [--cores 2]
        [--seconds 30] [--loads 0.3,0.6,0.85] [--rounds 3] [--report FILE]

1. *Measured beforehand*, in this process: seconds of a decoder step by its rows, with so many sentences of the text
   running all the time, a new one for each that ends; of encoding, with copies of a sentence; the part of a step
   outside ONNX Runtime; how much longer a sentence takes after a pause; the decoder steps of each text.
2. *Measured at the server*, half loaded: its processor time for a call besides the translation, and the caller's; the
   seconds of its worker, divided by those that the simulation gives it for the same calls. All times of step 1 are
   multiplied by that quotient: a worker that others interrupt finds its caches cold.
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
import urllib.request
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.load.capacity.engine import Engine, measure_engine
from experiments.load.capacity.simulation import (
    Costs,
    Job,
    Machine,
    Simulation,
    answered_per_second,
    at,
    latencies,
)
from experiments.load.served import Served, served
from experiments.support.script import machine_report, run_script, write_report
from experiments.support.worker import Worker
from hmc.benchmark.load.arrivals import poisson
from hmc.benchmark.measure.text import TestSet


class Called(NamedTuple):
    """What calls took."""

    call_s: float
    """Processor time of a call in the server, besides its translation."""
    caller_s: float
    """Processor time of a call in the process that makes it."""
    worked_s: float
    """Seconds of the workers in all."""


def call_costs(server: Served, client: Worker, asked: dict[str, Any], workers: int) -> Called:
    """Makes the calls and counts. The threads that use most are taken for the workers."""
    before, worked = server.cpu_s_of_threads(), translating_s(server)
    answer = client.ask(asked)
    worked = translating_s(server) - worked
    used = sorted(seconds - before.get(thread, 0.0) for thread, seconds in server.cpu_s_of_threads().items())
    number = len(answer["calls"])
    return Called(sum(used[:-workers]) / number, answer["cpu_s"] / number, worked)


def slower(costs: Costs, times: float) -> Costs:
    """The costs with everything that a worker does taking so many times as long."""
    step, encode = (tuple((x, times * y) for x, y in curve) for curve in (costs.step, costs.encode))
    return costs._replace(step=step, encode=encode, python_s=times * costs.python_s, waking_s=times * costs.waking_s)


def translating_s(server: Served) -> float:
    """Seconds that the workers of a server have encoded and decoded so far, by its metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.announced['metrics_port']}/metrics", timeout=10) as page:
        found = re.findall(r"^hmc_(?:en|de)coder_seconds_total.* (\S+)$", page.read().decode(), re.MULTILINE)
    return sum(map(float, found))


@dataclass(frozen=True)
class Prediction:
    """A machine whose costs are known."""

    engine: Engine
    machine: Machine
    beam: int
    costs: Costs

    def simulated(self, rate: float, seconds: float, seed: int) -> tuple[Simulation, list[Job]]:
        """Calls that come so often, at the times that the caller will make them."""
        due = poisson(rate, seconds, seed)
        steps = [self.engine.steps[n % len(self.engine.steps)] for n in range(len(due))]
        simulation = Simulation(self.costs, self.machine, self.beam)
        return simulation, simulation.run(due, steps)

    def outcome(self, rate: float, seconds: float, seed: int) -> tuple[float, float]:
        """Answers a second, and the 95th percentile of the latency in milliseconds."""
        _, jobs = self.simulated(rate, seconds, seed)
        return answered_per_second(jobs, seconds), 1000 * float(np.percentile(latencies(jobs), 95))

    @classmethod
    def calibrated(
        cls, engine: Engine, machine: Machine, server: Served, client: Worker, asked: dict[str, Any]
    ) -> Prediction:
        """Step 2. asked: what the client shall call, without a rate."""
        alone_s = float(np.mean(engine.steps)) * at(engine.step, asked["beam"])
        rate, seconds, seed = 0.5 * machine.workers / alone_s, 10.0, 8
        called = call_costs(server, client, {**asked, "rate": rate, "seconds": seconds, "seed": seed}, machine.workers)
        costs = Costs(engine.step, engine.encode, called.call_s, called.caller_s, engine.python_s, engine.waking_s)
        first = cls(engine, machine, asked["beam"], costs)
        times = called.worked_s / first.simulated(rate, seconds, seed)[0].worked_s
        print(f"a worker in the server takes {times:.2f} times as long; the times below include that")
        return replace(first, costs=slower(costs, times))


def measured(client: Worker, asked: dict[str, Any], rate: float, seconds: float, seed: int) -> tuple[float, float]:
    """As `Prediction.outcome`, of the real server."""
    answer = client.ask({**asked, "rate": rate, "seconds": seconds, "seed": seed})
    ended = [(due + took, took) for due, took, status, *_ in answer["calls"] if status == "OK"]
    p95 = float(np.percentile([took for _, took in ended], 95))
    return len(ended) / max(seconds, *(end for end, _ in ended)), 1000 * p95


def show(costs: Costs) -> None:
    """Prints what was measured."""
    for name, curve in (("step", costs.step), ("encoding", costs.encode)):
        print(f"{name}, by number:", ", ".join(f"{x:g}: {1000 * y:.2f} ms" for x, y in curve))
    print(f"of a step, outside ONNX Runtime: {1000 * costs.python_s:.2f} ms")
    print(f"a sentence after a pause: {1000 * costs.waking_s:.2f} ms more")
    print(f"a call: {1000 * costs.call_s:.2f} ms in the server, {1000 * costs.caller_s:.2f} ms in the caller")


def compare(
    prediction: Prediction, client: Worker, asked: dict[str, Any], options: argparse.Namespace
) -> dict[str, Any]:
    """Steps 3 and 4: saturation, and then the loads."""
    engine, beam = prediction.engine, prediction.beam
    flood = 4 * prediction.machine.workers / (float(np.mean(engine.steps)) * at(engine.step, beam))
    guess, _ = prediction.outcome(flood, 10.0, seed=1)
    real, _ = measured(client, asked, flood, 10.0, seed=1)
    found: dict[str, Any] = {
        "saturation": {"predicted": guess, "measured": real, "difference": (real - guess) / real}, "loads": []
    }  # fmt: skip
    print(f"saturation: predicted {guess:.1f} calls/s, measured {real:.1f}; {(real - guess) / real:+.0%}")
    shares = [float(share) for share in options.loads.split(",")]
    pairs: dict[float, list[tuple[float, float]]] = {share: [] for share in shares}
    for turn in range(options.rounds):
        for seed, share in enumerate(shares, start=2 + turn * len(shares)):
            when = share * guess, options.seconds, seed
            pairs[share].append((prediction.outcome(*when)[1], measured(client, asked, *when)[1]))
    for share in shares:
        guess_ms, real_ms = map(statistics.median, zip(*pairs[share], strict=True))
        each, apart = [real for _, real in pairs[share]], (real_ms - guess_ms) / real_ms
        row = {"rate": share * guess, "predicted_ms": guess_ms, "measured_ms": real_ms, "rounds": pairs[share]}
        found["loads"].append({**row, "difference": apart})
        print(
            f"{share * guess:.1f} calls/s ({share:.0%}): p95 predicted {guess_ms:.1f} ms, measured {real_ms:.1f} "
            f"({min(each):.1f} to {max(each):.1f}); {apart:+.0%}",
            flush=True,
        )
    return found


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
    asked = {"texts": texts, "level": options.level, "beam": options.beam, "deadline_s": 60.0}
    machine = Machine(options.cores, options.workers, 128 // options.workers, 1024)
    with ExitStack() as stack:
        server = stack.enter_context(served(options.bundle, [*how, "--metrics-port", "0"]))
        client = stack.enter_context(Worker("experiments.load.open_loop", [server.address]))
        client.ask({**asked, "rate": 20.0, "seconds": 5.0, "seed": 9})  # warms up
        prediction = Prediction.calibrated(engine, machine, server, client, asked)
        show(prediction.costs)
        report |= {"costs": prediction.costs._asdict(), "server": machine._asdict()}
        report |= compare(prediction, client, asked, options)
    write_report(options.report, report | {"engine": asdict(engine)})


if __name__ == "__main__":
    run_script(main)
