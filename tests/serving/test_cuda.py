"""On a CUDA device 16-bit levels translate as fp32 does on a CPU, in every way of decoding, and free their memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from tests.support.trained import CHECKPOINT, english

from hmc.artifact import validate
from hmc.compiler import LevelRequest, compile_bundle
from hmc.engine.runtime.device import cuda_available
from hmc.serving import DecodeOptions, Sampling, Translator
from hmc.serving.client import Client
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not cuda_available(), reason="ONNX Runtime finds no CUDA device here"),
]
TEXTS = english(96)
LEVELS = ("full-fp16", "full-bf16")
OPTIONS = {
    "greedy": DecodeOptions(max_length=60),
    "beam": DecodeOptions(beam_size=4, n_best=4, max_length=60),
    "penalised": DecodeOptions(beam_size=3, max_length=60, coverage_penalty=0.2, repetition_penalty=1.1),
    "banned": DecodeOptions(beam_size=4, max_length=60, no_repeat_ngram_size=2, suppress_unknown=True),
}
SAME = {"full-fp16": 0.95, "full-bf16": 0.7}
"""Share of sentences whose best translation must be that of fp32. Rounding decides some near ties."""
OF_SHAPES = {"Shape", "Concat", "Div", "Slice", "Gather", "Squeeze", "Unsqueeze", "Cast", "Range"}
"""Operators on shapes, which may run on the host."""
ARITHMETIC = {"Add", "Sub", "Mul"}
"""Operators that may too, where all that they compute with are shapes."""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cuda") / "bundle"
    requests = [LevelRequest(CHECKPOINT), LevelRequest(CHECKPOINT, 36)]
    compile_bundle(requests, path, precisions=("fp32", "fp16", "bf16"))
    return path


@pytest.fixture(scope="module")
def reference(bundle: Path) -> Iterator[Translator]:
    with Translator(bundle, "full", device="cpu") as translator:
        yield translator


@pytest.fixture(scope="module", params=LEVELS)
def on_cuda(bundle: Path, request: pytest.FixtureRequest) -> Iterator[Translator]:
    with Translator(bundle, request.param, device="cuda", max_rows=64) as translator:
        yield translator


@pytest.mark.parametrize("name", OPTIONS)
def test_translations_are_those_of_fp32(reference: Translator, on_cuda: Translator, name: str) -> None:
    """96 sentences at 64 rows: sentences join and leave, and slots are used again."""
    expected, found = (t.translate(TEXTS, OPTIONS[name]) for t in (reference, on_cuda))
    same = [a.text == b.text for a, b in zip(expected, found, strict=True)]
    assert np.mean(same) >= SAME[on_cuda.level.name]
    gaps = [abs(a.score - b.score) for a, b, equal in zip(expected, found, same, strict=True) if equal]
    assert max(gaps) <= 0.05


def test_the_same_twice_and_one_by_one(on_cuda: Translator) -> None:
    """A repeated batch gives the same. Alone, products are summed in another order, which may decide near ties."""
    together = [t.text for t in on_cuda.translate(TEXTS[:32], OPTIONS["beam"])]
    assert [t.text for t in on_cuda.translate(TEXTS[:32], OPTIONS["beam"])] == together
    alone = [on_cuda.translate([text], OPTIONS["beam"])[0].text for text in TEXTS[:32]]
    assert np.mean([a == b for a, b in zip(alone, together, strict=True)]) >= 0.9


def test_samples_prefixes_scores_and_alignment(reference: Translator, on_cuda: Translator) -> None:
    sampled = DecodeOptions(n_best=2, max_length=40, sampling=Sampling(seed=3, top_k=20))
    once, again = ([t.text for t in on_cuda.translate(TEXTS[:8], sampled)] for _ in range(2))
    assert once == again
    plain = DecodeOptions(beam_size=2, max_length=60)
    begun = on_cuda.translate(TEXTS[:8], plain, ["Ein"] * 8)
    assert all(t.text.startswith("Ein") for t in begun)
    options = DecodeOptions(max_length=60, alignment=True)
    aligned, expected = (t.translate(TEXTS[:8], options) for t in (on_cuda, reference))
    same = [(one, other) for one, other in zip(aligned, expected, strict=True) if one.text == other.text]
    assert len(same) >= 4
    for one, other in same:
        for mine, theirs in zip(one.tokens, other.tokens, strict=True):
            np.testing.assert_allclose(mine.attention, theirs.attention, atol=0.05)


def test_a_long_text_among_short_ones(reference: Translator, on_cuda: Translator) -> None:
    """Caches grow while sentences are in them."""
    texts = [*TEXTS[:6], " ".join(TEXTS[:9]), *TEXTS[6:12]]
    expected, found = (t.translate(texts, DecodeOptions(beam_size=4, max_length=200)) for t in (reference, on_cuda))
    same = [a.text == b.text for a, b in zip(expected, found, strict=True)]
    assert np.mean(same) >= SAME[on_cuda.level.name] - 0.15


def test_every_operator_runs_on_the_device(bundle: Path) -> None:
    """Only operators on shapes may run on the host: for any other, data would be copied there and back at each step."""
    for level in (level for level in validate(bundle).levels if level.on_cuda):
        for name in (name for name in level.files if name.endswith(".onnx")):
            assert host_operators(bundle, name) <= OF_SHAPES, name


def host_operators(bundle: Path, name: str) -> set[str]:
    """Kinds of operators that do not run on CUDA, but for arithmetic on shapes."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(bundle.absolute()))
    session = onnxruntime.InferenceSession(
        (bundle / name).read_bytes(), options, providers=["CUDAExecutionProvider", "CPUExecutionProvider"]
    )
    graph = onnx.load(bundle / name, load_external_data=False).graph
    makers = {output: node for node in graph.node for output in node.output}
    named = {node.name: node for node in graph.node}

    def of_shapes(node: onnx.NodeProto) -> bool:
        if node.op_type == "Shape":
            return True
        made = [makers[name] for name in node.input if name in makers]
        return node.op_type in OF_SHAPES | ARITHMETIC and bool(made) and all(map(of_shapes, made))

    return {
        node.op_type
        for part in session.get_provider_graph_assignment_info()
        if part.ep_name != "CUDAExecutionProvider"
        for node in part.get_nodes()
        if not (node.op_type in ARITHMETIC and node.name in named and of_shapes(named[node.name]))
    }


def test_a_server_answers_from_the_device(bundle: Path) -> None:
    settings = ServerSettings(device="cuda", levels=("h36-fp16",), port=0)
    with BackgroundServer(bundle, settings) as server, Client(server.address) as client:
        answer = client.translate(TEXTS[:40], "h36-fp16", DecodeOptions(beam_size=4))
        assert len(answer.translations) == 40
        assert answer.level == "h36-fp16"


def test_memory_of_the_device_comes_back(bundle: Path) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no CUDA device, and it measures the memory")

    def used() -> int:
        free, total = torch.cuda.mem_get_info()
        return int(total - free)

    def translate() -> None:
        with Translator(bundle, "full-fp16", device="cuda") as translator:
            translator.translate(TEXTS, OPTIONS["beam"], segmentation="none")
        gc.collect()

    translate()  # CUDA's libraries allocate what they keep
    before = used()
    for _ in range(3):
        translate()
    assert used() - before <= 32 << 20
