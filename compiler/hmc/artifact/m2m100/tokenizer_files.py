"""The tokenizer of an M2M100 or NLLB directory, as the files of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

from hmc.artifact.errors import InvalidArtifactError
from hmc.artifact.m2m100.languages import m2m100_languages, nllb_languages
from hmc.artifact.marian.layout import TOKENIZER_CONFIG, read_json
from hmc.artifact.tokenizer.files import EOS_PIECE, PAD_PIECE, UNK_PIECE, VOCABULARY, MarianFiles, parse_vocabulary
from hmc.artifact.tokenizer.multilingual import LanguageTokens
from hmc.artifact.tokenizer.pieces import load_pieces

PIECES = "sentencepiece.bpe.model"
BEGIN, MASK = "<s>", "<mask>"
FAIRSEQ = (BEGIN, PAD_PIECE, EOS_PIECE, UNK_PIECE)
"""The first entries of every vocabulary of fairseq, by id."""
KEPT = 3
"""First entries of an NLLB SentencePiece model, which fairseq's replace."""


def read_files(
    folder: Path, size: int, languages: tuple[str | None, str | None]
) -> tuple[MarianFiles | None, list[str]]:
    """The files of the tokenizer, and all problems.

    size: of the model's vocabulary; ids that no piece has get names of their own. languages: of sources, and of targets
    where a text names no other.
    """
    if not (folder / PIECES).is_file():
        hint = ""
        if (folder / "tokenizer.json").is_file():
            hint = ": tokenizer.json is not read; download this file from where the model was published"
        return None, [f"{PIECES} is missing{hint}"]
    model = (folder / PIECES).read_bytes()
    try:
        own, problems = _entries(folder, model)
    except InvalidArtifactError as error:
        return None, [f"{problem}; copy or download it again" for problem in error.problems]
    if problems:
        return None, problems
    nllb = not (folder / VOCABULARY).is_file()
    codes, problems = (nllb_languages if nllb else m2m100_languages)(folder, len(own))
    entries = own | {(code if nllb else f"__{code}__"): token for code, token in codes.items()}
    problems += _size_problems(entries, codes, size)
    chosen, wrong = _languages(codes, languages)
    if problems + wrong or chosen is None:
        return None, problems + wrong
    taken = set(entries.values())
    fillers = [token for token in range(size) if token not in taken]
    mask = {MASK: fillers.pop(0)} if nllb and fillers and MASK not in entries else {}
    entries |= mask | {f"<unused {token}>": token for token in fillers}
    special = tuple(sorted({entries[BEGIN], *mask.values(), *fillers}))
    tokens = LanguageTokens(source=chosen[0], target=chosen[1], codes=codes, special=special)
    content = json.dumps(entries, ensure_ascii=False, indent=0).encode()
    return MarianFiles(model, model, content, None, tokens.content()), []


def _entries(folder: Path, model: bytes) -> tuple[dict[str, int], list[str]]:
    """Piece → id without languages: vocab.json of M2M100, or the pieces of NLLB's model, one place further."""
    pieces = load_pieces(model, PIECES)
    if (folder / VOCABULARY).is_file():
        entries, problems = parse_vocabulary((folder / VOCABULARY).read_bytes())
        missing = [] if problems or BEGIN in entries else [f"{VOCABULARY} has no entry {BEGIN!r}"]
        return entries, problems + missing
    rest = [pieces.id_to_piece(i) for i in range(KEPT, pieces.vocab_size())]
    return {piece: number for number, piece in enumerate([*FAIRSEQ, *rest])}, []


def _size_problems(entries: dict[str, int], codes: dict[str, int], size: int) -> list[str]:
    highest = max([*entries.values(), *codes.values()])
    if highest < size and len(set(entries.values())) == len(entries):
        return []
    return [f"the tokenizer has ids up to {highest}, some of them twice or beyond the model's vocabulary of {size}"]


def _languages(codes: dict[str, int], asked: tuple[str | None, str | None]) -> tuple[tuple[str, str] | None, list[str]]:
    """The codes of both languages: as asked, as the code of one language that begins so (`deu` is `deu_Latn`)."""
    found, problems = [], []
    for language, side in zip(asked, ("source", "target"), strict=True):
        fitting = [code for code in codes if language and (code == language or code.startswith(f"{language}_"))]
        if language in codes or len(fitting) == 1:
            found.append(language if language in codes else fitting[0])
            continue
        known = ", ".join(fitting or list(codes)[:8]) + ("" if fitting or len(codes) <= 8 else ", …")
        what = f"{side} language {language!r} is not one of" if language else f"no {side} language is named; choose of"
        problems.append(f"{what} the model's {len(codes)} ({known}): `hmc import --{side}-language`")
    return (None if problems else (str(found[0]), str(found[1]))), problems


def configured_languages(folder: Path) -> tuple[str | None, str | None]:
    """src_lang and tgt_lang of tokenizer_config.json."""
    path = folder / TOKENIZER_CONFIG
    raw = read_json(path)[0] if path.is_file() else {}
    source, target = (raw.get(name) if isinstance(raw.get(name), str) else None for name in ("src_lang", "tgt_lang"))
    return source, target
