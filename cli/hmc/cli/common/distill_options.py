"""Options of commands that train with a teacher."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from hmc.cli.common.options import opt

PANEL = "Teacher"

Distill = Annotated[
    float,
    opt(
        PANEL,
        "Share of the loss that is the difference from a teacher's distributions, from 0 (off) to 1; the rest is "
        "the cross entropy. An example is 0.9.",
        metavar="WEIGHT",
    ),
]
Temperature = Annotated[float, opt(PANEL, "With --distill: divides the logits of teacher and student.")]
TeacherPath = Annotated[
    Path | None,
    opt(PANEL, "With --distill: the teacher, with the same vocabulary. Default: CHECKPOINT itself.", metavar="CKPT"),
]
Hidden = Annotated[
    float, opt(PANEL, "Weight of the mean squared difference from the teacher's layer outputs.", metavar="WEIGHT")
]
OutputsOfAttention = Annotated[
    float, opt(PANEL, "Weight of the mean squared difference from the teacher's attention outputs.", metavar="WEIGHT")
]


def option_of(location: Sequence[int | str]) -> str:
    """Returns the option that sets a setting, from the setting's place: `distill.weight` is `distill`."""
    section, name = str(location[0]), str(location[-1])
    if section in ("distill", "nested") and len(location) > 1:
        own = {"weight": "distill", "temperature": "temperature", "teacher": "teacher"} if section == "distill" else {}
        name = own.get(name, f"{section}_{name}")
    return name.replace("_", "-")
