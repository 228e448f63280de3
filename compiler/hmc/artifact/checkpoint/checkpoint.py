"""The checkpoint directory: config.json, model.safetensors, a tokenizer and optional scores of heads and metrics."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hmc.artifact.checkpoint.extras import EXTRAS, Extras, ScoreName, read_extras, write_extras
from hmc.artifact.checkpoint.weights import StoredAs, Tensors, read_weights, weights_problems, write_weights
from hmc.artifact.errors import HmcError, InvalidArtifactError, InvalidRequestError, field_problems
from hmc.artifact.git_lfs import why
from hmc.artifact.model.architecture import Architecture, tensor_shapes
from hmc.artifact.model.ffn import FfnWidths
from hmc.artifact.model.heads import HeadLayout, HeadScores
from hmc.artifact.model.layers import NONE_REMOVED, RemovedLayers
from hmc.artifact.storage.files import digest_problems, replace_directory, sha256_file
from hmc.artifact.storage.formats import Format, mistaken, read_json
from hmc.artifact.tokenizer.files import (
    EVERY,
    TARGET_VOCABULARY,
    TOKENIZER,
    VOCABULARY,
    TokenizerFiles,
    presence_problems,
    read_tokenizer,
    vocabulary_problems,
    write_tokenizer,
)
from hmc.artifact.tokenizer.tokenizer import joint_problems

SCHEMA_VERSION = 1
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
FILES = frozenset((CONFIG, WEIGHTS, *EXTRAS, *EVERY))
FORMAT = Format(
    "a checkpoint", CONFIG, lambda content: content.keys() >= {"architecture", "head_layout"}, lambda _: FILES,
    digests=True,
)  # fmt: skip
"""What `save_checkpoint` replaces."""
FIX = "Write it again with `hmc train` or `hmc prune`, or copy it again from where it was whole."
MARIAN = f"{CONFIG} is of a MarianMT model of Hugging Face, not of a checkpoint"
IMPORT = "Read it with `hmc import DIR --out CKPT`, and give CKPT here."


class CheckpointConfig(BaseModel):
    """Contents of `config.json`."""

    model_config = ConfigDict(extra="forbid")

    schema_version: int = SCHEMA_VERSION
    architecture: Architecture
    head_layout: dict[str, list[list[int]]]
    ffn_widths: FfnWidths | None = Field(default=None, exclude_if=lambda widths: widths is None)
    """Feed-forward neurons of every layer; without it each has the architecture's `ffn_dim`."""
    removed_layers: RemovedLayers = Field(default=NONE_REMOVED, exclude_if=lambda removed: not removed)
    """Layers that were removed whole: their output is their input."""
    source_language: str
    target_language: str
    provenance: dict[str, Any] = {}
    """Where the weights come from: command, data, versions, seed."""

    @property
    def layout(self) -> HeadLayout:
        """The heads that are there."""
        return HeadLayout.from_json(self.head_layout)


@dataclass
class Checkpoint:
    """A model in memory, framework-free. `tensors` are fp32 whatever the file stores."""

    config: CheckpointConfig
    tensors: Tensors
    tokenizer: TokenizerFiles
    """Serialized SentencePiece model, or the files of a Marian tokenizer."""
    gates: HeadScores | None = None
    """log α per head, kind → `[layers, heads]`. A removed head keeps the value with which it was closed."""
    importance: HeadScores | None = None
    """I_h per head (Michel et al. 2019), same shape."""
    scores: dict[ScoreName, HeadScores] = field(default_factory=dict)
    """Other scores per head, same shape, by their names (`hmc.artifact.checkpoint.extras`)."""
    metrics: dict[str, Any] = field(default_factory=dict)

    @property
    def architecture(self) -> Architecture:
        return self.config.architecture

    @property
    def layout(self) -> HeadLayout:
        return self.config.layout

    @property
    def ffn_widths(self) -> FfnWidths:
        return self.config.ffn_widths or self.architecture.full_ffn()

    @property
    def removed_layers(self) -> RemovedLayers:
        return self.config.removed_layers

    def score(self, name: ScoreName) -> HeadScores | None:
        """The score of that name; None if the checkpoint has none."""
        return {"gates": self.gates, "importance": self.importance, **self.scores}.get(name)

    def without_scores(self) -> Checkpoint:
        """The same model without scores, because scores are wrong for other weights or other heads."""
        return replace(self, gates=None, importance=None, scores={})


