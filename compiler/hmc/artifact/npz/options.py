"""Marian's options of a model (`special:model.yml`), read as an `Architecture`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hmc.artifact.errors import HmcError
from hmc.artifact.model.architecture import Activation
from hmc.artifact.npz.yaml_text import Value, is_true, parse_yaml, text_of

OPTIONS = "special:model.yml"
"""Name of the array that holds the options as text, ended by a zero byte."""
ACTIVATIONS: dict[str, Activation] = {"relu": "relu", "swish": "swish"}
"""Marian's `gelu` is an approximation by a sigmoid, which is not the function of that name elsewhere."""
WANTED = {
    "type": ("transformer", "only Transformers can be imported"),
    "transformer-decoder-autoreg": ("self-attention", "the decoder must attend to itself (no AAN, RNN or SSRU)"),
    "transformer-no-projection": ("false", "attention without W_O is not supported"),
    "transformer-ffn-depth": ("2", "feed-forward layers must have two matrices"),
    "transformer-train-positions": ("false", "positions must be sinusoids"),
    "transformer-train-position-embeddings": ("false", "positions must be sinusoids"),
    "transformer-disable-position-embeddings": ("false", "positions must be sinusoids"),
    "right-left": ("false", "sentences that are written backwards are not supported"),
    "transformer-tied-layers": ([], "layers that share weights are not supported"),
    "lemma-dim-emb": ("0", "factored vocabularies are not supported"),
    "input-types": ([], "several inputs are not supported"),
}
"""Option → its only supported value (also where it is missing), and why."""


@dataclass(frozen=True)
class MarianOptions:
    """The options of the model."""

    layers: tuple[int, int]
    """Encoder, decoder."""
    heads: int
    ffn_dim: int
    activation: Activation
    pre_norm: bool
    stack_norms: bool


def read_options(arrays: Mapping[str, npt.NDArray[Any]]) -> tuple[MarianOptions | None, list[str]]:
    """The options in a file's arrays, or every reason why they cannot be expressed."""
    if OPTIONS not in arrays:
        return None, [f"{OPTIONS} is not in the file: it is no model of Marian, or of a version before 1.0"]
    try:
        text = arrays[OPTIONS].astype(np.uint8).tobytes().rstrip(b"\0").decode("utf-8")
        return _checked(parse_yaml(text, OPTIONS))
    except (HmcError, UnicodeDecodeError) as error:
        return None, [str(error)]


def _checked(raw: Mapping[str, Value]) -> tuple[MarianOptions | None, list[str]]:
    problems = [
        f"{OPTIONS}: {name} is {raw[name]!r}: {why}"
        for name, (wanted, why) in WANTED.items()
        if name in raw and raw[name] != wanted
    ]
    norms, wrong = _norms(raw)
    activation = text_of(raw, "transformer-ffn-activation", "swish")
    if activation not in ACTIVATIONS:
        wrong.append(
            f"{OPTIONS}: transformer-ffn-activation {activation!r} is not supported; "
            f"supported: {', '.join(ACTIVATIONS)}"
        )
    numbers = {}
    for name in ("enc-depth", "dec-depth", "transformer-heads", "transformer-dim-ffn"):
        value = text_of(raw, name)
        if not value.isascii() or not value.isdigit() or len(value) > 10 or not int(value):
            wrong.append(f"{OPTIONS}: {name} must be a whole number, and is {value!r}")
        else:
            numbers[name] = int(value)
    decoder_ffn = text_of(raw, "transformer-decoder-dim-ffn", "0")
    if decoder_ffn not in ("0", text_of(raw, "transformer-dim-ffn")):
        wrong.append(f"{OPTIONS}: transformer-decoder-dim-ffn {decoder_ffn} must equal the encoder's")
    if is_true(raw, "transformer-pool"):
        wrong.append(f"{OPTIONS}: transformer-pool is not supported")
    if problems + wrong:
        return None, problems + wrong
    layers = numbers["enc-depth"], numbers["dec-depth"]
    sizes = numbers["transformer-heads"], numbers["transformer-dim-ffn"]
    return MarianOptions(layers, *sizes, ACTIVATIONS[activation], *norms), []


def _norms(raw: Mapping[str, Value]) -> tuple[tuple[bool, bool], list[str]]:
    """Whether norms come first, and whether they end the stacks.

    Marian writes a sub-layer's operations in order: `d` drops out, `a` adds the input, `n` normalises.
    """
    before = text_of(raw, "transformer-preprocess")
    after = text_of(raw, "transformer-postprocess", "dan")
    top = text_of(raw, "transformer-postprocess-top")
    embedding = text_of(raw, "transformer-postprocess-emb", "d")
    forms = {("", "an"): False, ("n", "a"): True}
    pre_norm = forms.get((before.replace("d", ""), after.replace("d", "")))
    problems = []
    if pre_norm is None:
        problems.append(
            f"{OPTIONS}: transformer-preprocess {before!r} with transformer-postprocess {after!r} is not supported; "
            "supported: '' with 'dan' (norms last), and 'n' with 'da' (norms first)"
        )
    if pre_norm and "transformer-postprocess-top" not in raw:
        problems.append(
            f"{OPTIONS}: transformer-preprocess {before!r} without transformer-postprocess-top: Marian before 1.10 did "
            "not normalise keys and values, which cannot be expressed; train the model again with a newer one"
        )
    if top.replace("d", "") not in ("", "n"):
        problems.append(f"{OPTIONS}: transformer-postprocess-top {top!r} is not supported; supported: '' and 'n'")
    if "n" in embedding:
        problems.append(f"{OPTIONS}: transformer-postprocess-emb {embedding!r}: a norm of embeddings is not supported")
    return (bool(pre_norm), "n" in top), problems
