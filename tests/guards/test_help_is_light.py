"""`hmc --help` loads nothing heavy, and neither does any other `--help`."""

import json
import os
import subprocess
import sys
from pathlib import Path

HEAVY = ("torch", "onnx", "onnx_ir", "onnxruntime", "datasets", "matplotlib", "lightning_fabric", "pandas", "pyarrow")

# Runs the command in a fresh interpreter and prints, last, the top-level modules that it loaded.
PROBE = """
import json, sys
from hmc.cli.main import main
sys.argv = ["hmc", *sys.argv[1:]]
try:
    main()
except SystemExit as stop:
    code = stop.code or 0
else:
    code = 0
print()
print(json.dumps({"code": code, "modules": sorted({name.split(".")[0] for name in sys.modules})}))
"""


def probe(repository: Path, *arguments: str) -> tuple[str, list[str]]:
    """What `hmc arguments…` prints, and which heavy modules it loads."""
    roots = [str(path.parent) for path in repository.glob("*/hmc")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(roots), "COLUMNS": "120", "NO_COLOR": "1"}
    command = [sys.executable, "-c", PROBE, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr
    printed, _, last = ran.stdout.rstrip().rpartition("\n")
    report = json.loads(last)
    assert report["code"] == 0, ran.stdout + ran.stderr
    return printed, [name for name in HEAVY if name in report["modules"]]


def test_help_loads_nothing_heavy(repository: Path) -> None:
    printed, heavy = probe(repository, "--help")
    assert heavy == []
    for command in ("train", "prune", "compile", "serve", "translate", "levels", "bench", "demo", "import", "export"):
        assert command in printed


def test_help_of_a_command_loads_nothing_heavy(repository: Path) -> None:
    _, heavy = probe(repository, "serve", "--help")
    assert heavy == []
