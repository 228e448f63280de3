"""Vocabularies of a Marian model, with the pad token that Marian does not have."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hmc.artifact.errors import HmcError, InvalidArtifactError
from hmc.artifact.npz.yaml_text import parse_yaml, utf8_text
from hmc.artifact.tokenizer.files import EOS_PIECE, PAD_PIECE, UNK_PIECE
from hmc.artifact.tokenizer.tokenizer import load_pieces

Entries = dict[str, int]
"""Piece → token id."""
LONGEST_ID = 10
"""Digits of an id."""
SCORED = re.compile(r"[^\t]+\t-?[\d.e-]+")
"""A line of the list that SentencePiece writes beside its model."""
ENTRY = re.compile(r"(?:\S|\".*\")+: +\d+")
"""A line of a vocabulary in YAML."""


@dataclass(frozen=True)
class Vocabularies:
    """The vocabulary of both sides, or one for each, after pad was put in."""

    source: Entries
    target: Entries | None
    """None: `source` is that of both sides."""
    pad_id: int
    """The same in both."""

    def files(self) -> tuple[bytes, bytes | None]:
        """Contents of vocab.json and target_vocab.json."""
        return _json(self.source), None if self.target is None else _json(self.target)


def read_vocabulary(path: Path) -> Entries:
    """Entries of a YAML or JSON vocabulary, of a SentencePiece model whose ids are token ids, or of a plain text with a
    piece a line. The ending of the name says which form it is, as for Marian.

    Raises HmcError for one that cannot be read, lacks `</s>` or `<unk>`, has `<pad>`, or whose ids are not 0 to V - 1.
    """
    readers = {".spm": _read_pieces, ".yml": _read_yaml, ".yaml": _read_yaml, ".json": _read_yaml}
    entries = checked_entries(readers.get(path.suffix, _read_lines)(path), path.name)
    if PAD_PIECE in entries:
        raise HmcError(f"{path.name} has an entry {PAD_PIECE!r}, which HMC needs for padding: rename it")
    return entries


def checked_entries(entries: Entries, name: str) -> Entries:
    """The entries. name: of their file.

    Raises HmcError for entries that lack `</s>` or `<unk>`, or whose ids are not 0 to V - 1.
    """
    missing = [piece for piece in (EOS_PIECE, UNK_PIECE) if piece not in entries]
    if missing:
        raise HmcError(f"{name} has no entry {' and no entry '.join(map(repr, missing))}")
    if sorted(entries.values()) != list(range(len(entries))):
        raise HmcError(f"{name}: the ids of {len(entries)} entries must be 0 to {len(entries) - 1}, each once")
    return entries


def with_pad(sides: Sequence[Entries], *, joint: bool) -> Vocabularies:
    """Vocabularies with pad: at the end of a joint one; else at the end of the smaller, and at that place in the other.

    sides: one or two. joint: whether both sides share one embedding. Raises HmcError for two vocabularies that differ
    although the embedding is one, or if the special tokens of both sides have other ids.
    """
    source = sides[0]
    target = sides[-1]
    check_sides(source, target, (EOS_PIECE, UNK_PIECE), joint=joint)
    if joint:
        return Vocabularies(_inserted(source, len(source)), None, len(source))
    pad = min(len(source), len(target))
    return Vocabularies(_inserted(source, pad), _inserted(target, pad), pad)


def check_sides(source: Entries, target: Entries, special: Sequence[str], *, joint: bool) -> None:
    """Raises HmcError for two vocabularies that differ although both sides share one embedding (`joint`), and for
    special pieces with another id on each side."""
    if joint and source != target:
        raise HmcError("both sides share one embedding, but their vocabularies differ: give one vocabulary for both")
    for piece in special:
        if source.get(piece) != target.get(piece):
            raise HmcError(f"{piece!r} has the id {source.get(piece)} for sources and {target.get(piece)} for targets")


def _inserted(entries: Entries, pad: int) -> Entries:
    moved = {piece: number + (number >= pad) for piece, number in entries.items()}
    return {**moved, PAD_PIECE: pad}


def _read_yaml(path: Path) -> Entries:
    raw = parse_yaml(utf8_text(path), path.name)
    # Longer numbers are no ids, and Python refuses to read those of thousands of digits.
    wrong = [
        piece
        for piece, value in raw.items()
        if not isinstance(value, str) or not value.strip().isdecimal() or len(value.strip()) > LONGEST_ID
    ]
    if wrong:
        raise HmcError(f"{path.name}: {wrong[0]!r} has no id: it must be a mapping from pieces to whole numbers")
    return {piece: int(str(value)) for piece, value in raw.items()}


def _read_lines(path: Path) -> Entries:
    """Ids are the numbers of lines. Only LF and CRLF end a line: other characters are pieces."""
    entries = dict[str, int]()
    for number, piece in enumerate(utf8_text(path).removesuffix("\n").split("\n")):
        where = f"{path.name}, line {number + 1}"
        if SCORED.fullmatch(piece):
            raise HmcError(
                f"{where}: a piece with a score, as SentencePiece lists its model: its ids need not be the model's. "
                "Give the vocabulary that Marian was trained with (.yml, .spm, or plain text with a piece a line)"
            )
        if ENTRY.fullmatch(piece):
            raise HmcError(f"{where}: YAML, and the name says plain text with a piece a line; let it end in .yml")
        if not piece:
            raise HmcError(f"{where}: empty, and every line of a plain-text vocabulary is a piece; copy it again")
        if piece in entries:
            raise HmcError(f"{where}: {piece!r} is also in line {entries[piece] + 1}")
        entries[piece] = number
    return entries


def _read_pieces(path: Path) -> Entries:
    try:
        pieces = load_pieces(path.read_bytes(), path.name)
    except InvalidArtifactError as error:
        raise HmcError(error.problems[0]) from error
    special = {pieces.eos_id(): EOS_PIECE, pieces.unk_id(): UNK_PIECE}
    return {special.get(i, pieces.id_to_piece(i)): i for i in range(pieces.vocab_size())}


def _json(entries: Entries) -> bytes:
    return json.dumps(entries, ensure_ascii=False, indent=0).encode("utf-8")
