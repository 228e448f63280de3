"""The style of all figures, and their SVG and PNG files, whose bytes depend on the data alone. No display is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
"""Palette of Okabe and Ito, whose colours colour-blind readers can distinguish."""
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")
"""One marker per colour, so that lines differ without colour too."""
GREY = "#666666"
SEQUENTIAL, DIVERGING = "cividis", "PuOr"
"""Colour maps that stay readable for colour-blind readers and, the first, in grey."""
KIND_TITLES = {"encoder_self": "encoder self", "decoder_self": "decoder self", "cross": "cross"}


@contextmanager
def figure(width: float, height: float) -> Iterator[Figure]:
    """An empty figure, sizes in inches. HMC's style applies inside the `with` block."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(
        {
            "svg.hashsalt": "hmc",
            "svg.fonttype": "path",
            "font.family": "DejaVu Sans",
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "hatch.linewidth": 0.6,
        }
    ):
        made = Figure(figsize=(width, height), dpi=150, layout="constrained")
        FigureCanvasAgg(made)
        yield made


def save_figure(drawn: Figure, prefix: Path) -> list[Path]:
    """Writes `prefix`.svg and `prefix`.png, which contain no date and no version. Call it inside `figure`."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for suffix, metadata in (("svg", {"Date": None, "Creator": None}), ("png", {"Software": None})):
        path = prefix.with_name(f"{prefix.name}.{suffix}")
        drawn.savefig(path, metadata=metadata)
        written.append(path)
    return written
