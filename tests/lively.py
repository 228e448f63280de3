"""Fixtures of engine and serving. Their random model is tuned so that its translations differ in words and lengths; a
plain random one repeats one token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

from hmc.artifact import Precision, load_checkpoint, read_manifest, save_checkpoint
from hmc.artifact.bundle.shortlist import Lexicon
from hmc.engine.scheduling.worker import Worker
from hmc.serving import Translator
from tests.artifact.marian.opus import opus_directory
from tests.bundles import bundle_at
from tests.once import Once
from tests.serving.fakes import FakeFactory
from tests.serving.held_steps import HeldSteps, holding
from tests.serving.reference import Pieces, Reference
from tests.tiny import LEVELS, SENTENCES, tiny_checkpoint_at


@pytest.fixture(scope="session")
def lively_checkpoint(once: Once) -> Path:
    """As `tiny_checkpoint`. Random signs of the last norm keep a token from predicting itself; EOS is made likelier."""
    return once(_lively_checkpoint_at)


def _lively_checkpoint_at(path: Path) -> None:
    checkpoint = tiny_checkpoint_at(path, seed=4)
    signs = np.random.default_rng(4).choice([-1, 1], checkpoint.architecture.d_model).astype(np.float32)
    checkpoint.tensors["decoder.layers.1.final_layer_norm.weight"] *= signs
    checkpoint.tensors["final_logits_bias"].reshape(-1)[checkpoint.architecture.eos_id] += 3.3
    save_checkpoint(checkpoint, path)


@pytest.fixture(scope="session")
def lively_bundle(lively_checkpoint: Path, once: Once) -> Path:
    """Levels full, h12, h5 in fp32 and int8. Read-only."""
    return once(bundle_at, lively_checkpoint, LEVELS, ("fp32", "int8"))


@pytest.fixture(scope="session")
def lively_device_bundle(lively_checkpoint: Path, once: Once) -> Path:
    """Levels full and h12 in fp32, in device form. Read-only."""
    return once(bundle_at, lively_checkpoint, (24, 12), device_form=True)


@pytest.fixture(scope="session")
def multilingual_bundle(once: Once) -> Path:
    """A model from English into German and Dutch, by the tokens of target languages. Read-only."""
    return once(_multilingual_model_at) / "bundle"


def _multilingual_model_at(folder: Path) -> None:
    from hmc.artifact.marian.reader import import_marian

    opus_directory(folder / "opus")
    save_checkpoint(import_marian(folder / "opus"), folder / "checkpoint")
    bundle_at(folder / "bundle", folder / "checkpoint")


@pytest.fixture(scope="session")
def listed_bundle(lively_checkpoint: Path, once: Once) -> Path:
    """Levels with shortlists: full in fp32, int8 and int4. Read-only."""
    return once(_listed_bundle_at, lively_checkpoint)


def _listed_bundle_at(path: Path, checkpoint: Path) -> None:
    from hmc.compiler import BundleBuilder, LevelRequest, ShortlistText

    text = ShortlistText(SENTENCES, [*SENTENCES[5:], *SENTENCES[:5]], frequent=30, best=12)
    precisions: tuple[Precision, ...] = ("fp32", "int8", "int4")
    with BundleBuilder.open(path, [checkpoint], calibration=SENTENCES, shortlist=text) as builder:
        builder.finish([builder.add(LevelRequest(checkpoint), p, with_shortlist=True) for p in precisions])


@pytest.fixture(scope="module", params=["full", "h12", "full-shortlist"])
def level(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def bundle(level: str, lively_bundle: Path, listed_bundle: Path) -> Path:
    """The bundle that has the level."""
    return listed_bundle if level.endswith("-shortlist") else lively_bundle


@pytest.fixture(scope="module")
def pieces(bundle: Path) -> Pieces:
    return sentencepiece.SentencePieceProcessor(model_file=str(bundle / "tokenizer.model"))


@pytest.fixture(scope="module")
def translator(bundle: Path, level: str) -> Iterator[Translator]:
    with Translator(bundle, level, device="cpu", threads=1, max_rows=24) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def reference(bundle: Path, lively_checkpoint: Path, level: str) -> Reference:
    checkpoint, found = load_checkpoint(lively_checkpoint), read_manifest(bundle).level(level)
    lexicon = Lexicon.load(bundle / found.shortlist, checkpoint.architecture) if found.shortlist else None
    return Reference(checkpoint, found.layout, lexicon)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldSteps]:
    """The decoder steps of all engines in this process. Ask for it after the engine, which then closes after it."""
    held = HeldSteps()
    monkeypatch.setattr(Worker, "_step", holding(held, Worker._step))
    yield held
    held.release()


@pytest.fixture
def factory() -> Iterator[FakeFactory]:
    made = FakeFactory()
    yield made
    for translator in made.made:
        translator.release.set()
