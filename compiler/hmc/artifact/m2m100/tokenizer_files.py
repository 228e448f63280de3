"""The tokenizer of an M2M100 or NLLB directory as the files of a checkpoint, and the tokens of its languages."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from hmc.artifact.errors import InvalidArtifactError
from hmc.artifact.marian.layout import TOKENIZER_CONFIG
from hmc.artifact.storage.formats import read_json
from hmc.artifact.tokenizer.files import EOS_PIECE, PAD_PIECE, UNK_PIECE, VOCABULARY, MarianFiles, parse_vocabulary
from hmc.artifact.tokenizer.tokenizer import LanguageTokens, load_pieces

SPECIAL_TOKENS, TOKENIZER_JSON, ADDED_TOKENS = "special_tokens_map.json", "tokenizer.json", "added_tokens.json"
TOKENIZER_FILES = (TOKENIZER_CONFIG, SPECIAL_TOKENS, TOKENIZER_JSON, ADDED_TOKENS)
"""Files of JSON that a tokenizer may have."""
CLASSES = re.compile(r"(M2M100|Nllb)Tokenizer(Fast)?")
"""Classes of Transformers that divide texts as HMC does."""
M2M100_TOKEN = re.compile(r"__([a-z]{2,3})__")
NLLB_TOKEN = re.compile(r"[a-z]{3}_[A-Z][a-z]{3}")
OF_M2M100 = {
    "m2m100": "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr "
    "ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps "
    "pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu",
    "wmt21": "en ha is ja cs ru zh de",
}
"""Name in tokenizer_config.json → languages, in the order of their tokens, which follow the vocabulary. Transformers
does not write them to a directory."""
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
    problems += _size_problems(entries, codes, size) + _foreign_problems(folder, entries)
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


def _foreign_problems(folder: Path, entries: dict[str, int]) -> list[str]:
    """What else the tokenizer of Transformers would do."""
    config = _json(folder / TOKENIZER_CONFIG)
    problems = []
    name = config.get("tokenizer_class")
    if isinstance(name, str) and not CLASSES.fullmatch(name):
        problems.append(
            f"{TOKENIZER_CONFIG}: tokenizer_class {name} is none of M2M100 or NLLB: it would divide texts otherwise"
        )
    if config.get("legacy_behaviour"):
        problems.append(
            f"{TOKENIZER_CONFIG}: legacy_behaviour, which puts the language of the source last, is not supported"
        )
    added = [token for token in stated_tokens(folder) if token not in entries and token != MASK]
    if added:
        more = ", …" if len(added) > 3 else ""
        problems.append(f"tokens that were added to the tokenizer are not supported: {', '.join(added[:3])}{more}")
    return problems


def stated_tokens(folder: Path) -> dict[str, int]:
    """The tokens beside the SentencePiece model whose ids a directory states."""
    found = dict[str, int]()
    decoder = _json(folder / TOKENIZER_CONFIG).get("added_tokens_decoder")
    for number, token in (decoder if isinstance(decoder, dict) else {}).items():
        if str(number).isdecimal():
            found[_text(token)] = int(number)
    for text, number in _json(folder / ADDED_TOKENS).items():
        if isinstance(number, int):
            found[text] = number
    for token in _json(folder / TOKENIZER_JSON).get("added_tokens", []):
        if isinstance(token, dict) and isinstance(token.get("id"), int):
            found[_text(token)] = token["id"]
    return found


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
    raw = _json(folder / TOKENIZER_CONFIG)
    source, target = (raw.get(name) if isinstance(raw.get(name), str) else None for name in ("src_lang", "tgt_lang"))
    return source, target


def listed_tokens(folder: Path, config: dict[str, Any]) -> list[str]:
    """The further special tokens that a directory lists, in order. config: tokenizer_config.json."""
    for raw in (config, _json(folder / SPECIAL_TOKENS)):
        for name in ("additional_special_tokens", "extra_special_tokens"):
            tokens = [_text(token) for token in raw.get(name) or []] if isinstance(raw.get(name), list) else []
            if any(tokens):
                return tokens
    return []


def m2m100_languages(folder: Path, size: int) -> tuple[dict[str, int], list[str]]:
    """Language → its token, for a vocabulary file of `size` entries."""
    config = _json(folder / TOKENIZER_CONFIG)
    listed = [match[1] for token in listed_tokens(folder, config) if (match := M2M100_TOKEN.fullmatch(token))]
    kind = str(config.get("language_codes", "m2m100"))
    if not listed and kind not in OF_M2M100:
        return {}, [f"{TOKENIZER_CONFIG}: language_codes {kind!r} is unknown; known: {', '.join(OF_M2M100)}"]
    codes = listed or OF_M2M100[kind].split()
    stated = stated_tokens(folder)
    return {code: stated.get(f"__{code}__", size + number) for number, code in enumerate(dict.fromkeys(codes))}, []


def nllb_languages(folder: Path, size: int) -> tuple[dict[str, int], list[str]]:
    """Language → its token: in the order of the listed tokens after `size` pieces, or as files state."""
    found = {token: number for token, number in stated_tokens(folder).items() if NLLB_TOKEN.fullmatch(token)}
    listed = [t for t in listed_tokens(folder, _json(folder / TOKENIZER_CONFIG)) if NLLB_TOKEN.fullmatch(t)]
    if not listed and not found:
        return {}, [f"neither {TOKENIZER_JSON} nor {SPECIAL_TOKENS} lists languages such as eng_Latn: download it"]
    return {code: size + number for number, code in enumerate(dict.fromkeys(listed))} | found, []


def _text(token: Any) -> str:
    return str(token.get("content")) if isinstance(token, dict) else str(token)


def _json(file: Path) -> dict[str, Any]:
    return read_json(file)[0]
