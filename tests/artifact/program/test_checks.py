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
from tests.tiny import FORMS, random_layout, random_tensors, tiny_architecture

from hmc.artifact import Level, Manifest, bundle_problems, read_manifest
from hmc.artifact.program.checks import file_problems, program_problems
from hmc.artifact.program.listing import describe
from hmc.artifact.program.operations import Program, program_json, program_path, read_program
from hmc.compiler.calibration.calibrate import calibrate
from hmc.compiler.precisions.int8 import Int8Linears
from hmc.compiler.precisions.linears import FloatLinears
from hmc.compiler.programs import ProgramWriter
from hmc.compiler.weights import SlimModel

ARCH = tiny_architecture()


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
    sizes = {name: (bundle / name).stat().st_size for name in manifest.digests}
    for level in manifest.levels:
        program = read_program(bundle, level.name)
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


def same_head(program: dict[str, Any]) -> None:
    program["encode"][2]["original"][1] = program["encode"][2]["original"][0]


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
        (same_plane, r"plane 0 is given twice"),
        (same_head, r"encode\[2\] \(attend_encoder\): 4 heads are \[\d, \d, \d, \d\]: each needs a number below 4"),
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


def test_a_person_can_read_what_pruning_took(bundle: Path, manifest: Manifest) -> None:
    def lines(level: str) -> list[str]:
        return list(describe(read_program(bundle, level), manifest.architecture))

    full, narrow = lines("full"), lines("h12")
    assert full[0] == "encode, once a sentence: 16 operations, 8 of 8 heads, 96 of 96 neurons"
    assert "  1.heads            x3 = norm(… + x2) → W[32, 192] → 4 of 4 heads × 16 → W[64, 32]" in full
    assert full[-1] == "  tokens             x6 = norm(… + x5) → W[32, 120] → best tokens"
    assert len(narrow) <= len(full) <= 40
    assert max(map(len, full)) <= 120
    layout = manifest.level("h12").layout
    assert (
        f" {len(layout.encoder_self[0])} of 4 heads × 16 ({', '.join(map(str, layout.encoder_self[0]))}) →" in narrow[1]
    )
    assert lines("full-int8")[0].endswith(" neurons, int8")
    assert not any("fp32" in line for line in lines("full-int8"))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", [None, 3, 5])
def test_every_form_can_be_read(form: str, seed: int | None) -> None:
    """A line for each sub-layer, whose states are made once and then read."""
    arch = tiny_architecture(**FORMS[form])
    layout = arch.full_layout() if seed is None else random_layout(arch, seed)
    encode, step = ProgramWriter(arch, layout, random_tensors(arch, layout), FloatLinears(), FloatLinears()).write()
    program = Program(type="float32", tensors={}, encode=tuple(encode), step=tuple(step))
    found = list(describe(program, arch))
    assert found[0].startswith(f"encode, once a sentence: {len(encode)} operations")
    heads = re.findall(r"(\d+) of 4 heads × 16", "\n".join(found))
    assert sum(map(int, heads)) == layout.total
    made = re.findall(r"(?:^|  )(\S+) = ", "\n".join(found), re.MULTILINE)
    assert len(made) == len(found) - 2 - len([line for line in found if re.search(r"  (x\d+|\w+\.end) → ", line)])


def test_layers_that_stayed_in_floats_are_marked() -> None:
    tensors = random_tensors(ARCH, ARCH.full_layout())
    model = SlimModel(ARCH, ARCH.full_layout(), tensors)
    ranges = calibrate(model, [[5, 9, 40, 7, 0], [11, 12, 60, 0]]).ranges
    kept = {name: found for name, found in ranges.items() if name != "decoder.layers.1.fc1"}
    linears = Int8Linears(kept)
    encode, step = ProgramWriter(ARCH, ARCH.full_layout(), tensors, linears, linears).write()
    program = Program(type="float32", tensors={}, encode=tuple(encode), step=tuple(step))
    assert [line.split()[0] for line in describe(program, ARCH) if "W[32, 48] in fp32 → relu" in line] == ["1.neurons"]
