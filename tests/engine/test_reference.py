"""The reference executor computes what the graphs and PyTorch compute, for every form of a model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tests.slim_ffn import random_neurons, without_neurons
from tests.support.trained import CHECKPOINT, english
from tests.tiny import FORMS, random_layout, random_tensors, tiny_architecture

from hmc.artifact import Checkpoint, HeadLayout, load_checkpoint
from hmc.artifact.checkpoint.checkpoint import CheckpointConfig
from hmc.artifact.checkpoint.slimming import slim_tensors
from hmc.artifact.checkpoint.weights import Tensors
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.model.heads import KINDS
from hmc.artifact.program.checks import program_problems
from hmc.artifact.program.operations import Program, TensorPlace
from hmc.artifact.tokenizer.tokenizer import open_tokenizer
from hmc.compiler.calibration.calibrate import calibrate
from hmc.compiler.checks.runner import GraphRunner
from hmc.compiler.precisions.int8 import Int8Linears
from hmc.compiler.precisions.linears import FloatLinears, Linears
from hmc.compiler.programs import ProgramWriter
from hmc.compiler.weights import SlimModel, slim_model
from hmc.engine.choosing import best_tokens, log_sum_exp
from hmc.engine.decoding.state import Rules
from hmc.engine.native import library
from hmc.engine.native.level import NativeBatch, NativeLevel
from hmc.engine.reference import OwnCaches, ReferenceLevel, Step

SOURCES = [[5, 9, 40, 7, 0], [11, 0], [90, 3, 3, 61, 17, 28, 99, 0]]
TARGETS = [[8, 30, 0], [44, 45, 46, 47, 0], [100, 0]]
ARCH = tiny_architecture()
FULL = ARCH.full_layout()


def reference(model: SlimModel, linears: Linears, encoder_linears: Linears | None = None) -> ReferenceLevel:
    """The level's program, over arrays in memory."""
    writer = ProgramWriter(model.arch, model.layout, model.tensors, linears, encoder_linears or linears)
    encode, step = writer.write()
    places = {
        name: TensorPlace(file="-", shape=stored.array.shape, type=str(stored.array.dtype))  # type: ignore[arg-type]
        for name, stored in writer.stored.items()
    }
    program = Program(type=linears.dtype, tensors=places, encode=tuple(encode), step=tuple(step))  # type: ignore[arg-type]
    assert program_problems(program, model.arch) == []
    tensors = {
        name: stored.array if stored.array.dtype == np.int8 else stored.array.astype(np.float32)
        for name, stored in writer.stored.items()
    }
    return ReferenceLevel(program, model.arch, tensors)


def log_probs(level: ReferenceLevel, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> np.ndarray:
    """`[B, T, V]`, as `GraphRunner.log_probs`. Where the native executor runs the program, its logits and attention are
    the same bits."""
    encoded = [level.encode(source) for source in sources]
    own, steps = OwnCaches(), []
    tokens = np.full(len(sources), level.arch.decoder_start)
    most = max(map(len, targets))
    batch = native_batch(level, sources, most)
    for position in range(most):
        step = level.step(tokens, np.full(len(sources), position), own, encoded)
        logits = step.logits
        if batch is not None:
            assert_same_step(batch.step(tokens, attention=True), step)
        steps.append(logits - log_sum_exp(logits, level.candidates.block)[:, None])
        tokens = np.array([t[position] if position < len(t) else level.arch.eos_id for t in targets])
    return np.stack(steps, axis=1)


def native_batch(
    level: ReferenceLevel, sources: Sequence[Sequence[int]], limit: int, rows: int = 1
) -> NativeBatch | None:
    """Sentences in a batch of the native executor; None where it does not run the program."""
    native = library.best()
    if native is None or level.program.type != "float32":
        return None
    batch = NativeBatch(NativeLevel(native, level.program, level.arch, level.tensors), rows=1)
    batch.admit(sources, [Rules(limit)] * len(sources))
    return batch


def assert_same_step(ours: tuple[np.ndarray, list[np.ndarray]], theirs: Step) -> None:
    """The logits and the attention of every row have the same bits."""
    logits, attention = ours
    np.testing.assert_array_equal(logits, theirs.logits)
    for layer, found in zip(sorted(theirs.attention), attention, strict=True):
        for row, weights in enumerate(theirs.attention[layer]):
            np.testing.assert_array_equal(found[row, :, : weights.shape[1]], weights)


def both(model: SlimModel, linears: Linears) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities of the reference and of ONNX Runtime, and none after a target's end."""
    ours = log_probs(reference(model, linears), SOURCES, TARGETS)
    graphs = GraphRunner.author(model.arch, model.layout, model.tensors, linears).log_probs(SOURCES, TARGETS)
    return real_rows(ours), real_rows(graphs)


def real_rows(found: np.ndarray) -> np.ndarray:
    """`[B, T, V]` → log-probabilities of TARGETS alone, without those after their ends."""
    return found[np.arange(found.shape[1]) < np.array([len(t) for t in TARGETS])[:, None]]


def assert_close(ours: np.ndarray, expected: np.ndarray) -> None:
    """fp32: the same sums in another order."""
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-4)


