"""A small model that was trained, with text that it translates well: captions, English to German.

It was the embedded model until version 0.1: 3 + 3 layers, 16 heads of 16 an attention, 5 million parameters, gates that
rank its heads. Tests of the demo itself take what `hmc.cli.demo_steps` names.
"""

from __future__ import annotations

from pathlib import Path

TRAINED = Path(__file__).parents[1] / "data" / "captions"
CHECKPOINT = TRAINED / "checkpoint"
ENGLISH, GERMAN = TRAINED / "test.en", TRAINED / "test.de"
"""240 captions, a line for each."""


def english(lines: int | None = None) -> list[str]:
    """The first captions in English; None: all."""
    return ENGLISH.read_text(encoding="utf-8").splitlines()[:lines]
