"""Recipes of small models."""

from __future__ import annotations

from typing import Any

from hmc.training import Recipe


def small_recipe(corpus: str, **sections: dict[str, Any]) -> Recipe:
    """A run on the CPU, with a vocabulary of 120 tokens and one dev sentence. corpus: 'SRC TGT'. sections: fields that
    are added or take the place of these."""
    shape = {"d_model": 32, "ffn_dim": 48, "encoder_layers": 1, "decoder_layers": 2, "heads": 4, "max_positions": 128}
    basic: dict[str, dict[str, Any]] = {
        "data": {"train": [corpus], "dev": corpus},
        "tokenizer": {"vocab_size": 120},
        "model": shape,
        "train": {"steps": 2, "batch_tokens": 512, "warmup_steps": 4},
        "run": {"device": "cpu", "eval_sentences": 1},
    }
    return Recipe.model_validate({name: fields | sections.get(name, {}) for name, fields in basic.items()})
