"""Audits the exact versions in constraints.txt with pip-audit. Fails for a known hole; a database that cannot be
reached, or that knows none of the packages, is reported and fails nothing: `python .ci/audit.py [CONSTRAINTS]`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

SECONDS = 300


def main() -> int:
    constraints = sys.argv[1] if len(sys.argv) > 1 else "constraints.txt"
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "audit.json"
        command = [sys.executable, "-m", "pip_audit", "--requirement", constraints, "--no-deps", "--disable-pip"]
        try:
            ran = subprocess.run(
                [*command, "--progress-spinner", "off", "--format", "json", "--output", str(report)],
                capture_output=True, text=True, timeout=SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return not_audited(f"no answer within {SECONDS} s")
        if not report.exists():
            return not_audited(ran.stderr.strip().splitlines()[-1] if ran.stderr.strip() else "no report")
        return judge(json.loads(report.read_text(encoding="utf-8"))["dependencies"])


def judge(dependencies: list[dict[str, object]]) -> int:
    """0 unless one of the dependencies of pip-audit's report has a known hole."""
    audited = [each for each in dependencies if "skip_reason" not in each]
    if not audited:
        return not_audited("the database knows none of the packages")
    holes = [each for each in audited if each.get("vulns")]
    for each in holes:
        sys.stderr.write(f"known hole: {json.dumps(each)}\n")
    sys.stderr.write(f"{len(audited)} of {len(dependencies)} dependencies audited, {len(holes)} with known holes\n")
    return int(bool(holes))


def not_audited(why: str) -> int:
    """Says that nothing was audited, which fails nothing."""
    sys.stderr.write(f"dependencies were not audited: {why}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
