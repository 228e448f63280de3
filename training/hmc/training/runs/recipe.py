"""Recipes: all settings of a training run, read from TOML and checked; `--set` overrides single settings."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, PlainValidator, ValidationError, field_validator, model_validator

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.git_lfs import why
from hmc.artifact.model.architecture import Activation
from hmc.training.distillation.settings import DistillSection
from hmc.training.headmask.spec import HeadMaskSpec
from hmc.training.section import Section

Beta = Annotated[float, Field(ge=0, lt=1)]
"""Decay rate of one of Adam's moments."""
OptimizerName = Literal["adam", "muon"]
Precision = Literal["32-true", "bf16-mixed"]


def _updates_or_epoch(value: object) -> object:
    if value == "epoch" or (isinstance(value, int) and value >= 1):
        return value
    if isinstance(value, str) and value.isdecimal() and int(value) >= 1:
        return int(value)
    raise ValueError(f"{value!r} is neither a number of updates, 1 or more, nor epoch")


class DataSection(Section):
    """Corpora. A corpus is one of

    - `"SRC TGT"`: two text files, plain or .gz, line by line translations of each other;
    - `"FILE.tsv[.gz]"`: source TAB target;
    - `"FILE.jsonl[.gz]"` or `"FILE.parquet"`: rows with a column for each side, see `hmc.training.data.rows.Columns`;
    - several of them, or a pattern: `"data/train-*.parquet"`, read in the order of their names;
    - `"hub:NAME[:CONFIG]"`: a Hugging Face data set with such columns.
    """

    source_language: str = "en"
    target_language: str = "de"
    train: list[str] = Field(min_length=1)
    dev: str
    max_length: int = Field(default=128, ge=4)
    """Longest sentence used for training, in tokens with EOS."""


