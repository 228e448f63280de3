"""The command in this process, and a real server for it to talk to."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.bundles import bundle_at
from tests.command import run_hmc
from tests.once import Once
from tests.processes import environment
from tests.serving.fakes import FakeFactory, write_bundle
from tests.support.files import write_lines
from tests.tiny import SENTENCES, tiny_architecture, tiny_checkpoint_at
from typer.testing import Result

from hmc.artifact import Checkpoint, HeadLayout, load_checkpoint, save_checkpoint
from hmc.artifact.checkpoint.slimming import masked_tensors, slim_tensors
from hmc.artifact.model.heads import select_heads
from hmc.serving import DecodeOptions, Translator
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings

Hmc = Callable[..., Result]
NEEDED = 12
"""Heads that the model `prunable` cannot do without; all others add nothing."""


@pytest.fixture
def hmc() -> Hmc:
    """Runs `hmc ARGUMENTS…`, optionally with bytes on stdin."""

    def run(*arguments: str | Path, stdin: bytes | None = None) -> Result:
        return run_hmc(arguments, stdin=stdin, env={"COLUMNS": "200"})

    return run


@pytest.fixture
def fake_bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "bundle")


@pytest.fixture
def factory() -> FakeFactory:
    return FakeFactory()


@pytest.fixture
def server(fake_bundle: Path, factory: FakeFactory) -> Iterator[BackgroundServer]:
    with BackgroundServer(fake_bundle, ServerSettings(port=0), factory) as running:
        yield running


def _needed(checkpoint: Checkpoint) -> HeadLayout:
    """The NEEDED best heads of the checkpoint."""
    assert checkpoint.gates
    return select_heads(checkpoint.gates, checkpoint.layout, NEEDED)


@pytest.fixture(scope="session")
def prunable(once: Once) -> Path:
    """A checkpoint of 24 heads in one layer a stack, with W_O zero for all but its NEEDED best heads. A search compiles
    it at many budgets, and fewer layers take less time."""
    return once(_prunable_at)


def _prunable_at(path: Path) -> None:
    arch = tiny_architecture(encoder_layers=1, decoder_layers=1, heads=8)
    checkpoint = tiny_checkpoint_at(path.with_suffix(".whole"), arch=arch)
    best = _needed(checkpoint)
    checkpoint.tensors = masked_tensors(checkpoint.tensors, checkpoint.architecture, checkpoint.layout, best)
    save_checkpoint(checkpoint, path)


@pytest.fixture(scope="session")
def pruned(prunable: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prunable checkpoint without the heads that add nothing. It translates alike, and needs every head."""
    checkpoint = load_checkpoint(prunable)
    best = _needed(checkpoint)
    checkpoint.tensors = slim_tensors(checkpoint.tensors, checkpoint.architecture, checkpoint.layout, best)
    checkpoint.config = checkpoint.config.model_copy(update={"head_layout": best.to_json()})
    path = tmp_path_factory.mktemp("pruned") / "checkpoint"
    save_checkpoint(checkpoint, path)
    return path


@pytest.fixture(scope="session")
def few(prunable: Path, once: Once, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Sentences, and as references their translations by the prunable model, so that `full` has 100 BLEU."""
    folder = tmp_path_factory.mktemp("few")
    src, ref = folder / "tiny.en", folder / "tiny.de"
    with Translator(once(bundle_at, prunable), "full") as translator:
        written = translator.translate(SENTENCES, DecodeOptions(beam_size=1))
    write_lines(src, SENTENCES)
    write_lines(ref, [translation.text for translation in written])
    return src, ref


@pytest.fixture(scope="session")
def pairs(few: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same as often as makes a hundred, which a search with a confidence wants."""
    folder = tmp_path_factory.mktemp("pairs")
    src, ref = (folder / side.name for side in few)
    for many, side in zip((src, ref), few, strict=True):
        many.write_text(side.read_text(encoding="utf-8") * 9, encoding="utf-8")
    return src, ref


@pytest.fixture
def fails(hmc: Hmc, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What `hmc serve` writes to stderr when it cannot start, in this process; checks the exit code."""

    def serves(*_: object) -> None:
        raise AssertionError("it serves")

    monkeypatch.setattr("hmc.cli.running._announce", serves)
    monkeypatch.setattr("hmc.serving.server.observing.logs.set_up", lambda *_, **__: None)  # the log of this process

    def run(*arguments: str | Path) -> str:
        ran = hmc("serve", *arguments)
        assert ran.exit_code == 2, ran.output
        assert "Traceback" not in ran.stderr
        return ran.stderr

    return run


def in_a_process(hash_seed: int, *words: str | Path) -> subprocess.Popen[str]:
    """Runs `hmc WORDS…` in a new process."""
    command = [sys.executable, "-m", "hmc.cli", *map(str, words)]
    return subprocess.Popen(
        command, env=environment(PYTHONHASHSEED=str(hash_seed)), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
