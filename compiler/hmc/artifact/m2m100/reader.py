"""An M2M100 or NLLB directory → a checkpoint in memory: config.json as an `Architecture`, and the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from hmc.artifact.checkpoint.checkpoint import Checkpoint, CheckpointConfig
from hmc.artifact.checkpoint.weights import Tensors, fitted
from hmc.artifact.errors import InvalidArtifactError, field_problems
from hmc.artifact.m2m100.tokenizer_files import TOKENIZER_FILES, configured_languages, read_files
from hmc.artifact.marian.generation import decoding_of, id_problems
from hmc.artifact.marian.layout import CONFIG, GENERATION, TOKENIZER_CONFIG, SizesConfig, classes_of
from hmc.artifact.model.architecture import (
    LOGITS_BIAS,
    OUTPUT,
    SOURCE_EMBEDDING,
    TARGET_EMBEDDING,
    Architecture,
)
from hmc.artifact.storage.formats import read_json
from hmc.artifact.storage.weight_files import Arrays, ReadPickled, read_folder
from hmc.artifact.tokenizer.files import UNK_PIECE, MarianFiles, parse_vocabulary
from hmc.artifact.tokenizer.tokenizer import LanguageTokens

MODEL_TYPE = "m2m_100"
CLASS = "M2M100ForConditionalGeneration"
FIX = (
    "hmc imports M2M100 and NLLB models of Transformers: config.json, weights in model.safetensors or "
    "pytorch_model.bin, sentencepiece.bpe.model, tokenizer_config.json, and vocab.json for M2M100."
)
TIED = (TARGET_EMBEDDING, SOURCE_EMBEDDING, "decoder.embed_tokens.weight")
"""Names of the one embedding of both sides."""
POSITIONS = "embed_positions"
"""Part of the names of position tables, which older files have. They are computed here."""


def is_m2m100(folder: Path) -> bool:
    """Whether a directory holds such a model. Any path may be asked about."""
    return read_json(folder / CONFIG)[0].get("model_type") == MODEL_TYPE


def import_m2m100(
    folder: Path,
    *,
    source_language: str | None = None,
    target_language: str | None = None,
    read_pickled: ReadPickled | None = None,
) -> Checkpoint:
    """Reads `folder` as a checkpoint with every head open, for sources of one language and targets of any.

    Languages are codes of the model, such as `en` or `eng_Latn`; None takes them from tokenizer_config.json. The target
    language is for texts that name none. read_pickled: reads `pytorch_model.bin`; None: such a file is refused. Raises
    InvalidArtifactError that lists every problem.
    """
    raw, problems = read_json(folder / CONFIG)
    generation, _ = read_json(folder / GENERATION)
    for name in (GENERATION, *TOKENIZER_FILES):
        if (folder / name).exists():
            problems += read_json(folder / name)[1]
    configured = configured_languages(folder)
    languages = source_language or configured[0], target_language or configured[1]
    stored, wrong = read_folder(folder, read_pickled)
    problems += wrong
    arrays, wrong = _named(stored)
    problems += wrong
    named = raw.get("vocab_size")
    size = named if isinstance(named, int) else 0
    if TARGET_EMBEDDING in arrays:
        size = len(arrays[TARGET_EMBEDDING])
    files, wrong = read_files(folder, size, languages)
    problems += wrong
    arch, wrong = architecture_of(raw, _unknown(files), own_output=OUTPUT in arrays)
    problems += wrong
    if arch:
        problems += id_problems(arch, generation)
    if files and target_language is None:
        problems += _forced_problems(files, generation)
    tensors: Tensors = {}
    if arch and arrays:
        tensors, wrong = fitted(arrays, arch, wanted=f"{CONFIG} says")
        problems += wrong
    if problems or arch is None or files is None:
        raise InvalidArtifactError(f"M2M100 model {folder}", problems, FIX)
    config = CheckpointConfig(
        architecture=arch,
        head_layout=arch.full_layout().to_json(),
        source_language=str(languages[0]),
        target_language=str(languages[1]),
        provenance={
            "command": "hmc import",
            "from": raw.get("_name_or_path") or folder.resolve().name,
            "transformers": raw.get("transformers_version"),
            "generation": _decoding(raw, generation),
        },
    )
    return Checkpoint(config=config, tensors=tensors, tokenizer=files)


def _forced_problems(files: MarianFiles, generation: dict[str, Any]) -> list[str]:
    """Whether generation_config.json begins every text with the token of another language than the tokenizer names."""
    assert files.languages is not None
    tokens = LanguageTokens.model_validate_json(files.languages)
    forced = generation.get("forced_bos_token_id")
    other = next((code for code, token in tokens.codes.items() if token == forced), None)
    if other in (None, tokens.target):
        return []
    return [
        f"{GENERATION}: forced_bos_token_id {forced} is the token of {other}, and {TOKENIZER_CONFIG} names the target "
        f"language {tokens.target}: `hmc import --target-language` chooses one"
    ]


def _decoding(raw: dict[str, Any], generation: dict[str, Any]) -> dict[str, Any]:
    """As `decoding_of`, without the token of the target language, which requests choose."""
    decoding = decoding_of(raw, generation)
    decoding.pop("forced_bos_token_id", None)
    return decoding


def _unknown(files: MarianFiles | None) -> int:
    return 3 if files is None else parse_vocabulary(files.vocabulary)[0][UNK_PIECE]


def _named(stored: Arrays) -> tuple[Arrays, list[str]]:
    """The stored tensors under a checkpoint's names. Both sides must share their embedding; the output may differ."""
    arrays = {name.removeprefix("model."): value for name, value in stored.items() if POSITIONS not in name}
    if not arrays:
        return {}, []
    tied = {name: arrays.pop(name) for name in TIED if name in arrays}
    if not tied:
        if OUTPUT not in arrays:
            return arrays, [f"tensor {TARGET_EMBEDDING} is missing"]
        tied = {OUTPUT: arrays[OUTPUT]}
    first, *others = tied.values()
    if any(not np.array_equal(first, other) for other in others):
        return arrays, [f"tensors {', '.join(tied)} differ: both sides must share one embedding"]
    if OUTPUT in arrays and np.array_equal(first, arrays[OUTPUT]):
        del arrays[OUTPUT]
    arrays[TARGET_EMBEDDING] = first
    arrays.setdefault(LOGITS_BIAS, np.zeros(len(first), np.float32))
    arrays[LOGITS_BIAS] = arrays[LOGITS_BIAS].reshape(-1)
    return arrays, []


