"""`hmc --help` loads nothing heavy, and neither does any other `--help`."""

import json
import subprocess
import sys

from tests.processes import environment

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


def probe(*arguments: str) -> tuple[str, list[str]]:
    """The output of `hmc ARGUMENTS…`, and the heavy modules that it loads."""
    command = [sys.executable, "-c", PROBE, *arguments]
    ran = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment(COLUMNS="120", NO_COLOR="1")
    )
    assert ran.returncode == 0, ran.stderr
    printed, _, last = ran.stdout.rstrip().rpartition("\n")
    report = json.loads(last)
    assert report["code"] == 0, ran.stdout + ran.stderr
    return printed, [name for name in HEAVY if name in report["modules"]]


def test_help_loads_nothing_heavy() -> None:
    printed, heavy = probe("--help")
    assert heavy == []
    for command in ("train", "prune", "compile", "serve", "translate", "levels", "bench", "demo", "import", "export"):
        assert command in printed


def test_help_of_a_command_loads_nothing_heavy() -> None:
    _, heavy = probe("serve", "--help")
    assert heavy == []
