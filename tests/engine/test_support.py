"""The table of executors: whole, and printed as it is."""

from __future__ import annotations

from pathlib import Path

from tests.pages import executors

from hmc.artifact.precisions import PRECISIONS
from hmc.engine.support import EXECUTORS, OPTIONS, PRECISIONS_OF


def test_the_page_is_what_the_table_says(repository: Path) -> None:
    assert (repository / "docs" / "executors.md").read_text(encoding="utf-8") == executors(), "run `make docs`"


def test_every_row_names_every_executor() -> None:
    assert all(row.keys() == set(EXECUTORS) for row in OPTIONS.values())
    assert PRECISIONS_OF.keys() == set(EXECUTORS)
    assert set(PRECISIONS_OF["onnxruntime"]) == set(PRECISIONS)
