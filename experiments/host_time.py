"""What the host does for a sentence beside its executor: microseconds of processor time, ids in, ids out.

    python -m experiments.host_time BUNDLE [--level full-int8] [--sentences 4096] [--beams 1,4] [--real] [--profile]

The native executor's library is replaced by one that computes nothing: each sentence of n tokens ends after n + 2
steps with as many hypotheses as rows. Sentences of 6 to 45 tokens are submitted to an engine of one worker, all at
once, as bulk. What remains is the engine: plans, the queue, the scheduler, batches, results and futures; a `Future` of
the standard library is timed beside it. Its steps take no time, so as many sentences come back together as may.

While a real executor runs, its weights push Python out of the processor's caches, and a step of many rows takes
milliseconds: the same work then takes longer, and the host looks more often. With --real it runs, and what its calls
take is taken off. --profile prints where the worker's time goes.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import random
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from experiments.support.script import run_script
from hmc.engine.decoding.job import EncodedSentence
from hmc.engine.native import library
from hmc.engine.native.build import compiler
from hmc.engine.requests.caller import Priority
from hmc.engine.requests.options import DecodeOptions
from hmc.engine.scheduling.engine import Engine
from hmc.engine.scheduling.worker import Worker
from hmc.serving import Translator

IDLE = r"""
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "native.h"
#define MOST 160
struct hmc_batch {
  int rows, count, ended;
  int at[MOST], end[MOST], place[MOST], left_at[MOST], left_place[MOST];
};
int hmc_interface(void) { return HMC_INTERFACE; }
int hmc_check(void) { return 1; }
int hmc_open(const hmc_program *p, hmc_level **level) { (void)p; *level = malloc(1); return 0; }
void hmc_close(hmc_level *level) { free(level); }
int64_t hmc_level_bytes(const hmc_level *level) { (void)level; return 0; }
int hmc_batch_open(const hmc_level *level, int32_t rows, int32_t threads, hmc_batch **batch) {
  (void)level, (void)threads;
  *batch = calloc(1, sizeof(hmc_batch));
  (*batch)->rows = rows;
  return 0;
}
void hmc_batch_close(hmc_batch *b) { free(b); }
int hmc_admit(hmc_batch *b, int32_t count, const int32_t *starts, const int32_t *tokens, const hmc_rules *rules,
              const int32_t *list_starts, const int32_t *lists) {
  (void)tokens, (void)list_starts, (void)lists;
  for (int i = 0; i < count; i++) {
    const int steps = starts[i + 1] - starts[i] + 2;
    b->at[b->count] = 0;
    b->end[b->count++] = steps < rules[i].limit ? steps : rules[i].limit;
  }
  return 0;
}
int hmc_keep(hmc_batch *b, int32_t count, const int32_t *order) {
  int at[MOST], end[MOST];
  for (int i = 0; i < count; i++) at[i] = b->at[order[i]], end[i] = b->end[order[i]];
  memcpy(b->at, at, sizeof at);
  memcpy(b->end, end, sizeof end);
  b->count = count;
  return 0;
}
int hmc_run(hmc_batch *b, int32_t steps, int32_t held, int32_t many, int32_t *ended) {
  int done = 0, since = 0;
  for (int i = 0; i < b->count; i++) b->place[i] = i;
  ended[1] = 0;
  while (done < steps && b->count && b->ended < many && since <= held) {
    int left = 0;
    for (int i = 0; i < b->count; i++) {
      const int at = b->at[i] + 1;
      if (at < b->end[i]) {
        b->at[left] = at, b->end[left] = b->end[i], b->place[left++] = b->place[i];
        continue;
      }
      b->left_at[b->ended] = at, b->left_place[b->ended++] = b->place[i];
      ended[1] = at > ended[1] ? at : ended[1];
    }
    b->count = left;
    done++;
    since += b->ended > 0;
  }
  ended[0] = b->ended;
  return done;
}
int hmc_collect(hmc_batch *b, int32_t entries, int32_t room, int32_t *places, int32_t *failed, double *ranks,
                int32_t *lengths, int32_t *complete, int32_t *tokens, float *scores) {
  (void)room;
  const int count = b->ended;
  for (int n = 0; n < count; n++) {
    *places++ = b->left_place[n], *failed++ = 0;
    for (int i = 0; i < entries; i++) {
      *ranks++ = -i, *complete++ = 1, *lengths++ = b->left_at[n];
      for (int t = 0; t < b->left_at[n]; t++) *tokens++ = 7, *scores++ = -1.0f;
    }
  }
  b->ended = 0;
  return count;
}
int hmc_step(hmc_batch *b, const int32_t *t, float *l, int32_t w, float *a, int32_t n) {
  (void)b, (void)t, (void)l, (void)w, (void)a, (void)n;
  return -1;
}
int hmc_rank(const float *l, int32_t r, int32_t w, int32_t b, int32_t n, int32_t *i, float *s) {
  (void)l, (void)r, (void)w, (void)b, (void)n, (void)i, (void)s;
  return -1;
}
void hmc_exp(float *values, int64_t count) { (void)values, (void)count; }
int hmc_reorder(hmc_batch *b, const int32_t *p) { (void)b, (void)p; return -1; }
"""


def replace_library(folder: Path) -> None:
    """Builds the executor that computes nothing, and makes it the one that levels are opened with."""
    command = compiler()
    if command is None:
        raise SystemExit("there is no C compiler")
    source = folder / "idle.c"
    source.write_text(IDLE, encoding="utf-8")
    built = folder / "idle.so"
    headers = Path(library.__file__).parent / "src"
    subprocess.run([*command, "-O2", "-shared", "-fPIC", f"-I{headers}", "-o", built, source], check=True)
    idle = library.load(built)
    library.best = lambda: idle  # type: ignore[assignment]


def time_library(spent: list[int]) -> None:
    """From now on the real library adds to `spent[0]` the nanoseconds of processor time of its calls that compute."""
    real = library.best()
    assert real is not None
    for name in ("hmc_admit", "hmc_run"):
        setattr(real, name, partial(_timed, getattr(real, name), spent))


def _timed(function: Callable[..., int], spent: list[int], *arguments: object) -> int:
    began = time.thread_time_ns()
    result = function(*arguments)
    spent[0] += time.thread_time_ns() - began
    return result


def measured(engine: Engine, sources: list[list[int]], beam: int, spent: list[int]) -> list[float]:
    """Microseconds of processor time for a sentence: of the thread that submits, the worker and the postprocessor."""
    options = DecodeOptions(beam_size=beam)
    threads = (threading.current_thread(), engine.workers[0], engine._postprocessor._thread)
    clocks = [time.pthread_getcpuclockid(thread.ident or 0) for thread in threads]
    began = [time.clock_gettime(clock) for clock in clocks]
    spent[0] = 0
    planner = engine.planner(options, Priority.BULK)
    jobs = [planner.job(EncodedSentence(source)) for source in sources]
    for future in engine.submit_all(jobs, block=True, priority=Priority.BULK):
        future.result()
    took = [time.clock_gettime(clock) - before for clock, before in zip(clocks, began, strict=True)]
    took[1] -= spent[0] / 1e9
    return [seconds / len(sources) * 1e6 for seconds in took]


def futures_alone(count: int) -> float:
    """Microseconds of making a future, ending it and reading it."""
    began = time.process_time()
    futures: list[Future[int]] = [Future() for _ in range(count)]
    for future in futures:
        future.set_result(1)
    for future in futures:
        future.result()
    return (time.process_time() - began) / count * 1e6


def profile_workers() -> list[cProfile.Profile]:
    """Profiles of the workers that start from now on."""
    profiles: list[cProfile.Profile] = []
    loop = Worker._loop

    def profiled(self: Worker) -> None:
        profiles.append(cProfile.Profile())
        profiles[-1].runcall(loop, self)

    Worker._loop = profiled  # type: ignore[method-assign]
    return profiles


def main() -> None:
    """Prints a row for each beam."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--level", default="full-int8")
    parser.add_argument("--sentences", type=int, default=4096)
    parser.add_argument("--beams", default="1,4")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    numbers = random.Random(1)
    sources = [
        [*(numbers.randrange(10, 900) for _ in range(numbers.randrange(5, 45))), 0] for _ in range(options.sentences)
    ]
    spent = [0]
    profiles = profile_workers() if options.profile else []
    with tempfile.TemporaryDirectory() as folder:
        if options.real:
            time_library(spent)
        else:
            replace_library(Path(folder))
        with Translator(
            options.bundle, options.level, device="cpu", threads=1, workers=1, executor="native",
            queue_size=2 * len(sources), cache="none",
        ) as translator:  # fmt: skip
            engine = translator._engine
            assert isinstance(engine, Engine)
            gc.freeze()  # as a server does once it has opened its levels
            own = min(futures_alone(len(sources)) for _ in range(options.rounds))
            print("| beam | submit | worker | answer | together, µs a sentence | of which a future alone |")
            print("|---|---|---|---|---|---|")
            for beam in map(int, options.beams.split(",")):
                measured(engine, sources, beam, spent)
                best = min((measured(engine, sources, beam, spent) for _ in range(options.rounds)), key=sum)
                parts = " | ".join(f"{part:.1f}" for part in best)
                print(f"| {beam} | {parts} | {sum(best):.1f} | {own:.1f} |", flush=True)
    for profile in profiles:
        pstats.Stats(profile).sort_stats("cumtime").print_stats(45)


if __name__ == "__main__":
    run_script(main)
