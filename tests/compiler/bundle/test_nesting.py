"""Levels that are nested: heads in the order in which levels drop them, and one set of weights for their programs."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.bundles import bundle_at
from tests.once import Once
from tests.support.files import bytes_of
from tests.tiny import LEVELS, SENTENCES, random_tensors, tiny_architecture

from hmc.artifact import HeadLayout, Manifest, Precision, bundle_problems, read_manifest
from hmc.artifact.checkpoint.slimming import reordered_heads, slim_tensors
from hmc.artifact.model.heads import KINDS, nested_order
from hmc.artifact.program.checks import file_problems
from hmc.artifact.program.operations import Program, program_tensors_path, read_program
from hmc.artifact.program.tensors import stored_tensor
from hmc.compiler import BundleBuilder, LevelRequest, compile_bundle

ARCH = tiny_architecture()
NARROW = ("h12", "h5")


@pytest.fixture(scope="module")
def bundle(tiny_checkpoint: Path, once: Once) -> Path:
    return once(bundle_at, tiny_checkpoint, LEVELS, ("fp32", "int8"))


@pytest.fixture(scope="module")
def manifest(bundle: Path) -> Manifest:
    return read_manifest(bundle)


def attention_weights(program: Program) -> list[str]:
    return [name for name in program.tensors if "attn" in name and name.endswith("_proj.weight")]


def initializers(bundle: Path, level: str) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for graph in ("encoder", "decoder"):
        model = onnx.load(str(bundle / level / f"{graph}.onnx"), load_external_data=False)
        onnx.load_external_data_for_model(model, str(bundle))
        found |= {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    return found


def layouts(*rows: list[int]) -> list[HeadLayout]:
    """Layouts that differ in the first layer of the encoder."""
    return [HeadLayout.from_json(ARCH.full_layout().to_json() | {"encoder_self": [row, [0]]}) for row in rows]


@pytest.mark.parametrize("suffix", ["", "-int8"])
def test_programs_of_nested_levels_read_the_widest_ones_weights(bundle: Path, manifest: Manifest, suffix: str) -> None:
    wide = read_program(bundle, f"full{suffix}")
    parts = 0
    for name in NARROW:
        level, program = manifest.level(f"{name}{suffix}"), read_program(bundle, f"{name}{suffix}")
        for tensor in attention_weights(program):
            place, whole = program.tensors[tensor], wide.tensors[tensor]
            if place.file == program_tensors_path(level.name):
                continue  # too small for a file
            assert (place.file, place.offset) == (whole.file, whole.offset)
            assert all(ours <= theirs for ours, theirs in zip(place.shape, whole.shape, strict=True))
            parts += place.shape != whole.shape
        assert {place.file for place in program.tensors.values()} - level.files.keys()
    assert parts > 10


@pytest.mark.parametrize("suffix", ["", "-int8"])
@pytest.mark.parametrize("name", ["full", *NARROW])
def test_they_are_the_numbers_of_the_graphs(bundle: Path, name: str, suffix: str) -> None:
    """Which have files of their own."""
    program, graphs = read_program(bundle, f"{name}{suffix}"), initializers(bundle, f"{name}{suffix}")
    axis = 1 if suffix else 0
    for kind in KINDS:
        for layer in range(2):
            attention = ARCH.attention(kind, layer)
            if attention.output.weight not in program.tensors:
                continue
            prefix = attention.query.name.removesuffix("q_proj")
            found = {
                part: stored_tensor(bundle, program.tensors[f"{prefix}{part}_proj.weight"]) for part in ("q", "k", "v")
            }
            np.testing.assert_array_equal(
                stored_tensor(bundle, program.tensors[attention.output.weight]), graphs[attention.output.weight]
            )
            if kind == "decoder_self":
                joint = np.concatenate(list(found.values()), axis=axis)
                np.testing.assert_array_equal(joint, graphs[f"{prefix}qkv_proj.weight"])


def test_no_file_is_there_for_a_program_alone(bundle: Path, manifest: Manifest) -> None:
    """What a bundle grows by are the programs and their small tensors."""
    for level in manifest.levels:
        graphs = [name for name in level.files if name.endswith(".onnx")]
        read = set()
        for graph in graphs:
            model = onnx.load(str(bundle / graph), load_external_data=False)
            for each in model.graph.initializer:
                read |= {entry.value for entry in each.external_data if entry.key == "location"}
        assert {file for file in level.files if file.startswith("weights/")} == read


def test_a_part_that_is_not_there_is_a_problem_of_the_bundle(bundle: Path, manifest: Manifest, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(bundle, tmp_path / "b"))
    program = read_program(damaged, "h12")
    name, place = next((n, p) for n, p in program.tensors.items() if p.leading is not None)
    assert "does not fit the shape" in refused(place.model_dump() | {"leading": place.shape[1] - 1}, program, name)
    assert "does not fit the shape" in refused(place.model_dump() | {"shape": (8,)}, program, name)
    longer = program.model_copy(update={"tensors": {name: place.model_copy(update={"leading": 10_000})}})
    sizes = {file: (damaged / file).stat().st_size for file in manifest.digests}
    assert file_problems(longer, sizes) == [f"tensor {name} ends after {place.file}"]
    (damaged / place.file).write_bytes(b"changed")
    assert any(place.file in problem for problem in bundle_problems(damaged))


def refused(place: dict[str, object], program: Program, name: str) -> str:
    content = program.model_dump()
    content["tensors"][name] = place
    with pytest.raises(ValueError, match=name) as caught:
        Program.model_validate(content)
    return str(caught.value)


def test_heads_come_in_the_order_in_which_levels_drop_them() -> None:
    assert nested_order(layouts([0, 1, 2, 3], [1, 3], [3]))["encoder_self"] == [[3, 1, 0, 2], [0]]
    assert nested_order(layouts([3], [0, 1, 2, 3], [1, 3]))["encoder_self"] == [[3, 1, 0, 2], [0]], (
        "however they are given"
    )
    assert nested_order(layouts([1, 2], [0, 2, 3]))["encoder_self"] == [[1, 2, 0, 3], [0]], "not nested"
    assert nested_order(layouts([]))["encoder_self"] == [[], [0]]
    assert nested_order([ARCH.full_layout()])["cross"] == [[0, 1, 2, 3]] * 2


def test_narrower_weights_are_the_first_rows_and_columns() -> None:
    full, narrow = ARCH.full_layout(), layouts([1, 3])[0]
    order = nested_order([full, narrow])
    tensors = reordered_heads(random_tensors(ARCH, full), ARCH, full, order)
    slim = slim_tensors(tensors, ARCH, full, narrow, order)
    name = "encoder.layers.0.self_attn"
    np.testing.assert_array_equal(slim[f"{name}.q_proj.weight"], tensors[f"{name}.q_proj.weight"][:32])
    np.testing.assert_array_equal(slim[f"{name}.out_proj.weight"], tensors[f"{name}.out_proj.weight"][:, :32])
    assert tensors["decoder.layers.0.self_attn.q_proj.weight"] is slim["decoder.layers.0.self_attn.q_proj.weight"]


def test_a_level_that_was_not_planned_is_nested_too(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """A search compiles one level after the other, and knows none but the widest beforehand. Heads are in the order of
    the scores that levels are chosen by, so it gets the same bytes as those who ask for the levels that it found."""
    request = LevelRequest(tiny_checkpoint)
    precisions: tuple[Precision, ...] = ("fp32", "int8")
    found = [replace(request, target_heads=heads) for heads in (None, 12)]
    compile_bundle(found, tmp_path / "asked", precisions=precisions, calibration=SENTENCES)
    with BundleBuilder.open(tmp_path / "searched", [tiny_checkpoint], calibration=SENTENCES) as builder:
        builder.prepare([(request, precision, False) for precision in precisions])
        builder.finish([builder.add(each, precision) for each in found for precision in precisions])
    assert bytes_of(tmp_path / "searched") == bytes_of(tmp_path / "asked")


def test_heads_of_equal_rank_are_in_the_order_of_their_numbers() -> None:
    scores = {kind: np.array([[1, 2, 1, 2], [0, 0, 0, 0]], np.float32) for kind in KINDS}
    assert nested_order([ARCH.full_layout()], scores)["cross"] == [[1, 3, 0, 2], [0, 1, 2, 3]]
    assert nested_order(layouts([0, 1, 2, 3], [2]), scores)["encoder_self"] == [[2, 1, 3, 0], [0]], "levels come first"
