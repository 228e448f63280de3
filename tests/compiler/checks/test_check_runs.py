"""Every graph of a level is run as it was written, and must agree with the plain decoder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from tests.bundles import bundle_at
from tests.once import Once
from tests.tiny import SENTENCES, tiny_architecture, tiny_checkpoint_at

from hmc.artifact import read_manifest, validate
from hmc.artifact.bundle.manifest import VARIANTS, Variant, decoder_path
from hmc.compiler import BrokenGraphError, LevelRequest, compile_bundle
from hmc.compiler.checks.runs import CHECKS, check_runs
from hmc.compiler.serialize import BundleFolder
from hmc.serving import DecodeOptions, Translator

PROBE = [[5, 6, 7, 2], [8, 9, 2]]
Change = Callable[[onnx.GraphProto], None]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    tiny_checkpoint_at(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_a_compiled_level_runs(checkpoint: Path, tmp_path: Path, precision: str) -> None:
    compile_bundle([LevelRequest(checkpoint)], tmp_path / "b", precisions=(precision,), calibration=SENTENCES)  # type: ignore[arg-type]
    manifest = read_manifest(tmp_path / "b")
    level = manifest.levels[0]
    check_runs(manifest.architecture, level, tmp_path / "b", PROBE)


@pytest.mark.parametrize("positions", [2, 3, 24])
def test_a_model_of_few_positions(tmp_path: Path, positions: int) -> None:
    tiny_checkpoint_at(tmp_path / "c", arch=tiny_architecture(max_positions=positions))
    compile_bundle(
        [LevelRequest(tmp_path / "c", 12)], tmp_path / "b", precisions=("fp32", "int8"), calibration=SENTENCES
    )
    compile_bundle([LevelRequest(tmp_path / "c", 12)], tmp_path / "without_text")
    for level in validate(tmp_path / "b").levels:
        with Translator(tmp_path / "b", level.name, device="cpu") as translator:
            for beam in (1, 2):
                assert (
                    translator.translate(SENTENCES[:2], DecodeOptions(beam_size=beam), segmentation="none")[
                        0
                    ].target_tokens
                    < positions
                )


def test_every_variant_has_a_check() -> None:
    assert tuple(CHECKS) == VARIANTS


def test_a_graph_that_cannot_be_run_is_no_level(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = BundleFolder.write_graph

    def broken(folder: BundleFolder, model: ir.Model, name: str) -> dict[str, str]:
        files = write(folder, model, name)
        if name == decoder_path("full"):
            (folder.path / name).write_bytes(b"\x08\x0a")
        return files

    monkeypatch.setattr(BundleFolder, "write_graph", broken)
    with pytest.raises(BrokenGraphError, match=r"level full: .*defect of the compiler"):
        compile_bundle([LevelRequest(checkpoint)], tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_weights_that_are_not_numbers(checkpoint: Path, tmp_path: Path) -> None:
    compile_bundle([LevelRequest(checkpoint)], tmp_path / "b")
    manifest = read_manifest(tmp_path / "b")
    level = manifest.levels[0]
    for file in (tmp_path / "b" / "weights").iterdir():
        file.write_bytes(np.full(file.stat().st_size // 4, np.nan, np.float32).tobytes())
    with pytest.raises(BrokenGraphError, match="not numbers"):
        check_runs(manifest.architecture, level, tmp_path / "b", PROBE)


@pytest.fixture(scope="module")
def compiled(tiny_checkpoint: Path, once: Once) -> Path:
    return once(bundle_at, tiny_checkpoint, precisions=("fp32", "int8"))


def rewritten(bundle: Path, name: str, change: Change) -> None:
    """Changes a graph file, but not its digest, which this check does not read."""
    model = onnx.load(str(bundle / name), load_external_data=False)
    change(model.graph)
    (bundle / name).write_bytes(model.SerializeToString())


def producer(graph: onnx.GraphProto, output: str) -> onnx.NodeProto:
    return next(node for node in graph.node if output in node.output)


def halved_attention(graph: onnx.GraphProto) -> None:
    """Halves the attention weights in the output, for all heads."""
    producer(graph, "attention").output[0] = "whole"
    half = onnx.numpy_helper.from_array(np.asarray(0.5, np.float32), "half")
    graph.initializer.append(half)
    graph.node.append(onnx.helper.make_node("Mul", ["whole", "half"], ["attention"]))


def other_score(graph: onnx.GraphProto) -> None:
    """Returns the score of the wanted token as that of the sampled one."""
    node = producer(graph, "sampled_scores")
    node.input[0] = producer(graph, "wanted_scores").input[0]


def squared_temperature(graph: onnx.GraphProto) -> None:
    """Squares the temperature, so that the probabilities are those of another softmax."""
    two = onnx.numpy_helper.from_array(np.asarray(2, np.float32), "two")
    graph.initializer.append(two)
    graph.node.insert(0, onnx.helper.make_node("Mul", ["temperatures", "two"], ["doubled"]))
    for node in list(graph.node)[1:]:
        for index, name in enumerate(node.input):
            if name == "temperatures":
                node.input[index] = "doubled"


def negated_scores(graph: onnx.GraphProto) -> None:
    """Negates the logits."""
    node = next(node for node in graph.node if node.op_type == "LogSoftmax")
    index = list(graph.node).index(node)
    graph.node.insert(index, onnx.helper.make_node("Neg", [node.input[0]], ["negated"]))
    graph.node[index + 1].input[0] = "negated"


@pytest.mark.parametrize("level", ["full", "full-int8"])
@pytest.mark.parametrize(
    ("variant", "change", "problem"),
    [
        ("greedy", negated_scores, "decoder 'greedy' differs from the plain one .*'greedy' chooses a token"),
        ("attention", negated_scores, "decoder 'attention' differs from the plain one"),
        ("attention", halved_attention, "decoder 'attention': the weights of a head sum to 1 ± 5.00e-01"),
        ("sampling", negated_scores, "decoder 'sampling' differs from the plain one"),
        ("sampling", other_score, "decoder 'sampling': a sampled token's score is not its log-probability"),
        ("sampling", squared_temperature, "decoder 'sampling': its probabilities are not the softmax of its scores"),
    ],
)
def test_a_decoder_that_contradicts_the_plain_one_is_noticed(
    compiled: Path,
    tmp_path: Path,
    level: str,
    variant: Variant,
    change: Change,
    problem: str,
) -> None:
    bundle = Path(shutil.copytree(compiled, tmp_path / "b"))
    manifest = read_manifest(bundle)
    found = manifest.level(level)
    check_runs(manifest.architecture, found, bundle, PROBE)
    rewritten(bundle, decoder_path(level, variant), change)
    with pytest.raises(BrokenGraphError, match=problem):
        check_runs(manifest.architecture, found, bundle, PROBE)


def worst_first(graph: onnx.GraphProto) -> None:
    """Ranks the worst tokens first."""
    first = next(node for node in graph.node if node.op_type == "TopK" and "candidates" in node.input)
    first.attribute.append(onnx.helper.make_attribute("largest", 0))


def exchanged(name: str) -> Change:
    """Does not reorder one part of the state."""

    def change(graph: onnx.GraphProto) -> None:
        for node in graph.node:
            if f"next_{name}" in node.output:
                node.CopyFrom(onnx.helper.make_node("Identity", [name], [f"next_{name}"]))

    return change


BROKEN: dict[str, tuple[str, Change]] = {
    "worst tokens, greedy": ("search_greedy", worst_first),
    "totals that stay, beam": ("search_beam", exchanged("totals")),
    "nodes that nobody sees, beam": ("search_beam", exchanged("node_bias")),
    "tokens that stay, greedy": ("search_greedy", exchanged("tokens")),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_wrong_search_is_noticed(tiny_checkpoint: Path, once: Once, tmp_path: Path, case: str) -> None:
    variant, change = BROKEN[case]
    shutil.copytree(once(bundle_at, tiny_checkpoint, device_form=True), tmp_path / "b")
    manifest = read_manifest(tmp_path / "b")
    rewritten(tmp_path / "b", decoder_path(manifest.levels[0].name, variant), change)  # type: ignore[arg-type]
    with pytest.raises(BrokenGraphError, match=f"decoder '{variant}'"):
        check_runs(manifest.architecture, manifest.levels[0], tmp_path / "b", PROBE)
