"""The files of a tokenizer in a checkpoint or a bundle: `tokenizer.model`, or those of a Marian tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hmc.artifact.errors import InvalidArtifactError
from hmc.artifact.git_lfs import why
from hmc.artifact.model.architecture import Architecture

TOKENIZER = "tokenizer.model"
"""A joint SentencePiece model whose piece ids are the model's token ids."""
SOURCE = "source.spm"
TARGET = "target.spm"
VOCABULARY = "vocab.json"
TARGET_VOCABULARY = "target_vocab.json"
MARIAN = (SOURCE, TARGET, VOCABULARY)
"""Files of every Marian tokenizer."""
SEPARATE = (*MARIAN, TARGET_VOCABULARY)
"""Files of a Marian tokenizer with a vocabulary for each side."""
LANGUAGES = "languages.json"
"""The tokens of languages, where both sides begin with one (`hmc.artifact.tokenizer.tokenizer`)."""
EVERY = (TOKENIZER, *SEPARATE, LANGUAGES)
"""Every file that a tokenizer may have."""
EOS_PIECE = "</s>"
UNK_PIECE = "<unk>"
PAD_PIECE = "<pad>"
"""Names of the special entries in every vocab.json."""


@dataclass(frozen=True)
class MarianFiles:
    """Tokenizer of an OPUS-MT model: a SentencePiece model for each side, and vocab.json from pieces to token ids."""

    source: bytes
    target: bytes
    vocabulary: bytes
    """vocab.json."""
    target_vocabulary: bytes | None = None
    """target_vocab.json, if targets have their own ids; `vocabulary` is then for sources only."""
    languages: bytes | None = None
    """languages.json, if both sides begin with the token of their language."""

    def vocabularies(self) -> dict[str, bytes]:
        """File name → content of the vocabularies. The first one is for sources, or for both sides."""
        own = {} if self.target_vocabulary is None else {TARGET_VOCABULARY: self.target_vocabulary}
        return {VOCABULARY: self.vocabulary, **own}


TokenizerFiles = bytes | MarianFiles
"""Contents of `tokenizer.model`, or the Marian files."""


def contents(files: TokenizerFiles) -> dict[str, bytes]:
    """File name → bytes."""
    if isinstance(files, bytes):
        return {TOKENIZER: files}
    languages = {} if files.languages is None else {LANGUAGES: files.languages}
    return {SOURCE: files.source, TARGET: files.target, **files.vocabularies(), **languages}


def from_contents(files: Mapping[str, bytes]) -> TokenizerFiles:
    """The inverse of `contents`."""
    if TOKENIZER in files:
        return files[TOKENIZER]
    optional = files.get(TARGET_VOCABULARY), files.get(LANGUAGES)
    return MarianFiles(files[SOURCE], files[TARGET], files[VOCABULARY], *optional)


def write_tokenizer(files: TokenizerFiles, folder: Path) -> None:
    """Writes the files into `folder`."""
    for name, content in contents(files).items():
        (folder / name).write_bytes(content)


def read_tokenizer(folder: Path) -> TokenizerFiles:
    """Reads the tokenizer in `folder`. Raises InvalidArtifactError if files are missing, or of two tokenizers."""
    if problems := presence_problems(folder):
        raise InvalidArtifactError(
            f"tokenizer in {folder}",
            problems,
            f"A tokenizer is either {TOKENIZER}, or all of {', '.join(MARIAN)}, and {TARGET_VOCABULARY} if targets "
            "have their own ids.",
        )
    return from_contents({name: (folder / name).read_bytes() for name in EVERY if (folder / name).is_file()})


def tokenizer_digest(files: TokenizerFiles) -> str | dict[str, str]:
    """sha256 of `tokenizer.model`, or name → sha256 of the Marian files, as a bundle's manifest has it."""
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents(files).items()}
    return digests[TOKENIZER] if isinstance(files, bytes) else digests


def special_problems(vocabularies: Sequence[Mapping[str, int]]) -> list[str]:
    """Special pieces whose ids differ between the two vocabularies (decision 17)."""
    source = vocabularies[0]
    target = vocabularies[-1]
    return [
        f"{piece!r} has the id {source[piece]} in {VOCABULARY} and {target[piece]} in {TARGET_VOCABULARY}: it has to "
        "be the same token in both"
        for piece in (EOS_PIECE, UNK_PIECE, PAD_PIECE)
        if source[piece] != target[piece]
    ]


def presence_problems(folder: Path) -> list[str]:
    """Which tokenizer files are missing in `folder`, or are too many; empty if it holds exactly one tokenizer."""
    marian = [name for name in (*SEPARATE, LANGUAGES) if (folder / name).is_file()]
    if (folder / TOKENIZER).is_file():
        return [f"{TOKENIZER} and {marian[0]} are two tokenizers: delete one"] if marian else []
    if not marian:
        return [f"{TOKENIZER} is missing"]
    return [f"{name} is missing" for name in MARIAN if name not in marian]


def parse_vocabulary(content: bytes, name: str = VOCABULARY) -> tuple[dict[str, int], list[str]]:
    """Parses a vocabulary file into piece → id, and lists its problems. The ids must be 0 to V - 1, each once."""
    try:
        raw = json.loads(content)
    except (ValueError, RecursionError) as error:
        return {}, [f"{name} {why(content, f'is not JSON: {error}')}"]
    if not isinstance(raw, dict) or not all(isinstance(value, int) for value in raw.values()):
        return {}, [f"{name} must be one object from pieces to whole numbers"]
    problems = [f"{name} has no entry {p!r}" for p in (EOS_PIECE, UNK_PIECE, PAD_PIECE) if p not in raw]
    if sorted(raw.values()) != list(range(len(raw))):
        problems.append(f"{name}: the ids of {len(raw)} entries must be 0 to {len(raw) - 1}, each once")
    return raw, problems


def vocabulary_problems(vocabularies: Mapping[str, bytes], arch: Architecture) -> list[str]:
    """Problems of `MarianFiles.vocabularies`, and contradictions between them and an architecture."""
    problems = []
    if arch.source_vocab_size is not None and TARGET_VOCABULARY not in vocabularies:
        problems.append(f"{TARGET_VOCABULARY} is missing: sources and targets have embeddings of their own")
    if arch.source_vocab_size is None and TARGET_VOCABULARY in vocabularies:
        problems.append(f"{TARGET_VOCABULARY} does not belong to a model whose two sides share their embeddings")
    for name, content in vocabularies.items():
        vocabulary, wrong = parse_vocabulary(content, name)
        size = arch.source_size if name == VOCABULARY else arch.vocab_size
        problems += wrong or _disagreements(name, vocabulary, size, arch)
    return problems


def _disagreements(name: str, vocabulary: Mapping[str, int], size: int, arch: Architecture) -> list[str]:
    problems = []
    if len(vocabulary) != size:
        problems.append(f"{name} has {len(vocabulary)} entries, the model's vocabulary has {size}")
    for piece, field in ((EOS_PIECE, "eos_id"), (UNK_PIECE, "unk_id"), (PAD_PIECE, "pad_id")):
        if vocabulary[piece] != getattr(arch, field):
            problems.append(
                f"{name} gives {piece!r} the id {vocabulary[piece]}, the model's {field} is {getattr(arch, field)}"
            )
    return problems
