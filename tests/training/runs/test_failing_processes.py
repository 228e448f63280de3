"""What goes wrong in one of two processes is decided alike, or ends both."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.files import write_pair
from tests.tiny import SENTENCES
from tests.training.runs.test_processes import recipe

pytestmark = pytest.mark.slow


def run(folder: Path, fault: str) -> list[dict[str, Any]]:
    """What both processes saw."""
    settings = recipe(write_pair(folder / "text", SENTENCES * 4), 2, 4)
    description = {"recipe": settings.model_dump(mode="json"), "out": str(folder / "r"), "fault": fault}
    (folder / "description.json").write_text(json.dumps(description))
    script = Path(__file__).with_name("failing_processes.py")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1"}
    finished = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script),
         str(folder / "description.json")],
        env=environment, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr[-4000:]
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in (0, 1)]


def test_a_loss_that_is_nan_in_one_process_is_skipped_in_both(tmp_path: Path) -> None:
    first, second = run(tmp_path, "loss")
    assert first == second
    assert not first["error"]
    assert all(math.isfinite(value) for value in first["sums"].values())
    rows = [json.loads(line) for line in (tmp_path / "r" / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row.get("skipped") == 1] == [2]
    assert [row["step"] for row in rows if "loss" in row] == [1, 3, 4]


def test_an_error_of_the_first_process_ends_both(tmp_path: Path) -> None:
    first, second = run(tmp_path, "evaluation")
    assert first["error"] == "the disk is full"
    assert second["error"] == "the first process stopped: the disk is full"
