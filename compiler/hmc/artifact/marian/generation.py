"""How Transformers decodes with a model, and which of these settings HMC follows.

HMC follows the ids of pad (never generated), EOS and decoder start. Beam size, length penalty and length limit are
options of each request in HMC. An import records all settings in `provenance["generation"]` of the checkpoint, and
`hmc export` writes them again. The remaining settings have no effect in HMC.
"""

from __future__ import annotations

from typing import Any

from hmc.artifact.marian.layout import CONFIG, DECODING, GENERATION
from hmc.artifact.model.architecture import Architecture

REQUEST_OPTIONS = {"num_beams": "beam_size", "length_penalty": "length_penalty", "max_length": "max_length"}
"""Field → the option of a request with the same effect."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "min_length": (0,),
    "num_beam_groups": (1,),
    "diversity_penalty": (0.0,),
    "do_sample": (False,),
    "temperature": (1.0,),
    "top_k": (50,),
    "top_p": (1.0,),
    "repetition_penalty": (1.0,),
    "encoder_repetition_penalty": (1.0,),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "early_stopping": (False,),
    "renormalize_logits": (False,),
}
"""Values that also have no effect in Transformers."""


def decoding_of(config: dict[str, Any], generation: dict[str, Any]) -> dict[str, Any]:
    """The decoding fields of both files. If both have a field, generation_config.json counts, as in Transformers."""
    both = {**config, **generation}
    return {name: both[name] for name in DECODING if both.get(name) is not None}


def start_of(generation: dict[str, Any]) -> Any:
    """The decoder start of generation_config.json. Transformers also takes a list, with one id for each text."""
    value = generation.get("decoder_start_token_id")
    return value[0] if isinstance(value, list) and value and all(i == value[0] for i in value) else value


def id_problems(arch: Architecture, generation: dict[str, Any]) -> list[str]:
    """Contradictions between config.json and generation_config.json, which Transformers follows: EOS and decoder start.

    Pad may be in a list of EOS ids: it is never generated, so it never ends a sentence.
    """
    problems = []
    for name, expected, harmless in (
        ("eos_token_id", arch.eos_id, (None, arch.eos_id, arch.pad_id)),
        ("decoder_start_token_id", arch.decoder_start, (None, arch.decoder_start)),
    ):
        value = generation.get(name)
        ids = value if isinstance(value, list) else [value]
        if any(i not in harmless for i in ids) or (value is not None and expected not in ids):
            problems.append(
                f"{GENERATION}: {name} is {value}, and in {CONFIG} {expected}; hmc takes one value: write the "
                "one that the model was trained with to both files"
            )
    return problems


def recorded(provenance: dict[str, Any]) -> dict[str, Any]:
    """The decoding fields that an import recorded. Pruning and further training keep these fields, below `from`."""
    while "generation" not in provenance and isinstance(provenance.get("from"), dict):
        provenance = provenance["from"]
    decoding: dict[str, Any] = provenance.get("generation", {})
    return decoding


def ignored(decoding: dict[str, Any], arch: Architecture) -> list[str]:
    """Fields that change translations in Transformers, but have no effect in HMC."""
    honoured = {"bad_words_ids": [[arch.pad_id]]}
    return [
        name
        for name, value in decoding.items()
        if name not in REQUEST_OPTIONS and value not in NEUTRAL.get(name, ()) and honoured.get(name) != value
    ]


def exported(decoding: dict[str, Any], arch: Architecture, ids: dict[int, int]) -> dict[str, Any]:
    """The content of generation_config.json: the recorded fields, and HMC's defaults for other fields.

    `sequence_bias` is left out: its token ids would have to be changed too.

    ids: old token id → new one.
    """
    defaults = {"num_beams": 4, "length_penalty": 1.0, "max_length": arch.max_positions, "early_stopping": False}
    fields = {**defaults, **{n: v for n, v in decoding.items() if n not in ("bad_words_ids", "sequence_bias")}}
    for name in ("forced_bos_token_id", "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens"):
        value = fields.get(name)
        if isinstance(value, int):
            fields[name] = ids.get(value, value)
        elif value is not None:
            fields[name] = [ids.get(i, i) for i in value]
    words = [[ids.get(i, i) for i in word] for word in decoding.get("bad_words_ids", [])]
    pad = ids[arch.pad_id]
    eos = ids[arch.eos_id]
    return {
        **fields,
        "bad_words_ids": words if [pad] in words else [*words, [pad]],
        "bos_token_id": eos,
        "eos_token_id": eos,
        "pad_token_id": pad,
        "decoder_start_token_id": pad,
    }
