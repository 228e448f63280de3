"""Steps of a study: commands of `hmc`, each with what it makes. What exists is not made again.

Results can be kept apart, so that a study may end on another machine: those without weights, and the first baseline,
from which everything else starts. Another training is made again only where something that needs its weights is left.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from hmc.artifact.storage.files import write_whole

Times = dict[str, float]
"""Name of a step → seconds that it took."""


@dataclass(frozen=True)
class Step:
    """One command."""

    name: str
    """Unique, such as `headmask/random-2/train`."""
    kind: str
    """What the time of a step depends on, such as `train`: steps of one kind take about as long."""
    arguments: tuple[str, ...]
    """Of `hmc`; EACH in them is replaced."""
    makes: Path
    """What the command writes last."""
    needs: tuple[Path, ...] = ()
    """What other steps make, or the user has to give."""
    weights: bool = False
    """Whether it makes weights, which are not kept (see `keep`)."""
    refused: Callable[[], str | None] = lambda: None
    """Called before the command; returns why it must not run, or None."""

    @property
    def done(self) -> bool:
        """Whether its result exists."""
        return self.makes.exists()

    @property
    def missing(self) -> list[Path]:
        """What it needs and is not there."""
        return [path for path in self.needs if not path.exists()]


EACH = "{each}"
"""Before a pattern: an argument for each path that matches it when the step is run, in the order of their names."""


SETTINGS = "settings.json"
"""What results depend on, see `studies.settings`."""
WEIGHTS = ("train/baseline-1/final/*",)
RESULTS = ("measure/**/*.json", "compare/**/*.json", "score/*/bundle.json", "times.json", SETTINGS, *WEIGHTS)
"""What steps make of weights, and the weights of the first baseline. It is put back into the folder of a study."""
LOGS = ("headmask.json", "log.jsonl")
"""What ended trainings leave beside weights. It is only read, because a training goes on in a folder that has logs."""


def some_of(steps: Sequence[Step], only: Sequence[str]) -> list[Step]:
    """The steps whose names hold one of `only`, and all steps they need; all steps where `only` is empty."""
    chosen = [step for step in steps if not only or any(word in step.name for word in only)]
    makers = {step.makes: step for step in steps}
    names, queue = {step.name for step in chosen}, list(chosen)
    while queue:
        for path in queue.pop().needs:
            maker = next((makers[place] for place in (path, *path.parents) if place in makers), None)
            if maker and maker.name not in names:
                names.add(maker.name)
                queue.append(maker)
    return [step for step in steps if step.name in names]


def left_of(steps: Sequence[Step]) -> list[Step]:
    """The steps that are to be run: what is not done, but weights only where a step that is left needs them. Whatever
    comes from weights that are made again is made again too."""
    left = set[Path]()
    for step in reversed(steps):
        users = [other for other in steps if _needs(other, {step.makes})]
        if not step.done and (not step.weights or not users or any(user.makes in left for user in users)):
            left.add(step.makes)
    again = {step.makes for step in steps if step.weights} & left
    for step in steps:
        if _needs(step, again):
            left.add(step.makes)
            again |= {step.makes}
    return [step for step in steps if step.makes in left]


def _needs(step: Step, made: Set[Path]) -> bool:
    return any(made & {need, *need.parents} for need in step.needs)


class Driver:
    """Runs steps in order; knows what is left, and how long it will take by what similar steps took."""

    def __init__(self, root: Path, hmc: Sequence[str], guesses: dict[str, float]) -> None:
        """root: folder of the results. hmc: the command and its first arguments. guesses: minutes of each kind of step,
        used until one has been timed."""
        self.root, self.hmc, self.guesses = root, tuple(hmc), guesses
        self._file, self._writing = root / "times.json", Lock()

    def times(self) -> Times:
        """What the steps that were run took."""
        return json.loads(self._file.read_text()) if self._file.is_file() else {}

    def minutes(self, step: Step, steps: Sequence[Step]) -> float:
        """How long a step will take."""
        times = self.times()
        alike = [times[other.name] / 60 for other in steps if other.kind == step.kind and other.name in times]
        return sum(alike) / len(alike) if alike else self.guesses.get(step.kind, 1.0)

    def plan(self, steps: Sequence[Step]) -> list[str]:
        """What is done and what is left, a line for each kind, and the time that is left."""
        lines, total, every = [], 0.0, left_of(steps)
        for kind in dict.fromkeys(step.kind for step in steps):
            some = [step for step in steps if step.kind == kind]
            left = [step for step in every if step.kind == kind]
            minutes = sum(self.minutes(step, steps) for step in left)
            total += minutes
            each = f", about {self.minutes(left[0], steps):.1f} min each" if left else ""
            lines.append(f"{kind}: {len(some) - len(left)} of {len(some)} done{each}")
        return [*lines, f"left: {len(every)} steps, about {duration(total)}"]

    def run(self, steps: Sequence[Step], minutes: float | None = None, jobs: int = 1) -> int:
        """Runs what is left; returns an exit status: 1 if a step failed, or could not be run.

        minutes: no step is begun after them. Steps that need what a failed one did not make are left out. jobs: steps
        that run at once.
        """
        began, problems = time.monotonic(), list[str]()
        waiting, number, total = left_of(steps), 0, len(left_of(steps))
        running = dict[Future[str | None], Step]()
        with ThreadPoolExecutor(jobs) as pool:
            while waiting or running:
                if waiting and minutes is not None and time.monotonic() - began > 60 * minutes:
                    print(f"stopped after {minutes:g} minutes")
                    waiting.clear()
                step = _ready(waiting, list(running.values())) if len(running) < jobs else None
                if step is None:
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        del running[future]
                        problems += [problem] if (problem := future.result()) else []
                    continue
                waiting.remove(step)
                number += 1
                if step.missing:
                    problems.append(f"{step.name}: needs {', '.join(map(str, step.missing))}")
                elif reason := step.refused():
                    problems.append(f"{step.name}: {reason}")
                else:
                    running[pool.submit(self._run, step, f"[{number}/{total}]")] = step
        for line in self.plan(steps):
            print(line)
        for problem in problems:
            print(f"not run: {problem}", file=sys.stderr)
        return 1 if problems else 0

    def _run(self, step: Step, place: str) -> str | None:
        command = [*self.hmc, *_expanded(step.arguments)]
        log = self.root / "logs" / f"{step.name.replace('/', '-')}.log"
        for folder in (log.parent, step.makes.parent):
            folder.mkdir(parents=True, exist_ok=True)
        print(f"{place} {step.name}\n  $ {shlex.join(command)}", flush=True)
        began = time.monotonic()
        with log.open("a", encoding="utf-8") as output:
            status = subprocess.run(command, check=False, stdout=output, stderr=subprocess.STDOUT).returncode
        if status or not step.done:
            return f"{step.name}: {'exit status ' + str(status) if status else 'made no ' + str(step.makes)}; see {log}"
        seconds = time.monotonic() - began
        with self._writing:
            write_whole(self._file, json.dumps(self.times() | {step.name: round(seconds, 1)}, indent=1) + "\n")
        print(f"  {seconds:.0f} s: {step.name}", flush=True)
        return None


def _ready(waiting: Sequence[Step], running: Sequence[Step]) -> Step | None:
    """The first step that waits for no other."""
    to_come = {step.makes for step in (*waiting, *running)}
    return next((step for step in waiting if not _needs(step, to_come)), None)


def _expanded(words: Sequence[str]) -> Iterator[str]:
    for word in words:
        if word.startswith(EACH):
            pattern = Path(word.removeprefix(EACH))
            yield from sorted(map(str, pattern.parent.glob(pattern.name)))
        else:
            yield word


def duration(minutes: float) -> str:
    """`12 min` or `3.4 h`."""
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def keep(root: Path, kept: Path) -> None:
    """Copies results and logs of the study in `root` to `kept`."""
    ended = [final.parent.relative_to(root) for final in root.glob("train/*/final")]
    _copy(root, kept, (*RESULTS, *(f"{run}/{log}" for run in ended for log in LOGS)))


def restore(kept: Path, root: Path, patterns: Iterable[str] = RESULTS) -> None:
    """Copies results from `kept` to where the study in `root` has none."""
    _copy(kept, root, patterns, replace=False)


def _copy(source: Path, target: Path, patterns: Iterable[str], *, replace: bool = True) -> None:
    for pattern in patterns:
        for file in source.glob(pattern):
            copy = target / file.relative_to(source)
            if replace or not copy.exists():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)
