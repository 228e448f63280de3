"""A step program that contradicts itself, its architecture or its files is refused, with the operation at fault."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.bundles import bundle_at
from tests.once import Once

from hmc.artifact import Level, Manifest, bundle_problems, read_manifest
from hmc.artifact.program.checks import file_problems, program_problems
from hmc.artifact.program.listing import describe
from hmc.artifact.program.operations import Program, program_json, program_path, read_program


@pytest.fixture(scope="module")
def bundle(tiny_checkpoint: Path, once: Once) -> Path:
    return once(bundle_at, tiny_checkpoint, (24, 12), ("fp32", "int8"))


@pytest.fixture(scope="module")
def manifest(bundle: Path) -> Manifest:
    return read_manifest(bundle)


def content(bundle: Path, level: str = "full-int8") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((bundle / program_path(level)).read_bytes())
    return found


def test_every_level_has_one(bundle: Path, manifest: Manifest) -> None:
    for level in manifest.levels:
        program = read_program(bundle, level.name)
        sizes = {name: (bundle / name).stat().st_size for name in level.files}
        assert program_problems(program, manifest.architecture) == []
        assert file_problems(program, sizes) == []
        assert Program.model_validate_json(program_json(program)) == program
        assert program_path(level.name) in level.files


def shorter(program: dict[str, Any]) -> None:
    program["step"].pop()


def unknown_value(program: dict[str, Any]) -> None:
    program["step"][2]["input"] = "nothing"


def narrower(program: dict[str, Any]) -> None:
    program["encode"][2]["heads"] -= 1


def another_shape(program: dict[str, Any]) -> None:
    program["tensors"]["positions"]["shape"][0] += 1


def without_scales(program: dict[str, Any]) -> None:
    del program["step"][1]["product"]["matrices"][0]["scales"]


def another_list(program: dict[str, Any]) -> None:
    program["step"].insert(3, program["encode"][2])


def same_plane(program: dict[str, Any]) -> None:
    planes = [operation for operation in program["step"] if operation["kind"] == "attend_self"]
    planes[1]["plane"] = planes[0]["plane"]


def unread(program: dict[str, Any]) -> None:
    program["tensors"]["spare"] = program["tensors"]["positions"]


def no_place(program: dict[str, Any]) -> None:
    del program["tensors"]["positions"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (shorter, r"step: it has to end with candidates"),
        (unknown_value, r"step\[2\] \(attend_self\): nothing is read before it is written"),
        (narrower, r"encode\[2\] \(attend_encoder\): encoder.0.qkv has the width 192, not 3 · 48"),
        (another_shape, r"the tensor positions has the shape \[97, 32\], not \[96, 32\]"),
        (without_scales, r"step\[1\] \(linear\): .* a product has a range exactly where its weights have scales"),
        (another_list, r"step\[3\] \(attend_encoder\): is not an operation of this list"),
        (same_plane, r"plane 0 is there twice"),
        (unread, r"tensor spare: no operation reads it"),
        (no_place, r"the tensor positions has no place"),
    ],
)
def test_contradictions(bundle: Path, manifest: Manifest, change: Callable[[dict[str, Any]], None], said: str) -> None:
    changed = content(bundle)
    change(changed)
    problems = program_problems(Program.model_validate(changed), manifest.architecture)
    assert any(re.search(said, problem) for problem in problems), problems


def test_tensors_outside_of_their_files(bundle: Path, manifest: Manifest) -> None:
    level: Level = manifest.level("full-int8")
    changed = content(bundle)
    changed["tensors"]["positions"]["offset"] = 1
    sizes = {name: (bundle / name).stat().st_size for name in level.files}
    [problem] = file_problems(Program.model_validate(changed), sizes)
    assert problem.startswith("tensor positions ends after weights/")
    del sizes[changed["tensors"]["positions"]["file"]]
    assert "which is not listed" in file_problems(Program.model_validate(changed), sizes)[0]


def test_unknown_fields_and_kinds_are_refused(bundle: Path) -> None:
    for name, value in (("kind", "wrong"), ("more", 1)):
        changed = content(bundle)
        changed["step"][0][name] = value
        with pytest.raises(ValueError, match=name if name == "more" else "wrong"):
            Program.model_validate(changed)


def test_a_damaged_program_is_a_damaged_bundle(bundle: Path, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(bundle, tmp_path / "b"))
    (damaged / program_path("full")).write_bytes(b"{")
    assert any(program_path("full") in problem for problem in bundle_problems(damaged))


def test_a_person_can_read_what_pruning_took(bundle: Path) -> None:
    lines = {level: list(describe(read_program(bundle, level))) for level in ("full", "h12")}
    assert lines["full"][0] == "encode, once a sentence: 16 operations"
    assert any("0.heads = 4 × 16 heads of 0.qkv, plane 0" in line for line in lines["full"])
    assert len(lines["h12"]) <= len(lines["full"])
    assert max(map(len, lines["full"])) <= 120
