"""A pointer of Git LFS in place of any file is named, with the command that fetches the file."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.artifact.m2m100.m2m100_writer import write_m2m100
from tests.artifact.marian.opus import opus_directory
from tests.artifact.npz.marian_writer import write_release
from tests.tiny import tiny_architecture

from hmc.artifact import HmcError, validate
from hmc.artifact.bundle.shortlist import Lexicon
from hmc.artifact.checkpoint.checkpoint import load_checkpoint, read_layout
from hmc.artifact.ctranslate2.reader import import_ctranslate2
from hmc.artifact.git_lfs import is_pointer
from hmc.artifact.model.latency import read_table
from hmc.artifact.storage.rows import parquet_table, text_lines
from hmc.pipelines.importing import import_model

POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d' * 32}\nsize 297928209\n"
pytestmark = pytest.mark.filterwarnings("ignore")  # what Transformers warns of is not ours to fix


def opus(folder: Path) -> None:
    opus_directory(folder)


def pickled(folder: Path) -> None:
    opus_directory(folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def release(folder: Path) -> None:
    write_release(folder)


def m2m100(folder: Path) -> None:
    write_m2m100(folder)


MODELS: list[tuple[Callable[[Path], None], str]] = [
    *(
        (opus, n)
        for n in ("config.json", "generation_config.json", "tokenizer_config.json", "source.spm", "target.spm")
    ),
    *((opus, n) for n in ("vocab.json", "model.safetensors")),
    (pickled, "pytorch_model.bin"),
    *((release, n) for n in ("opus.npz", "opus.vocab.yml", "decoder.yml", "README.md", "source.spm", "target.spm")),
    *((m2m100, n) for n in ("config.json", "vocab.json", "sentencepiece.bpe.model", "model.safetensors")),
    (m2m100, "tokenizer_config.json"),
]


@pytest.mark.parametrize(("write", "name"), MODELS, ids=[f"{write.__name__} {name}" for write, name in MODELS])
def test_a_pointer_in_a_model(tmp_path: Path, write: Callable[[Path], None], name: str) -> None:
    write(tmp_path / "model")
    (tmp_path / "model" / name).write_text(POINTER)
    with pytest.raises(HmcError, match=f"{name} is a Git LFS pointer: run `git lfs pull`"):
        import_model(tmp_path / "model", source_language="en", target_language="de")


def test_a_pointer_is_an_archive_or_lies_in_one(tmp_path: Path) -> None:
    (tmp_path / "opus.zip").write_text(POINTER)
    with pytest.raises(HmcError, match=r"opus\.zip is a Git LFS pointer"):
        import_model(tmp_path / "opus.zip")
    write_release(tmp_path / "model")
    (tmp_path / "model" / "opus.npz").write_text(POINTER)
    with zipfile.ZipFile(tmp_path / "opus.zip", "w") as packed:
        for file in (tmp_path / "model").iterdir():
            packed.write(file, file.name)
    with pytest.raises(HmcError, match=r"opus\.npz is a Git LFS pointer"):
        import_model(tmp_path / "opus.zip")


@pytest.mark.parametrize("name", ["model.bin", "config.json", "shared_vocabulary.json", "source.spm"])
def test_a_pointer_in_a_folder_of_ctranslate2(tmp_path: Path, name: str) -> None:
    from tests.artifact.ctranslate2.converted import release_and_converted

    pytest.importorskip("ctranslate2")
    _, folder = release_and_converted(tmp_path)
    (folder / name).write_text(POINTER)
    with pytest.raises(HmcError, match=f"{name} is a Git LFS pointer"):
        import_ctranslate2(folder, source_language="en", target_language="de")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.model", "gates.safetensors"])
def test_a_pointer_in_a_checkpoint(tmp_path: Path, tiny_checkpoint: Path, name: str) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(tiny_checkpoint, folder)
    (folder / name).write_text(POINTER)
    with pytest.raises(HmcError, match=f"{name} is a Git LFS pointer"):
        load_checkpoint(folder)


@pytest.mark.parametrize("kind", ["bundle.json", "tokenizer.model", "*/encoder.onnx", "weights/*"])
def test_a_pointer_in_a_bundle(tmp_path: Path, tiny_checkpoint: Path, kind: str) -> None:
    from hmc.compiler import LevelRequest, compile_bundle

    compile_bundle([LevelRequest(tiny_checkpoint)], tmp_path / "bundle")
    file = next((tmp_path / "bundle").glob(kind))
    file.write_text(POINTER)
    with pytest.raises(HmcError, match=f"{file.name} is a Git LFS pointer"):
        validate(tmp_path / "bundle")


def table(file: Path) -> object:
    with parquet_table(file, str(file)) as read:
        return read


READERS: dict[str, Callable[[Path], object]] = {
    "text.en": lambda file: list(text_lines(file)),
    "text.en.gz": lambda file: list(text_lines(file)),
    "text.parquet": table,
    "table.json": read_table,
    "layout.json": read_layout,
    "lexicon.safetensors": lambda file: Lexicon.load(file, tiny_architecture()),
}


@pytest.mark.parametrize("name", READERS)
def test_a_pointer_in_place_of_another_file(tmp_path: Path, name: str) -> None:
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_text(POINTER)
    with pytest.raises(HmcError, match=f"{name} is a Git LFS pointer: run `git lfs pull`"):
        READERS[name](tmp_path / name)


def test_a_text_about_pointers_is_none(tmp_path: Path) -> None:
    text = f"A pointer begins like this:\n{POINTER}"
    (tmp_path / "text").write_text(text)
    assert list(text_lines(tmp_path / "text")) == text.splitlines()
    assert not is_pointer(tmp_path / "nothing")
