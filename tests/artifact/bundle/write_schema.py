"""Writes the present version's bundle for `test_old_schemas`: `python -m tests.artifact.bundle.write_schema`."""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path

from tests.tiny import SENTENCES, tiny_architecture, tiny_checkpoint_at

from hmc.artifact.bundle.manifest import SCHEMA_VERSION
from hmc.benchmark import CompilePlan, TestSet, compile_and_score
from hmc.compiler import LevelRequest

ARCHITECTURE = tiny_architecture(
    d_model=16, ffn_dim=16, encoder_layers=1, decoder_layers=1, heads=2, head_dim=8, max_positions=32
)

if __name__ == "__main__":
    target = Path(__file__).parents[2] / "data" / f"bundle_schema_{SCHEMA_VERSION}.tar.gz"
    with tempfile.TemporaryDirectory() as folder, tarfile.open(target, "w:gz") as archive:
        checkpoint, bundle = Path(folder) / "checkpoint", Path(folder) / "bundle"
        tiny_checkpoint_at(checkpoint, arch=ARCHITECTURE)
        references = TestSet("tiny", tuple(SENTENCES), tuple(SENTENCES))
        plan = CompilePlan([LevelRequest(checkpoint)], bundle, ("fp32", "int8"), SENTENCES, test_set=references)
        compile_and_score(plan)
        archive.add(bundle, f"schema_{SCHEMA_VERSION}")
