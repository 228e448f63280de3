"""What the scalars of a CTranslate2 model say about it, and what HMC cannot express."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hmc.artifact.ctranslate2.binary import Binary, Variable
from hmc.artifact.model.architecture import Activation
from hmc.artifact.model.ffn import STACKS

SPEC = "TransformerSpec"
REVISION = 7
"""The specification of encoder-decoder Transformers, and the newest revision that this reader knows."""
ACTIVATIONS: dict[int, Activation] = {0: "relu", 2: "swish", 3: "gelu"}
OTHER_ACTIVATIONS = {1: "GELUTanh", 4: "GELUSigmoid (Marian's gelu)", 5: "Tanh", 6: "Sigmoid"}
UNSUPPORTED = {
    r"relative_|\brelative": "relative positions",
    r"rotary": "rotary positions",
    r"linear_0_noact": "gated feed-forward layers",
    r"layernorm_embedding": "a norm on embeddings",
    r"embeddings_[1-9]": "several inputs (factors)",
    r"num_heads_kv|multi_query": "keys and values that heads share",
    r"/[qkv]_norm/": "norms on queries, keys or values",
    r"queries_scale": "queries with a scale of their own",
    r"project_(in|out)": "projections between embeddings and layers",
    r"sliding_window": "attention within a window",
    r"_zero$": "weights of 4 bits",
    r"softcapping|scale_outputs": "scaled outputs",
    r"(input|post|pre)\w*_layer_norm|external_": "several norms around a layer",
    r"memory_kv|merged_encoder": "attention to sources that is merged with self-attention",
}
"""Pattern in the name of an array → what it is of."""
IGNORED = (
    "alignment_layer", "alignment_heads", "alibi_use_positive_positions", "scale_alibi", "embeddings_merge",
)  # fmt: skip
"""Scalars without effect on translations of the models that are read."""
ABSENT = {"alibi": "attention with linear biases", "multi_query_attention": "keys and values that heads share"}
"""Scalars that must be 0, and what they stand for."""


@dataclass(frozen=True)
class CTranslate2Options:
    """What the model is."""

    layers: tuple[int, int]
    """Encoder, decoder."""
    heads: int
    activation: Activation
    pre_norm: bool
    stack_norms: bool
    scale_embedding: bool
    starts_from_zero: bool


def read_options(binary: Binary) -> tuple[CTranslate2Options | None, list[str]]:
    """The options, or every reason why the model cannot be expressed."""
    if binary.spec != SPEC:
        return None, [f"it is a {binary.spec}; only encoder-decoder Transformers ({SPEC}) can be imported"]
    if binary.revision > REVISION:
        return None, [f"revision {binary.revision} of {SPEC} is newer than {REVISION}, the newest that HMC knows"]
    variables = binary.variables
    problems = unsupported(variables)
    for stack in STACKS:
        for name, what in ABSENT.items():
            if _scalar(variables, f"{stack}/{name}"):
                problems.append(f"{stack}/{name}: {what} cannot be expressed")
    problems += [
        f"{name.removesuffix('gamma')} has no beta: RMS norms cannot be expressed"
        for name in variables
        if name.endswith("/gamma") and f"{name.removesuffix('gamma')}beta" not in variables
    ][:1]
    both = {}
    for name in ("num_heads", "pre_norm", "activation"):
        first, second = both[name] = [_scalar(variables, f"{stack}/{name}") for stack in STACKS]
        if first is None or second is None:
            problems.append(f"{name} is missing: convert the model again with CTranslate2 3 or 4")
        elif first != second:
            problems.append(f"{name} is {first:g} in the encoder and {second:g} in the decoder: they must be equal")
    activation = both["activation"][0]
    heads_per_layer = both["num_heads"][0]
    if heads_per_layer is not None and not (heads_per_layer >= 1 and heads_per_layer.is_integer()):
        problems.append(f"num_heads is {heads_per_layer:g}: it must be a whole number from 1")
    if activation is not None and activation not in ACTIVATIONS:
        named = next((name for number, name in OTHER_ACTIVATIONS.items() if number == activation), f"{activation:g}")
        problems.append(f"activation {named} cannot be expressed; supported: {', '.join(ACTIVATIONS.values())}")
    scale, wrong = _scale(variables)
    norms = [f"{stack}/layer_norm/gamma" in variables for stack in STACKS]
    if norms[0] != norms[1]:
        wrong.append("one stack ends with a norm, and the other does not")
    layers = tuple(_layers(variables, stack) for stack in STACKS)
    wrong += [f"the {stack} has no layer" for stack, number in zip(STACKS, layers, strict=True) if not number]
    if problems + wrong:
        return None, problems + wrong
    return CTranslate2Options(
        layers=(layers[0], layers[1]),
        heads=int(heads_per_layer or 0),
        activation=ACTIVATIONS[int(activation or 0)],
        pre_norm=bool(both["pre_norm"][0]),
        stack_norms=norms[0],
        scale_embedding=scale,
        starts_from_zero=bool(_scalar(variables, "decoder/start_from_zero_embedding")),
    ), []


def unsupported(variables: Mapping[str, Variable]) -> list[str]:
    """A problem for each kind of array that HMC has no place for, with one name."""
    examples: dict[str, str] = {}
    for name in variables:
        last = name.rpartition("/")[2]
        if last in (*IGNORED, *ABSENT):
            continue
        for pattern, what in UNSUPPORTED.items():
            if re.search(pattern, name):
                examples.setdefault(what, name)
    return [f"{name}: {what} cannot be expressed" for what, name in examples.items()]


def _scale(variables: Mapping[str, Variable]) -> tuple[bool, list[str]]:
    """Whether embeddings are scaled by √d: by a flag, or by that number itself."""
    scaled = []
    for stack, embeddings in (("encoder", "encoder/embeddings_0/weight"), ("decoder", "decoder/embeddings/weight")):
        name = f"{stack}/scale_embeddings"
        value = _scalar(variables, name)
        stored = variables.get(name)
        table = variables.get(embeddings)
        root = np.sqrt(table.stored.shape[-1]) if table is not None and table.stored.ndim == 2 else 0.0
        if value is None or stored is None or stored.kind == "int8":
            scaled.append(value is None or bool(value))
        elif np.isclose(value, root, rtol=1e-2 if stored.kind in ("float16", "bfloat16") else 1e-5):
            scaled.append(True)
        elif value == 1.0:
            scaled.append(False)
        else:
            return False, [f"{name} is {value:g}: embeddings must be scaled by √d, {root:g}, or not at all"]
    return scaled[0], [] if scaled[0] == scaled[1] else ["embeddings are scaled on one side only"]


def _layers(variables: Mapping[str, Variable], stack: str) -> int:
    number = 0
    while f"{stack}/layer_{number}/ffn/linear_0/weight" in variables:
        number += 1
    return number


def _scalar(variables: Mapping[str, Variable], name: str) -> float | None:
    variable = variables.get(name)
    return float(variable.floats().reshape(-1)[0]) if variable is not None and variable.stored.size == 1 else None
