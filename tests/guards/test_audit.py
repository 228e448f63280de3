"""The audit of dependencies fails for a known hole only, and does not call silence a success."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.processes import REPOSITORY

FAKE = """
import json, os, sys
report = os.environ["REPORT"]
if not report:
    sys.exit("ConnectionError: no network")
open(sys.argv[sys.argv.index("--output") + 1], "w").write(report)
"""


def audit(tmp_path: Path, dependencies: list[dict[str, object]] | None) -> tuple[int, str]:
    """Runs the step with a pip-audit that writes this report, or that reaches nothing."""
    (tmp_path / "pip_audit.py").write_text(FAKE)
    report = "" if dependencies is None else json.dumps({"dependencies": dependencies})
    environment = {"PYTHONPATH": str(tmp_path), "REPORT": report, "PATH": ""}
    command = [sys.executable, str(REPOSITORY / ".ci" / "audit.py")]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
    return ran.returncode, ran.stderr


def test_outcomes(tmp_path: Path) -> None:
    clean: dict[str, object] = {"name": "a", "vulns": []}
    hole: dict[str, object] = {"name": "b", "vulns": [{"id": "PYSEC-1"}]}
    unknown: dict[str, object] = {"name": "c", "skip_reason": "not found"}
    assert audit(tmp_path, [clean, unknown]) == (0, "1 of 2 dependencies audited, 0 with known holes\n")
    code, said = audit(tmp_path, [clean, hole])
    assert code == 1
    assert "PYSEC-1" in said
    assert audit(tmp_path, [unknown]) == (0, "dependencies were not audited: the database knows none of the packages\n")
    assert audit(tmp_path, None) == (0, "dependencies were not audited: ConnectionError: no network\n")
