"""What all tokenizers share: SentencePiece models from their bytes, and codes of target languages in texts."""

from __future__ import annotations

import re
from typing import Any

import sentencepiece

from hmc.artifact.errors import InvalidArtifactError

FIX = "Write the checkpoint or bundle again, or copy it again from where it was whole."
LANGUAGE_CODE = re.compile(r"\s*(>>[^<>\s]+<<)\s*")
"""Names the target language at the start of a source text for multilingual models, e.g. `>>deu<<`."""


def load_pieces(model: bytes, name: str) -> sentencepiece.SentencePieceProcessor:
    """A SentencePiece model from its bytes. Raises InvalidArtifactError that says which file it was."""
    if not model:
        raise InvalidArtifactError("tokenizer", [f"{name} is empty"], FIX)
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        raise InvalidArtifactError("tokenizer", [f"{name} is not a SentencePiece model: {error}"], FIX) from error


def sampling(dropout: float) -> dict[str, Any]:
    """SentencePiece's options for a probability of skipping merges."""
    return {"enable_sampling": True, "alpha": dropout, "nbest_size": -1} if dropout else {}
