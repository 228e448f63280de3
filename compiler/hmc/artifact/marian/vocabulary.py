"""Tokenizer files of a MarianMT directory ↔ those of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hmc.artifact.errors import InvalidArtifactError
from hmc.artifact.marian.layout import TOKENIZER_CONFIG
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.storage.formats import NAMED, read_json
from hmc.artifact.tokenizer.files import (
    EOS_PIECE,
    PAD_PIECE,
    TOKENIZER,
    UNK_PIECE,
    MarianFiles,
    TokenizerFiles,
    parse_vocabulary,
    vocabulary_problems,
)
from hmc.artifact.tokenizer.tokenizer import FIX, LANGUAGE_CODE, load_pieces

TOKENIZER_JSON = "tokenizer.json"
ADDED_TOKENS = "added_tokens.json"
SPECIAL_TOKENS = "special_tokens_map.json"
SPECIAL_ROLES = tuple(f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
SPECIAL_LISTS = ("additional_special_tokens", "extra_special_tokens")
"""Fields in which a directory names special tokens: one each, and several (a list, or an object with names)."""


def stated_tokens(folder: Path) -> tuple[dict[str, int], list[str]]:
    """The tokens beside the SentencePiece model whose ids a directory states, and contradictions between its files."""
    entries = list[tuple[str, str, int]]()
    decoder = read_json(folder / TOKENIZER_CONFIG)[0].get("added_tokens_decoder")
    for number, token in (decoder if isinstance(decoder, dict) else {}).items():
        if str(number).isdecimal():
            entries.append((TOKENIZER_CONFIG, content_of(token), int(number)))
    for text, number in read_json(folder / ADDED_TOKENS)[0].items():
        if isinstance(number, int):
            entries.append((ADDED_TOKENS, text, number))
    for token in read_json(folder / TOKENIZER_JSON)[0].get("added_tokens", []):
        if isinstance(token, dict) and isinstance(token.get("id"), int):
            entries.append((TOKENIZER_JSON, content_of(token), token["id"]))
    stated = dict[str, int]()
    problems = []
    for file, text, number in entries:
        if stated.setdefault(text, number) != number:
            problems.append(f"{file} gives {text} the id {number}, and another file says {stated[text]}")
    if len(problems) > NAMED:
        problems = [*problems[:NAMED], f"… and {len(problems) - NAMED} more such tokens"]
    return stated, problems


def named_tokens(folder: Path) -> dict[str, str]:
    """The special tokens that a directory names, by role or in lists, and the file of each. Transformers adds those
    that its vocabulary lacks."""
    file_of_token = dict[str, str]()
    for file in (TOKENIZER_CONFIG, SPECIAL_TOKENS):
        raw = read_json(folder / file)[0]
        tokens = [raw[role] for role in SPECIAL_ROLES if isinstance(raw.get(role), str | dict)]
        for name in SPECIAL_LISTS:
            several = raw.get(name)
            if isinstance(several, dict):
                several = list(several.values())
            tokens += several if isinstance(several, list) else []
        for token in tokens:
            file_of_token.setdefault(content_of(token), file)
    return file_of_token


def content_of(token: Any) -> str:
    """The text of a token in a tokenizer's JSON, where it is a string or an object."""
    return str(token.get("content")) if isinstance(token, dict) else str(token)


def joint_if_equal(files: MarianFiles) -> TokenizerFiles:
    """`tokenizer.model` instead of Marian's files, if it gives the same tokens; else the files themselves.

    It does if both sides have the same SentencePiece model with the ids of vocab.json, the model declares its EOS, and
    no piece is a language code. Marian removes language codes from a text before splitting it; SentencePiece does not.
    """
    if files.source != files.target or files.target_vocabulary is not None:
        return files
    vocabulary, _ = parse_vocabulary(files.vocabulary)
    pieces = load_pieces(files.source, TOKENIZER)
    special = {pieces.eos_id(): EOS_PIECE, pieces.unk_id(): UNK_PIECE, pieces.pad_id(): PAD_PIECE}
    own = {special.get(i, pieces.id_to_piece(i)): i for i in range(pieces.vocab_size())}
    enough = own == vocabulary and pieces.eos_id() >= 0 and not _codes(vocabulary)
    return files.source if enough else files


def marian_files(files: TokenizerFiles, arch: Architecture) -> tuple[MarianFiles, npt.NDArray[np.int64]]:
    """The files with pad as the last token, and `[V]`: the old id of each new one, to reorder the embedding.

    CTranslate2's converter removes the last row, because it takes it for the row of pad. Two vocabularies stay as they
    are: pad has the same id in both, and need not be the last entry. Raises InvalidArtifactError.
    """
    if isinstance(files, MarianFiles) and files.target_vocabulary is not None:
        if problems := vocabulary_problems(files.vocabularies(), arch):
            raise InvalidArtifactError("tokenizer", problems, FIX)
        return files, np.arange(arch.vocab_size)
    if isinstance(files, MarianFiles):
        entries, problems = parse_vocabulary(files.vocabulary)
        source = files.source
        target = files.target
    else:
        pieces = load_pieces(files, TOKENIZER)
        special = {arch.eos_id: EOS_PIECE, arch.unk_id: UNK_PIECE, arch.pad_id: PAD_PIECE}
        entries = {special.get(i, pieces.id_to_piece(i)): i for i in range(pieces.vocab_size())}
        problems = [
            f"{code} is a piece of {TOKENIZER}; MarianTokenizer removes it from a text first, so tokens would differ"
            for code in _codes(entries)
        ]
        source = target = files
    if not problems and len(entries) != arch.vocab_size:
        problems = [f"{len(entries)} different pieces, the model's vocabulary has {arch.vocab_size}"]
    if problems:
        raise InvalidArtifactError("tokenizer", problems, FIX)
    order = np.array([*(i for i in range(arch.vocab_size) if i != arch.pad_id), arch.pad_id], np.int64)
    names = {number: piece for piece, number in entries.items()}
    moved = {names[old]: new for new, old in enumerate(order.tolist())}
    content = json.dumps(moved, ensure_ascii=False, indent=0).encode("utf-8")
    return MarianFiles(source, target, content), order


def _codes(pieces: Iterable[str]) -> list[str]:
    return [piece for piece in pieces if LANGUAGE_CODE.fullmatch(piece)]
