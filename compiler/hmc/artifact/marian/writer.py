"""A checkpoint → a MarianMT directory that Transformers, CTranslate2's converter and `hmc import` read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file

from hmc.artifact.checkpoint.checkpoint import Checkpoint
from hmc.artifact.checkpoint.slimming import padded_ffn, renumbered, restored_tensors
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.marian.generation import exported, recorded
from hmc.artifact.marian.layout import CONFIG, FORMAT, GENERATION, TOKENIZER_CONFIG, WEIGHTS
from hmc.artifact.marian.vocabulary import marian_files
from hmc.artifact.marian.weights import marian_names, starts_from_zero, with_zero_start
from hmc.artifact.model.architecture import LOGITS_BIAS, TARGET_EMBEDDING, Architecture
from hmc.artifact.storage.files import replace_directory
from hmc.artifact.tokenizer.files import EOS_PIECE, PAD_PIECE, UNK_PIECE, write_tokenizer


def export_marian(checkpoint: Checkpoint, out: Path, *, masked: bool = False, zero_start: bool = False) -> None:
    """Writes the directory `out` whole or not at all.

    Pad becomes the last token, so that token ids change, unless each side has its own vocabulary. Feed-forward layers
    get as many neurons as the widest has; the new ones are zeros, which change nothing. Removed layers are left out,
    and the rest is numbered anew.

    masked: write closed heads as zeros. Transformers has the same number of heads in every layer, so a slim model needs
    this; it computes the same, at full size. zero_start: CTranslate2 starts its decoder from zeros, not from pad's
    embedding. If that is not zero, add it to the decoder's first position instead, so that CTranslate2 computes the
    same.

    Raises InvalidRequestError for closed heads without `masked`, for sizes that Transformers cannot express, and if
    `out` holds other files than those of such a model; InvalidArtifactError for a tokenizer that does not fit.
    """
    removed = checkpoint.removed_layers
    checkpoint = renumbered(checkpoint)
    arch = checkpoint.architecture
    layout = checkpoint.layout
    whole = arch.full_layout().total
    if layout.total < whole and not masked:
        raise InvalidRequestError(
            f"this checkpoint has {layout.total} of {whole} heads, and Transformers needs all of them in every layer; "
            "`hmc export --masked` writes the closed heads as zeros (same translations, full size and speed)"
        )
    if arch.heads * arch.head_dim != arch.d_model:
        raise InvalidRequestError(
            f"{arch.heads} heads of dimension {arch.head_dim} do not make d_model {arch.d_model}; Transformers takes "
            "d_model / heads as the head dimension, so this model cannot be exported"
        )
    if kind := _beyond_marian(arch):
        raise InvalidRequestError(f"{kind}, and Transformers' MarianMTModel does not: this model cannot be exported")
    files, order = marian_files(checkpoint.tokenizer, arch)
    restored = restored_tensors(checkpoint.tensors, arch, layout)
    tensors, width = padded_ffn(restored, arch, checkpoint.ffn_widths)
    if zero_start and not starts_from_zero(checkpoint):
        tensors = with_zero_start(tensors, arch)
    for name in (TARGET_EMBEDDING, LOGITS_BIAS):
        tensors[name] = tensors[name][order]
    ids = {old: new for new, old in enumerate(order.tolist())}
    config = _config(arch.model_copy(update={"ffn_dim": width}), ids)
    if layout.total < whole:
        config["hmc_head_layout"] = layout.to_json()
    if checkpoint.config.ffn_widths:
        config["hmc_ffn_widths"] = checkpoint.config.ffn_widths.model_dump(mode="json")
    if removed:
        config["hmc_removed_layers"] = removed.model_dump(mode="json")
    generation = exported(recorded(checkpoint.config.provenance), arch, ids)
    with replace_directory(out, FORMAT) as folder:
        save_file(marian_names(tensors), folder / WEIGHTS, metadata={"format": "pt"})
        write_tokenizer(files, folder)
        _write_json(folder / CONFIG, config)
        _write_json(folder / GENERATION, generation)
        _write_json(folder / TOKENIZER_CONFIG, _tokenizer_config(checkpoint))


def _beyond_marian(arch: Architecture) -> str | None:
    """What the model has that MarianMTModel cannot express; None if there is nothing."""
    differences = {
        "layers normalise before attention": arch.pre_norm,
        "each stack ends with a norm": arch.stack_norms,
        "the output projection is a matrix of its own": arch.own_output,
        "positions are encoded as in fairseq": arch.position_form != "marian",
        "the decoder starts from another token than pad": arch.decoder_start != arch.pad_id,
    }
    return next((kind for kind, applies in differences.items() if applies), None)


def _config(arch: Architecture, ids: dict[int, int]) -> dict[str, Any]:
    pad = ids[arch.pad_id]
    eos = ids[arch.eos_id]
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "vocab_size": arch.source_size,
        "decoder_vocab_size": arch.vocab_size,
        "d_model": arch.d_model,
        "encoder_layers": arch.encoder_layers,
        "decoder_layers": arch.decoder_layers,
        "num_hidden_layers": arch.encoder_layers,
        "encoder_attention_heads": arch.heads,
        "decoder_attention_heads": arch.heads,
        "encoder_ffn_dim": arch.ffn_dim,
        "decoder_ffn_dim": arch.ffn_dim,
        "activation_function": arch.activation,
        "max_position_embeddings": arch.max_positions,
        "scale_embedding": arch.scale_embedding,
        "static_position_embeddings": True,
        "share_encoder_decoder_embeddings": arch.source_vocab_size is None,
        "tie_word_embeddings": True,
        "normalize_before": False,
        "normalize_embedding": False,
        "add_final_layer_norm": False,
        "dropout": 0.1,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
        "use_cache": True,
        "bos_token_id": eos,
        "eos_token_id": eos,
        "pad_token_id": pad,
        "decoder_start_token_id": pad,
        "torch_dtype": "float32",
    }


def _tokenizer_config(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": checkpoint.config.source_language,
        "target_lang": checkpoint.config.target_language,
        "eos_token": EOS_PIECE,
        "unk_token": UNK_PIECE,
        "pad_token": PAD_PIECE,
        "model_max_length": checkpoint.architecture.max_positions,
        "separate_vocabs": checkpoint.architecture.source_vocab_size is not None,
        "clean_up_tokenization_spaces": False,
    }


def _write_json(file: Path, value: dict[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
