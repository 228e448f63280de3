"""The scaffold of every run: its folder, its processes, its log, and the checkpoint that it ends with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from hmc.training.data.counts import Limit
from hmc.training.data.parallel_text import DevText
from hmc.training.data.vocabulary import Vocabulary
from hmc.training.model.transformer import Transformer
from hmc.training.runs.folder import hold, take_over
from hmc.training.runs.log import RunLog
from hmc.training.runs.processes import first_process_first, make_fabric, seed_process
from hmc.training.runs.recipe import RunSection
from hmc.training.runs.state import Inputs


class Run:
    """A run of `hmc train` or `hmc prune` in its folder."""

    vocabulary: Vocabulary
    model: Transformer

    def __init__(self, out: Path, section: RunSection, dev: DevText, limit: Limit) -> None:
        """Starts the processes. All of them have checked the folder `out` then, so that it may be written.

        limit: of training sentences. Raises as `make_fabric`.
        """
        self.out = out
        self.dev = dev
        self.limit = limit
        self.fabric = make_fabric(section)

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes and reports."""
        return self.fabric.is_global_zero

    @contextmanager
    def preparing(self, first: str, text: str | None) -> Iterator[None]:
        """A context in which the first process writes to the folder before the other processes read it.

        The first process holds the folder, and writes `text` to the file `first`, unless it is None.
        """
        with first_process_first(self.fabric, stops=True):
            if self.is_first:
                hold(self.out)
                if text is not None:
                    take_over(self.out, first, text)
            yield

    def seeded(self, seed: int, make: Callable[[], Transformer]) -> Transformer:
        """Makes the model: its weights are equal in all processes, and random numbers differ from then on."""
        torch.manual_seed(seed)
        model = make()
        seed_process(self.fabric, seed)
        return model

    @contextmanager
    def reporting(
        self, name: str, total: int, done: int, inputs: Inputs, warnings: Sequence[str], part: str = ""
    ) -> Iterator[RunLog]:
        """The log of the updates after `done` of `total`. It begins with what was read of the texts, and `warnings`."""
        with RunLog(name, self.out, total, done, part=part, active=self.is_first) as log:
            log.say_texts(inputs, self.limit, self.vocabulary, self.model.arch.max_positions)
            log.say_warnings(warnings)
            yield log

    def write_result(self, write: Callable[[RunLog], None], log: RunLog) -> None:
        """Lets the first process write the result, after every process has seen that it is missing. No process leaves
        or reads it before it is complete."""
        self.fabric.barrier()
        with first_process_first(self.fabric, stops=True):
            if self.is_first:
                write(log)