class M2M100Config(SizesConfig):
    """The fields of config.json that change the model's computation. Defaults are as in Transformers."""

    vocab_size: int = 128112
    max_position_embeddings: int = 1024
    encoder_layers: int = 12
    encoder_ffn_dim: int = 4096
    encoder_attention_heads: int = 16
    decoder_layers: int = 12
    decoder_ffn_dim: int = 4096
    decoder_attention_heads: int = 16
    activation_function: str = "relu"
    d_model: int = 1024
    scale_embedding: bool = True
    decoder_start_token_id: int = 2
    pad_token_id: int = 1
    eos_token_id: int = 2


def architecture_of(raw: dict[str, Any], unk_id: int, *, own_output: bool) -> tuple[Architecture | None, list[str]]:
    """Reads config.json as an Architecture, and lists every reason why it cannot be one."""
    classes = classes_of(raw, CLASS)
    if CLASS not in classes:
        return None, [f"{CONFIG} describes {', '.join(classes)}, not {CLASS}"]
    try:
        config = M2M100Config.model_validate({name: value for name, value in raw.items() if value is not None})
    except ValidationError as error:
        return None, [f"{CONFIG}: {problem}" for problem in field_problems(error)]
    problems = config.problems()
    if config.pad_token_id != 1:
        problems.append(f"{CONFIG}: pad_token_id {config.pad_token_id} must be 1: positions are counted from it")
    if config.decoder_start_token_id == config.pad_token_id:
        problems.append(f"{CONFIG}: decoder_start_token_id must not be pad, which has no position")
    if problems:
        return None, problems
    try:
        return _architecture(config, unk_id, own_output), []
    except ValidationError as error:
        return None, [f"{CONFIG}: {problem}" for problem in field_problems(error)]


def _architecture(config: M2M100Config, unk_id: int, own_output: bool) -> Architecture:
    return Architecture(
        vocab_size=config.vocab_size,
        unk_id=unk_id,
        start_id=config.decoder_start_token_id,
        pre_norm=True,
        stack_norms=True,
        own_output=own_output,
        position_form="fairseq",
        **config.sizes(),
    )
