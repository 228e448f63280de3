"""The tokenizer of an M2M100 or NLLB directory as the files of a checkpoint, and the tokens of its languages."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from hmc.artifact.errors import InvalidArtifactError
from hmc.artifact.marian.layout import TOKENIZER_CONFIG
from hmc.artifact.marian.vocabulary import (
    ADDED_TOKENS,
    SPECIAL_LISTS,
    SPECIAL_TOKENS,
    TOKENIZER_JSON,
    content_of,
    named_tokens,
    stated_tokens,
)
from hmc.artifact.storage.formats import read_json
from hmc.artifact.tokenizer.files import EOS_PIECE, PAD_PIECE, UNK_PIECE, VOCABULARY, MarianFiles, parse_vocabulary
from hmc.artifact.tokenizer.tokenizer import LanguageTokens, load_pieces

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
OF_NLLB = (
    "ace_Arab ace_Latn acm_Arab acq_Arab aeb_Arab afr_Latn ajp_Arab aka_Latn amh_Ethi apc_Arab arb_Arab ars_Arab "
    "ary_Arab arz_Arab asm_Beng ast_Latn awa_Deva ayr_Latn azb_Arab azj_Latn bak_Cyrl bam_Latn ban_Latn bel_Cyrl "
    "bem_Latn ben_Beng bho_Deva bjn_Arab bjn_Latn bod_Tibt bos_Latn bug_Latn bul_Cyrl cat_Latn ceb_Latn ces_Latn "
    "cjk_Latn ckb_Arab crh_Latn cym_Latn dan_Latn deu_Latn dik_Latn dyu_Latn dzo_Tibt ell_Grek eng_Latn epo_Latn "
    "est_Latn eus_Latn ewe_Latn fao_Latn pes_Arab fij_Latn fin_Latn fon_Latn fra_Latn fur_Latn fuv_Latn gla_Latn "
    "gle_Latn glg_Latn grn_Latn guj_Gujr hat_Latn hau_Latn heb_Hebr hin_Deva hne_Deva hrv_Latn hun_Latn hye_Armn "
    "ibo_Latn ilo_Latn ind_Latn isl_Latn ita_Latn jav_Latn jpn_Jpan kab_Latn kac_Latn kam_Latn kan_Knda kas_Arab "
    "kas_Deva kat_Geor knc_Arab knc_Latn kaz_Cyrl kbp_Latn kea_Latn khm_Khmr kik_Latn kin_Latn kir_Cyrl kmb_Latn "
    "kon_Latn kor_Hang kmr_Latn lao_Laoo lvs_Latn lij_Latn lim_Latn lin_Latn lit_Latn lmo_Latn ltg_Latn ltz_Latn "
    "lua_Latn lug_Latn luo_Latn lus_Latn mag_Deva mai_Deva mal_Mlym mar_Deva min_Latn mkd_Cyrl plt_Latn mlt_Latn "
    "mni_Beng khk_Cyrl mos_Latn mri_Latn zsm_Latn mya_Mymr nld_Latn nno_Latn nob_Latn npi_Deva nso_Latn nus_Latn "
    "nya_Latn oci_Latn gaz_Latn ory_Orya pag_Latn pan_Guru pap_Latn pol_Latn por_Latn prs_Arab pbt_Arab quy_Latn "
    "ron_Latn run_Latn rus_Cyrl sag_Latn san_Deva sat_Beng scn_Latn shn_Mymr sin_Sinh slk_Latn slv_Latn smo_Latn "
    "sna_Latn snd_Arab som_Latn sot_Latn spa_Latn als_Latn srd_Latn srp_Cyrl ssw_Latn sun_Latn swe_Latn swh_Latn "
    "szl_Latn tam_Taml tat_Cyrl tel_Telu tgk_Cyrl tgl_Latn tha_Thai tir_Ethi taq_Latn taq_Tfng tpi_Latn tsn_Latn "
    "tso_Latn tuk_Latn tum_Latn tur_Latn twi_Latn tzm_Tfng uig_Arab ukr_Cyrl umb_Latn urd_Arab uzn_Latn vec_Latn "
    "vie_Latn war_Latn wol_Latn xho_Latn ydd_Hebr yor_Latn yue_Hant zho_Hans zho_Hant zul_Latn"
)
"""NLLB's languages, in the order of their tokens, which follow the pieces."""
PIECES = "sentencepiece.bpe.model"
BEGIN = "<s>"
MASK = "<mask>"
FAIRSEQ = (BEGIN, PAD_PIECE, EOS_PIECE, UNK_PIECE)
"""The first entries of every vocabulary of fairseq, by id."""
KEPT = 3
"""First entries of an NLLB SentencePiece model, which fairseq's replace."""


