"""Arrays of a CTranslate2 model under the names and in the shapes of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from hmc.artifact.checkpoint.weights import Tensors, fitted
from hmc.artifact.ctranslate2.binary import Variable
from hmc.artifact.ctranslate2.options import ABSENT, IGNORED
from hmc.artifact.errors import HmcError
from hmc.artifact.marian.weights import EXACT, NEVER, ROUGH, far_rows, moved_back
from hmc.artifact.model.architecture import (
    LOGITS_BIAS,
    OUTPUT,
    SOURCE_EMBEDDING,
    TARGET_EMBEDDING,
    Architecture,
)
from hmc.artifact.model.ffn import STACKS
from hmc.artifact.model.layers import LinearSpec, NormSpec, SubLayerSpec

Floats = npt.NDArray[np.float32]
EMBEDDINGS = {
    SOURCE_EMBEDDING: "encoder/embeddings_0",
    TARGET_EMBEDDING: "decoder/embeddings",
    OUTPUT: "decoder/projection",
}
SCALARS = ("num_heads", "pre_norm", "activation", "scale_embeddings", "start_from_zero_embedding", *IGNORED, *ABSENT)


class Weights:
    """The arrays as floats. Integers are divided by their scale."""

    def __init__(self, variables: Mapping[str, Variable]) -> None:
        self._variables = variables
        self.used = {f"{stack}/{name}" for stack in STACKS for name in SCALARS}
        """Names of the arrays that were asked for."""

    def __contains__(self, name: str) -> bool:
        return name in self._variables

    def floats(self, name: str) -> Floats:
        """An array in 32 bits. Raises HmcError when it is missing, or an integer array without a fitting scale."""
        self.used |= {name, f"{name}_scale"}
        variable = self._variables.get(name)
        if variable is None or not variable.stored.ndim:
            raise HmcError(f"array {name} is missing" if variable is None else f"array {name} is a single number")
        if variable.kind not in ("int8", "int16"):
            return variable.floats()
        if (scale := self._variables.get(f"{name}_scale")) is None:
            raise HmcError(f"array {name} is {variable.kind} and has no scale")
        factors = scale.floats()
        if not (np.isfinite(factors).all() and (factors > 0).all()):
            raise HmcError(f"array {name}_scale must hold positive numbers")
        if variable.kind == "int8":
            if factors.shape != variable.stored.shape[:1]:
                raise HmcError(
                    f"array {name}_scale has shape {list(factors.shape)}, expected {[variable.stored.shape[0]]}"
                )
            factors = factors.reshape(-1, *[1] * (variable.stored.ndim - 1))
        return variable.floats() / factors

    def kind(self, name: str) -> str:
        """The type in which an array is stored."""
        return self._variables[name].kind

    def unused(self) -> list[str]:
        """A problem for each array that the import did not use."""
        return [f"array {name} does not belong to this model" for name in self._variables if name not in self.used]


def embeddings_of(weights: Weights) -> tuple[dict[str, Floats], list[str]]:
    """The embeddings of targets, of sources and of the output, each `[V, d]`, if they are separate matrices. Returns
    problems too."""
    try:
        matrices = {ours: weights.floats(f"{theirs}/weight") for ours, theirs in EMBEDDINGS.items()}
    except HmcError as error:
        return {}, [str(error)]
    unusable = [name for name, v in matrices.items() if v.ndim != 2 or not v.size]
    if wrong := [f"array {EMBEDDINGS[name]}/weight must be a matrix that is not empty" for name in unusable]:
        return {}, wrong
    target = matrices[TARGET_EMBEDDING]
    if len(matrices[OUTPUT]) != len(target):
        return {}, [f"the output has {len(matrices[OUTPUT])} rows, and the embedding of targets {len(target)}"]
    return {n: v for n, v in matrices.items() if n == TARGET_EMBEDDING or not np.array_equal(v, target)}, []


def position_rows(weights: Weights, width: int, *, starts_from_zero: bool) -> tuple[int, Floats | None, list[str]]:
    """How many positions the tables of both stacks have; they must hold the sinusoids of Marian.

    Where the decoder starts from zeros, its first position may differ from the sinusoid; its table is then returned too
    (`hmc.artifact.marian.weights`).
    """
    numbers = []
    moved = None
    problems = []
    for stack in STACKS:
        name = f"{stack}/position_encodings/encodings"
        if name not in weights:
            problems.append(f"{name} is missing: CTranslate2 then computes OpenNMT-tf's positions, which HMC has not")
            continue
        table = weights.floats(name)
        numbers.append(len(table))
        tolerance = EXACT if weights.kind(name) == "float32" else ROUGH
        shape = len(table), width
        rows = far_rows(table, "marian", shape, tolerance)
        if rows == [0] and stack == "decoder" and starts_from_zero:
            moved = table
        elif rows and not far_rows(table, "fairseq", shape, ROUGH):
            problems.append(f"{name} holds the positions of M2M100 or NLLB: import that model as Transformers has it")
        elif rows:
            problems.append(f"{name} does not hold Marian's sinusoids: other positions cannot be expressed")
    return min(numbers, default=0), moved, problems


def checkpoint_tensors(
    weights: Weights,
    arch: Architecture,
    embeddings: Mapping[str, Floats],
    pad: int | None,
    moved: Floats | None = None,
) -> tuple[Tensors, list[str]]:
    """The fp32 tensors of the full layout, and every problem: missing, unknown or misshapen arrays.

    pad: the row at which zeros are inserted into the embeddings, for a token that can never be chosen. None: the model
    has a pad token. moved: the decoder's positions, if the first one is no sinusoid: pad's embedding then gets the
    difference.
    """
    problems: list[str] = []
    arrays: dict[str, Floats] = {}
    for name, value in embeddings.items():
        arrays[name] = value if pad is None else np.insert(value, pad, 0, axis=0)
    bias = "decoder/projection/bias"
    none = np.zeros(len(embeddings[TARGET_EMBEDDING]), np.float32)
    logits = weights.floats(bias) if bias in weights else none
    if logits.shape != none.shape:
        return {}, [f"array {bias} has shape {list(logits.shape)}, expected {list(none.shape)}"]
    arrays[LOGITS_BIAS] = logits if pad is None else np.insert(logits, pad, NEVER)
    for names, theirs in _names(arch):
        try:
            parts = np.split(weights.floats(theirs), len(names))
            arrays.update(zip(names, parts, strict=True))
        except (HmcError, ValueError) as error:  # ValueError: not divisible
            problems.append(str(error) if isinstance(error, HmcError) else f"array {theirs} has {error}")
    problems += weights.unused()
    if not problems and moved is not None and not moved_back(arrays, moved, arch):
        problems.append("the first position of the decoder is no sinusoid, and pad can be chosen or is not zero")
    tensors, wrong = fitted(arrays, arch)
    if problems:  # what is missing has been named as its array
        return {}, problems + [problem for problem in wrong if not problem.endswith(" is missing")]
    return tensors, wrong


def _names(arch: Architecture) -> Iterator[tuple[list[str], str]]:
    """Names in a checkpoint that one array holds, below each other, and the name of the array."""
    for stack in STACKS:
        for layer in range(arch.depth(stack)):
            theirs = f"{stack}/layer_{layer}"
            own, *cross, feed = arch.sublayers(stack, layer)
            yield from _sublayer(own, f"{theirs}/self_attention", own.inputs)
            for attention in cross:
                yield from _sublayer(attention, f"{theirs}/attention", attention.inputs[:1], attention.inputs[1:])
            yield from _sublayer(feed, f"{theirs}/ffn", feed.inputs)
        if norm := arch.stack_norm(stack):
            yield from _norm(norm, f"{stack}/layer_norm")


def _sublayer(ours: SubLayerSpec, theirs: str, *inputs: Sequence[LinearSpec]) -> Iterator[tuple[list[str], str]]:
    """inputs: in groups that are one array."""
    for number, group in enumerate((*inputs, (ours.output,))):
        yield [linear.weight for linear in group], f"{theirs}/linear_{number}/weight"
        yield [linear.bias for linear in group], f"{theirs}/linear_{number}/bias"
    yield from _norm(ours.norm, f"{theirs}/layer_norm")


def _norm(ours: NormSpec, theirs: str) -> Iterator[tuple[list[str], str]]:
    yield [ours.weight], f"{theirs}/gamma"
    yield [ours.bias], f"{theirs}/beta"