def assert_int8_close(ours: np.ndarray, graphs: np.ndarray, exact: np.ndarray) -> None:
    """Products of integers are exact in both; where fp32 parts round otherwise, an activation moves by one step. exact:
    what the graphs compute in fp32."""
    assert np.median(np.abs(ours - graphs)) < 1e-5, "most log-probabilities meet no such activation"
    assert np.abs(ours - graphs).max() < 0.5 * np.abs(graphs - exact).max(), "flips are smaller than what int8 costs"


def assert_rounds(rounded: np.ndarray, exact: np.ndarray, step: float) -> None:
    """step: half the distance of two neighbouring numbers of 16 bits, of numbers near 1."""
    error = np.abs(rounded - exact).max() / np.abs(exact).max()
    assert step / 2 < error < 4 * step


def tiny(layout: HeadLayout = FULL, seed: int = 0, arch: Architecture = ARCH) -> SlimModel:
    full = arch.full_layout()
    return SlimModel(arch, layout, slim_tensors(random_tensors(arch, full, seed), arch, full, layout))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("activation", ["relu", "swish", "gelu"])
@pytest.mark.parametrize("seed", [None, 3, 5, 8])
def test_every_form_of_the_model(form: str, activation: str, seed: int | None) -> None:
    arch = tiny_architecture(**FORMS[form], activation=activation, scale_embedding=seed != 5)
    layout = arch.full_layout() if seed is None else random_layout(arch, seed)
    ours, graphs = both(tiny(layout, arch=arch), FloatLinears())
    assert_close(ours, graphs)


@pytest.mark.parametrize("kinds", [*((kind,) for kind in KINDS), KINDS])
def test_kinds_without_open_heads(kinds: tuple[str, ...]) -> None:
    layout = HeadLayout.from_json(FULL.to_json() | {kind: [[], []] for kind in kinds})
    ours, graphs = both(tiny(layout), FloatLinears())
    assert_close(ours, graphs)


def test_two_vocabularies_and_layers_without_neurons() -> None:
    arch = tiny_architecture(source_vocab_size=100)
    tensors = random_tensors(arch, arch.full_layout())
    for prefix in ("encoder.layers.0", "decoder.layers.1"):
        for name in ("fc1.weight", "fc1.bias", "fc2.weight"):
            del tensors[f"{prefix}.{name}"]
    ours, graphs = both(SlimModel(arch, arch.full_layout(), tensors), FloatLinears())
    assert_close(ours, graphs)


@pytest.mark.parametrize("layer", ["encoder.layers.1", "decoder.layers.0"])
def test_removed_layers(layer: str) -> None:
    tensors: Tensors = {n: v for n, v in random_tensors(ARCH, FULL).items() if not n.startswith(f"{layer}.")}
    removed = FULL.to_json()
    stack, number = layer.split(".", maxsplit=1)[0], int(layer[-1])
    for kind in KINDS:
        if (kind == "encoder_self") == (stack == "encoder"):
            removed[kind][number] = []
    ours, graphs = both(SlimModel(ARCH, HeadLayout.from_json(removed), tensors), FloatLinears())
    assert_close(ours, graphs)


