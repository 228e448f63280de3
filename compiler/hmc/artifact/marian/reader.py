"""A MarianMT directory → a checkpoint in memory."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

from hmc.artifact.bundle import manifest
from hmc.artifact.checkpoint import checkpoint
from hmc.artifact.checkpoint.checkpoint import Checkpoint, CheckpointConfig
from hmc.artifact.checkpoint.weights import Tensors
from hmc.artifact.errors import InvalidArtifactError, InvalidRequestError
from hmc.artifact.marian.generation import decoding_of, id_problems, start_of
from hmc.artifact.marian.layout import CONFIG, GENERATION, LAYOUT, TOKENIZER_CONFIG, WEIGHTS, architecture_of
from hmc.artifact.marian.vocabulary import (
    ADDED_TOKENS,
    SPECIAL_TOKENS,
    TOKENIZER_JSON,
    joint_if_equal,
    named_tokens,
    stated_tokens,
)
from hmc.artifact.marian.weights import checked_weights
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.storage.formats import listed, read_json
from hmc.artifact.storage.weight_files import ReadPickled, read_folder, weights_at
from hmc.artifact.tokenizer.files import (
    EOS_PIECE,
    MARIAN,
    PAD_PIECE,
    SOURCE,
    TARGET,
    TARGET_VOCABULARY,
    UNK_PIECE,
    VOCABULARY,
    MarianFiles,
    parse_vocabulary,
    vocabulary_problems,
)
from hmc.artifact.tokenizer.tokenizer import piece_problems

FIX = f"hmc imports MarianMT models in the layout of OPUS-MT: {LAYOUT}."
OTHERS = ("tf_model.h5", "flax_model.msgpack", "rust_model.ot")
"""Weights that HMC cannot read."""
CONVERT = (
    "hmc reads model.safetensors and pytorch_model.bin; convert it with Transformers: "
    "MarianMTModel.from_pretrained('DIR').save_pretrained('DIR')"
)


def import_marian(
    folder: Path,
    *,
    source_language: str | None = None,
    target_language: str | None = None,
    read_pickled: ReadPickled | None = None,
) -> Checkpoint:
    """Reads `folder` as a checkpoint with every head open. Languages: None takes them from tokenizer_config.json.
    read_pickled: reads `pytorch_model.bin`; None: such a file is refused.

    Raises InvalidArtifactError that lists every problem, and InvalidRequestError for a checkpoint or bundle of HMC.
    """
    if not folder.is_dir():
        raise InvalidArtifactError(f"Marian model {folder}", [f"{folder} is not a directory"], FIX)
    _refuse_ours(folder)
    raw, readable, unreadable = _configurations(folder)
    problems = _missing(folder) + unreadable
    languages = (
        source_language or raw[TOKENIZER_CONFIG].get("source_lang"),
        target_language or raw[TOKENIZER_CONFIG].get("target_lang"),
    )
    problems += _tokenizer_config_problems(raw[TOKENIZER_CONFIG], languages)
    files, wrong = _tokenizer_files(folder, raw)
    problems += wrong
    for name in (SOURCE, TARGET):
        if name in files:
            problems += piece_problems(files[name], name)
    arch: Architecture | None = None
    if readable:
        if raw[CONFIG].get("decoder_start_token_id") is None:
            raw[CONFIG]["decoder_start_token_id"] = start_of(raw[GENERATION])
        arch, wrong = architecture_of(raw[CONFIG], _unknown(files))
        problems += wrong
        if arch:
            problems += id_problems(arch, raw[GENERATION])
    tensors: Tensors = {}
    problems += _added_problems(folder, files) or _vocabulary_problems(files, arch)
    if arch and weights_at(folder):
        stored, wrong = read_folder(folder, read_pickled)
        problems += wrong
        if not wrong:
            tensors, wrong = checked_weights(stored, arch)
            problems += wrong
    if problems or arch is None:
        raise InvalidArtifactError(f"Marian model {folder}", problems, FIX)
    decoding = decoding_of(raw[CONFIG], raw[GENERATION])
    config = CheckpointConfig(
        architecture=arch,
        head_layout=arch.full_layout().to_json(),
        source_language=str(languages[0]),
        target_language=str(languages[1]),
        provenance={
            "command": "hmc import",
            "from": raw[CONFIG].get("_name_or_path") or folder.resolve().name,
            "transformers": raw[CONFIG].get("transformers_version"),
            "generation": decoding,
        },
    )
    marian = MarianFiles(files[SOURCE], files[TARGET], files[VOCABULARY], files.get(TARGET_VOCABULARY))
    return Checkpoint(config=config, tensors=tensors, tokenizer=joint_if_equal(marian))


def _refuse_ours(folder: Path) -> None:
    """Raises InvalidRequestError for a checkpoint or bundle of HMC. The message names the commands that take it."""
    if checkpoint.FORMAT.is_at(folder):
        raise InvalidRequestError(
            f"{folder} is a checkpoint of HMC already: give it to `hmc prune` or `hmc compile`; `hmc export` writes a "
            "MarianMT model from it"
        )
    if manifest.FORMAT.is_at(folder):
        raise InvalidRequestError(
            f"{folder} is a bundle, which `hmc serve` and `hmc translate` read; give the MarianMT model itself"
        )


def _configurations(folder: Path) -> tuple[dict[str, dict[str, Any]], bool, list[str]]:
    """The three JSON files ({} for a missing one), whether config.json can be used, and all problems."""
    raw: dict[str, dict[str, Any]] = {}
    problems: dict[str, list[str]] = {}
    for name in (CONFIG, GENERATION, TOKENIZER_CONFIG):
        raw[name], problems[name] = read_json(folder / name) if (folder / name).is_file() else ({}, [])
    return raw, (folder / CONFIG).is_file() and not problems[CONFIG], list(chain.from_iterable(problems.values()))


def _tokenizer_files(folder: Path, raw: dict[str, dict[str, Any]]) -> tuple[dict[str, bytes], list[str]]:
    """The tokenizer files of the directory, and fields of the configuration that contradict them.

    If each side has an embedding, each has a vocabulary. If there is only vocab.json, it is the vocabulary of both.
    """
    files = {name: (folder / name).read_bytes() for name in MARIAN if (folder / name).is_file()}
    config = raw[CONFIG]
    own_ids = raw[TOKENIZER_CONFIG].get("separate_vocabs")
    target = (folder / TARGET_VOCABULARY).read_bytes() if (folder / TARGET_VOCABULARY).is_file() else None
    if config and config.get("share_encoder_decoder_embeddings", True) is not False:
        clash = f"{TOKENIZER_CONFIG}: separate_vocabs is true, and {CONFIG} has one embedding for both sides"
        return files, [clash] if own_ids else []
    one_size = config.get("decoder_vocab_size") in (None, config.get("vocab_size"))
    if target is None and config and one_size and not own_ids and VOCABULARY in files:
        target = files[VOCABULARY]
    elif target is not None and own_ids is False:
        return files, [f"{TOKENIZER_CONFIG}: separate_vocabs is false, and there is a {TARGET_VOCABULARY}: delete one"]
    return files | ({} if target is None else {TARGET_VOCABULARY: target}), []


def _unknown(files: dict[str, bytes]) -> int:
    """The id of the unknown token, from the first vocabulary that has one. config.json does not have it."""
    parsed = (parse_vocabulary(files[name], name)[0] for name in (VOCABULARY, TARGET_VOCABULARY) if name in files)
    return next((vocabulary[UNK_PIECE] for vocabulary in parsed if UNK_PIECE in vocabulary), 0)


def _vocabulary_problems(files: dict[str, bytes], arch: Architecture | None) -> list[str]:
    """Problems of the vocabularies. Without an architecture, only those that do not depend on it."""
    present = {name: files[name] for name in (VOCABULARY, TARGET_VOCABULARY) if name in files}
    if arch is None:
        return list(chain.from_iterable(parse_vocabulary(content, name)[1] for name, content in present.items()))
    return vocabulary_problems(present, arch) if VOCABULARY in present else []


def _added_problems(folder: Path, files: dict[str, bytes]) -> list[str]:
    """Tokens that were added to the tokenizer, which Transformers would take out of a text before it is divided."""
    known = {*parse_vocabulary(files.get(VOCABULARY, b""))[0], *parse_vocabulary(files.get(TARGET_VOCABULARY, b""))[0]}
    others = [name for name in (ADDED_TOKENS, SPECIAL_TOKENS, TOKENIZER_JSON) if (folder / name).is_file()]
    unreadable = list(chain.from_iterable(read_json(folder / name)[1] for name in others))
    if unreadable or not known:
        return unreadable
    file = ADDED_TOKENS if (folder / ADDED_TOKENS).is_file() else TOKENIZER_CONFIG
    places = dict.fromkeys(stated_tokens(folder)[0], file) | named_tokens(folder)
    added = {token: place for token, place in places.items() if token not in known}
    return [
        f"{place} adds {listed([token for token in added if added[token] == place])} to the pieces of {VOCABULARY}: "
        "added tokens are not supported; import the model as it was before they were added"
        for place in dict.fromkeys(added.values())
    ]


def _missing(folder: Path) -> list[str]:
    problems = [f"{name} is missing" for name in (CONFIG, *MARIAN) if not (folder / name).is_file()]
    if weights_at(folder) is None:
        others = [name for name in OTHERS if (folder / name).is_file()]
        problems.append(f"{WEIGHTS} is missing" + (f", and {others[0]} is not opened: {CONVERT}" if others else ""))
    return problems


def _tokenizer_config_problems(raw: dict[str, Any], languages: tuple[object, object]) -> list[str]:
    """Special tokens with other names than vocab.json must use, and languages that are not given."""
    problems = []
    for name, piece in (("eos_token", EOS_PIECE), ("unk_token", UNK_PIECE), ("pad_token", PAD_PIECE)):
        value = raw.get(name, piece)
        piece_in_file = value.get("content") if isinstance(value, dict) else value
        if piece_in_file not in (piece, None):
            problems.append(f"{TOKENIZER_CONFIG}: {name} is {piece_in_file!r}; it must be {piece!r}")
    for language, side in zip(languages, ("source", "target"), strict=True):
        if not language:
            problems.append(f"{TOKENIZER_CONFIG} names no {side} language; name it: `hmc import --{side}-language`")
    return problems