def read_files(
    folder: Path, size: int, languages: tuple[str | None, str | None]
) -> tuple[MarianFiles | None, list[str]]:
    """The files of the tokenizer, and all problems.

    size: of the model's vocabulary; ids that no piece has get names of their own. languages: of sources, and of targets
    if a text names no other language.
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
    stated, problems = stated_tokens(folder)
    codes, wrong = (nllb_languages if nllb else m2m100_languages)(folder, own, stated, size)
    problems += wrong
    if not codes:
        return None, problems
    names = {code: code if nllb else f"__{code}__" for code in codes}
    first = {token: code for code, token in reversed(codes.items())}  # an added language may have the id of another
    entries = own | {names[code]: token for token, code in first.items()}
    problems += _size_problems(entries, size)
    known = {*entries, *names.values(), MASK}
    problems += _foreign_problems(folder, [token for token in {**stated, **named_tokens(folder)} if token not in known])
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


def _size_problems(entries: dict[str, int], size: int) -> list[str]:
    name, highest = max(entries.items(), key=lambda entry: entry[1])
    if highest >= size:
        return [f"the tokenizer gives {name} the id {highest}, and the model's vocabulary has {size} tokens"]
    pieces = {number: piece for piece, number in entries.items()}
    twice = [(piece, number) for piece, number in entries.items() if pieces[number] != piece]
    return [f"the tokenizer gives {piece} and {pieces[number]} the same id {number}" for piece, number in twice[:1]]


def _foreign_problems(folder: Path, added: list[str]) -> list[str]:
    """What else the tokenizer of Transformers would do. added: its tokens that are neither pieces nor languages."""
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
    if added:
        more = ", …" if len(added) > 3 else ""
        problems.append(f"tokens that were added to the tokenizer are not supported: {', '.join(added[:3])}{more}")
    return problems


def _languages(codes: dict[str, int], asked: tuple[str | None, str | None]) -> tuple[tuple[str, str] | None, list[str]]:
    """The codes of both languages: as asked, as the code of one language that begins so (`deu` is `deu_Latn`)."""
    chosen = []
    problems = []
    for language, side in zip(asked, ("source", "target"), strict=True):
        fitting = [code for code in codes if language and (code == language or code.startswith(f"{language}_"))]
        if language in codes or len(fitting) == 1:
            chosen.append(language if language in codes else fitting[0])
            continue
        known = ", ".join(fitting) if fitting else _first(list(codes))
        what = f"{side} language {language!r} is not one of" if language else f"no {side} language is named; choose of"
        problems.append(f"{what} the model's {len(codes)} ({known}): `hmc import --{side}-language`")
    return (None if problems else (str(chosen[0]), str(chosen[1]))), problems


def configured_languages(folder: Path) -> tuple[str | None, str | None]:
    """src_lang and tgt_lang of tokenizer_config.json."""
    raw = _json(folder / TOKENIZER_CONFIG)
    source, target = (raw.get(name) if isinstance(raw.get(name), str) else None for name in ("src_lang", "tgt_lang"))
    return source, target


def listed_tokens(folder: Path, config: dict[str, Any]) -> list[str]:
    """The further special tokens that a directory lists, in order. config: tokenizer_config.json."""
    for raw in (config, _json(folder / SPECIAL_TOKENS)):
        for name in SPECIAL_LISTS:
            tokens = [content_of(token) for token in raw.get(name) or []] if isinstance(raw.get(name), list) else []
            if any(tokens):
                return tokens
    return []


def m2m100_languages(
    folder: Path, own: dict[str, int], stated: dict[str, int], size: int
) -> tuple[dict[str, int], list[str]]:
    """Language → its token. The family's languages follow the vocabulary in their fixed order, whatever a directory
    lists or states, as in Transformers. Other languages have the ids that are stated, or that Transformers gives.

    own: the vocabulary file. size: of the model's vocabulary.
    """
    config = _json(folder / TOKENIZER_CONFIG)
    kind = str(config.get("language_codes", "m2m100"))
    if kind not in OF_M2M100:
        return {}, [f"{TOKENIZER_CONFIG}: language_codes {kind!r} is unknown; known: {', '.join(OF_M2M100)}"]
    codes = {code: len(own) + number for number, code in enumerate(OF_M2M100[kind].split())}
    listed = listed_tokens(folder, config)
    problems = []
    if (last := max(codes.values())) >= size:
        lists = f", although {TOKENIZER_CONFIG} lists {_first(listed)}" if listed else ""
        problems = [
            f"the {len(codes)} languages of {kind} have the ids {len(own)} to {last} in Transformers{lists}; the "
            f"model's vocabulary has {size} tokens"
        ]
    for token, number in _with_ids(own, stated, listed).items():
        if match := M2M100_TOKEN.fullmatch(token):
            codes.setdefault(match[1], number)
    return codes, problems


def nllb_languages(
    folder: Path, own: dict[str, int], stated: dict[str, int], size: int
) -> tuple[dict[str, int], list[str]]:
    """Language → its token, as files state it. If no file states the ids of the family, a directory may list only the
    whole family in its fixed order. Any other list is refused, because no file says which ids it stands for.

    own: the pieces. size: of the model's vocabulary.
    """
    with_ids = {token: number for token, number in stated.items() if NLLB_TOKEN.fullmatch(token)}
    listed = [t for t in listed_tokens(folder, _json(folder / TOKENIZER_CONFIG)) if NLLB_TOKEN.fullmatch(t)]
    if not listed and not with_ids:
        return {}, [f"neither {TOKENIZER_JSON} nor {SPECIAL_TOKENS} lists languages such as eng_Latn: download it"]
    family = OF_NLLB.split()
    if not set(family).isdisjoint(with_ids):
        every = _with_ids(own, stated, listed)
        return {token: number for token, number in every.items() if NLLB_TOKEN.fullmatch(token)}, []
    unstated = [token for token in listed if token not in with_ids]
    if unstated == family and len(own) + len(family) <= size:
        return {code: len(own) + number for number, code in enumerate(family)} | with_ids, []
    return {}, [
        f"no file states the ids of the languages, and the listed ones ({_first(unstated)}) are not NLLB's "
        f"{len(family)} in their order: download {TOKENIZER_JSON}, or save the tokenizer again with it"
    ]


def _with_ids(own: dict[str, int], stated: dict[str, int], listed: list[str]) -> dict[str, int]:
    """The stated and the listed tokens with their ids. Transformers appends a listed token that has none."""
    known = own | stated
    for token in listed:
        known.setdefault(token, len(known))
    return {token: known[token] for token in (*stated, *listed)}


def _first(names: list[str]) -> str:
    return f"{', '.join(names[:8])}{', …' if len(names) > 8 else ''}"


def _json(file: Path) -> dict[str, Any]:
    return read_json(file)[0]
