"""The cache of packed weights: same translations, one copy in memory, and damaged or unreadable files."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from tests.tiny import SENTENCES, tiny_architecture, tiny_checkpoint_at

from hmc.artifact import InvalidRequestError
from hmc.artifact.bundle.external_data import GraphFile
from hmc.engine.runtime import packed_weights
from hmc.engine.runtime.packed_weights import KEEP_DAYS, cache_folder, sweep
from hmc.serving import DecodeOptions, Sampling, Translation, Translator

OPTIONS = (
    DecodeOptions(max_length=16, n_best=4),
    DecodeOptions(max_length=12, alignment=True, token_scores=True),
    DecodeOptions(max_length=12, sampling=Sampling(seed=3)),
)
"""Options that need each of the decoder's graphs."""


def open_level(bundle: Path, level: str, cache: str | Path) -> Translator:
    return Translator(bundle, level, device="cpu", threads=1, max_rows=16, cache=cache, executor="onnxruntime")


def translations(bundle: Path, level: str, cache: str | Path) -> list[list[Translation]]:
    with open_level(bundle, level, cache) as translator:
        answers = [translator.translate(SENTENCES[:4], options, segmentation="none") for options in OPTIONS]
    return [[plain(answer) for answer in each] for each in answers]


def plain(answer: Translation) -> Translation:
    """The same translation without its times."""
    object.__setattr__(answer, "queue_s", 0.0)
    object.__setattr__(answer, "compute_s", 0.0)
    return answer


def files(cache: Path, kind: str) -> list[Path]:
    return sorted(cache.glob(f"packed/*/{kind}/*"))


def packed_spans(cache: Path) -> dict[Path, int]:
    """Weight file → offset of a packed form in it."""
    found = {}
    for graph in files(cache, "graphs"):
        for tensor in GraphFile(graph.read_bytes()).stored():
            for spans in tensor.packed.values():
                found[graph.parent.parent / tensor.location] = spans[0].offset
    return found


@pytest.mark.parametrize("level", ["full", "h12-int8", "h5"])
def test_translations_are_the_same_with_and_without(lively_bundle: Path, level: str, tmp_path: Path) -> None:
    expected = translations(lively_bundle, level, "none")
    assert not files(tmp_path, "*")
    assert translations(lively_bundle, level, tmp_path) == expected  # packed now
    written = {file: file.stat().st_ino for file in files(tmp_path, "*")}
    assert packed_spans(tmp_path)
    assert translations(lively_bundle, level, tmp_path) == expected  # from the cache
    assert {file: file.stat().st_ino for file in files(tmp_path, "*")} == written


def test_int4_levels_are_packed_too(tmp_path: Path) -> None:
    """The int4 kernels pack the scales of a weight, which are another tensor, into its packed form."""
    from hmc.compiler import LevelRequest, compile_bundle

    tiny_checkpoint_at(tmp_path / "checkpoint", arch=tiny_architecture(d_model=64, ffn_dim=128))
    bundle, cache = tmp_path / "bundle", tmp_path / "cache"
    compile_bundle([LevelRequest(tmp_path / "checkpoint", 12)], bundle, precisions=("int4",), calibration=SENTENCES)
    expected = translations(bundle, "h12-int4", "none")
    for _ in range(2):
        assert translations(bundle, "h12-int4", cache) == expected
    assert packed_spans(cache)


def test_levels_map_the_same_files(lively_bundle: Path, tmp_path: Path) -> None:
    with open_level(lively_bundle, "full", tmp_path) as full, open_level(lively_bundle, "h12", tmp_path) as half:
        shared = full.weights.keys() & half.weights.keys()
        assert any("bin" in name for name in shared)
        assert full.weights.keys() - half.weights.keys()  # weights of heads that h12 does not have
        assert {name: full.weights[name] for name in shared} == {name: half.weights[name] for name in shared}
        if sys.platform == "linux":
            mapped = Path("/proc/self/maps").read_text(encoding="utf-8")
            used = [name for name in packed_spans(tmp_path) if f"weights/{name.name}" in shared]
            assert used
            for name in used:
                assert mapped.count(name.name) >= 2, f"{name} is not mapped by both levels"


def test_without_a_cache_nothing_is_shared(lively_bundle: Path) -> None:
    with open_level(lively_bundle, "full", "none") as full, open_level(lively_bundle, "h12", "none") as half:
        assert full.weights
        assert not full.weights.keys() & half.weights.keys()


