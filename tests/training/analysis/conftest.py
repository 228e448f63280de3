"""A tiny checkpoint with an uneven head layout, and a parallel text whose references the model can partly reach."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.files import write_pair
from tests.support.trained import CHECKPOINT, ENGLISH, GERMAN
from tests.tiny import SENTENCES, tiny_architecture, tiny_checkpoint_at
from tests.training.analysis.helpers import LAYOUT

from hmc.training.analysis.common.subject import Subject, Text, load_subject, read_text


@pytest.fixture(scope="session")
def uneven_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint of layout LAYOUT."""
    path = tmp_path_factory.mktemp("analysis") / "checkpoint"
    tiny_checkpoint_at(path, layout=LAYOUT, arch=tiny_architecture(head_dim=8))
    return path


@pytest.fixture(scope="session")
def subject(uneven_checkpoint: Path) -> Subject:
    """The checkpoint on the CPU. Read-only."""
    return load_subject(uneven_checkpoint, "cpu")


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """'SRC TGT': each tiny sentence is to be translated into the next one."""
    folder = tmp_path_factory.mktemp("corpus")
    return write_pair(folder, SENTENCES, [*SENTENCES[1:], SENTENCES[0]])


@pytest.fixture(scope="session")
def text(corpus: str) -> Text:
    """The corpus, read."""
    return read_text(corpus, ("en", "de"))


@pytest.fixture(scope="session")
def demo() -> Subject:
    """The embedded model: trained, 144 heads. Read-only."""
    return load_subject(CHECKPOINT, "cpu")


@pytest.fixture(scope="session")
def demo_text() -> Text:
    """24 pairs that the embedded model translates well."""
    return read_text(f"{ENGLISH} {GERMAN}", ("en", "de"), sentences=24)
