"""`hmc.training` loads its public names on first use."""

from __future__ import annotations

import os
import subprocess
import sys

IMPORT = """
import sys
import hmc.training
assert not {"torch", "numpy", "lightning_fabric"} & sys.modules.keys(), "importing the package loads nothing"
from hmc.training import Recipe, load_recipe
assert "torch" not in sys.modules, "reading a recipe needs no PyTorch"
from hmc.training import Transformer
assert "torch" in sys.modules
"""


def test_importing_the_package_does_not_load_pytorch() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    subprocess.run([sys.executable, "-c", IMPORT], env=environment, check=True)