def checkpoint_problems(path: Path) -> list[str]:
    """Every problem of the checkpoint directory `path`; empty if it is usable. Reads only the header of the weights."""
    if not path.is_dir():
        return [f"{path} is not a directory"]
    if is_marian(path):
        return [MARIAN]
    problems = [] if (path / WEIGHTS).is_file() else [f"{WEIGHTS} is missing"]
    problems += presence_problems(path)
    config, wrong = _read(path)
    if config is None:
        return _with_digests(path, wrong + problems)
    if (path / WEIGHTS).is_file() and not wrong:
        shapes = tensor_shapes(config.architecture, config.layout, config.ffn_widths, config.removed_layers)
        problems += weights_problems(path / WEIGHTS, shapes)
    problems += _tokenizer_problems(path, config.architecture)
    problems += read_extras(path, config.architecture)[1]
    return _with_digests(path, problems + wrong)


def _with_digests(path: Path, problems: list[str]) -> list[str]:
    """The problems, and files that are not as they were written. A file that is missing is named once."""
    changed = digest_problems(path)
    named = [x for x in changed if x.endswith(" is missing") and any(other.startswith(x) for other in problems)]
    return problems + [problem for problem in changed if problem not in named]


def _read(path: Path) -> tuple[CheckpointConfig | None, list[str]]:
    """What a directory says of its model, None if that cannot be read; and every contradiction in it."""
    if not (path / CONFIG).is_file():
        return None, [f"{CONFIG} is missing"]
    try:
        config = read_config(path)
        layout = config.layout
        arch = config.architecture
        wrong = arch.layout_problems(layout)
        if config.ffn_widths:
            wrong += arch.ffn_problems(config.ffn_widths)
        if config.removed_layers and not wrong:
            wrong += arch.layer_problems(config.removed_layers, layout, config.ffn_widths or arch.full_ffn())
    except HmcError as error:
        return None, [str(error)]
    return config, wrong


def _tokenizer_problems(path: Path, arch: Architecture) -> list[str]:
    """Contradictions between the tokenizer files and the model."""
    vocabularies = {n: (path / n).read_bytes() for n in (VOCABULARY, TARGET_VOCABULARY) if (path / n).is_file()}
    if VOCABULARY in vocabularies:
        return vocabulary_problems(vocabularies, arch)
    if arch.source_vocab_size is not None and (path / TOKENIZER).is_file():
        return [f"{TOKENIZER} is one vocabulary, and the model has one for each side"]
    return joint_problems((path / TOKENIZER).read_bytes(), arch) if (path / TOKENIZER).is_file() else []


def is_marian(path: Path) -> bool:
    """Whether `path` is a Hugging Face MarianMT model, which has to be imported first. Any path may be asked about."""
    config, _ = read_json(path / CONFIG)
    return config.get("model_type") == "marian" and "architecture" not in config


def read_config(path: Path) -> CheckpointConfig:
    try:
        raw = json.loads((path / CONFIG).read_text(encoding="utf-8"))
        if isinstance(raw, dict) and raw.get("schema_version", SCHEMA_VERSION) != SCHEMA_VERSION:
            version = raw["schema_version"]
            raise HmcError(f"config.json has schema version {version}; this hmc reads {SCHEMA_VERSION}: upgrade hmc")
        return CheckpointConfig.model_validate(raw)
    except ValidationError as error:
        raise HmcError(f"config.json: {'; '.join(field_problems(error))}") from error
    except (ValueError, RecursionError) as error:
        raise HmcError(f"config.json {why(path / CONFIG, f'is not JSON: {error}')}") from error


def check_kind(path: Path) -> None:
    """Raises InvalidArtifactError where `path` does not exist, or holds something else than a checkpoint. The message
    names the command that accepts this folder."""
    if is_marian(path):
        raise InvalidArtifactError(f"checkpoint {path}", [MARIAN], IMPORT)
    if mistake := mistaken(path, "checkpoint"):
        raise InvalidArtifactError(f"checkpoint {path}", [mistake[0]], mistake[1])


