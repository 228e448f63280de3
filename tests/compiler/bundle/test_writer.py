"""`compile_bundle`: what is written, what is refused, what stays as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.support.files import bytes_of
from tests.tiny import SENTENCES, tiny_architecture, tiny_checkpoint_at

from hmc.artifact import (
    Checkpoint,
    InvalidArtifactError,
    InvalidRequestError,
    Manifest,
    Precision,
    load_checkpoint,
    read_manifest,
    save_checkpoint,
    validate,
)
from hmc.artifact.model.architecture import parameter_count
from hmc.compiler import BundleBuilder, LevelRequest, ShortlistText, compile_bundle, progress_steps
from hmc.compiler.bundle.builder import bundle_version
from hmc.compiler.checks.parity import check_parity
from hmc.compiler.pipeline import STEPS
from hmc.compiler.weights import SlimModel


def graph_parameters(path: Path) -> dict[str, int]:
    """Initializer name → elements, of the model's parameters in one graph (constants and positions left out)."""
    model = onnx.load(str(path), load_external_data=False)
    skip = ("const.", "positions", "embedding.factor")
    return {t.name: int(np.prod(t.dims)) for t in model.graph.initializer if not t.name.startswith(skip)}


@pytest.mark.parametrize("level", ["full", "h12", "h5"])
def test_graphs_hold_exactly_the_expected_parameters(tiny_bundle: Path, level: str) -> None:
    manifest = read_manifest(tiny_bundle)
    entry = manifest.level(level)
    encoder, decoder = (graph_parameters(tiny_bundle / level / f"{name}.onnx") for name in ("encoder", "decoder"))
    assert encoder.keys() & decoder.keys() == {"shared.weight"}  # the embedding, used on both sides
    total = sum({**encoder, **decoder}.values()) + decoder.get("embedding.weight", 0)
    assert total == entry.parameters == parameter_count(manifest.architecture, entry.layout)


def test_closed_heads_are_gone_not_zero(tiny_bundle: Path) -> None:
    manifest = read_manifest(tiny_bundle)
    counts = manifest.level("h5").layout.counts()
    model = onnx.load(str(tiny_bundle / "h5" / "decoder.onnx"), load_external_data=False)
    shapes = {t.name: list(t.dims) for t in model.graph.initializer}
    for layer, heads in enumerate(counts["decoder_self"]):
        name = f"decoder.layers.{layer}.self_attn.qkv_proj.weight"
        assert shapes.get(name) == ([3 * 16 * heads, 32] if heads else None)
    inputs = {i.name for i in model.graph.input}
    assert {f"past_key_{n}" for n, heads in enumerate(counts["decoder_self"]) if heads} == {
        i for i in inputs if "past_key" in i
    }
    assert {f"cross_key_{n}" for n, heads in enumerate(counts["cross"]) if heads} == {
        i for i in inputs if "cross_key" in i
    }


def test_levels_share_the_weights_they_have_in_common(tiny_bundle: Path) -> None:
    manifest = read_manifest(tiny_bundle)
    full, small = (set(manifest.level(n).files) for n in ("full", "h5"))
    shared = {f for f in full & small if f.startswith("weights/")}
    assert len(shared) >= 5  # embedding, feed-forward
    on_disk = sum(f.stat().st_size for f in (tiny_bundle / "weights").iterdir())
    assert on_disk < sum(level.bytes for level in manifest.levels)


def test_same_input_same_bytes(tiny_checkpoint: Path, tmp_path: Path) -> None:
    for name in "ab":
        requests = [LevelRequest(tiny_checkpoint, 12)]
        compile_bundle(requests, tmp_path / name, precisions=("fp32", "int8"), calibration=SENTENCES)
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")


