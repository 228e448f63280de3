"""A directory of CTranslate2 → a checkpoint in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from hmc.artifact.checkpoint.checkpoint import Checkpoint, CheckpointConfig
from hmc.artifact.ctranslate2.binary import Binary, read_binary
from hmc.artifact.ctranslate2.options import CTranslate2Options, read_options
from hmc.artifact.ctranslate2.tensors import Floats, Weights, checkpoint_tensors, embeddings_of, position_rows
from hmc.artifact.errors import HmcError, InvalidArtifactError
from hmc.artifact.git_lfs import refuse_pointer
from hmc.artifact.marian.layout import CONFIG
from hmc.artifact.marian.vocabulary import joint_if_equal
from hmc.artifact.model.architecture import OUTPUT, SOURCE_EMBEDDING, TARGET_EMBEDDING, Architecture
from hmc.artifact.model.layers import EPSILON
from hmc.artifact.npz.reader import POSITIONS
from hmc.artifact.npz.vocabularies import Entries, Vocabularies, check_sides, checked_entries, with_pad
from hmc.artifact.storage.formats import read_json
from hmc.artifact.tokenizer.files import (
    EOS_PIECE,
    PAD_PIECE,
    SOURCE,
    TARGET,
    UNK_PIECE,
    MarianFiles,
    vocabulary_problems,
)
from hmc.artifact.tokenizer.tokenizer import piece_problems

WEIGHTS = "model.bin"
SHARED = "shared_vocabulary"
SIDES = ("source_vocabulary", "target_vocabulary")
FIX = (
    "hmc imports Marian's Transformers that CTranslate2 converted: model.bin, config.json, shared_vocabulary.json (or "
    "one for each side), and source.spm and target.spm, which the converter takes along with --copy_files."
)


def is_ctranslate2(folder: Path) -> bool:
    """Whether a folder holds a model of CTranslate2."""
    return (folder / WEIGHTS).is_file() and any(
        _vocabulary_file(folder, name) for name in (SHARED, *SIDES, "vocabulary")
    )


def import_ctranslate2(
    folder: Path, *, source_language: str | None = None, target_language: str | None = None
) -> Checkpoint:
    """Reads `folder` as a checkpoint with every head open. None of its files names the languages.

    16-bit floats become the same numbers in 32 bits. int8 and int16 weights become the numbers that CTranslate2
    restores from them, and `provenance["weights"]` says so. Pad is added as in `import_release`. Raises
    InvalidArtifactError that lists every problem.
    """
    problems: list[str] = []
    for language, side in ((source_language, "source"), (target_language, "target")):
        if not language:
            problems.append(
                f"no file of CTranslate2 names the {side} language; name it: `hmc import --{side}-language`"
            )
    raw, wrong = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else ({}, [f"{CONFIG} is missing"])
    problems += [*wrong, *_config_problems(raw)]
    models, wrong = _piece_models(folder)
    problems += wrong
    try:
        binary = read_binary(folder / WEIGHTS)
    except HmcError as error:
        raise _refusal(folder, [*problems, str(error)]) from error
    options, wrong = read_options(binary)
    problems += wrong
    if options is None:
        raise _refusal(folder, problems)
    try:
        with np.errstate(all="ignore"):  # what is not finite is refused below, by the name of its tensor
            checkpoint, wrong = _checkpoint(folder, binary, options, raw, models)
    except HmcError as error:
        raise _refusal(folder, [*problems, str(error)]) from error
    except ValidationError as error:
        raise _refusal(folder, [*problems, *(str(detail["msg"]) for detail in error.errors())]) from error
    if problems + wrong or checkpoint is None:
        raise _refusal(folder, problems + wrong)
    checkpoint.config.source_language = str(source_language)
    checkpoint.config.target_language = str(target_language)
    return checkpoint


def _refusal(folder: Path, problems: list[str]) -> InvalidArtifactError:
    return InvalidArtifactError(f"CTranslate2 model {folder}", problems, FIX)


def _checkpoint(
    folder: Path, binary: Binary, options: CTranslate2Options, raw: dict[str, Any], models: list[bytes]
) -> tuple[Checkpoint | None, list[str]]:
    """The checkpoint, without languages, and every problem. Raises HmcError and ValidationError."""
    weights = Weights(binary.variables)
    embeddings, problems = embeddings_of(weights)
    if problems:
        return None, problems
    width = embeddings[TARGET_EMBEDDING].shape[1]
    rows, moved, problems = position_rows(weights, width, starts_from_zero=options.starts_from_zero)
    if width % options.heads or width % 2:
        problems.append(f"the width {width} is not a multiple of 2 and of the {options.heads} heads")
    vocabularies, inserted = _vocabularies(folder, embeddings)
    if options.starts_from_zero and inserted is None and embeddings[TARGET_EMBEDDING][vocabularies.pad_id].any():
        problems.append(f"the decoder starts from zeros, and the embedding of {PAD_PIECE} is not zero")
    start, wrong = _start(options, raw, vocabularies)
    if problems + wrong:
        return None, problems + wrong
    more = 0 if inserted is None else 1
    source = embeddings.get(SOURCE_EMBEDDING)
    inner = weights.floats("encoder/layer_0/ffn/linear_0/weight")
    arch = Architecture(
        vocab_size=len(embeddings[TARGET_EMBEDDING]) + more,
        source_vocab_size=None if source is None else len(source) + more,
        d_model=width, ffn_dim=len(inner), encoder_layers=options.layers[0], decoder_layers=options.layers[1],
        heads=options.heads, head_dim=width // options.heads, activation=options.activation,
        max_positions=min(rows, POSITIONS), scale_embedding=options.scale_embedding, pad_id=vocabularies.pad_id,
        eos_id=vocabularies.source[EOS_PIECE], unk_id=vocabularies.source[UNK_PIECE], start_id=start,
        pre_norm=options.pre_norm, stack_norms=options.stack_norms, own_output=OUTPUT in embeddings,
    )  # fmt: skip
    tensors, problems = checkpoint_tensors(weights, arch, embeddings, inserted, moved)
    if problems or len(models) < 2:
        return None, problems
    files = MarianFiles(models[0], models[1], *vocabularies.files())
    if problems := vocabulary_problems(files.vocabularies(), arch):
        return None, problems
    kinds = {variable.kind for name, variable in binary.variables.items() if name.endswith("/weight")}
    stored = next((kind for kind in ("int8", "int16", "float16", "bfloat16") if kind in kinds), "float32")
    config = CheckpointConfig(
        architecture=arch, head_layout=arch.full_layout().to_json(), source_language="", target_language="",
        provenance={"command": "hmc import", "from": folder.resolve().name, "weights": stored, "generation": {}},
    )  # fmt: skip
    return Checkpoint(config=config, tensors=tensors, tokenizer=joint_if_equal(files)), []


def _vocabularies(folder: Path, embeddings: dict[str, Floats]) -> tuple[Vocabularies, int | None]:
    """The vocabularies with pad, and where its row has to be put; None if the model has it. Raises HmcError."""
    names = [SHARED] if _vocabulary_file(folder, SHARED) else list(SIDES)
    sides = [_entries(folder, name) for name in names]
    matrices = [embeddings.get(SOURCE_EMBEDDING, embeddings[TARGET_EMBEDDING]), embeddings[TARGET_EMBEDDING]]
    for entries, matrix, side in zip((sides[0], sides[-1]), matrices, ("source", "target"), strict=True):
        if len(entries) != len(matrix):
            raise HmcError(f"the {side} vocabulary has {len(entries)} entries, and its embedding {len(matrix)} rows")
    joint = SOURCE_EMBEDDING not in embeddings
    if not any(PAD_PIECE in entries for entries in sides):
        padded = with_pad(sides, joint=joint)
        return padded, padded.pad_id
    source = sides[0]
    target = sides[-1]
    check_sides(source, target, (EOS_PIECE, UNK_PIECE, PAD_PIECE), joint=joint)
    return Vocabularies(source, None if joint else target, source[PAD_PIECE]), None


def _entries(folder: Path, name: str) -> Entries:
    file = _vocabulary_file(folder, name)
    if file is None:
        raise HmcError(f"{name}.json is missing")
    refuse_pointer(file, file.name)
    try:
        text = file.read_text(encoding="utf-8")
        tokens = json.loads(text) if file.suffix == ".json" else text.removesuffix("\n").split("\n")
    except (ValueError, RecursionError) as error:
        raise HmcError(f"{file.name} is not readable: {error}") from error
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise HmcError(f"{file.name} must be a list of pieces")
    entries = {token: number for number, token in enumerate(tokens)}
    if len(entries) != len(tokens):
        raise HmcError(f"{file.name} holds a piece twice")
    return checked_entries(entries, file.name)


def _vocabulary_file(folder: Path, name: str) -> Path | None:
    return next((file for kind in ("json", "txt") if (file := folder / f"{name}.{kind}").is_file()), None)


def _config_problems(raw: dict[str, Any]) -> list[str]:
    problems = [
        f"{CONFIG}: {name} is {raw[name]!r}; it must be {piece!r}"
        for name, piece in (("eos_token", EOS_PIECE), ("unk_token", UNK_PIECE))
        if raw.get(name, piece) != piece
    ]
    epsilon = raw.get("layer_norm_epsilon")
    if epsilon is not None and (not isinstance(epsilon, int | float) or not np.isclose(epsilon, EPSILON)):
        problems.append(f"{CONFIG}: layer_norm_epsilon is {epsilon!r}; only {EPSILON:g} can be expressed")
    if raw.get("add_source_bos"):
        problems.append(f"{CONFIG}: add_source_bos is true: a token before sources cannot be expressed")
    return problems


def _start(
    options: CTranslate2Options, raw: dict[str, Any], vocabularies: Vocabularies
) -> tuple[int | None, list[str]]:
    """The token that starts the decoder; None: pad, whose embedding is zero where the decoder starts from zeros."""
    if options.starts_from_zero:
        return None, []
    token = raw.get("decoder_start_token")
    entries = vocabularies.source if vocabularies.target is None else vocabularies.target
    if not isinstance(token, str) or token not in entries:
        return None, [f"{CONFIG}: decoder_start_token {token!r} is not in the target vocabulary"]
    return (None if entries[token] == vocabularies.pad_id else entries[token]), []


def _piece_models(folder: Path) -> tuple[list[bytes], list[str]]:
    """The SentencePiece models of both sides, and what is wrong with them."""
    models = []
    problems = []
    for name in (SOURCE, TARGET):
        if not (folder / name).is_file():
            problems.append(f"{name} is missing: copy it from the model that was converted")
            continue
        models.append((folder / name).read_bytes())
        problems += piece_problems(models[-1], name)
    return models, problems
