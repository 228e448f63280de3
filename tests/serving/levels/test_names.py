"""Names of models on a command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.serving.fakes import write_bundle

from hmc.artifact import InvalidArtifactError, read_manifest
from hmc.serving.levels.names import name_of, parse_models


@pytest.fixture
def bundles(tmp_path: Path) -> tuple[Path, Path]:
    return write_bundle(tmp_path / "a"), write_bundle(tmp_path / "b", languages=("fr", "en"))


def test_names_in_their_order(bundles: tuple[Path, Path]) -> None:
    first, second = bundles
    assert list(parse_models([f"x={second}", f"a.b-c_1={first}"]).items()) == [("x", second), ("a.b-c_1", first)]
    assert list(parse_models([str(second), str(first)])) == ["fr-en", "en-de"]


def test_one_bundle_without_a_name_is_left_to_the_host(tmp_path: Path) -> None:
    assert parse_models([str(tmp_path / "missing")]) == {"": tmp_path / "missing"}


def test_a_folder_with_an_equals_sign_is_written_with_a_path(tmp_path: Path) -> None:
    assert parse_models([f"{tmp_path}/a=b"]) == {"": tmp_path / "a=b"}
    assert parse_models(["./a=b"]) == {"": Path("./a=b")}


def test_all_problems_are_said_at_once(bundles: tuple[Path, Path], tmp_path: Path) -> None:
    first, second = bundles
    given = [str(first), f"en-de={second}", f"en de={first}", "=x", "y=", f"gone={tmp_path / 'gone'}"]
    with pytest.raises(InvalidArtifactError) as raised:
        parse_models(given)
    said = "\n".join(raised.value.problems)
    assert f"'en-de' is the name of {first} and {second}" in said
    assert "'en de=" in said
    assert "a model's name has letters, digits" in said
    assert "'y=' names no bundle" in said
    assert f"{tmp_path / 'gone'}: " in said


def test_a_name_is_made_of_any_languages(tmp_path: Path) -> None:
    assert name_of(read_manifest(write_bundle(tmp_path / "a", languages=("zh Hans", "de")))) == "zh_Hans-de"
    assert name_of(read_manifest(write_bundle(tmp_path / "b", languages=("", "")))) == "model"
