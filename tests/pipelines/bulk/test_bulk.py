"""A bulk translation: its files, that a killed run ends with the same bytes, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.parquet as pq
import pytest
from tests.pipelines.bulk.conftest import BAD, EMPTY, LINES, SETTINGS
from tests.processes import REPOSITORY, environment
from tests.support.files import bytes_of

from hmc.artifact import InvalidRequestError
from hmc.artifact.errors import InternalServiceError
from hmc.artifact.stopping import Stopped
from hmc.pipelines import Progress
from hmc.pipelines.bulk.corpus import CorpusLine
from hmc.pipelines.bulk.engines import BulkLevel, translate_shard
from hmc.pipelines.bulk.output import ShardFiles
from hmc.pipelines.bulk.run import translate_corpus
from hmc.pipelines.bulk.settings import BulkSettings
from hmc.serving import DecodeOptions, Sampling, Translator

KILLED = """
import os, signal, sys
from pathlib import Path
from hmc.pipelines.bulk.engines import BulkLevel
from hmc.pipelines.bulk.run import translate_corpus
from tests.support.files import bytes_of
from tests.pipelines.bulk.conftest import SETTINGS

renamed, replace = [], Path.replace

def killing(self, target):
    if Path(target).suffix == ".jsonl":
        renamed.append(target)
        if len(renamed) == 3:  # the file is written beside its place
            os.kill(os.getpid(), signal.SIGKILL)
    return replace(self, target)