def flip(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 0xFF
    file.write_bytes(content)


def break_packed(cache: Path) -> None:
    for file, place in packed_spans(cache).items():
        flip(file, place)


def break_raw(cache: Path) -> None:
    flip(files(cache, "weights")[0], 0)


def cut_short(cache: Path) -> None:
    for file in files(cache, "weights"):
        file.write_bytes(file.read_bytes()[:-1])


def lose(cache: Path) -> None:
    files(cache, "weights")[-1].unlink()


def break_graphs(cache: Path) -> None:
    for file in files(cache, "graphs"):
        flip(file, file.stat().st_size // 2)


def empty_graphs(cache: Path) -> None:
    for file in files(cache, "graphs"):
        file.write_bytes(b"")


@pytest.mark.parametrize("damage", [break_packed, break_raw, cut_short, lose, break_graphs, empty_graphs])
def test_a_damaged_cache_is_packed_again(
    lively_bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    expected = translations(lively_bundle, "h12-int8", tmp_path)
    before = files(tmp_path, "*")
    damage(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert translations(lively_bundle, "h12-int8", tmp_path) == expected
    assert "packed weights are damaged and packed again" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO):
        assert translations(lively_bundle, "h12-int8", tmp_path) == expected
    assert not caplog.records
    assert files(tmp_path, "*") == before


def test_another_machine_packs_for_itself(
    lively_bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = translations(lively_bundle, "h5", tmp_path)
    monkeypatch.setattr(packed_weights, "machine_digest", lambda: "0" * 64)
    with caplog.at_level(logging.INFO):
        assert translations(lively_bundle, "h5", tmp_path) == expected
    assert "packing weights for this machine" in caplog.text
    assert len(list((tmp_path / "packed").iterdir())) == 2


def test_forms_packed_by_other_kernels_are_not_used(lively_bundle: Path, tmp_path: Path) -> None:
    """Simulates a folder that was packed on another machine: its packed forms have other names."""
    expected = translations(lively_bundle, "h5", tmp_path)
    for graph in files(tmp_path, "graphs"):
        read = GraphFile(graph.read_bytes())
        foreign = {}
        for tensor in read.stored():
            renamed = {f"{key}9": spans for key, spans in tensor.packed.items()}
            foreign[tensor.name] = type(tensor)(tensor.name, tensor.location, tensor.raw, renamed, tensor.uses)
        read.move(foreign)
        digest = hashlib.sha256(read.content()).hexdigest()[: packed_weights.DIGITS]
        graph.unlink()
        graph.with_name(f"{graph.name.partition('-')[0]}-{digest}.onnx").write_bytes(read.content())
    assert translations(lively_bundle, "h5", tmp_path) == expected


def test_levels_open_without_a_cache_that_can_be_written(
    lively_bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("a file, and no folder")
    with caplog.at_level(logging.WARNING):
        found = translations(lively_bundle, "h5", tmp_path / "file")
    assert "a level keeps its weights in memory of its own: packed weights cannot be read or written" in caplog.text
    assert found == translations(lively_bundle, "h5", "none")


@pytest.mark.parametrize("kind", ["graphs", "weights"])
@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES], ids=errno.errorcode.get)
def test_a_file_that_cannot_be_read_now_is_kept(
    lively_bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
    kind: str, number: int,
) -> None:  # fmt: skip
    """A process out of file descriptors, for example, must not delete what other processes map."""
    expected = translations(lively_bundle, "h5", tmp_path)
    written = {file: (file.stat().st_ino, file.read_bytes()) for file in files(tmp_path, "*")}
    plain = Path.open

    def failing(path: Path, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        if tmp_path in path.parents and path.parent.name == kind:
            raise OSError(number, os.strerror(number), str(path))
        return plain(path, mode, *arguments, **named)

    def read_bytes(path: Path) -> bytes:
        with path.open("rb") as file:
            return bytes(file.read())

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(Path, "open", failing)
        patched.setattr(Path, "read_bytes", read_bytes)
        patched.setattr(packed_weights, "_verified", set())
        assert translations(lively_bundle, "h5", tmp_path) == expected
    assert "keeps its weights in memory of its own" in caplog.text
    assert os.strerror(number) in caplog.text
    assert {file: (file.stat().st_ino, file.read_bytes()) for file in files(tmp_path, "*")} == written


def test_a_graph_that_cannot_be_read_now_keeps_its_weights_from_the_sweep(
    lively_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    translations(lively_bundle, "h5", tmp_path)
    (machine,) = (tmp_path / "packed").iterdir()
    written = files(tmp_path, "*")

    def failing(_: Path) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(Path, "read_bytes", failing)
    with pytest.raises(OSError, match="Too many open files"):
        sweep(machine, time.time() + 2 * 86_400)
    assert files(tmp_path, "*") == written


def test_a_full_disk_is_not_an_error_of_the_bundle(
    lively_bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime writes packed weights first. For a full disk, it raises the same error as for a bad graph."""

    def full(*_: object) -> None:
        raise Fail("Failed to write external initializers to file")

    monkeypatch.setattr("hmc.engine.runtime.graphs.Opener._pack", full)
    with caplog.at_level(logging.WARNING):
        found = translations(lively_bundle, "h5", tmp_path / "cache")
    assert "packed weights cannot be read or written: Failed to write" in caplog.text
    assert found == translations(lively_bundle, "h5", "none")


@pytest.mark.slow
def test_processes_may_pack_at_once(lively_bundle: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from hmc.serving import Translator\n"
        "with Translator(sys.argv[1], sys.argv[2], device='cpu', threads=1, cache=sys.argv[3]) as t:\n"
        "    print([x.text for x in t.translate(['A dog runs.', 'Two men.'])])"
    )
    roots = os.pathsep.join(path for path in sys.path if path)
    levels = ["full", "h12", "full"]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(lively_bundle), level, str(tmp_path)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": roots},
        )
        for level in levels
    ]  # fmt: skip
    outputs = [process.communicate(timeout=600) for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], outputs
    assert outputs[0] == outputs[2]
    for level, (out, errors) in zip(levels, outputs, strict=True):
        assert not errors
        with open_level(lively_bundle, level, tmp_path) as translator:
            assert out.strip() == str(
                [t.text for t in translator.translate(["A dog runs.", "Two men."], segmentation="none")]
            )
    assert not list(tmp_path.glob("packed/*/.new-*"))
    assert not list(tmp_path.glob("packed/*/*/.*"))


def test_unused_files_are_removed(lively_bundle: Path, tmp_path: Path) -> None:
    translations(lively_bundle, "h5", tmp_path)
    (machine,) = (tmp_path / "packed").iterdir()
    kept, now = files(tmp_path, "*"), time.time()
    stray, unfinished = machine / "weights" / "stray.bin", machine / ".new-killed"
    stray.write_bytes(b"no graph names this")
    unfinished.mkdir()
    sweep(machine, now)
    assert stray.exists()  # it is new: another process may be writing the graph that names it
    sweep(machine, now + 2 * 86_400)
    assert not stray.exists()
    assert not unfinished.exists()
    assert files(tmp_path, "*") == kept
    sweep(machine, now + (KEEP_DAYS + 1) * 86_400)
    assert not files(tmp_path, "*")


def test_the_cache_may_be_deleted_while_it_is_in_use(lively_bundle: Path, tmp_path: Path) -> None:
    with open_level(lively_bundle, "h12", tmp_path) as translator:
        expected = [t.text for t in translator.translate(SENTENCES[:3], segmentation="none")]
        shutil.rmtree(tmp_path / "packed")
        assert [t.text for t in translator.translate(SENTENCES[:3], segmentation="none")] == expected
        with open_level(lively_bundle, "h5", tmp_path):
            assert files(tmp_path, "weights")


def test_the_folder_of_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HMC_CACHE", str(tmp_path / "set"))
    assert cache_folder() == tmp_path / "set"
    assert cache_folder(tmp_path / "given") == tmp_path / "given"
    assert cache_folder("none") is None
    monkeypatch.setenv("HMC_CACHE", "none")
    assert cache_folder() is None
    monkeypatch.delenv("HMC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache_folder() == tmp_path / "xdg" / "hmc"
    monkeypatch.delenv("XDG_CACHE_HOME")

    def no_home() -> Path:
        raise RuntimeError("no home directory")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(InvalidRequestError, match="set HMC_CACHE to a folder, or to `none`"):
        cache_folder()
