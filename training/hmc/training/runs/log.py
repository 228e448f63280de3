"""The log of a run: a progress bar and few lines on a terminal, all lines elsewhere and with --verbose; scalars go to
TensorBoard and `log.jsonl`."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from hmc.artifact.storage.files import write_whole
from hmc.training.data.counts import Limit
from hmc.training.data.vocabulary import Vocabulary
from hmc.training.runs.state import Inputs


class RunLog:
    """Shows and writes the reports of a run. Use it as a context manager."""

    def __init__(
        self, title: str, folder: Path, total: int, start: int = 0, *, part: str = "", active: bool = True
    ) -> None:
        """title: shown before the step. folder: the run folder. total: steps of the run. start: steps done before.

        part: of a run that counts its own steps; it has a log of its own, `log-PART.jsonl`. active: False in all
        processes but the first, which then print and write nothing.
        """
        self.active = active
        if not active:
            return
        from torch.utils.tensorboard import SummaryWriter

        folder.mkdir(parents=True, exist_ok=True)
        self.console = Console(stderr=True)
        self.says_all = not self.console.is_terminal or logging.getLogger("hmc").isEnabledFor(logging.DEBUG)
        lines = folder / (f"log-{part}.jsonl" if part else "log.jsonl")
        self.writer = SummaryWriter(str(folder / "tensorboard" / part), purge_step=start + 1)
        _forget_after(start, lines)
        self.lines = lines.open("a", encoding="utf-8")
        self.bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"), TextColumn("left:"), TimeRemainingColumn(), console=self.console,
            disable=not self.console.is_terminal,
        )  # fmt: skip
        self.task = self.bar.add_task(title, total=total, completed=start, status="")
        self.title = title
        self.total = total
        self.start = start
        self.began = time.monotonic()

    def __enter__(self) -> RunLog:
        if self.active:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self.active:
            return
        self.bar.stop()
        self.writer.close()
        self.lines.close()

    def advance(self, step: int) -> None:
        """Moves the progress bar to `step`."""
        if self.active:
            self.bar.update(self.task, completed=step)

    def report(self, step: int, scalars: dict[str, float]) -> None:
        """Shows the scalars of `step`, and writes them to TensorBoard and `log.jsonl`, where NaN and infinity are
        null."""
        if not self.active:
            return
        status = "  ".join(f"{name} {value:.4g}" for name, value in scalars.items())
        short = f"loss {scalars['loss']:.4g}" if "loss" in scalars else ""
        self.bar.update(self.task, completed=step, status=status if self.says_all else short)
        for name, value in scalars.items():
            self.writer.add_scalar(name, value, step)
        values: dict[str, float | None] = {"step": step}
        for name, value in scalars.items():
            values[name] = value if math.isfinite(value) else None
        self.lines.write(json.dumps(values) + "\n")
        self.lines.flush()
        if not self.console.is_terminal:
            done = max(step - self.start, 1)
            eta = (time.monotonic() - self.began) / done * (self.total - step)
            self.console.print(f"{self.title} {step}/{self.total}  {status}  ETA {eta / 60:.1f} min", highlight=False)

    def say(self, text: str, style: str | None = None) -> None:
        """Prints one line."""
        if self.active:
            self.console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    def detail(self, text: str) -> None:
        """Prints one line that a terminal gets with --verbose alone."""
        if self.active and self.says_all:
            self.say(text)

    def say_warnings(self, texts: Sequence[str]) -> None:
        """Prints a line for each text."""
        for text in texts:
            self.say(f"warning: {text}", "yellow")

    def say_texts(self, inputs: Inputs, limit: Limit, vocabulary: Vocabulary, positions: int) -> None:
        """Prints how much of the training text and the dev text was read and left out, and why. Warnings are printed in
        any case.

        limit: of training sentences. positions: of the model.
        """
        counts = inputs.corpus.counts
        dev = inputs.dev
        self.detail(f"training text: {counts.summary(limit)}")
        self.detail(f"dev text: {dev.summary()}")
        self.say_warnings([*counts.warnings(limit), *dev.warnings(vocabulary, positions)])


def _forget_after(step: int, file: Path) -> None:
    """Drops the lines of later steps, which a resumed run makes again, and a line that was cut off."""
    if not file.is_file():
        return
    kept = list[str]()
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except (ValueError, TypeError, KeyError):
            continue
    write_whole(file, "".join(kept))
