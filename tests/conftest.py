"""Shared fixtures: a tiny model with deterministic weights as checkpoint and bundle, and the optional corpora."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.tiny import LEVELS, SENTENCES, tiny_checkpoint_at


@pytest.fixture(scope="session", autouse=True)
def weight_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Packed weights of the models of these tests do not stay on the machine."""
    os.environ["HMC_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of 24 heads (2 + 2 layers, 4 heads) with gates; random weights, real tokenizer."""
    path = tmp_path_factory.mktemp("tiny") / "checkpoint"
    tiny_checkpoint_at(path)
    return path


@pytest.fixture(scope="session")
def tiny_bundle(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with levels full, h12, h5 in fp32 and int8. Read-only: copy it before changing anything."""
    from hmc.compiler.bundle_builder import LevelRequest
    from hmc.compiler.bundle_writer import compile_bundle

    path = tmp_path_factory.mktemp("tiny") / "bundle"
    requests = [LevelRequest(tiny_checkpoint, heads) for heads in LEVELS]
    compile_bundle(requests, path, precisions=("fp32", "int8"), calibration=SENTENCES)
    return path


@pytest.fixture(scope="session")
def data() -> Path:
    """Folder of the optional corpora, from HMC_DATA; tests that need it skip without."""
    folder = os.environ.get("HMC_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("HMC_DATA does not name a folder with the optional corpora (multi30k/ …)")
    return Path(folder)
