"""Every block of Python in the README and the documents runs, against a real bundle and a real server."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from tests.once import Once
from tests.processes import REPOSITORY
from tests.tiny import SENTENCES

from hmc.compiler import LevelRequest, compile_bundle
from hmc.serving.client import Client
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings

DOCUMENTS = (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md")))
FOUND = {
    path.name: re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL) for path in DOCUMENTS
}
BLOCKS = [pytest.param(block, id=f"{name}-{n}") for name, blocks in FOUND.items() for n, block in enumerate(blocks)]
ADDRESS = re.compile(r'"(?:localhost|a|b):50051"')


def _documented_bundle_at(path: Path, checkpoint: Path) -> None:
    """A bundle with the levels that documents name, of the tiny model."""
    requests = [LevelRequest(checkpoint), LevelRequest(checkpoint, 12, name="h36")]
    compile_bundle(requests, path, precisions=("fp32", "int8"), calibration=SENTENCES)


@pytest.fixture(scope="module")
def bundle(tiny_checkpoint: Path, once: Once) -> Path:
    return once(_documented_bundle_at, tiny_checkpoint)


@pytest.fixture(scope="module")
def server(bundle: Path) -> Iterator[BackgroundServer]:
    with BackgroundServer(bundle, ServerSettings(port=0, device="cpu", threads=1, token="secret")) as running:
        yield running


def test_there_are_blocks() -> None:
    assert len(BLOCKS) >= 4


@pytest.mark.parametrize("block", BLOCKS)
def test_it_runs(
    block: str, server: BackgroundServer, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """What a reader has to fill in is filled in: the address, the token, texts; and there is no TLS."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bundle").symlink_to(bundle)
    (tmp_path / "in.txt").write_text("A man.\nA dog.\n", encoding="utf-8")
    here = f'"{server.address}"'
    source = ADDRESS.sub(here, block).replace(', tls_ca="ca.pem"', "")
    source = re.sub(rf"Client\((\[?{here}(?:, {here}\])?)(?!, token)", r"Client(\1, token=token", source)
    with Client(server.address, token="secret") as client:
        known = {
            "token": "secret",
            "lines": SENTENCES[:3],
            "text": "A man. A dog runs.\n\n{name} waits.",
            "client": client,
        }
        _run(compile(source, block, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), known)
    assert capsys.readouterr().out


def _run(code: CodeType, names: dict[str, Any]) -> None:
    """Runs a block, in an event loop where it waits."""

    async def waiting() -> None:
        await eval(code, names)  # noqa: S307 - the blocks are ours

    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(waiting())
    else:
        exec(code, names)