def load_config(path: Path) -> CheckpointConfig:
    """Reads the model's configuration from a checkpoint directory, and ignores all other files.

    Raises InvalidArtifactError when config.json is missing or wrong.
    """
    check_kind(path)
    config, wrong = _read(path)
    wrong += digest_problems(path, [CONFIG])
    if config is None or wrong:
        raise InvalidArtifactError(f"checkpoint {path}", wrong, FIX)
    return config


def check_checkpoint(path: Path) -> None:
    """Raises InvalidArtifactError with what `checkpoint_problems` finds."""
    check_kind(path)
    if problems := checkpoint_problems(path):
        raise InvalidArtifactError(f"checkpoint {path}", problems, FIX)


def load_checkpoint(path: Path | str) -> Checkpoint:
    """Reads a checkpoint directory. Raises InvalidArtifactError that lists every problem."""
    path = Path(path)
    check_checkpoint(path)
    config = read_config(path)
    tensors = read_weights(path / WEIGHTS)
    if broken := [name for name, value in tensors.items() if not np.isfinite(value).all()]:
        raise InvalidArtifactError(f"checkpoint {path}", [f"tensor {n} holds NaN or infinity" for n in broken], FIX)
    extras, _ = read_extras(path, config.architecture)
    return Checkpoint(
        config=config,
        tensors=tensors,
        tokenizer=read_tokenizer(path),
        gates=extras.gates,
        importance=extras.importance,
        scores=extras.scores,
        metrics=extras.metrics,
    )


def save_checkpoint(checkpoint: Checkpoint, path: Path | str, *, dtype: StoredAs = "float32") -> None:
    """Writes the directory whole or not at all; `dtype` (`float32`, `float16` or `int8`) is how weights are stored.

    Raises InvalidRequestError if `path` holds files that no checkpoint has.
    """
    expected = tensor_shapes(
        checkpoint.architecture, checkpoint.layout, checkpoint.ffn_widths, checkpoint.removed_layers
    )
    wrong = [
        n
        for n in expected.keys() | checkpoint.tensors.keys()
        if n not in expected or n not in checkpoint.tensors or checkpoint.tensors[n].shape != expected[n]
    ]
    if wrong:
        raise InvalidArtifactError(
            f"checkpoint {path}",
            [
                f"tensor {n} does not fit the head layout, the feed-forward widths and the removed layers"
                for n in sorted(wrong)
            ],
            "This is a bug in whatever made the tensors.",
        )
    with replace_directory(Path(path), FORMAT) as folder:
        (folder / CONFIG).write_text(json.dumps(checkpoint.config.model_dump(mode="json"), indent=1) + "\n")
        write_weights(checkpoint.tensors, folder / WEIGHTS, dtype)
        write_tokenizer(checkpoint.tokenizer, folder)
        write_extras(Extras(checkpoint.gates, checkpoint.importance, checkpoint.scores, checkpoint.metrics), folder)


def checkpoint_digest(path: Path | str) -> str:
    """sha256 over the digests of config and weights: names the checkpoint a bundle was compiled from."""
    joined = "".join(sha256_file(Path(path) / name) for name in (CONFIG, WEIGHTS))
    return hashlib.sha256(joined.encode()).hexdigest()


def copy_files(source: Path, folder: Path) -> None:
    """Copies the files of a checkpoint, and no other files of its directory."""
    for name in FILES:
        if (source / name).is_file():
            shutil.copy2(source / name, folder / name)


def read_layout(path: Path) -> HeadLayout:
    """Reads a head layout from the `config.json` of a checkpoint directory, or from a JSON file.

    `HeadLayout.from_json` describes the JSON. Raises InvalidRequestError, InvalidArtifactError.
    """
    if path.is_dir():
        return load_config(path).layout
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InvalidRequestError(f"head layout {path} does not exist; give a checkpoint or a JSON file") from error
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"head layout {path} {why(path, f'is not JSON: {error}')}") from error
    if isinstance(value, dict):
        value = value.get("head_layout", value)
    try:
        return HeadLayout.from_json(value)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{path}: {error}") from error
    except (TypeError, ValueError, KeyError) as error:
        raise InvalidRequestError(
            f'{path}: a head layout is {{"encoder_self": [[0, 3], []], "decoder_self": …, "cross": …}}, a list of open '
            f"heads for every layer ({error})"
        ) from error