def test_levels_that_were_thrown_away_leave_no_trace(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """The bytes of a bundle depend on its levels only, not on levels that were discarded on the way."""
    wanted = [LevelRequest(tiny_checkpoint, heads) for heads in (24, 12)]
    compile_bundle(wanted, tmp_path / "straight")
    with BundleBuilder.open(tmp_path / "detour", [tiny_checkpoint]) as builder:
        small = builder.add(LevelRequest(tiny_checkpoint, 5), "fp32")
        levels = [builder.add(request, "fp32") for request in wanted]
        builder.discard(small.name)
        builder.add(LevelRequest(tiny_checkpoint, 7), "fp32")
        builder.finish(levels)
    assert bytes_of(tmp_path / "detour") == bytes_of(tmp_path / "straight")


def test_an_unfinished_bundle_leaves_the_old_one(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """A bundle that was not validated must not replace one that was."""
    compile_bundle([LevelRequest(tiny_checkpoint, 12)], tmp_path / "b")
    before = bytes_of(tmp_path / "b")
    with (
        pytest.raises(RuntimeError, match="not finished"),
        BundleBuilder.open(tmp_path / "b", [tiny_checkpoint]) as builder,
    ):
        builder.add(LevelRequest(tiny_checkpoint, 5), "fp32")
    assert bytes_of(tmp_path / "b") == before
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_bundle_that_fails_its_checks_leaves_the_old_one(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_bundle([LevelRequest(tiny_checkpoint, 12)], tmp_path / "b")
    before = bytes_of(tmp_path / "b")

    def invalid(folder: Path) -> Manifest:
        raise InvalidArtifactError(f"bundle {folder}", ["a file is missing"], "Write it again.")

    monkeypatch.setattr("hmc.compiler.bundle.builder.validate", invalid)
    with pytest.raises(InvalidArtifactError, match="a file is missing"):
        compile_bundle([LevelRequest(tiny_checkpoint, 5)], tmp_path / "b")
    assert bytes_of(tmp_path / "b") == before


def test_an_input_is_not_replaced(tiny_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "calibrate.en").write_text("A man.")
    with (
        pytest.raises(InvalidRequestError, match=r"and with it the input .*calibrate\.en"),
        BundleBuilder.open(tmp_path / "b", [tiny_checkpoint], inputs=[tmp_path / "b" / "calibrate.en"]),
    ):
        pass


def test_the_default_level_and_where_levels_come_from(tiny_checkpoint: Path, tmp_path: Path) -> None:
    with BundleBuilder.open(tmp_path / "b", [tiny_checkpoint]) as builder:
        levels = [builder.add(LevelRequest(tiny_checkpoint, heads), "fp32") for heads in (24, 12)]
        builder.finish(levels, "h12", search={"found": "h12"})
    manifest = validate(tmp_path / "b")
    assert manifest.default_level == "h12"
    assert manifest.provenance["search"] == {"found": "h12"}


def test_a_layout_is_checked_once_whatever_its_precisions(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[int] = []
    parity = check_parity

    def counted(checkpoint: Checkpoint, slim: SlimModel, *arguments: Any) -> float:
        checked.append(slim.layout.total)
        return parity(checkpoint, slim, *arguments)

    monkeypatch.setattr("hmc.compiler.pipeline.check_parity", counted)
    said: list[str] = []
    requests = [LevelRequest(tiny_checkpoint, heads) for heads in (24, 12)]
    precisions: tuple[Precision, ...] = ("fp32", "fp16", "int8")
    compile_bundle(requests, tmp_path / "b", precisions=precisions, calibration=SENTENCES, progress=said.append)
    assert checked == [24, 12]
    assert len(said) == progress_steps(2, precisions) == 2 * 3 * len(STEPS) + 1
    assert said[0] == "full: slim weights"
    assert said[-1] == "validate"


@pytest.mark.parametrize("inside", ["note.txt", "config.json"])
def test_a_folder_that_is_no_bundle_is_not_replaced(tiny_checkpoint: Path, tmp_path: Path, inside: str) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / inside).write_text("mine")
    with pytest.raises(InvalidRequestError, match=r"holds other files and no bundle\.json"):
        compile_bundle([LevelRequest(tiny_checkpoint, 12)], tmp_path / "b")
    with pytest.raises(InvalidRequestError, match="would be replaced, and with it the input"):
        compile_bundle([LevelRequest(tiny_checkpoint, 12)], tiny_checkpoint)
    assert bytes_of(tmp_path / "b") == {inside: b"mine"}


def test_int8_without_sentences_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="calibration"):
        compile_bundle([LevelRequest(tiny_checkpoint, 12)], tmp_path / "b", precisions=("int8",))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("requests", "precisions", "message"),
    [
        ([24, 12, 25], ("fp32",), "24 open heads"),
        ([24, 12, 24], ("fp32",), "'full' is requested twice"),
        ([24], ("fp32", "int8"), "calibration"),
    ],
)
def test_what_cannot_be_compiled_is_found_before_the_first_level(
    tiny_checkpoint: Path, tmp_path: Path, requests: list[int], precisions: tuple[Precision, ...], message: str
) -> None:
    said: list[str] = []
    with pytest.raises(InvalidRequestError, match=message):
        compile_bundle(
            [LevelRequest(tiny_checkpoint, heads) for heads in requests], tmp_path / "b", precisions=precisions,
            shortlist=ShortlistText(SENTENCES, SENTENCES), progress=said.append,
        )  # fmt: skip
    assert said == []
    assert list(tmp_path.iterdir()) == []


def test_a_failed_compile_leaves_the_old_bundle(tiny_checkpoint: Path, tmp_path: Path) -> None:
    before = compile_bundle([LevelRequest(tiny_checkpoint, 12)], tmp_path / "b")
    with pytest.raises(InvalidRequestError, match="requested twice"):
        compile_bundle([LevelRequest(tiny_checkpoint, 24)] * 2, tmp_path / "b")
    assert read_manifest(tmp_path / "b") == before


def test_too_many_heads_and_no_scores_are_refused(tmp_path: Path, tiny_checkpoint: Path) -> None:
    with pytest.raises(InvalidRequestError, match="24 open heads"):
        compile_bundle([LevelRequest(tiny_checkpoint, 25)], tmp_path / "b")
    tiny_checkpoint_at(tmp_path / "plain", gates=False)
    with pytest.raises(InvalidRequestError, match="hmc prune"):
        compile_bundle([LevelRequest(tmp_path / "plain", 12)], tmp_path / "b")


def test_importance_ranks_heads_when_there_are_no_gates(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint_at(tmp_path / "c")
    checkpoint.importance, checkpoint.gates = checkpoint.gates, None
    save_checkpoint(checkpoint, tmp_path / "c")
    assert compile_bundle([LevelRequest(tmp_path / "c", 7)], tmp_path / "b").level("h7").heads == 7


def test_one_checkpoint_per_level(tiny_checkpoint: Path, tmp_path: Path) -> None:
    full = load_checkpoint(tiny_checkpoint)
    slim = tiny_checkpoint_at(
        tmp_path / "slim",
        seed=5,
        layout=compile_bundle([LevelRequest(tiny_checkpoint, 5)], tmp_path / "x").level("h5").layout,
    )
    manifest = compile_bundle(
        [LevelRequest(tiny_checkpoint, name="full"), LevelRequest(tmp_path / "slim", name="small")], tmp_path / "b"
    )
    assert [(x.name, x.heads) for x in manifest.levels] == [("full", full.layout.total), ("small", slim.layout.total)]
    assert manifest.levels[0].source_checkpoint != manifest.levels[1].source_checkpoint


def test_another_architecture_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    tiny_checkpoint_at(tmp_path / "wide", arch=tiny_architecture(ffn_dim=64))
    with pytest.raises(InvalidRequestError, match="architecture differs"):
        compile_bundle([LevelRequest(tiny_checkpoint), LevelRequest(tmp_path / "wide", name="w")], tmp_path / "b")


def test_another_direction_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    turned = load_checkpoint(tiny_checkpoint)
    turned.config.source_language, turned.config.target_language = "de", "en"
    save_checkpoint(turned, tmp_path / "turned")
    with pytest.raises(InvalidRequestError, match="it translates de to en, but the first checkpoint translates en"):
        compile_bundle([LevelRequest(tiny_checkpoint), LevelRequest(tmp_path / "turned", name="t")], tmp_path / "b")


@pytest.mark.parametrize(("precision", "fused"), [("fp32", False), ("fp16", True)])
def test_residual_and_norm_are_fused_for_cuda_only(tmp_path: Path, precision: str, fused: bool) -> None:
    """On a CPU the fused operator is slower."""
    tiny_checkpoint_at(tmp_path / "c")
    compile_bundle([LevelRequest(tmp_path / "c", name="level")], tmp_path / "b", precisions=[precision])  # type: ignore[list-item]
    [level] = read_manifest(tmp_path / "b").levels
    model = onnx.load(str(tmp_path / "b" / level.name / "decoder.onnx"), load_external_data=False)
    operators = {node.op_type for node in model.graph.node}
    assert ("SkipLayerNormalization" in operators) == fused
    assert ("LayerNormalization" in operators) != fused


def test_quantised_levels_get_twins_with_shortlists(tiny_checkpoint: Path, tmp_path: Path) -> None:
    said: list[str] = []
    text = ShortlistText(SENTENCES, SENTENCES[::-1], frequent=5, best=3)
    precisions: tuple[Precision, ...] = ("fp32", "int8", "int4")
    requests = [LevelRequest(tiny_checkpoint, heads) for heads in (24, 5)]
    manifest = compile_bundle(
        requests, tmp_path / "b", precisions=precisions, calibration=SENTENCES, shortlist=text, progress=said.append
    )
    assert [level.name for level in manifest.levels] == [
        f"{heads}{rest}"
        for heads in ("full", "h5")
        for rest in ("", "-int8", "-int8-shortlist", "-int4", "-int4-shortlist")
    ]
    assert len(said) == progress_steps(2, precisions, shortlist=True)
    lexica = {level.shortlist for level in manifest.levels if level.name.endswith("-shortlist")}
    assert len(lexica) == 1  # all levels share it
    assert not any(level.shortlist for level in manifest.levels if not level.name.endswith("-shortlist"))
    whole, listed = (manifest.level(name) for name in ("full-int8", "full-int8-shortlist"))
    weights = {file for file in listed.files if file.startswith("weights/") and file.endswith(".bin")}
    assert weights <= whole.files.keys()  # the twin adds none
    assert len(weights) < sum(file.endswith(".bin") for file in whole.files)  # and does without the output projection
    (tmp_path / "b" / str(listed.shortlist)).write_bytes(b"damaged")
    with pytest.raises(InvalidArtifactError, match=str(listed.shortlist)):
        validate(tmp_path / "b")


def test_shortlists_are_not_for_cuda(tiny_checkpoint: Path, tmp_path: Path) -> None:
    text = ShortlistText(SENTENCES, SENTENCES)
    with (
        pytest.raises(InvalidRequestError, match="for levels on a CPU"),
        BundleBuilder.open(tmp_path / "b", [tiny_checkpoint], shortlist=text) as builder,
    ):
        builder.add(LevelRequest(tiny_checkpoint), "fp16", with_shortlist=True)


@pytest.mark.parametrize("name", ["../../../x", "a/b", "", ".x", "weights", "bundle.json"])
def test_a_level_cannot_have_any_name(tiny_checkpoint: Path, name: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"is no name for a level|a level cannot be called"):
        LevelRequest(tiny_checkpoint, name=name)


def test_another_tokenizer_is_another_version(tiny_bundle: Path) -> None:
    manifest = validate(tiny_bundle)
    assert bundle_version(manifest.levels, manifest.tokenizer_sha256) == manifest.version
    assert bundle_version(manifest.levels, "0" * 64) != manifest.version
    assert bundle_version(manifest.levels[1:], manifest.tokenizer_sha256) != manifest.version
