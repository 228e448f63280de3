"""config.json of an M2M100 model, read as an `Architecture`."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from hmc.artifact.marian.layout import ACTIVATIONS, CONFIG, classes_of
from hmc.artifact.model.architecture import Architecture

MODEL_TYPE, CLASS = "m2m_100", "M2M100ForConditionalGeneration"


class M2M100Config(BaseModel):
    """The fields of config.json that change what a model computes. Defaults are those of Transformers."""

    model_config = ConfigDict(extra="ignore", strict=True)

    vocab_size: int = 128112
    max_position_embeddings: int = 1024
    encoder_layers: int = 12
    encoder_ffn_dim: int = 4096
    encoder_attention_heads: int = 16
    decoder_layers: int = 12
    decoder_ffn_dim: int = 4096
    decoder_attention_heads: int = 16
    activation_function: str = "relu"
    d_model: int = 1024
    scale_embedding: bool = True
    decoder_start_token_id: int = 2
    pad_token_id: int = 1
    eos_token_id: int = 2


def architecture_of(raw: dict[str, Any], unk_id: int, *, own_output: bool) -> tuple[Architecture | None, list[str]]:
    """Reads config.json as an Architecture, and lists every reason why it cannot be one."""
    classes = classes_of(raw, CLASS)
    if CLASS not in classes:
        return None, [f"{CONFIG} describes {', '.join(classes)}, not {CLASS}"]
    try:
        config = M2M100Config.model_validate({name: value for name, value in raw.items() if value is not None})
    except ValidationError as error:
        return None, [f"{CONFIG}: {'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
    problems = [
        f"{CONFIG}: encoder_{name} {encoder} and decoder_{name} {decoder} must be equal"
        for name in ("attention_heads", "ffn_dim")
        if (encoder := getattr(config, f"encoder_{name}")) != (decoder := getattr(config, f"decoder_{name}"))
    ]
    heads = config.encoder_attention_heads
    if heads < 1 or config.d_model % heads:
        problems.append(f"{CONFIG}: d_model {config.d_model} is not a multiple of {heads} heads")
    if config.activation_function not in ACTIVATIONS:
        problems.append(
            f"{CONFIG}: activation_function {config.activation_function!r} is unknown; "
            f"supported: {', '.join(ACTIVATIONS)}"
        )
    if config.pad_token_id != 1:
        problems.append(f"{CONFIG}: pad_token_id {config.pad_token_id} must be 1: positions are counted from it")
    if problems:
        return None, problems
    try:
        return _architecture(config, unk_id, own_output), []
    except ValidationError as error:
        return None, [f"{CONFIG}: {'.'.join(map(str, e['loc']))} {e['msg']}".strip() for e in error.errors()]


def _architecture(config: M2M100Config, unk_id: int, own_output: bool) -> Architecture:
    return Architecture(
        vocab_size=config.vocab_size,
        d_model=config.d_model,
        ffn_dim=config.encoder_ffn_dim,
        encoder_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        heads=config.encoder_attention_heads,
        head_dim=config.d_model // config.encoder_attention_heads,
        activation=ACTIVATIONS[config.activation_function],
        max_positions=config.max_position_embeddings,
        scale_embedding=config.scale_embedding,
        pad_id=config.pad_token_id,
        eos_id=config.eos_token_id,
        unk_id=unk_id,
        start_id=None if config.decoder_start_token_id == config.pad_token_id else config.decoder_start_token_id,
        pre_norm=True,
        stack_norms=True,
        own_output=own_output,
        position_form="fairseq",
    )
