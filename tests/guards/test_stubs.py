"""Committed code that is generated equals what its sources generate."""

import subprocess
import sys
from pathlib import Path

from tests.counts import GENERATED
from tests.sync_client import sync_client


def test_committed_stubs_equal_regenerated_ones(repository: Path, tmp_path: Path) -> None:
    protos = repository / "protos"
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    sources = [str(path) for path in sorted(protos.rglob("*.proto"))]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(protos), *outputs, *sources]
    generated = subprocess.run(command, capture_output=True, text=True, check=False)
    assert generated.returncode == 0, generated.stderr

    fresh = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*_pb2*.py*")}
    committed = {
        path.relative_to(protos): path.read_bytes() for path in protos.rglob("*_pb2*.py*") if path.suffix != ".pyc"
    }
    assert sorted(committed) == sorted(fresh)
    stale = [str(path) for path in sorted(fresh) if committed[path] != fresh[path]]
    assert not stale, f"stale stubs {stale}: run `make protos`"


def test_the_synchronous_client_is_made_from_the_one_for_asyncio(repository: Path) -> None:
    committed = (repository / GENERATED).read_text(encoding="utf-8")
    assert committed == sync_client(), "stale client: run `make protos`"
