"""What goes wrong in one of two processes is decided alike, or ends both."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from tests.support.files import write_pair
from tests.support.forks import Forks
from tests.tiny import SENTENCES
from tests.training.runs.test_processes import recipe

pytestmark = pytest.mark.slow


Seen = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def folder(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both runs, one after the other in the same two processes: `loss` and `evaluation`."""
    folder = tmp_path_factory.mktemp("failing")
    settings = recipe(write_pair(folder / "text", SENTENCES * 4), 2, 4)
    description = {"recipe": settings.model_dump(mode="json"), "folder": str(folder)}
    (folder / "description.json").write_text(json.dumps(description))
    script = Path(__file__).with_name("failing_processes.py")
    statuses = forks.run_group(script, folder / "description.json", folders=[folder, folder], devices=2)
    assert statuses == [0, 0], (folder / "stderr-0").read_text()[-4000:]
    return folder


@pytest.fixture(scope="module")
def seen(folder: Path) -> tuple[Seen, Seen]:
    """What each process saw of each run."""
    first, second = (json.loads((folder / f"rank-{rank}.json").read_text()) for rank in (0, 1))
    return first, second


def test_a_loss_that_is_nan_in_one_process_is_skipped_in_both(folder: Path, seen: tuple[Seen, Seen]) -> None:
    first, second = (each["loss"] for each in seen)
    assert first == second
    assert not first["error"]
    assert all(math.isfinite(value) for value in first["sums"].values())
    rows = [json.loads(line) for line in (folder / "loss" / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row.get("skipped") == 1] == [2]
    assert [row["step"] for row in rows if "loss" in row] == [1, 3, 4]


def test_an_error_of_the_first_process_ends_both(seen: tuple[Seen, Seen]) -> None:
    first, second = (each["evaluation"] for each in seen)
    assert first["error"] == "the disk is full"
    assert second["error"] == "the first process stopped: the disk is full"
