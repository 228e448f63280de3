"""Tiny M2M100 and NLLB models with random weights, written by Transformers itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.artifact.marian.opus import GERMAN, pieces_model, pieces_of
from tests.tiny import SENTENCES

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

FIRST = ["<s>", "<pad>", "</s>", "<unk>"]
IDS = {"bos_id": 0, "pad_id": 1, "eos_id": 2, "unk_id": 3}
NLLB_CODES = ["ace_Arab", "deu_Latn", "eng_Latn", "fra_Latn"]


def sources(count: int) -> list[str]:
    """Texts of different lengths, made from the words of SENTENCES. Some hold characters that no piece has."""
    words = " ".join(SENTENCES).split()
    texts = [" ".join(words[(7 * n) % len(words) :][: 1 + n % 11]) for n in range(count - 1)]
    return [*texts, "ü ☃☃ dog"]


def random_model(size: int, seed: int, **changes: Any) -> Any:
    """An M2M100 model with weights of a plausible scale, so that its translations vary."""
    fields = {
        "vocab_size": size, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 96,
        "dropout": 0.0,
    }  # fmt: skip
    torch.manual_seed(seed)
    model = transformers.M2M100ForConditionalGeneration(transformers.M2M100Config(**(fields | changes))).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "layer_norm" in name or name.endswith("bias"):
                value.add_(0.1 * torch.randn_like(value))
            else:
                sharp = 3 if name.endswith(("q_proj.weight", "k_proj.weight")) else 1
                value.normal_(std=0.125 if "shared" in name else 1.5 * sharp * value.shape[-1] ** -0.5)
        # Without it the tied output prefers the token that was read last, again and again.
        model.model.decoder.layer_norm.weight.mul_(torch.randn(64).sign())
        model.model.shared.weight[1] = 0
    return model


def write_m2m100(folder: Path, *, seed: int = 0, **save: Any) -> tuple[Any, Any]:
    """Writes an M2M100 directory, English to German; returns model and tokenizer. save: of `save_pretrained`."""
    folder.mkdir(parents=True)
    model = pieces_model(SENTENCES + GERMAN, 150, **IDS)
    entries = list(dict.fromkeys([*FIRST, *pieces_of(model)]))
    (folder / "v.json").write_text(json.dumps({piece: i for i, piece in enumerate(entries)}), encoding="utf-8")
    (folder / "s.model").write_bytes(model)
    tokenizer = transformers.M2M100Tokenizer(
        str(folder / "v.json"), str(folder / "s.model"), src_lang="en", tgt_lang="de"
    )
    languages = len(tokenizer.lang_code_to_id)
    made = random_model(len(entries) + languages + 8, seed)
    made.save_pretrained(folder, **save)
    tokenizer.save_pretrained(folder)
    for name in ("v.json", "s.model"):
        (folder / name).unlink()
    return made, transformers.M2M100Tokenizer.from_pretrained(folder)


def write_nllb(folder: Path, *, seed: int = 0) -> tuple[Any, Any]:
    """Writes an NLLB directory, as on the hub: with the SentencePiece model beside tokenizer.json."""
    folder.mkdir(parents=True)
    model = pieces_model(SENTENCES + GERMAN, 150, unk_id=0, bos_id=1, eos_id=2, pad_id=-1)
    (folder / "sentencepiece.bpe.model").write_bytes(model)
    tokenizer = transformers.NllbTokenizer.from_pretrained(
        folder, src_lang="eng_Latn", tgt_lang="deu_Latn", additional_special_tokens=NLLB_CODES
    )
    tokenizer.save_pretrained(folder)
    made = random_model(len(tokenizer), seed)
    made.save_pretrained(folder)
    return made, tokenizer