@pytest.mark.parametrize("head_dim", [3, 8, 20])
def test_heads_of_any_width(head_dim: int) -> None:
    arch = tiny_architecture(head_dim=head_dim)
    config = CheckpointConfig(
        architecture=arch, head_layout=arch.full_layout().to_json(), source_language="en", target_language="de"
    )
    checkpoint = Checkpoint(config, random_tensors(arch, arch.full_layout()), b"")
    ours, graphs = both(slim_model(checkpoint, arch.full_layout()), FloatLinears())
    assert_close(ours, graphs)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits(dtype: str) -> None:
    """Values are rounded where they are stored; the graphs round after every operator, so they differ by some steps."""
    model = tiny(random_layout(ARCH, 3))
    exact = log_probs(reference(model, FloatLinears()), SOURCES, TARGETS)
    rounded = log_probs(reference(model, FloatLinears(dtype)), SOURCES, TARGETS)
    steps = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
    assert_rounds(rounded, exact, steps[dtype])
    # The planted errors: nothing is rounded, or to the other type.
    for wrong, step in ((exact, steps[dtype]), *((rounded, other) for name, other in steps.items() if name != dtype)):
        with pytest.raises(AssertionError):
            assert_rounds(wrong, exact, step)


@pytest.mark.parametrize("seed", [0, 3])
def test_int8(seed: int) -> None:
    model = tiny(FULL if not seed else random_layout(ARCH, seed), seed)
    ranges = calibrate(model, [[5, 9, 40, 7, 0], [11, 12, 60, 0], [90, 3, 61, 17, 28, 99, 0], [44, 10, 0]]).ranges
    ours, graphs = both(model, Int8Linears(ranges))
    exact, _ = both(model, FloatLinears())
    assert_int8_close(ours, graphs, exact)
    # The planted errors: scales of one layer, one flip that is too large, and numbers that were never quantised.
    level = reference(model, Int8Linears(ranges))
    name = "decoder.layers.1.fc2.weight_scale"
    level.tensors[name] = level.tensors[name] * np.float32(1.02)
    with pytest.raises(AssertionError, match="most log-probabilities"):
        assert_int8_close(real_rows(log_probs(level, SOURCES, TARGETS)), graphs, exact)
    flipped = graphs.copy()
    flipped[0, 5] += 0.6 * np.abs(graphs - exact).max()
    with pytest.raises(AssertionError, match="flips are smaller"):
        assert_int8_close(flipped, graphs, exact)
    with pytest.raises(AssertionError, match="most log-probabilities"):
        assert_int8_close(exact, graphs, exact)


def test_int8_with_layers_in_fp32() -> None:
    model = tiny()
    everywhere = calibrate(model, [[5, 9, 40, 7, 0], [11, 12, 60, 0], [90, 3, 61, 17, 28, 99, 0]]).ranges
    ranges = dict(everywhere)
    for name in list(ranges):
        if "layers.0.fc1" in name or name.startswith("decoder.layers.1.self_attn") or name == "shared":
            del ranges[name]
    ours, graphs = both(model, Int8Linears(ranges))
    exact, _ = both(model, FloatLinears())
    assert_int8_close(ours, graphs, exact)
    all_int8, _ = both(model, Int8Linears(everywhere))
    with pytest.raises(AssertionError, match="most log-probabilities"):  # the planted error: these layers in 8 bits too
        assert_int8_close(all_int8, graphs, exact)


def test_a_wrong_weight_is_noticed() -> None:
    """The planted error beside the tolerances: one number of one weight, a thousandth of its range."""
    model = tiny()
    _, graphs = both(model, FloatLinears())
    weight = model.tensors["decoder.layers.1.fc2.weight"] = model.tensors["decoder.layers.1.fc2.weight"].copy()
    weight[3, 7] += 1e-2
    ours = log_probs(reference(model, FloatLinears()), SOURCES, TARGETS)
    with pytest.raises(AssertionError, match="Mismatched"):
        assert_close(real_rows(ours), graphs)


