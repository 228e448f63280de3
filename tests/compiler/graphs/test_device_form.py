"""Graphs in device form compute what those for a CPU compute, in fp32 on the CPU; caches are written where they are."""

from __future__ import annotations

from typing import get_args

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.trained import CHECKPOINT, english
from tests.tiny import FORMS, random_layout, random_tensors, tiny_architecture

from hmc.artifact import HeadLayout, load_checkpoint
from hmc.artifact.bundle.manifest import VARIANTS, StepVariant
from hmc.artifact.checkpoint.slimming import slim_tensors
from hmc.artifact.checkpoint.weights import Tensors
from hmc.artifact.model.architecture import Activation, Architecture
from hmc.artifact.model.heads import KINDS
from hmc.artifact.tokenizer.tokenizer import open_tokenizer
from hmc.compiler.checks.runner import GraphRunner
from hmc.compiler.checks.session import Arrays
from hmc.compiler.graphs.decoder import author_decoder
from hmc.compiler.graphs.encoder import author_encoder
from hmc.compiler.precisions.linears import FloatLinears
from hmc.compiler.serialize import in_memory

SOURCES = [[5, 9, 40, 7, 0], [11, 0], [90, 3, 3, 61, 17, 28, 99, 0]]
TARGETS = [[8, 30, 0], [44, 45, 46, 47, 0], [100, 0]]
TOLERANCE = 1e-4  # fp32 log-probabilities: biases are added elsewhere, and tables scaled, so sums round differently
ARCH = tiny_architecture()
FULL = ARCH.full_layout()


def slim(arch: Architecture, layout: HeadLayout, seed: int = 0) -> Tensors:
    full = arch.full_layout()
    return slim_tensors(random_tensors(arch, full, seed), arch, full, layout)


def assert_same(arch: Architecture, layout: HeadLayout, tensors: Tensors, variant: StepVariant | None = None) -> None:
    """Every step of both forms gives the same scores, and the same attention where it is returned."""
    linears = FloatLinears()
    given: Arrays = {"candidates": np.array([arch.vocab_size])}
    steps = []
    for device_form in (False, True):
        runner = GraphRunner.author(arch, layout, tensors, linears, variant=variant, device_form=device_form)
        cross, cache = runner.encode(SOURCES), runner.empty_cache(len(SOURCES), 5)
        tokens, outputs = runner.first_tokens(len(SOURCES)), []
        for position in range(5):
            outputs.append(runner.step(tokens, position, cross, cache, given))
            tokens = runner.tokens_at(TARGETS, position)
        steps.append(outputs)
    for host, device in zip(*steps, strict=True):
        assert host.keys() == device.keys()
        for name in host.keys() - {"ids"}:
            if not name.startswith("present_"):  # keys and values of device form have no bias
                np.testing.assert_allclose(device[name], host[name], rtol=1e-5, atol=TOLERANCE, err_msg=name)


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    activation=st.sampled_from(get_args(Activation)),
    scaled=st.booleans(),
    variant=st.sampled_from((None, "greedy")),
)
def test_any_layout(seed: int, activation: Activation, scaled: bool, variant: StepVariant | None) -> None:
    arch = tiny_architecture(activation=activation, scale_embedding=scaled)
    layout = random_layout(arch, seed)
    assert_same(arch, layout, slim(arch, layout, seed), variant)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scaled", [True, False])
def test_every_form_of_the_model(form: str, scaled: bool) -> None:
    arch = tiny_architecture(**FORMS[form], scale_embedding=scaled)
    for layout in (arch.full_layout(), random_layout(arch, 5), HeadLayout.full(2, 2, 0)):
        assert_same(arch, layout, slim(arch, layout))


@pytest.mark.parametrize("variant", [None, *VARIANTS])
@pytest.mark.parametrize("layout", [FULL, random_layout(ARCH, 5)], ids=["full", "some"])
def test_every_decoder(layout: HeadLayout, variant: StepVariant | None) -> None:
    assert_same(ARCH, layout, slim(ARCH, layout), variant)


@pytest.mark.parametrize("kinds", [*((kind,) for kind in KINDS), KINDS])
def test_kinds_without_open_heads(kinds: tuple[str, ...]) -> None:
    layout = HeadLayout.from_json(FULL.to_json() | {kind: [[], []] for kind in kinds})
    assert_same(ARCH, layout, slim(ARCH, layout))


def test_layers_without_neurons_and_two_vocabularies() -> None:
    arch = tiny_architecture(source_vocab_size=100)
    tensors = random_tensors(arch, arch.full_layout())
    for prefix in ("encoder.layers.0", "decoder.layers.1"):  # the decoder's last layer: its norm is that of the logits
        for name in ("fc1.weight", "fc1.bias", "fc2.weight"):
            del tensors[f"{prefix}.{name}"]
    assert_same(arch, arch.full_layout(), tensors)


def test_a_bias_of_zeros_is_left_out() -> None:
    tensors = random_tensors(ARCH, FULL)
    names = []
    for _ in range(2):
        names.append(author_decoder(ARCH, FULL, tensors, FloatLinears(), device_form=True).initializers.keys())
        tensors["final_logits_bias"] = np.zeros_like(tensors["final_logits_bias"])
    assert names[0] - names[1] == {"shared.bias"}
    assert_same(ARCH, FULL, tensors)


