"""A bundle that changes on disk while its levels are loaded: open graphs go on, and changed files are refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.processes import environment
from tests.tiny import SENTENCES, tiny_checkpoint_at

from hmc.artifact import validate
from hmc.artifact.errors import FailedPreconditionError
from hmc.compiler import LevelRequest, ShortlistText, compile_bundle
from hmc.serving import DecodeOptions, Translator
from hmc.serving.text.tokenizer import BundleTokenizer

BEAM = DecodeOptions(beam_size=2, max_length=20)
LATER = {
    "greedy": DecodeOptions(beam_size=1, max_length=20),
    "attention": DecodeOptions(beam_size=2, max_length=20, alignment=True),
}
"""Options that need a graph which is opened at its first use."""


@pytest.mark.parametrize("name", LATER)
@pytest.mark.parametrize("cache", ["none", "auto"])
def test_graphs_of_another_bundle_are_not_opened(tmp_path: Path, name: str, cache: str) -> None:
    for seed in (1, 2):
        tiny_checkpoint_at(tmp_path / f"c{seed}", seed=seed)
    compile_bundle([LevelRequest(tmp_path / "c1", name="full")], tmp_path / "b")
    with Translator(tmp_path / "b", device="cpu", cache=cache) as translator:
        before = [t.text for t in translator.translate(SENTENCES[:4], BEAM, segmentation="none")]
        compile_bundle([LevelRequest(tmp_path / "c2", name="full")], tmp_path / "b")
        with pytest.raises(FailedPreconditionError, match=r"another bundle was put in its place\. Reload the bundle"):
            translator.translate(SENTENCES[:4], LATER[name], segmentation="none")
        assert [t.text for t in translator.translate(SENTENCES[:4], BEAM, segmentation="none")] == before
    with Translator(tmp_path / "b", device="cpu", cache=cache) as translator:
        translator.translate(SENTENCES[:4], LATER[name], segmentation="none")


@pytest.mark.parametrize("when", ["before a level is packed", "before a graph is packed", "without a cache"])
def test_weights_that_are_changed_in_place(tmp_path: Path, when: str) -> None:
    """Changed weights would give other translations, and would get into the cache of packed weights."""
    cache: Path | str = "none" if when == "without a cache" else tmp_path / "cache"
    tiny_checkpoint_at(tmp_path / "c")
    compile_bundle([LevelRequest(tmp_path / "c", name="full")], tmp_path / "b")
    manifest, weights = validate(tmp_path / "b"), max((tmp_path / "b" / "weights").iterdir(), key=_size)
    right = weights.read_bytes()
    wrong = bytes(byte ^ 0x55 for byte in right)

    def change(content: bytes) -> None:
        with weights.open("r+b") as file:
            file.write(content)

    refused = pytest.raises(FailedPreconditionError, match=rf"{weights.name} has changed since this bundle was opened")
    if when == "before a level is packed":
        change(wrong)
        with refused:
            Translator(tmp_path / "b", device="cpu", cache=cache, manifest=manifest)
    else:
        with Translator(tmp_path / "b", device="cpu", cache=cache, manifest=manifest) as translator:
            change(wrong)
            with refused:
                translator.translate(SENTENCES[:4], LATER["attention"], segmentation="none")
    change(right)
    found = []
    for kept in (cache, "none"):
        with Translator(tmp_path / "b", device="cpu", cache=kept) as translator:
            found.append([t.text for t in translator.translate(SENTENCES[:4], LATER["attention"], segmentation="none")])
    assert found[0] == found[1]


@pytest.mark.parametrize("what", ["lexicon", "tokenizer", "weights are a folder"])
def test_other_files_that_are_changed_in_place(tmp_path: Path, what: str) -> None:
    tiny_checkpoint_at(tmp_path / "c")
    text = ShortlistText(SENTENCES, SENTENCES[::-1], frequent=5, best=3)
    compile_bundle(
        [LevelRequest(tmp_path / "c")], tmp_path / "b", precisions=("int8",), calibration=SENTENCES, shortlist=text
    )
    manifest = validate(tmp_path / "b")
    level = manifest.level("full-int8-shortlist")
    assert level.shortlist is not None
    files = {"lexicon": level.shortlist, "tokenizer": "tokenizer.model"}
    file = tmp_path / "b" / files.get(what, next(n for n in level.files if n.startswith("weights/")))
    content = file.read_bytes()
    file.unlink()
    if what in files:
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    else:
        file.mkdir()

    def use() -> object:
        if what == "tokenizer":  # translators share the tokenizer in memory, which is unchanged
            return BundleTokenizer(tmp_path / "b", manifest)
        return Translator(tmp_path / "b", level.name, device="cpu", cache=tmp_path / "cache", manifest=manifest)

    with pytest.raises(FailedPreconditionError, match=rf"{file.name} has changed since"):
        use()


def _size(file: Path) -> int:
    return file.stat().st_size


def test_the_same_bundle_compiled_again_is_accepted(tmp_path: Path) -> None:
    """Compiling is deterministic, so no file changes."""
    tiny_checkpoint_at(tmp_path / "c")
    requests = [LevelRequest(tmp_path / "c", name="full")]
    compile_bundle(requests, tmp_path / "b")
    with Translator(tmp_path / "b", device="cpu") as translator:
        compile_bundle(requests, tmp_path / "b")
        translator.translate(SENTENCES[:4], LATER["attention"], segmentation="none")


def test_a_bundle_that_is_gone(tmp_path: Path) -> None:
    tiny_checkpoint_at(tmp_path / "c")
    compile_bundle([LevelRequest(tmp_path / "c", name="full")], tmp_path / "b")
    with Translator(tmp_path / "b", device="cpu") as translator:
        (tmp_path / "b").rename(tmp_path / "elsewhere")
        with pytest.raises(FailedPreconditionError, match="another bundle was put in its place"):
            translator.translate(SENTENCES[:4], LATER["attention"], segmentation="none")


OVERWRITTEN = """
import shutil, sys
import subprocess
import sys
from pathlib import Path
from hmc.serving import DecodeOptions, Translator

bundle, other, cache = sys.argv[1:]
options = DecodeOptions(beam_size=2, max_length=20)
with Translator(bundle, device="cpu", threads=1, cache=cache) as translator:
    def translated():
        return [t.text for t in translator.translate(["A man runs.", "Two dogs."], options, segmentation="none")]

    before = translated()
    shutil.copytree(other, bundle, dirs_exist_ok=True)  # as `cp -r` does it: files are written in place
    assert translated() == before
    for file in Path(bundle).rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            file.open("r+b").write(bytes(byte ^ 0x55 for byte in content))
    assert translated() == before
    for file in Path(bundle).rglob("*"):
        if file.is_file():
            file.open("wb").close()  # what is mapped and cut off ends the process
    assert translated() == before
"""


@pytest.mark.parametrize("cache", ["none", "a cache that cannot be written"])
def test_files_that_are_written_over_change_no_open_graph(tmp_path: Path, cache: str) -> None:
    for seed in (1, 2):
        tiny_checkpoint_at(tmp_path / f"c{seed}", seed=seed)
        compile_bundle([LevelRequest(tmp_path / f"c{seed}", name="full")], tmp_path / f"b{seed}")
    if cache != "none":
        (tmp_path / "file").touch()
        cache = str(tmp_path / "file" / "cache")
    command = [sys.executable, "-c", OVERWRITTEN, str(tmp_path / "b1"), str(tmp_path / "b2"), cache]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("packed weights cannot be") == (cache != "none"), ran.stderr