class TokenizerSection(Section):
    """The tokenizer: a new joint SentencePiece BPE model, or an existing one."""

    vocab_size: int = Field(default=8000, ge=64)
    model: str | None = None
    """A checkpoint or a SentencePiece model. Its tokenizer is used, and none is trained."""
    bpe_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Probability of skipping a merge in training text (BPE-dropout, Provilkov et al. 2020). Two runs differ whatever
    the seed, because SentencePiece draws anew in every process. A resumed run keeps the tokens it drew."""
    bpe_dropout_copies: int = Field(default=8, ge=1)
    """Segmentations that BPE-dropout draws of each training pair. An epoch becomes as many times longer."""


class ModelSection(Section):
    """Shape of the Transformer. Fields of the same names in `Architecture` mean the same."""

    d_model: int = Field(default=512, gt=0, multiple_of=2)
    ffn_dim: int = Field(default=2048, gt=0)
    encoder_layers: int = Field(default=6, gt=0)
    decoder_layers: int = Field(default=6, gt=0)
    heads: int = Field(default=8, gt=0)
    head_dim: int | None = Field(default=None, gt=0)
    """Default: d_model / heads."""
    activation: Activation = "relu"
    max_positions: int = Field(default=512, gt=1)
    start_from: str | None = None
    """Checkpoint whose weights, vocabulary and languages the run starts from. Its sizes take the place of defaults
    above. Sizes that are set must equal its own, but layers may be a multiple of its layers, which are then
    repeated."""
    layout: str | None = None
    """Head layout to train with from the first step (Voita et al. 2019, table 2, right column): a checkpoint, or a JSON
    file with the open heads of every layer of `encoder_self`, `decoder_self` and `cross`. Default: every head."""


class TrainSection(Section):
    """Objective, optimiser and schedule (Vaswani et al. 2017, section 5.3; Sun et al. 2021, section 4.1)."""

    steps: int = Field(default=100_000, ge=1)
    batch_tokens: int = Field(default=4096, ge=16)
    """Tokens in a batch, padding included: twice its rows × its longest side."""
    accumulate: int = Field(default=1, ge=1)
    """Batches in one update; their gradients are summed."""
    optimizer: OptimizerName = "adam"
    """`muon`: Muon for the matrices of the layers, Adam for all else; see `hmc.training.runs.optimizer`."""
    learning_rate: float = Field(default=7e-4, gt=0)
    """Peak rate, reached at the end of warm-up. After it the rate falls with the inverse square root of the step."""
    warmup_steps: int = Field(default=4000, ge=1)
    """First updates, over which the rate rises linearly."""
    cooldown_steps: int = Field(default=0, ge=0)
    """Last updates, over which the rate falls linearly to zero."""
    patience: int | None = Field(default=None, ge=1)
    """Dev evaluations in a row, after the warm-up, without a better dev BLEU, after which the run ends before `steps`.
    Default: it never does. It may change when a run resumes."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    adam_betas: tuple[Beta, Beta] = (0.9, 0.98)
    adam_epsilon: float = Field(default=1e-9, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    clip_norm: float = Field(default=1.0, ge=0)
    """Largest gradient norm; larger gradients are scaled down to it. 0 turns clipping off."""
    headmask: str | None = None
    """Heads to mask in every update (Sun et al. 2021): `random:18`, `important:18`, a share such as `random:12.5%`, or
    only some kinds, such as `random:6@encoder_self`. `important:1/attention` masks one head of every attention. Words
    after a comma change how, such as `important:18,signed` or `random:18,rescaled,after=4000`; see
    `hmc.training.headmask.spec`. `headmask.json` in the run folder counts the masks of every head."""
    seed: int = Field(default=1, ge=0, le=2**32 - 1)

    @field_validator("headmask")
    @classmethod
    def _headmask_is_readable(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                HeadMaskSpec.parse(value)
            except InvalidRequestError as error:
                raise ValueError(str(error)) from error
        return value


class RunSection(Section):
    """How the run is carried out. These settings may change when a run resumes.

    `eval_every`, `eval_sentences`, `keep_checkpoints` and `average_checkpoints` decide which checkpoints are averaged.
    Every process has batches of its own, so `devices` and `nodes` multiply the batch. The other settings change no more
    than floating-point rounding.
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the run computes. auto: on CUDA if there is a device."""
    precision: Precision = "32-true"
    """`bf16-mixed`: products in bf16 (autocast), weights and moments in fp32."""
    compile: bool = False
    """Run the loss and its gradient as `torch.compile` writes them. On CUDA only; the first updates are slow."""
    devices: int = Field(default=1, ge=1)
    nodes: int = Field(default=1, ge=1)
    log_every: int = Field(default=50, ge=1)
    save_every: int = Field(default=500, ge=1)
    """Updates between saved states, from which a run resumes."""
    eval_every: Annotated[int | Literal["epoch"], PlainValidator(_updates_or_epoch), "N|epoch"] = 500
    """Updates between dev evaluations, or `epoch`: one after each pass over the training text. Each evaluation writes a
    checkpoint."""
    eval_sentences: int = Field(default=500, ge=1)
    """Dev sentences scored: the first of the dev text."""
    keep: Literal["best", "every"] = "best"
    """Which checkpoints are kept on disk: `best` of them by dev BLEU, or `every` one."""
    keep_checkpoints: int = Field(default=5, ge=1)
    """Checkpoints kept as the best ones. That of the last update is kept beside them where it came between two
    evaluations: a longer run will leave it out."""
    average_checkpoints: int | None = Field(default=None, ge=1)
    """Best checkpoints that are averaged at the end. Default: `keep_checkpoints`."""

    @model_validator(mode="after")
    def _averages_what_is_kept(self) -> RunSection:
        most = self.average_checkpoints or 0
        if self.keep == "best" and most > self.keep_checkpoints:
            raise ValueError(
                f"average_checkpoints {self.average_checkpoints} is above keep_checkpoints {self.keep_checkpoints}; "
                "only checkpoints that are kept can be averaged"
            )
        return self

    @property
    def averaged(self) -> int:
        """Number of checkpoints to average."""
        return self.average_checkpoints or self.keep_checkpoints


class Recipe(Section):
    """All settings of a training run."""

    data: DataSection
    tokenizer: TokenizerSection = TokenizerSection()
    model: ModelSection = ModelSection()
    train: TrainSection = TrainSection()
    distill: DistillSection = DistillSection()
    run: RunSection = RunSection()


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Reads a TOML recipe and applies overrides `section.key=value`, whose values are TOML or bare words.

    Paths in the recipe are relative to the working directory. Raises InvalidRequestError, which lists every problem and
    suggests the nearest known key for an unknown one.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise InvalidRequestError(f"recipe {path} does not exist") from error
    except OSError as error:
        raise InvalidRequestError(f"recipe {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"recipe {path} {why(path, f'is not TOML: {error}')}") from error
    for override in overrides:
        _apply_override(raw, override)
    try:
        return Recipe.model_validate(raw)
    except ValidationError as error:
        problems = "\n".join(f"  - {_explain(dict(e))}" for e in error.errors())
        raise InvalidRequestError(f"recipe {path}:\n{problems}") from error


def _apply_override(raw: dict[str, Any], override: str) -> None:
    name, separator, text = override.partition("=")
    section, dot, key = name.strip().partition(".")
    if not (separator and dot and key):
        raise InvalidRequestError(f"overrides {override!r}: write section.key=value, e.g. train.steps=2000")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    table = raw.setdefault(section, {})
    if not isinstance(table, dict):
        raise InvalidRequestError(
            f"overrides {override!r}: the recipe has `{section} = …`, but {section} is a table; write a line "
            f"[{section}] there and its keys below it"
        )
    table[key] = value


def _explain(error: dict[str, Any]) -> str:
    location = ".".join(map(str, error["loc"]))
    if error["type"] == "list_type" and isinstance(error["input"], str):
        return f"{location}: write a list, even of one element: {json.dumps([error['input']], ensure_ascii=False)}"
    if error["type"] != "extra_forbidden":
        return f"{location}: {error['msg']}"
    *parents, key = error["loc"]
    known = list(_section(parents).model_fields)
    nearest = difflib.get_close_matches(str(key), known, n=1, cutoff=0.0)
    suggestion = ".".join([*map(str, parents), nearest[0]])
    return f"{location}: unknown key; did you mean {suggestion}? (known: {', '.join(known)})"


def _section(parents: Sequence[Any]) -> type[BaseModel]:
    model: type[BaseModel] = Recipe
    for parent in parents:
        annotation = model.model_fields[str(parent)].annotation
        assert isinstance(annotation, type)
        assert issubclass(annotation, BaseModel)
        model = annotation
    return model
