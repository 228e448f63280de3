"""What may be replaced: directories of the same format that hold no other files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.artifact.marian.opus import opus_directory
from tests.tiny import tiny_checkpoint_at

from hmc.artifact import InvalidRequestError
from hmc.artifact.bundle import manifest
from hmc.artifact.checkpoint import checkpoint
from hmc.artifact.marian import layout
from hmc.artifact.marian.writer import export_marian
from hmc.artifact.storage.formats import Format, check_replaceable

FORMATS = {"checkpoint": checkpoint.FORMAT, "marian": layout.FORMAT, "bundle": manifest.FORMAT}


@pytest.fixture
def folders(tmp_path: Path, tiny_bundle: Path) -> dict[str, Path]:
    """A directory of every format, as it is written."""
    made = {name: tmp_path / name for name in FORMATS}
    tiny_checkpoint_at(made["checkpoint"])
    opus_directory(tmp_path / "opus")
    from hmc.artifact.marian.reader import import_marian

    export_marian(import_marian(tmp_path / "opus"), made["marian"])
    shutil.copytree(tiny_bundle, made["bundle"])
    return made


def test_each_format_replaces_its_own_alone(folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name, form in FORMATS.items():
        check_replaceable(tmp_path / "empty", form)
        check_replaceable(tmp_path / "nothing", form)
        for other, folder in folders.items():
            assert form.is_at(folder) == (other == name)
            assert (form.objection(folder) is None) == (other == name)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("foreign", "shown"),
    [
        (".git/config", ".git/"),
        ("src/main.py", "src/"),
        ("README.md", "README.md"),
        ("weights/mine.bin", "weights/"),
        (".hidden", ".hidden"),
    ],
)
def test_nothing_foreign_is_replaced(folders: dict[str, Path], name: str, foreign: str, shown: str) -> None:
    file = folders[name] / foreign
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine")
    with pytest.raises(InvalidRequestError) as caught:
        check_replaceable(folders[name], FORMATS[name])
    expected = foreign if name == "bundle" and foreign.startswith("weights") else shown
    assert f"holds files that do not belong to {FORMATS[name].name}: {expected}." in str(caught.value)
    assert "choose another directory, or move it away first" in str(caught.value)


def test_an_empty_folder_of_somebody_counts(folders: dict[str, Path]) -> None:
    (folders["checkpoint"] / "figures").mkdir()
    assert "figures/" in str(checkpoint.FORMAT.objection(folders["checkpoint"]))


def test_what_the_system_puts_there_does_not(folders: dict[str, Path]) -> None:
    for name in (".DS_Store", ".nfs000000000012"):
        (folders["checkpoint"] / name).touch()
    assert checkpoint.FORMAT.objection(folders["checkpoint"]) is None


def test_a_bundle_that_was_being_recorded_is_one(folders: dict[str, Path]) -> None:
    (folders["bundle"] / ".bundle.json.new").touch()
    (folders["bundle"] / "full" / "encoder.onnx").unlink()
    assert manifest.FORMAT.objection(folders["bundle"]) is None


@pytest.mark.parametrize("content", ["", '{"layers": ', "[]", "no JSON", "\0" * 64])
def test_a_marker_that_may_be_damaged(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    for form in (checkpoint.FORMAT, layout.FORMAT):
        said = form.objection(tmp_path)
        assert said is not None
        assert said.startswith(f"holds a file that is damaged, or does not belong to {form.name}: config.json ")


@pytest.mark.parametrize("content", ["{}", '{"name": "app", "version": 2}'])
def test_a_marker_of_something_else(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    for form in (checkpoint.FORMAT, layout.FORMAT):
        assert form.objection(tmp_path) == f"holds a config.json that does not belong to {form.name}"
    assert "holds other files and no bundle.json (config.json)" in str(manifest.FORMAT.objection(tmp_path))


def test_a_few_are_named(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.txt").touch()
    said = checkpoint.FORMAT.objection(tmp_path)
    assert said == "holds other files and no config.json (0.txt, 1.txt, 2.txt and 2 more)"


@pytest.mark.parametrize("level", [None, {"name": "x"}, {"files": ["a"]}])
def test_a_manifest_with_odd_levels_is_still_read(tmp_path: Path, level: object) -> None:
    (tmp_path / "bundle.json").write_text(json.dumps({"levels": [level]}))
    assert manifest.FORMAT.objection(tmp_path) is None


def test_inputs_in_it(folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folders["bundle"])
    inside = folders["bundle"] / "full" / "encoder.onnx"
    for out in (folders["bundle"], tmp_path / "link", tmp_path):
        with pytest.raises(InvalidRequestError, match=r"would be replaced, and with it .*encoder\.onnx; choose"):
            check_replaceable(out, manifest.FORMAT, [tmp_path / "link" / "full" / "encoder.onnx"])
    check_replaceable(folders["bundle"], manifest.FORMAT, [folders["checkpoint"]])
    assert inside.is_file()


def test_files_and_mount_points(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    form = Format("a model", "model.json", lambda _: True, lambda _: ())
    with pytest.raises(InvalidRequestError, match="is a file; choose a directory"):
        check_replaceable(tmp_path / "file", form)
    with pytest.raises(InvalidRequestError, match="where a file system is mounted; choose a directory in it"):
        check_replaceable(Path("/"), form)
