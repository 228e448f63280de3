"""File names of a MarianMT directory, and reading its configuration as an `Architecture`."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from hmc.artifact.errors import field_problems
from hmc.artifact.model.architecture import Activation, Architecture
from hmc.artifact.storage.formats import Format
from hmc.artifact.tokenizer.files import SEPARATE

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
GENERATION = "generation_config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
FORMAT = Format(
    "a MarianMT model that HMC wrote",
    CONFIG,
    lambda content: content.get("model_type") == "marian",
    lambda _: (WEIGHTS, GENERATION, TOKENIZER_CONFIG, *SEPARATE),
)
"""What `export_marian` replaces."""
LAYOUT = (
    "config.json, model.safetensors or pytorch_model.bin, source.spm, target.spm and vocab.json; where the two sides "
    "have vocabularies of their own target_vocab.json too"
)
ACTIVATIONS: dict[str, Activation] = {"relu": "relu", "swish": "swish", "silu": "swish", "gelu": "gelu"}
MUST_BE = {
    "tie_word_embeddings": (True, "the output projection must be the embedding matrix"),
    "static_position_embeddings": (True, "positions must be sinusoids"),
    "normalize_before": (False, "layers must normalise after the residual"),
    "normalize_embedding": (False, "a layer norm after the embedding is not supported"),
    "add_final_layer_norm": (False, "a layer norm after each stack is not supported"),
}
"""Field → the only value accepted (also when the field is absent), and why."""
DECODING = (
    "num_beams", "length_penalty", "max_length", "max_new_tokens", "min_length", "min_new_tokens", "early_stopping",
    "num_beam_groups", "diversity_penalty", "do_sample", "temperature", "top_k", "top_p", "repetition_penalty",
    "encoder_repetition_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "forced_bos_token_id",
    "forced_eos_token_id", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "sequence_bias",
    "renormalize_logits",
)  # fmt: skip
"""Fields that say how Transformers decodes with a model. They are in config.json or generation_config.json."""


class SizesConfig(BaseModel):
    """The fields of config.json that both MarianMT and M2M100 have."""

    model_config = ConfigDict(extra="ignore", strict=True)

    vocab_size: int
    d_model: int
    encoder_layers: int
    decoder_layers: int
    encoder_attention_heads: int
    decoder_attention_heads: int
    encoder_ffn_dim: int
    decoder_ffn_dim: int
    activation_function: str
    max_position_embeddings: int
    scale_embedding: bool
    eos_token_id: int
    pad_token_id: int
    decoder_start_token_id: int

    def problems(self) -> list[str]:
        """Problems of sizes that a checkpoint stores only once, and of values that HMC does not support."""
        problems = [
            f"{CONFIG}: encoder_{name} {encoder} and decoder_{name} {decoder} must be equal"
            for name in ("attention_heads", "ffn_dim")
            if (encoder := getattr(self, f"encoder_{name}")) != (decoder := getattr(self, f"decoder_{name}"))
        ]
        heads = self.encoder_attention_heads
        if heads < 1 or self.d_model % heads:
            problems.append(f"{CONFIG}: d_model {self.d_model} is not a multiple of {heads} heads")
        if self.activation_function not in ACTIVATIONS:
            problems.append(
                f"{CONFIG}: activation_function {self.activation_function!r} is unknown; "
                f"supported: {', '.join(ACTIVATIONS)}"
            )
        return problems

    def sizes(self) -> dict[str, Any]:
        """These fields as fields of an `Architecture`. `problems` must have found none."""
        return {
            "d_model": self.d_model,
            "ffn_dim": self.encoder_ffn_dim,
            "encoder_layers": self.encoder_layers,
            "decoder_layers": self.decoder_layers,
            "heads": self.encoder_attention_heads,
            "head_dim": self.d_model // self.encoder_attention_heads,
            "activation": ACTIVATIONS[self.activation_function],
            "max_positions": self.max_position_embeddings,
            "scale_embedding": self.scale_embedding,
            "pad_id": self.pad_token_id,
            "eos_id": self.eos_token_id,
        }


class MarianConfig(SizesConfig):
    """The fields of config.json that change the model's computation. The fields in `MUST_BE` have only one supported
    value."""

    share_encoder_decoder_embeddings: bool = True
    decoder_vocab_size: int | None = None

    @property
    def target_size(self) -> int:
        """Entries of the target vocabulary."""
        return self.vocab_size if self.decoder_vocab_size is None else self.decoder_vocab_size


def classes_of(raw: dict[str, Any], default: str) -> list[str]:
    """The classes of Transformers that config.json names; `default` if it names none."""
    classes = raw.get("architectures") or [default]
    return list(map(str, classes if isinstance(classes, list) else [classes]))


def architecture_of(raw: dict[str, Any], unk_id: int) -> tuple[Architecture | None, list[str]]:
    """Reads config.json as an Architecture, and lists every reason why it cannot be one."""
    kind = raw.get("model_type")
    classes = classes_of(raw, "MarianMTModel")
    if kind is None and "architectures" not in raw:
        return None, ["config.json describes no model of Transformers: it has neither model_type nor architectures"]
    if kind != "marian" or "MarianMTModel" not in classes:
        return None, [f"config.json describes {', '.join(classes)} (model_type {kind!r}), not MarianMTModel"]
    problems = [
        f"config.json: {name} is {json.dumps(raw[name])}: {why}"
        for name, (wanted, why) in MUST_BE.items()
        if name in raw and raw[name] != wanted
    ]
    try:
        config = MarianConfig.model_validate(raw)
    except ValidationError as error:
        return None, problems + [f"config.json: {problem}" for problem in field_problems(error)]
    problems += config.problems() + _marian_problems(config)
    if problems:
        return None, problems
    try:
        return _architecture(config, unk_id), []
    except ValidationError as error:
        return None, [f"config.json: {_named(e['loc'], config)}{e['msg']}" for e in error.errors()]


def _named(place: tuple[int | str, ...], config: MarianConfig) -> str:
    """Name in config.json of an architecture's field, for messages. Sizes of two vocabularies are named differently."""
    name = ".".join(map(str, place))
    if not config.share_encoder_decoder_embeddings:
        name = {"vocab_size": "decoder_vocab_size", "source_vocab_size": "vocab_size"}.get(name, name)
    return f"{name}: " if name else ""


def _architecture(config: MarianConfig, unk_id: int) -> Architecture:
    return Architecture(
        vocab_size=config.target_size,
        source_vocab_size=None if config.share_encoder_decoder_embeddings else config.vocab_size,
        unk_id=unk_id,
        **config.sizes(),
    )


def _marian_problems(config: MarianConfig) -> list[str]:
    """Problems of fields that only MarianMT has, or that it restricts."""
    problems = []
    if config.share_encoder_decoder_embeddings and config.target_size != config.vocab_size:
        problems.append(
            f"config.json: vocab_size {config.vocab_size} and decoder_vocab_size {config.target_size} must be equal "
            "where share_encoder_decoder_embeddings is true"
        )
    if config.decoder_start_token_id != config.pad_token_id:
        problems.append(
            f"config.json: decoder_start_token_id {config.decoder_start_token_id} must be the pad token "
            f"({config.pad_token_id})"
        )
    return problems