def test_the_embedded_model_translates_alike() -> None:
    """Greedy translations are the same; log-probabilities differ in fp16 by rounding, 2e-4 nats in the mean."""
    checkpoint = load_checkpoint(CHECKPOINT)
    tokenizer, arch = open_tokenizer(checkpoint.tokenizer), checkpoint.architecture
    texts = english(12)
    sources = [[*tokenizer.encode(text), arch.eos_id] for text in texts]
    runners = [
        GraphRunner.author(arch, checkpoint.layout, checkpoint.tensors, FloatLinears(dtype), device_form=device)
        for dtype, device in (("float32", False), ("float32", True), ("float16", True))
    ]
    host, device, half = runners
    translated = host.greedy(sources, 60)
    assert device.greedy(sources, 60) == translated
    scores = host.target_scores(sources, translated)
    np.testing.assert_allclose(device.target_scores(sources, translated), scores, rtol=0, atol=TOLERANCE)
    assert np.abs(half.target_scores(sources, translated) - scores).mean() < 1e-3


def test_a_wrong_fold_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(bias: np.ndarray, weight: np.ndarray, vector: np.ndarray, dtype: str = "float32") -> np.ndarray:
        return bias

    monkeypatch.setattr("hmc.compiler.graphs.device_author.plus_product", wrong)
    with pytest.raises(AssertionError, match="Mismatched elements"):
        assert_same(ARCH, FULL, random_tensors(ARCH, FULL))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("layout", [FULL, random_layout(ARCH, 3)], ids=["full", "some"])
def test_the_encoder_writes_into_slots_in_place(layout: HeadLayout, dtype: str) -> None:
    """Sentences go to shuffled slots of buffers that are inputs and outputs; the last one goes there twice."""
    tensors, linears, slots, room = slim(ARCH, layout), FloatLinears(dtype), [4, 0, 2, 2], 12
    host = GraphRunner.author(ARCH, layout, tensors, FloatLinears()).encode(SOURCES)
    found = in_memory(author_encoder(ARCH, layout, tensors, linears, device_form=True).model({}))
    options = onnxruntime.SessionOptions()
    weights = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in found.weights.items()}
    options.add_external_initializers(list(weights), list(weights.values()))
    session = onnxruntime.InferenceSession(found.graph, options, providers=["CPUExecutionProvider"])
    padded = [[*s, *[ARCH.pad_id] * 8][:8] for s in (*SOURCES, SOURCES[-1])]
    binding, caches = session.io_binding(), {}
    given = {"source": np.array(padded, np.int32), "source_lengths": np.array([5, 2, 8, 8], np.int32)}
    for name, value in (given | {"slots": np.array(slots)[:, None]}).items():
        binding.bind_cpu_input(name, value)
    for node in session.get_outputs():
        name, (_, heads, _, dim) = node.name.removeprefix("next_"), node.shape
        filled = np.full((6, heads, room, dim), 7, dtype)
        caches[name] = onnxruntime.OrtValue.ortvalue_from_numpy(filled)
        binding.bind_ortvalue_input(name, caches[name])
        binding.bind_ortvalue_output(node.name, caches[name])
    assert caches.keys() == host.keys() - {"source_lengths"}
    session.run_with_iobinding(binding)
    for name, cache in caches.items():
        written = cache.numpy()
        for row, (slot, source) in enumerate(zip(slots, SOURCES, strict=False)):
            expected = host[name][row, :, : len(source)]
            kind, layer = name.removeprefix("cross_").split("_")  # caches of device form have no bias
            bias = tensors[f"decoder.layers.{layer}.encoder_attn.{kind[0]}_proj.bias"]
            expected = expected - bias.reshape(-1, 1, ARCH.head_dim)
            atol = 1e-4 if dtype == "float32" else 0.05
            np.testing.assert_allclose(written[slot, :, : len(source)], expected, rtol=0, atol=atol)
            assert not written[slot, :, 8:].any()
        assert (written[[1, 3, 5]] == 7).all()


@pytest.mark.parametrize("layout", [FULL, random_layout(ARCH, 3)], ids=["full", "some"])
def test_the_encoder_scatters_one_row_a_thread(layout: HeadLayout) -> None:
    """On CUDA one thread copies all that one index names: so an index names D values, not a slot."""
    graph = author_encoder(ARCH, layout, slim(ARCH, layout), FloatLinears("float16"), device_form=True).model({})
    inferred = onnx.shape_inference.infer_shapes(onnx.load_from_string(in_memory(graph).graph), data_prop=True).graph
    shapes = {
        value.name: [dim.dim_value or dim.dim_param for dim in value.type.tensor_type.shape.dim]
        for value in (*inferred.input, *inferred.value_info, *inferred.output)
    }
    scatters = [node for node in inferred.node if node.op_type == "ScatterND"]
    assert len(scatters) == 2 * sum(map(bool, layout.cross))
    for node in scatters:
        cache, rows, _ = node.input
        assert len(shapes[rows]) == len(shapes[cache])
        assert shapes[rows][-1] == len(shapes[cache]) - 1, "(slot, head, position)"
        assert shapes[rows][1] == shapes[cache][1], "one index for each head"
