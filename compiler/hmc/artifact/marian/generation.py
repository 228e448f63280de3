"""How Transformers decodes with a model, and what of it HMC does.

HMC honours the ids of pad (never generated), EOS and the decoder start. Beam size, length penalty and length limit are
options of each request there; a checkpoint keeps those of the imported model in `provenance["generation"]`, for people
and for `hmc export`. Anything else is recorded too, but has no effect.
"""

from __future__ import annotations

from typing import Any

from hmc.artifact.architecture import Architecture
from hmc.artifact.marian.layout import CONFIG, DECODING, GENERATION

REQUEST_OPTIONS = {"num_beams": "beam_size", "length_penalty": "length_penalty", "max_length": "max_length"}
"""Field → the request option that does it."""
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
"""Values that change nothing in Transformers either."""


def decoding_of(config: dict[str, Any], generation: dict[str, Any]) -> dict[str, Any]:
    """The decoding fields of both files; generation_config.json goes before config.json, as in Transformers."""
    both = {**config, **generation}
    return {name: both[name] for name in DECODING if both.get(name) is not None}


def start_of(generation: dict[str, Any]) -> Any:
    """generation_config.json's decoder start; Transformers takes a list, too, of one for each text."""
    told = generation.get("decoder_start_token_id")
    return told[0] if isinstance(told, list) and told and all(i == told[0] for i in told) else told


def id_problems(arch: Architecture, generation: dict[str, Any]) -> list[str]:
    """Where generation_config.json, which is what Transformers generates by, has another EOS or decoder start than the
    model of config.json. Pad in a list of EOS ends nothing: it is never generated."""
    problems = []
    for name, expected, harmless in (
        ("eos_token_id", arch.eos_id, (None, arch.eos_id, arch.pad_id)),
        ("decoder_start_token_id", arch.pad_id, (None, arch.pad_id)),
    ):
        told = generation.get(name)
        ids = told if isinstance(told, list) else [told]
        if any(i not in harmless for i in ids) or (told is not None and expected not in ids):
            problems.append(
                f"{GENERATION}: {name} is {told}, and in {CONFIG} {expected}; hmc decodes by one number: make both "
                "files say the one that the model was trained with"
            )
    return problems


def recorded(provenance: dict[str, Any]) -> dict[str, Any]:
    """The decoding fields that an import recorded, also where the checkpoint was pruned or trained on since."""
    while "generation" not in provenance and isinstance(provenance.get("from"), dict):
        provenance = provenance["from"]
    found: dict[str, Any] = provenance.get("generation", {})
    return found


def ignored(decoding: dict[str, Any], arch: Architecture) -> list[str]:
    """Fields that would change a translation in Transformers and do not here."""
    honoured = {"bad_words_ids": [[arch.pad_id]]}
    return [
        name
        for name, value in decoding.items()
        if name not in REQUEST_OPTIONS and value not in NEUTRAL.get(name, ()) and honoured.get(name) != value
    ]


def exported(decoding: dict[str, Any], arch: Architecture, ids: dict[int, int]) -> dict[str, Any]:
    """generation_config.json: the recorded decoding, else HMC's defaults; `sequence_bias` is left out.

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
    pad, eos = ids[arch.pad_id], ids[arch.eos_id]
    return {
        **fields,
        "bad_words_ids": words if [pad] in words else [*words, [pad]],
        "bos_token_id": eos,
        "eos_token_id": eos,
        "pad_token_id": pad,
        "decoder_start_token_id": pad,
    }
