"""What an analysis looks at: a checkpoint as a PyTorch model in evaluation mode, and parallel text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from hmc.artifact.checkpoint import Checkpoint, checkpoint_digest, load_checkpoint
from hmc.artifact.errors import DeviceUnavailableError, InvalidRequestError
from hmc.artifact.heads import HeadLayout
from hmc.training.analysis.result import CheckpointSource, CorpusSource, corpus_source
from hmc.training.convert import model_from_checkpoint
from hmc.training.parallel_text import Pair, first_pairs, read_pairs
from hmc.training.transformer import Transformer
from hmc.training.vocabulary import Vocabulary

Progress = Callable[[str], None]


def silent(_: str) -> None:
    """Progress for those who want none."""


@dataclass(frozen=True)
class Subject:
    """A checkpoint under study. The model is in evaluation mode and has no gates."""

    path: Path
    checkpoint: Checkpoint
    model: Transformer
    vocabulary: Vocabulary
    source: CheckpointSource

    @property
    def layout(self) -> HeadLayout:
        """Heads that are open in the checkpoint."""
        return self.checkpoint.layout

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target language."""
        return self.checkpoint.config.source_language, self.checkpoint.config.target_language


def choose_device(name: str) -> torch.device:
    """`auto`, `cpu`, `cuda` or `cuda:N`. Raises InvalidRequestError, DeviceUnavailableError."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = name.partition(":")
    if kind not in {"cpu", "cuda"} or (index and not (kind == "cuda" and index.isdecimal())):
        raise InvalidRequestError(f"device {name!r}: choose auto, cpu, cuda or cuda:N")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise DeviceUnavailableError(
            f"device {name}: PyTorch sees {torch.cuda.device_count()} CUDA devices; choose cpu, or install a CUDA build"
        )
    return torch.device(name)


def load_subject(path: Path, device: str = "auto") -> Subject:
    """Reads a checkpoint. Raises InvalidArtifactError, InvalidRequestError, DeviceUnavailableError."""
    place = choose_device(device)
    checkpoint = load_checkpoint(path)
    model = model_from_checkpoint(checkpoint).to(place).eval().requires_grad_(False)
    source = CheckpointSource(name=str(path), digest=checkpoint_digest(path), heads=checkpoint.layout.total)
    return Subject(path, checkpoint, model, Vocabulary(checkpoint.tokenizer), source)


@dataclass(frozen=True)
class Text:
    """Sentence pairs of a corpus."""

    pairs: tuple[Pair, ...]
    source: CorpusSource

    @property
    def sources(self) -> list[str]:
        """Source sentences."""
        return [source for source, _ in self.pairs]

    @property
    def references(self) -> list[str]:
        """Target sentences."""
        return [target for _, target in self.pairs]


def read_text(corpus: str, languages: tuple[str, str], sentences: int = 0) -> Text:
    """The first `sentences` pairs (0: all) of a corpus named as in a recipe; pairs with an empty side are left out.

    Raises InvalidRequestError.
    """
    if sentences < 0:
        raise InvalidRequestError(f"sentences {sentences}: choose 1 or more, or 0 for all")
    filled = (pair for pair in read_pairs(corpus, languages) if all(side.strip() for side in pair))
    pairs = tuple(first_pairs(corpus, filled, sentences or None))
    if len(pairs) < 2:
        raise InvalidRequestError(
            f"corpus {corpus!r} has {len(pairs)} sentence pairs with text on both sides; an analysis needs 2 or more"
        )
    return Text(pairs, corpus_source(corpus, pairs))
