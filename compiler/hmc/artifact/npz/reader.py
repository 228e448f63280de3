"""A Marian model in .npz, in a folder or a zip archive → a checkpoint in memory."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from hmc.artifact.checkpoint.checkpoint import Checkpoint, CheckpointConfig
from hmc.artifact.checkpoint.weights import Tensors
from hmc.artifact.errors import HmcError, InvalidArtifactError
from hmc.artifact.git_lfs import why
from hmc.artifact.marian.vocabulary import joint_if_equal
from hmc.artifact.model.architecture import OUTPUT, SOURCE_EMBEDDING, TARGET_EMBEDDING, Architecture
from hmc.artifact.npz.options import MarianOptions, read_options
from hmc.artifact.npz.release import Release, find_release
from hmc.artifact.npz.tensors import checkpoint_tensors, embeddings_of, member_problems, unpacked
from hmc.artifact.npz.vocabularies import Vocabularies, read_vocabulary, with_pad
from hmc.artifact.storage.weight_files import Arrays
from hmc.artifact.tokenizer.files import EOS_PIECE, UNK_PIECE, MarianFiles, vocabulary_problems
from hmc.artifact.tokenizer.tokenizer import piece_problems

POSITIONS = 512
"""Positions of an imported model. Marian's sinusoids have no last one; caches and graphs need a bound."""
FIX = (
    "hmc imports Transformers of Marian as OPUS-MT releases them, in a folder or a .zip: NAME.npz, NAME.vocab.yml, "
    "source.spm, target.spm and, if there is one, decoder.yml."
)


def import_release(path: Path, *, source_language: str | None = None, target_language: str | None = None) -> Checkpoint:
    """Reads a folder, a zip archive or the .npz file of a folder as a checkpoint with every head open.

    Languages: None takes them from README.md.

    Marian has no pad token, so one with a zero embedding is added. The decoder starts from this embedding; Marian's
    decoder starts from zeros too. Raises InvalidArtifactError that lists every problem.
    """
    languages = source_language, target_language
    if path.is_file() and path.suffix == ".npz":
        return _import(find_release(path.parent, path), path, languages)
    if path.is_file():
        with unpacked(path) as folder:
            return _import(find_release(folder), path, languages)
    return _import(find_release(path), path, languages)


def _import(release: Release, named: Path, languages: tuple[str | None, str | None]) -> Checkpoint:
    problems = list(release.problems)
    languages = languages[0] or release.languages[0], languages[1] or release.languages[1]
    for language, side in zip(languages, ("source", "target"), strict=True):
        if not language:
            problems.append(f"no README.md names one {side} language; name it: `hmc import --{side}-language`")
    arrays, wrong = _arrays(release.weights)
    problems += wrong
    options, wrong = read_options(arrays) if arrays else (None, [])
    problems += wrong
    arch, tensors, files, wrong = _model(release, arrays, options)
    problems += wrong
    if problems or arch is None or files is None:
        raise InvalidArtifactError(f"Marian model {named}", problems, FIX)
    config = CheckpointConfig(
        architecture=arch,
        head_layout=arch.full_layout().to_json(),
        source_language=str(languages[0]),
        target_language=str(languages[1]),
        provenance={"command": "hmc import", "from": named.resolve().name, "generation": release.decoding},
    )
    return Checkpoint(config=config, tensors=tensors, tokenizer=joint_if_equal(files))


UNREADABLE = (
    zipfile.BadZipFile, zlib.error, NotImplementedError, MemoryError, ValueError, OSError, EOFError,
)  # fmt: skip
"""What NumPy and zipfile raise for a file that is damaged, or claims what it does not hold."""


def _arrays(weights: Path | None) -> tuple[Arrays, list[str]]:
    """The arrays of a .npz file. Python objects in it are refused, and nothing of them runs."""
    if weights is None:
        return {}, []
    try:
        with zipfile.ZipFile(weights) as packed:
            if problems := member_problems(packed):
                return {}, [f"{weights.name}: {problem}" for problem in problems]
        with np.load(weights, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except UNREADABLE as error:
        wrong = why(weights, f"is not readable as arrays: {error}; copy or download it again")
        return {}, [f"{weights.name} {wrong}"]
    odd = [n for n, v in arrays.items() if not isinstance(v, np.ndarray) or v.dtype.kind not in "fiu"]
    if odd:
        return {}, [f"{weights.name}: {odd[0]} is no array of numbers; copy or download it again"]
    return arrays, []


def _model(
    release: Release, arrays: Arrays, options: MarianOptions | None
) -> tuple[Architecture | None, Tensors, MarianFiles | None, list[str]]:
    """Architecture, tensors and tokenizer, and every problem of them."""
    embeddings, problems = embeddings_of(arrays) if arrays else ({}, [])
    entry_lists = []
    for path in release.vocabularies:
        try:
            entry_lists.append(read_vocabulary(path))
        except HmcError as error:
            problems.append(str(error))
    if problems or not entry_lists or not embeddings or options is None:
        return None, {}, None, problems
    matrices = [embeddings.get(SOURCE_EMBEDDING, embeddings[TARGET_EMBEDDING]), embeddings[TARGET_EMBEDDING]]
    for path, entries, matrix in zip(release.vocabularies, entry_lists, matrices, strict=False):
        if len(entries) != len(matrix):
            problems.append(f"{path.name} has {len(entries)} entries, the model's vocabulary has {len(matrix)}")
    if problems:
        return None, {}, None, problems
    try:
        vocabularies = with_pad(entry_lists, joint=SOURCE_EMBEDDING not in embeddings)
        arch = _architecture(options, embeddings, vocabularies)
    except HmcError as error:
        return None, {}, None, [str(error)]
    except ValidationError as error:
        return None, {}, None, [str(detail["msg"]) for detail in error.errors()]
    tensors, problems = checkpoint_tensors(arrays, arch, (vocabularies.pad_id, vocabularies.pad_id))
    files, wrong = _tokenizer(release, vocabularies)
    if files:
        wrong += vocabulary_problems(files.vocabularies(), arch)
    return arch, tensors, files, problems + wrong


def _architecture(options: MarianOptions, embeddings: Arrays, vocabularies: Vocabularies) -> Architecture:
    """Raises HmcError for heads that do not divide the width, and ValidationError."""
    target = embeddings[TARGET_EMBEDDING]
    width = target.shape[1]
    if width % options.heads:
        raise HmcError(f"dim-emb {width} is not a multiple of transformer-heads {options.heads}")
    source = embeddings.get(SOURCE_EMBEDDING)
    return Architecture(
        vocab_size=len(target) + 1,
        source_vocab_size=None if source is None else len(source) + 1,
        d_model=width,
        ffn_dim=options.ffn_dim,
        encoder_layers=options.layers[0],
        decoder_layers=options.layers[1],
        heads=options.heads,
        head_dim=width // options.heads,
        activation=options.activation,
        max_positions=POSITIONS,
        pad_id=vocabularies.pad_id,
        eos_id=vocabularies.source[EOS_PIECE],
        unk_id=vocabularies.source[UNK_PIECE],
        pre_norm=options.pre_norm,
        stack_norms=options.stack_norms,
        own_output=OUTPUT in embeddings,
    )


def _tokenizer(release: Release, vocabularies: Vocabularies) -> tuple[MarianFiles | None, list[str]]:
    problems = []
    models = []
    for path in (release.source_pieces, release.target_pieces):
        if path is not None:
            models.append(path.read_bytes())
            problems += piece_problems(models[-1], path.name)
    if len(models) < 2 or problems:
        return None, problems
    return MarianFiles(models[0], models[1], *vocabularies.files()), []
