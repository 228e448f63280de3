"""The languages of M2M100 and NLLB, and their tokens, from the files of a directory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hmc.artifact.marian.layout import TOKENIZER_CONFIG, read_json

SPECIAL_TOKENS, TOKENIZER_JSON = "special_tokens_map.json", "tokenizer.json"
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
    return {code: size + number for number, code in enumerate(dict.fromkeys(codes))}, []


def nllb_languages(folder: Path, size: int) -> tuple[dict[str, int], list[str]]:
    """Language → its token: as tokenizer.json says, or else in the order of the listed tokens after `size` pieces."""
    added = _json(folder / TOKENIZER_JSON).get("added_tokens", [])
    found = {
        str(token.get("content")): token.get("id")
        for token in added
        if isinstance(token, dict) and NLLB_TOKEN.fullmatch(str(token.get("content")))
    }
    if found and all(isinstance(number, int) for number in found.values()):
        return {code: int(number or 0) for code, number in found.items()}, []
    listed = [t for t in listed_tokens(folder, _json(folder / TOKENIZER_CONFIG)) if NLLB_TOKEN.fullmatch(t)]
    if not listed:
        return {}, [f"neither {TOKENIZER_JSON} nor {SPECIAL_TOKENS} lists languages such as eng_Latn: download it"]
    return {code: size + number for number, code in enumerate(dict.fromkeys(listed))}, []


def _text(token: Any) -> str:
    return str(token.get("content")) if isinstance(token, dict) else str(token)


def _json(file: Path) -> dict[str, Any]:
    return read_json(file)[0] if file.is_file() else {}
