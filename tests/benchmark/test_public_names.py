"""The public names of `hmc.benchmark` are imported only when they are used."""

from __future__ import annotations

import os
import subprocess
import sys


def loaded(code: str) -> set[str]:
    """Top-level modules that a new interpreter has loaded after `code`."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", f"{code}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return set(ran.stdout.split())


def test_a_name_loads_only_what_it_needs() -> None:
    assert not {"onnxruntime", "onnx", "sacrebleu", "rich"} & loaded("import hmc.benchmark")
    assert not {"onnx", "onnx_ir", "matplotlib"} & loaded("from hmc.benchmark import run_benchmark, measure_quality")
