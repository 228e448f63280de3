"""A tiny MarianMT directory in the layout of OPUS-MT, written without HMC's exporter."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from safetensors.numpy import save_file
from tests.tiny import SENTENCES, random_tensors, tiny_architecture

from hmc.artifact.model.architecture import Architecture

GERMAN = [
    "Ein Mann steht auf einer Leiter.", "Zwei Hunde rennen über das nasse Gras.",
    "Ein Mädchen in einem roten Kleid isst einen Apfel.", "Mehrere Leute warten auf den Bus.",
    "Der Junge springt ins kalte Wasser.", "Eine Frau spielt auf einer Bühne Gitarre.",
    "Kinder sitzen um einen Tisch.", "Ein alter Mann liest im Park eine Zeitung.",
]  # fmt: skip
CODES = (">>deu<<", ">>nld<<")


def pieces_model(sentences: list[str], size: int, **options: Any) -> bytes:
    """A SentencePiece model as OPUS-MT trains them: `</s>` has id 0, `<unk>` id 1, and there is no pad."""
    output = io.BytesIO()
    fields: dict[str, Any] = {
        "model_type": "bpe",
        "eos_id": 0,
        "unk_id": 1,
        "pad_id": -1,
        "bos_id": -1,
        "minloglevel": 2,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=output, vocab_size=size, **(fields | options)
    )
    return output.getvalue()


def pieces_of(model: bytes) -> list[str]:
    """Every piece of a SentencePiece model, by id."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(i) for i in range(processor.vocab_size())]


def joint_vocabulary(source: bytes, target: bytes, codes: tuple[str, ...] = CODES) -> dict[str, int]:
    """vocab.json: `</s>`, `<unk>`, pieces of both sides except some rare ones, then language codes, then pad."""
    both = dict.fromkeys([*pieces_of(source)[:-6], *pieces_of(target)[2:]])
    last = [*codes, "<pad>"]
    return {piece: number for number, piece in enumerate([*(p for p in both if p not in last), *last])}


def opus_directory(path: Path, *, seed: int = 0, codes: tuple[str, ...] = CODES, **config: object) -> Architecture:
    """Writes the directory; `config` overrides fields of config.json. Returns the architecture of its weights."""
    path.mkdir(parents=True)
    source, target = pieces_model(SENTENCES, 110), pieces_model(GERMAN, 100)
    vocabulary = joint_vocabulary(source, target, codes)
    pad = len(vocabulary) - 1
    arch = tiny_architecture(vocab_size=len(vocabulary), pad_id=pad, d_model=64)
    (path / "source.spm").write_bytes(source)
    (path / "target.spm").write_bytes(target)
    (path / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    fields = {
        "model_type": "marian", "architectures": ["MarianMTModel"], "vocab_size": pad + 1, "d_model": 64,
        "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "activation_function": "relu", "max_position_embeddings": 96,
        "scale_embedding": True, "eos_token_id": 0, "pad_token_id": pad, "decoder_start_token_id": pad,
        "num_beams": 6, "bad_words_ids": [[pad]], "transformers_version": "4.57.6",
        "extra_pos_embeddings": pad + 1, "static_position_embeddings": True, "normalize_before": False,
        "normalize_embedding": False, "add_final_layer_norm": False, "add_bias_logits": False,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(fields | config))
    generation = {"num_beams": 5, "max_length": 77, "forced_eos_token_id": 0, "no_repeat_ngram_size": 3}
    (path / "generation_config.json").write_text(json.dumps(generation))
    (path / "tokenizer_config.json").write_text(json.dumps({"source_lang": "eng", "target_lang": "gmw"}))
    write_weights(path, arch, seed)
    return arch


def write_weights(
    path: Path, arch: Architecture, seed: int = 0, extra: dict[str, np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """model.safetensors with random weights, plus `extra` tensors; returns them under the names of a checkpoint."""
    tensors = random_tensors(arch, arch.full_layout(), seed)
    named: dict[str, np.ndarray] = {f"model.{k}": v for k, v in tensors.items() if k != "final_logits_bias"}
    named["final_logits_bias"] = tensors["final_logits_bias"][None]
    save_file(named | (extra or {}), path / "model.safetensors", metadata={"format": "pt"})
    return dict(tensors)


def edit(file: Path, **fields: object) -> None:
    """Changes fields of a JSON file; None deletes a field."""
    raw = json.loads(file.read_text()) | fields
    file.write_text(json.dumps({k: v for k, v in raw.items() if v is not None}))