Path.replace = killing
translate_corpus([sys.argv[1]], sys.argv[2], BulkLevel(Path(sys.argv[3]), "h12-int8", threads=1), SETTINGS)
"""


@pytest.fixture(scope="module")
def whole(corpus: Path, level: BulkLevel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bulk translation that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole") / "out"
    translate_corpus([str(corpus)], str(out), level, SETTINGS)
    return out


def records(folder: Path) -> list[dict[str, Any]]:
    files = sorted((folder / "translations").glob("*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_line_is_there_once_in_order_with_level_and_score(whole: Path, level: BulkLevel) -> None:
    found = records(whole)
    assert [record["line"] for record in found] == list(range(1, 97))
    with Translator(level.bundle, level.name, threads=1) as translator:
        expected = translator.translate(LINES, SETTINGS.options, segmentation="none")
    for record, text, translation in zip(found, LINES, expected, strict=True):
        if record["line"] in (BAD, EMPTY):
            continue
        assert (record["text"], record["translation"]) == (text, translation.text)
        assert record["score"] == pytest.approx(translation.score, abs=1e-4)
        assert (record["level"], record["error"]) == ("h12-int8", None)


def test_lines_that_fail_are_reported_and_the_run_goes_on(whole: Path) -> None:
    failed = json.loads((whole / "failures.jsonl").read_text())
    assert failed["line"] == BAD
    assert "not UTF-8" in failed["reason"]
    assert records(whole)[BAD - 1]["translation"] is None
    assert records(whole)[EMPTY - 1]["translation"] == ""
    report = json.loads((whole / "report.json").read_text())
    assert (report["lines"], report["failed"], report["empty"], report["shards"]) == (96, 1, 1, 6)


def test_a_killed_run_ends_with_the_same_bytes(whole: Path, corpus: Path, level: BulkLevel, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-c", KILLED, str(corpus), str(out), str(level.bundle)]
    path = os.pathsep.join((environment()["PYTHONPATH"], str(REPOSITORY)))
    ran = subprocess.run(command, env=environment(PYTHONPATH=path), capture_output=True, text=True, check=False)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    assert [p.name for p in sorted((out / "translations").iterdir())] == [
        ".000002.jsonl.new", "000000.jsonl", "000001.jsonl",
    ]  # fmt: skip
    first = (out / "translations/000000.jsonl").stat().st_mtime_ns
    reports = list[Progress]()
    result = translate_corpus([str(corpus)], str(out), replace(level, workers=2), SETTINGS, report=reports.append)
    assert reports[1] == Progress(32, 96, 0.0)
    assert (result.lines_now, result.failed) == (64, 1)
    assert (out / "translations/000000.jsonl").stat().st_mtime_ns == first
    assert bytes_of(out) == bytes_of(whole)


def test_a_signal_says_how_many_shards_are_kept(
    whole: Path, corpus: Path, level: BulkLevel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    translations, written = ShardFiles.translations, list[int]()

    def stopped(self: ShardFiles, number: int, *rest: Any) -> bytes:
        if number == 2:
            signal.raise_signal(signal.SIGTERM)
        written.append(number)
        return translations(self, number, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(ShardFiles, "translations", stopped)
        with pytest.raises(Stopped, match=rf"^2 of 6 shards in {out} are kept; the same command goes on after them$"):
            translate_corpus([str(corpus)], str(out), level, SETTINGS)
    assert written == [0, 1]
    translate_corpus([str(corpus)], str(out), level, SETTINGS)
    assert bytes_of(out) == bytes_of(whole)


def test_a_finished_run_writes_nothing_and_loads_nothing(whole: Path, corpus: Path, level: BulkLevel) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}

    def never(*_: object) -> Any:
        raise AssertionError("an engine was started")

    result = translate_corpus([str(corpus)], str(whole), level, SETTINGS, start=never)
    assert (result.lines, result.lines_now, result.lines_per_second) == (96, 0, 0.0)
    assert before == {path: path.stat().st_mtime_ns for path in whole.rglob("*")}


def test_text_and_parquet_hold_the_same(whole: Path, corpus: Path, level: BulkLevel, tmp_path: Path) -> None:
    translate_corpus([str(corpus)], str(tmp_path / "t"), level, replace(SETTINGS, output="text"))
    lines = "".join(path.read_text() for path in sorted((tmp_path / "t/translations").glob("*.txt")))
    assert lines.split("\n")[:-1] == [record["translation"] or "" for record in records(whole)]
    translate_corpus([str(corpus)], str(tmp_path / "p"), level, replace(SETTINGS, output="parquet"))
    assert pq.read_table(tmp_path / "p/translations").to_pylist() == records(whole)


def test_a_store_gets_the_same_files(whole: Path, corpus: Path, level: BulkLevel) -> None:
    for _ in range(2):
        translate_corpus([str(corpus)], "memory://bulk/out", level, SETTINGS)
    system = fsspec.filesystem("memory")
    found = {path.removeprefix("/bulk/out/"): system.cat_file(path) for path in system.find("/bulk/out")}
    assert found == bytes_of(whole)
    with pytest.raises(InvalidRequestError, match="memory://bulk/out holds translations of another"):
        translate_corpus([str(corpus)], "memory://bulk/out", level, replace(SETTINGS, shard_lines=5))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"options": DecodeOptions(beam_size=2, max_length=12)}, 'options: {"beam_size": 1'),
        ({"output": "text"}, 'format: "jsonl" there, "text" here'),
        ({"shard_lines": 17}, "shard_lines: 16 there, 17 here"),
        ({"target_prefix": "Ein"}, "target_prefix: "),
    ],
)
def test_other_options_are_refused(
    whole: Path, corpus: Path, level: BulkLevel, changes: dict[str, Any], said: str
) -> None:
    before = bytes_of(whole)
    with pytest.raises(InvalidRequestError, match=r"another corpus, bundle, level or options.*choose another") as error:
        translate_corpus([str(corpus)], str(whole), level, replace(SETTINGS, **changes))
    assert said in str(error.value)
    assert bytes_of(whole) == before


def test_another_corpus_and_another_level_are_refused(
    whole: Path, corpus: Path, level: BulkLevel, tmp_path: Path
) -> None:
    (tmp_path / "t.en").write_text("Another text.\n")
    with pytest.raises(InvalidRequestError, match="sources: "):
        translate_corpus([str(tmp_path / "t.en")], str(whole), level, SETTINGS)
    with pytest.raises(InvalidRequestError, match='level: "h12-int8" there, "full-int8" here'):
        translate_corpus([str(corpus)], str(whole), replace(level, name="full-int8"), SETTINGS)


def test_a_corpus_that_changes_meanwhile_is_told(level: BulkLevel, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("first.en", "second.en")]
    for file in files:
        file.write_text("A dog runs.\nA cat sleeps.\n")

    def changing(progress: Progress) -> None:
        if progress.lines:
            files[1].write_text("A bird sings.\nA cat sleeps.\nA fox.\n")

    settings = replace(SETTINGS, shard_lines=1)
    with pytest.raises(InvalidRequestError, match="changed while it was read: run again into another folder"):
        translate_corpus([str(file) for file in files], str(tmp_path / "out"), level, settings, report=changing)
    files[1].write_text("A dog runs.\nA cat sleeps.\n")
    with pytest.raises(InvalidRequestError, match="sources changed while they were read"):
        translate_corpus([str(file) for file in files], str(tmp_path / "out"), level, settings)


def test_settings_that_make_no_sense() -> None:
    with pytest.raises(InvalidRequestError, match="shard_lines 0: choose 1"):
        BulkSettings(shard_lines=0)
    with pytest.raises(InvalidRequestError, match="output 'xml': choose text, jsonl, parquet"):
        BulkSettings(output="xml")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="seed: a run that goes on"):
        BulkSettings(DecodeOptions(beam_size=1, sampling=Sampling()))


def test_a_level_that_fails_at_every_line_ends_the_run() -> None:
    class Broken:
        def submit(self, *_: object, **__: object) -> Any:
            from concurrent.futures import Future

            future: Future[Any] = Future()
            future.set_exception(InternalServiceError("not finite"))
            return future

    with pytest.raises(InternalServiceError, match="not finite"):
        translate_shard(Broken(), [CorpusLine("a"), CorpusLine("b")], SETTINGS)  # type: ignore[arg-type]
