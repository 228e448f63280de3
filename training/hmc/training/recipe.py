"""Recipes: every setting of a training run, read from TOML, validated, overridable from the command line."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from hmc.artifact.architecture import Activation
from hmc.artifact.errors import InvalidRequestError
from hmc.training.headmask_spec import HeadMaskSpec

Beta = Annotated[float, Field(ge=0, lt=1)]
"""A decay rate of Adam's moments."""


class Section(BaseModel):
    """A table of the recipe; unknown keys are errors, and so are infinity, NaN and truth values: no setting is one."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _not_a_truth_value(cls, value: object) -> object:
        if isinstance(value, bool):
            raise ValueError(f"{str(value).lower()} is neither a number nor a text")
        return value


class DataSection(Section):
    """Corpora. A corpus is `"SRC TGT"` (two aligned text files, plain or .gz), `"FILE.tsv[.gz]"` (source TAB target) or
    `"hub:NAME[:CONFIG]"` (a Hugging Face dataset with a `translation` column)."""

    source_language: str = "en"
    target_language: str = "de"
    train: list[str] = Field(min_length=1)
    dev: str
    max_length: int = Field(default=128, ge=4)
    """Longest sentence kept for training, in tokens."""


class TokenizerSection(Section):
    """Joint SentencePiece BPE, or the tokenizer of a model that is there already."""

    vocab_size: int = Field(default=8000, ge=64)
    model: str | None = None
    """A checkpoint whose tokenizer is used instead of training one, or an existing SentencePiece model."""
    bpe_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Probability of skipping a merge in training text (BPE-dropout, Provilkov et al. 2020). Not reproducible from run
    to run, whatever the seed: SentencePiece draws anew in every process. A run that is resumed keeps what was drawn."""
    bpe_dropout_copies: int = Field(default=8, ge=1)
    """Segmentations of each training pair that BPE-dropout draws; an epoch is then as many times longer."""


class ModelSection(Section):
    """Widths of the Transformer."""

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
    """Checkpoint whose weights and vocabulary the run starts from; widths and layers above must equal its own."""
    layout: str | None = None
    """Head layout to train with from the first step: a checkpoint, or a JSON file with the open heads of every layer of
    `encoder_self`, `decoder_self` and `cross` (Voita et al. 2019, table 2, right column). Default: every head."""


class TrainSection(Section):
    """Objective, optimiser and schedule (Vaswani et al. 2017, section 5.3; Sun et al. 2021, section 4.1)."""

    steps: int = Field(default=100_000, ge=1)
    batch_tokens: int = Field(default=4096, ge=16)
    """Padded source + target tokens in a batch, counted by its longer side."""
    accumulate: int = Field(default=1, ge=1)
    """Batches whose gradients are summed before an update."""
    learning_rate: float = Field(default=7e-4, gt=0)
    """Peak rate, reached at the end of warm-up; then inverse square root."""
    warmup_steps: int = Field(default=4000, ge=1)
    cooldown_steps: int = Field(default=0, ge=0)
    """Last steps, over which the rate falls linearly to zero."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    adam_betas: tuple[Beta, Beta] = (0.9, 0.98)
    adam_epsilon: float = Field(default=1e-9, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    clip_norm: float = Field(default=1.0, ge=0)
    """Largest gradient norm; 0 turns clipping off."""
    headmask: str | None = None
    """Heads to mask in every update (Sun et al. 2021): `random:18`, `important:18`, a share as in `random:12.5%`, or
    some kinds only as in `random:6@encoder_self`."""
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
    """How the run is carried out.

    `eval_every`, `eval_sentences` and `keep_checkpoints` choose which checkpoints the final average is of. `devices`
    and `nodes` multiply the batch, as each process has its own. The others change no more than floating-point rounding.
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["32-true", "bf16-mixed"] = "32-true"
    devices: int = Field(default=1, ge=1)
    nodes: int = Field(default=1, ge=1)
    log_every: int = Field(default=50, ge=1)
    save_every: int = Field(default=500, ge=1)
    """Steps between resumable states."""
    eval_every: int = Field(default=500, ge=1)
    """Steps between dev evaluations; each writes a checkpoint that model selection and averaging may use."""
    eval_sentences: int = Field(default=500, ge=1)
    keep_checkpoints: int = Field(default=5, ge=1)
    """Checkpoints kept, best dev BLEU first; these are also the candidates for averaging."""


class Recipe(Section):
    """A whole run."""

    data: DataSection
    tokenizer: TokenizerSection = TokenizerSection()
    model: ModelSection = ModelSection()
    train: TrainSection = TrainSection()
    run: RunSection = RunSection()


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Reads a TOML recipe and applies `section.key=value` overrides (values are TOML, bare words are strings).

    Raises InvalidRequestError that lists every problem; an unknown key comes with the nearest known one. Relative
    paths in the recipe are relative to the working directory.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise InvalidRequestError(f"recipe {path} does not exist") from error
    except OSError as error:
        raise InvalidRequestError(f"recipe {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"recipe {path} is not TOML: {error}") from error
    for override in overrides:
        _apply_override(raw, override)
    try:
        return Recipe.model_validate(raw)
    except ValidationError as error:
        problems = "\n".join(f"  - {_explain(dict(e))}" for e in error.errors())
        raise InvalidRequestError(f"recipe {path}:\n{problems}") from error


def same_run(stored: str, recipe: Recipe) -> bool:
    """True when `stored`, JSON of a recipe and perhaps by an earlier version with fewer settings, asks for this run.

    `[run]` does not count, even where it changes what comes out; settings that `stored` does not have count as their
    defaults.
    """
    try:
        former = Recipe.model_validate_json(stored)
    except ValidationError:
        return False
    return former.model_copy(update={"run": recipe.run}) == recipe


def _apply_override(raw: dict[str, Any], override: str) -> None:
    name, separator, text = override.partition("=")
    section, dot, key = name.strip().partition(".")
    if not (separator and dot and key):
        raise InvalidRequestError(f"--set {override!r}: write section.key=value, e.g. --set train.steps=2000")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    table = raw.setdefault(section, {})
    if not isinstance(table, dict):
        raise InvalidRequestError(
            f"--set {override!r}: the recipe has `{section} = …`, but {section} is a table; write [{section}] there, "
            "and its keys below"
        )
    table[key] = value


def _explain(error: dict[str, Any]) -> str:
    location = ".".join(str(part) for part in error["loc"])
    if error["type"] == "list_type" and isinstance(error["input"], str):
        return f"{location}: write a list, even of one: {json.dumps([error['input']], ensure_ascii=False)}"
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
