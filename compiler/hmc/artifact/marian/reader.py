"""A MarianMT directory → a checkpoint in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hmc.artifact import bundle_files, checkpoint
from hmc.artifact.architecture import Architecture
from hmc.artifact.checkpoint import Checkpoint, CheckpointConfig, Tensors
from hmc.artifact.errors import InvalidArtifactError, InvalidRequestError
from hmc.artifact.marian.generation import decoding_of
from hmc.artifact.marian.layout import CONFIG, GENERATION, LAYOUT, TOKENIZER_CONFIG, WEIGHTS, architecture_of, read_json
from hmc.artifact.marian.vocabulary import joint_if_equal
from hmc.artifact.marian.weights import read_weights
from hmc.artifact.tokenizer import load_pieces
from hmc.artifact.tokenizer_files import (
    EOS_PIECE,
    MARIAN,
    PAD_PIECE,
    SOURCE,
    TARGET,
    UNK_PIECE,
    VOCABULARY,
    MarianFiles,
    parse_vocabulary,
    vocabulary_problems,
)

FIX = f"hmc imports MarianMT models in the layout of OPUS-MT: {LAYOUT}."
PICKLES = ("pytorch_model.bin", "tf_model.h5", "flax_model.msgpack", "rust_model.ot")
CONVERT = (
    "hmc reads safetensors only; convert it with Transformers: "
    "MarianMTModel.from_pretrained('DIR').save_pretrained('DIR')"
)


def import_marian(
    folder: Path, *, source_language: str | None = None, target_language: str | None = None
) -> Checkpoint:
    """Reads `folder` as a checkpoint with every head open. Languages: default from tokenizer_config.json.

    Raises InvalidArtifactError that lists every problem, and InvalidRequestError for what HMC wrote itself.
    """
    if not folder.is_dir():
        raise InvalidArtifactError(f"Marian model {folder}", [f"{folder} is not a directory"], FIX)
    _refuse_ours(folder)
    problems = _missing(folder)
    raw: dict[str, dict[str, Any]] = {}
    readable: set[str] = set()
    for name in (CONFIG, GENERATION, TOKENIZER_CONFIG):
        there = (folder / name).is_file()
        raw[name], wrong = read_json(folder / name) if there else ({}, [])
        problems += wrong
        readable |= {name} if there and not wrong else set()
    languages = (
        source_language or raw[TOKENIZER_CONFIG].get("source_lang"),
        target_language or raw[TOKENIZER_CONFIG].get("target_lang"),
    )
    problems += _tokenizer_config_problems(raw[TOKENIZER_CONFIG], languages)
    vocabulary, wrong = _vocabulary(folder)
    problems += [*wrong, *_tokenizer_problems(folder)]
    arch: Architecture | None = None
    if CONFIG in readable:
        raw[CONFIG].setdefault("decoder_start_token_id", raw[GENERATION].get("decoder_start_token_id"))
        arch, wrong = architecture_of(raw[CONFIG], vocabulary.get(UNK_PIECE, 0))
        problems += wrong
    tensors: Tensors = {}
    if arch:
        problems += vocabulary_problems(vocabulary, arch) if vocabulary else []
        if (folder / WEIGHTS).is_file():
            tensors, wrong = read_weights(folder / WEIGHTS, arch)
            problems += wrong
    if problems or arch is None:
        raise InvalidArtifactError(f"Marian model {folder}", problems, FIX)
    files = MarianFiles(*((folder / name).read_bytes() for name in MARIAN))
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
    return Checkpoint(config=config, tensors=tensors, tokenizer=joint_if_equal(files, vocabulary))


def _refuse_ours(folder: Path) -> None:
    """Raises InvalidRequestError for a directory that HMC wrote, and says what it is for."""
    if checkpoint.FORMAT.is_at(folder):
        raise InvalidRequestError(
            f"{folder} is a checkpoint of HMC already: give it to `hmc prune` or `hmc compile`; `hmc export` writes a "
            "MarianMT model from it"
        )
    if bundle_files.FORMAT.is_at(folder):
        raise InvalidRequestError(
            f"{folder} is a bundle, which `hmc serve` and `hmc translate` read; import takes the MarianMT model itself"
        )


def _tokenizer_problems(folder: Path) -> list[str]:
    problems = []
    for name in (SOURCE, TARGET):
        if (folder / name).is_file():
            try:
                load_pieces((folder / name).read_bytes(), name)
            except InvalidArtifactError as error:
                problems += [f"{problem}; copy or download it again" for problem in error.problems]
    return problems


def _missing(folder: Path) -> list[str]:
    problems = [f"{name} is missing" for name in (CONFIG, *MARIAN) if not (folder / name).is_file()]
    if not (folder / WEIGHTS).is_file():
        pickles = [name for name in PICKLES if (folder / name).is_file()]
        if (folder / f"{WEIGHTS}.index.json").is_file():
            problems.append(f"the weights are in several files; save them as one {WEIGHTS} (max_shard_size='100GB')")
        elif pickles:
            problems.append(f"{WEIGHTS} is missing, and {pickles[0]} is not opened: {CONVERT}")
        else:
            problems.append(f"{WEIGHTS} is missing")
    return problems


def _vocabulary(folder: Path) -> tuple[dict[str, int], list[str]]:
    if not (folder / VOCABULARY).is_file():
        return {}, []
    return parse_vocabulary((folder / VOCABULARY).read_bytes())


def _tokenizer_config_problems(raw: dict[str, Any], languages: tuple[object, object]) -> list[str]:
    """Names that vocab.json must use, one vocabulary for both sides, and the languages."""
    problems = []
    for name, piece in (("eos_token", EOS_PIECE), ("unk_token", UNK_PIECE), ("pad_token", PAD_PIECE)):
        value = raw.get(name, piece)
        found = value.get("content") if isinstance(value, dict) else value
        if found not in (piece, None):
            problems.append(f"{TOKENIZER_CONFIG}: {name} is {found!r}; it must be {piece!r}")
    if raw.get("separate_vocabs"):
        problems.append(f"{TOKENIZER_CONFIG}: separate_vocabs is true: separate vocabularies are not supported")
    for language, side in zip(languages, ("source", "target"), strict=True):
        if not language:
            problems.append(f"{TOKENIZER_CONFIG} names no {side} language: give --{side}-language")
    return problems
