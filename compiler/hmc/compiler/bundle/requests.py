"""What may be asked of the compiler: levels, the text to calibrate them on, and the checks that need no compilation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from hmc.artifact.bundle.manifest import check_level_name
from hmc.artifact.checkpoint.checkpoint import Checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.budgets import HeadBudget
from hmc.artifact.model.heads import HeadLayout
from hmc.artifact.precisions import PRECISIONS, Precision
from hmc.artifact.storage.rows import text_lines
from hmc.compiler.weights import Ranking, Target, choose_layout

SENTENCES = 256
"""Sentences that activation ranges are fitted to."""
LINES = 4 * SENTENCES
"""Lines that are looked at to find SENTENCES which have tokens."""


@dataclass(frozen=True)
class LevelRequest:
    """One head layout to compile. Raises InvalidRequestError for a name that no level can have."""

    checkpoint: Path
    """Directory of the checkpoint that it is cut from."""
    target_heads: Target | None = None
    """How many heads stay, a `HeadBudget`, or just which; None: those that the checkpoint has."""
    name: str | None = None
    """Name of the level in fp32; other precisions add theirs, as in `NAME-int8`. None: `full` if all heads of the
    architecture stay, else `hN`, or what the kinds of a budget keep, such as `enc10-dec20-cross24`."""
    rank_by: Ranking | None = None
    """The score of the checkpoint that the heads of a budget are ranked by; None: gates if there are any, else
    importance."""

    def __post_init__(self) -> None:
        if self.name is not None:
            check_level_name(self.name)

    def layout(self, checkpoint: Checkpoint) -> HeadLayout:
        """The heads that stay. Raises InvalidRequestError if the checkpoint has too few heads, or no ranking."""
        try:
            return choose_layout(checkpoint, self.target_heads, self.rank_by)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"level {self.name!r}: {error}" if self.name else str(error)) from error

    def level_name(
        self, checkpoint: Checkpoint, layout: HeadLayout, precision: Precision, *, with_shortlist: bool
    ) -> str:
        """Name of its level in `precision`. with_shortlist: the level has vocabulary shortlists."""
        arch = checkpoint.architecture
        target = self.target_heads
        if layout.total == arch.full_layout().total:
            heads_name = ""
        elif isinstance(target, HeadBudget):
            heads_name = target.name
        else:
            heads_name = f"h{layout.total}"
        neurons = "" if checkpoint.ffn_widths == arch.full_ffn() else f"f{checkpoint.ffn_widths.total}"
        layers = arch.encoder_layers + arch.decoder_layers - checkpoint.removed_layers.total
        depth = f"l{layers}" if checkpoint.removed_layers else ""
        name = self.name or f"{heads_name}{neurons}{depth}" or "full"
        return name + ("" if precision == "fp32" else f"-{precision}") + ("-shortlist" if with_shortlist else "")


def in_device_form(precision: Precision, asked: bool | None = None) -> bool:
    """Whether a level gets the graphs of a device. asked: None: as its precision says."""
    return PRECISIONS[precision].device == "cuda" if asked is None else asked


def check_level(
    precision: Precision,
    sentences: Sequence[Sequence[int]],
    *,
    with_shortlist: bool,
    device_form: bool | None = None,
) -> None:
    """Raises InvalidRequestError for a level that cannot be compiled, whatever its heads.

    sentences: text for calibration. with_shortlist: the level has vocabulary shortlists. device_form: as
    `in_device_form` takes it.
    """
    traits = PRECISIONS[precision]
    on_device = in_device_form(precision, device_form)
    if traits.device == "cuda" and not on_device:
        raise InvalidRequestError(f"{precision} levels run on CUDA, which runs only graphs in device form")
    if with_shortlist and traits.device != "cpu":
        raise InvalidRequestError(f"vocabulary shortlists are for levels on a CPU: leave them out, or {precision}")
    if on_device and (traits.quantised or with_shortlist):
        what = "vocabulary shortlists" if with_shortlist else precision
        raise InvalidRequestError(f"graphs in device form are for floats without shortlists: leave {what} out")
    if traits.quantised and not sentences:
        raise InvalidRequestError(f"calibration: {precision} needs real source sentences; give a few hundred lines")


def read_calibration(path: Path) -> list[str]:
    """The first LINES lines of a UTF-8 file that are not blank, without their ends; `.gz` files are unpacked.

    Later lines are not read, so a corpus of many gigabytes costs no more than its first lines. Raises
    InvalidRequestError for a file that is missing, damaged or not UTF-8 up to there, or that has no such line.
    """
    sentences = list(islice((line for line in text_lines(path) if line.strip()), LINES))
    if not sentences:
        raise InvalidRequestError(f"{path}: holds no sentence; give one sentence a line")
    return sentences