def test_neurons_that_were_removed() -> None:
    arch, layout = ARCH, FULL
    config = CheckpointConfig(
        architecture=arch, head_layout=layout.to_json(), source_language="en", target_language="de"
    )
    checkpoint = without_neurons(Checkpoint(config, random_tensors(arch, layout), b""), random_neurons(arch, 4))
    ours, graphs = both(slim_model(checkpoint, layout), FloatLinears())
    assert_close(ours, graphs)


def test_nothing_depends_on_the_batch() -> None:
    """A sentence alone and beside others has the same bits, also where one of them is NaN."""
    model = tiny()
    ranges = calibrate(model, [[5, 9, 40, 7, 0], [11, 12, 60, 0], [90, 3, 61, 17, 28, 99, 0]]).ranges
    for linears in (FloatLinears(), FloatLinears("bfloat16"), Int8Linears(ranges)):
        level = reference(model, linears)
        together = log_probs(level, SOURCES, TARGETS)
        for n, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
            alone = log_probs(level, [source], [target])
            np.testing.assert_array_equal(together[n, : len(target)], alone[0])


def test_nan_stays_in_its_row() -> None:
    model = tiny()
    ranges = calibrate(model, [[5, 9, 40, 7, 0], [11, 12, 60, 0], [90, 3, 61, 17, 28, 99, 0]]).ranges
    for linears in (FloatLinears(), Int8Linears(ranges)):
        level = reference(model, linears)
        right = log_probs(level, SOURCES, TARGETS)
        level.tensors["positions"] = level.tensors["positions"].copy()
        level.tensors["positions"][6] = np.nan  # the third source alone is so long
        found = log_probs(level, SOURCES, TARGETS)
        np.testing.assert_array_equal(found[:2], right[:2])
        if linears.dtype == "float32" and not isinstance(linears, Int8Linears):
            assert np.isnan(found[2]).all()


def test_the_trained_model_like_pytorch() -> None:
    """fp32, 1e-5 of the largest log-probability, against PyTorch on real sentences."""
    import torch

    from hmc.training import model_from_checkpoint
    from hmc.training.data.batches import pad_rows

    checkpoint = load_checkpoint(CHECKPOINT)
    tokenizer, arch = open_tokenizer(checkpoint.tokenizer), checkpoint.architecture
    sources = [[*tokenizer.encode(text), arch.eos_id] for text in english(3)]
    level = reference(slim_model(checkpoint, checkpoint.layout), FloatLinears())
    encoded = [level.encode(source) for source in sources]
    targets = []
    for source in encoded:
        own, tokens = OwnCaches(), [arch.decoder_start]
        while len(tokens) < 30 and tokens[-1] != arch.eos_id:
            step = level.step(np.array(tokens[-1:]), np.array([len(tokens) - 1]), own, [source])
            best = best_tokens(step.logits, 2)[0]
            tokens.append(int(best[1] if best[0] == arch.pad_id else best[0]))
        targets.append(tokens[1:])
    ours = log_probs(level, sources, targets)
    longest = max(map(len, targets))
    shifted = [[arch.decoder_start, *t, *[arch.eos_id] * longest][:longest] for t in targets]
    model = model_from_checkpoint(checkpoint).eval()
    with torch.no_grad():
        states = model(pad_rows(sources, arch.pad_id), torch.tensor(shifted))
        expected = model.logits(states).log_softmax(-1).numpy()
    for n, target in enumerate(targets):
        assert_close(ours[n, : len(target)], expected[n, : len(target)])
    # The planted error: one number of one weight.
    weight = level.tensors["decoder.layers.1.fc2.weight"] = level.tensors["decoder.layers.1.fc2.weight"].copy()
    weight[3, 7] += 1e-2
    wrong = log_probs(level, sources[:1], targets[:1])
    with pytest.raises(AssertionError, match="Mismatched"):
        assert_close(wrong[0, : len(targets[0])], expected[0, : len(targets[0])])
