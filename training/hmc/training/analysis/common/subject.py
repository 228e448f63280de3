"""The input of an analysis: a checkpoint as a PyTorch model in evaluation mode, and parallel text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hmc.artifact.checkpoint.checkpoint import Checkpoint, checkpoint_digest, load_checkpoint
from hmc.artifact.errors import DeviceUnavailableError, InvalidArtifactError, InvalidRequestError
from hmc.artifact.model.heads import HeadLayout
from hmc.training.analysis.common.result import CheckpointSource, CorpusSource, Data, Result, corpus_source
from hmc.training.data.counts import PairCounts
from hmc.training.data.parallel_text import filled_pairs, first_pairs, read_pairs
from hmc.training.data.rows import Pair
from hmc.training.data.vocabulary import Vocabulary
from hmc.training.model.checkpoints import model_from_checkpoint
from hmc.training.model.cpu import leave_out_cudnn
from hmc.training.model.transformer import Transformer

Progress = Callable[[str], None]
"""Called with one line of text whenever an analysis has done a part of its work."""


def silent(_: str) -> None:
    """A progress callback that ignores the text."""


@dataclass(frozen=True)
class Subject:
    """A checkpoint and its model, which is in evaluation mode and has no gates."""

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

    def result(self, command: str, *corpora: CorpusSource, settings: dict[str, Any], data: Data) -> Result[Data]:
        """What the analysis `command` of this checkpoint found in texts."""
        read = list(corpora)
        return Result(command=command, checkpoints=[self.source], corpora=read, settings=settings, data=data)

    def check_weights(self) -> None:
        """Raises InvalidArtifactError with the names of the tensors that hold NaN or infinity."""
        broken = [name for name, tensor in self.model.state_dict().items() if not torch.isfinite(tensor).all()]
        if broken:
            problems = [f"tensor {name} holds NaN or infinity" for name in broken]
            fix = "Use an earlier checkpoint of the run: training has diverged."
            raise InvalidArtifactError(f"checkpoint {self.path}", problems, fix)


def overflow(what: str) -> InvalidRequestError:
    """The error for computed values that are NaN or infinite although all weights are finite."""
    return InvalidRequestError(
        f"{what} are NaN or infinite, although all weights are finite: the weights are too large to compute with in "
        "fp32; use an earlier checkpoint of the run"
    )


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
    """Reads a checkpoint and puts its model on a device.

    Raises InvalidArtifactError for a checkpoint that cannot be used, NaN weights included; InvalidRequestError for an
    unknown name of a device; DeviceUnavailableError for a device that this machine does not have.
    """
    place = choose_device(device)
    leave_out_cudnn()
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
    """The first `sentences` pairs (0: all) of a corpus named as in a recipe. Pairs with an empty side are left out.

    Raises InvalidRequestError for a corpus that cannot be read or has fewer than two such pairs.
    """
    if sentences < 0:
        raise InvalidRequestError(f"sentences {sentences}: choose 1 or more, or 0 for all")
    counts = PairCounts()
    filled = filled_pairs(read_pairs(corpus, languages, counts), counts)
    pairs = tuple(first_pairs(corpus, filled, sentences or None))
    if len(pairs) < 2:
        raise InvalidRequestError(
            f"corpus {corpus!r} has {len(pairs)} sentence pairs with text on both sides; an analysis needs 2 or more"
        )
    empty = [f"{counts.empty:,} of {counts.pairs:,} pairs have an empty side, and are left out"] if counts.empty else []
    return Text(pairs, corpus_source(corpus, pairs, [*empty, *counts.column_warnings()]))
