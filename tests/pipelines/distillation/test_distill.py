"""The whole job on real models: what it writes, that a killed run ends with the same bytes, and what it refuses."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.processes import REPOSITORY, environment
from tests.support.files import bytes_of, write_lines
from tests.support.trained import CHECKPOINT, english
from tests.tiny import SENTENCES

from hmc.artifact import InvalidRequestError
from hmc.pipelines import DistillSettings, Filters, Progress, distill
from hmc.pipelines.distillation.settings import FIRST
from hmc.pipelines.distillation.shards import read_shard, shard_path
from hmc.pipelines.folders import taken_folder
from hmc.serving import DecodeOptions, Translator
from hmc.training.data.parallel_text import read_pairs

SETTINGS = DistillSettings(beam=3, n_best=2, shard_lines=16, workers=1)
EVERY = Filters(keep=("unfinished", "copy", "loop", "length_ratio"))
KILLED = """
import os, signal, sys
from pathlib import Path
from hmc.pipelines.distillation import shards
from tests.pipelines.distillation.test_distill import SETTINGS, distill

renamed, replace = [], Path.replace

def killing(self, target):
    if Path(target).name.endswith(".jsonl.gz"):
        renamed.append(target)
        if len(renamed) == 3:  # the file is written beside its place
            os.kill(os.getpid(), signal.SIGKILL)
    return replace(self, target)

Path.replace = killing
distill(Path(sys.argv[1]), [Path(sys.argv[2])], Path(sys.argv[3]), SETTINGS, held_out=9)
"""


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ninety sentences of the demo, with an empty line, a duplicate, and a line that is too long."""
    lines = english(90)
    lines[20:20] = ["", "  ", lines[3], " ".join(lines[:20])]
    path = tmp_path_factory.mktemp("text") / "text.en"
    write_lines(path, lines)
    return path


@pytest.fixture(scope="module")
def whole(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A distillation of the demo's model that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole") / "data"
    distill(CHECKPOINT, [text], out, SETTINGS, held_out=9)
    return out


def test_translations_are_those_of_the_teacher(whole: Path, text: Path) -> None:
    records = [record for number in range(6) for record in read_shard(shard_path(whole, number))]
    lines = text.read_text(encoding="utf-8").splitlines()
    assert [(record.line, record.source) for record in records] == list(enumerate(lines))
    skipped = {record.line: record.skipped for record in records if record.skipped}
    assert skipped == {20: "empty", 21: "empty", 22: "duplicate", 23: "too_long"}
    with Translator(whole / "teacher", threads=1) as translator:
        expected = translator.translate(lines[:20], DecodeOptions(beam_size=3, n_best=2), segmentation="none")
    for record, translation in zip(records, expected, strict=False):
        assert [h.text for h in record.hypotheses] == [h.text for h in translation.hypotheses]
        assert [h.score for h in record.hypotheses] == pytest.approx(
            [h.score for h in translation.hypotheses], abs=1e-5
        )
        assert record.source_tokens == translation.source_tokens


def test_training_reads_the_pairs_that_stay(whole: Path, text: Path) -> None:
    report = json.loads((whole / "report.json").read_text())
    found = distill(CHECKPOINT, [text], whole, SETTINGS, held_out=9)
    train, dev = list(read_pairs(found.corpus())), list(read_pairs(found.dev_corpus()))
    assert (len(train), len(dev)) == (report["train"], report["dev"]) == (found.train, found.dev)
    assert found.dev == min(9, (found.train + found.dev) // 10)
    assert not set(train) & set(dev), "equal lines were translated once"
    dropped = (whole / "dropped.tsv").read_text(encoding="utf-8").splitlines()
    assert sum(report["dropped"].values()) == len(dropped) == report["lines"] - found.train - found.dev
    assert [row.split("\t")[:2] for row in dropped][:4] == [
        ["empty", "21"], ["empty", "22"], ["duplicate", "23"], ["too_long", "24"],
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "call", "kept"),
    [("run/compile_teacher", 1, 0), ("run/_record", 1, 0), ("run/write_shard", 3, 2), ("run/write_results", 1, 6)],
)
def test_sigterm_says_what_is_kept_and_the_same_command_goes_on(
    whole: Path, text: Path, tmp_path: Path, function: str, call: int, kept: int
) -> None:
    out = tmp_path / "data"
    options = ("--beam", "3", "--n-best", "2", "--shard-lines", "16", "--workers", "1", "--dev", "9")

    def run(moment: str) -> subprocess.CompletedProcess[str]:
        words = (moment, "distill", CHECKPOINT, "--source", text, "-o", out, *options)
        command = [sys.executable, "-m", "tests.support.stopped", *map(str, words)]
        return subprocess.run(command, cwd=REPOSITORY, env=environment(), capture_output=True, text=True, check=False)

    stopped = run(f"0/hmc.pipelines.distillation.{function}/{call}")
    assert stopped.returncode == 128 + signal.SIGTERM, stopped.stderr
    assert stopped.stderr.endswith(
        f"hmc: SIGTERM: {kept} of 6 files of translations in {out} are kept; the same command goes on after them\n"
    )
    assert "Traceback" not in stopped.stderr
    if function == "run/compile_teacher":
        reading = run("0/hmc.pipelines.distillation.run/read_sources/1")
        assert (reading.returncode, reading.stderr) == (
            128 + signal.SIGTERM, f"hmc: SIGTERM: what is in {out} is kept; the same command goes on\n",
        )  # fmt: skip
    ended = run("none")
    assert ended.returncode == 0, ended.stderr
    assert bytes_of(out) == bytes_of(whole)


def test_a_killed_run_ends_with_the_same_bytes(whole: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "data"
    command = [sys.executable, "-c", KILLED, str(CHECKPOINT), str(text), str(out)]
    path = environment()["PYTHONPATH"] + ":" + str(Path(__file__).resolve().parents[3])
    ran = subprocess.run(command, env=environment(PYTHONPATH=path), capture_output=True, text=True, check=False)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    assert [p.name for p in sorted((out / "translations").iterdir())] == [
        ".000002.jsonl.gz.new", "000000.jsonl.gz", "000001.jsonl.gz",
    ]  # fmt: skip
    assert not (out / "train.source.txt").exists()
    first = shard_path(out, 0).stat().st_mtime_ns
    reports = list[Progress]()
    distill(CHECKPOINT, [text], out, SETTINGS, held_out=9, report=reports.append)
    assert reports[0] == Progress(16, 94, 0.0), "the first file is not translated again"
    assert shard_path(out, 0).stat().st_mtime_ns == first
    assert bytes_of(out) == bytes_of(whole)


def test_a_finished_run_writes_nothing(whole: Path, text: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    distill(CHECKPOINT, [text], whole, SETTINGS, held_out=9)
    assert before == {path: path.stat().st_mtime_ns for path in whole.rglob("*")}


def test_other_filters_need_no_other_translations(text: Path, tmp_path: Path, tiny_checkpoint: Path) -> None:
    """A model of random weights loops, and its sentences have no end."""
    write_lines(tmp_path / "t.en", SENTENCES)
    out, settings = tmp_path / "data", DistillSettings(workers=1)
    with pytest.raises(InvalidRequestError, match=r"none of 12 lines is left.*(loop|unfinished) \d+.*dropped\.tsv"):
        distill(tiny_checkpoint, [tmp_path / "t.en"], out, settings)
    assert len((out / "dropped.tsv").read_text(encoding="utf-8").splitlines()) == len(SENTENCES)
    shard = shard_path(out, 0).stat().st_mtime_ns
    found = distill(tiny_checkpoint, [tmp_path / "t.en"], out, settings, EVERY)
    assert (found.train, found.dropped) == (len(SENTENCES), {})
    assert shard_path(out, 0).stat().st_mtime_ns == shard


def test_references_choose_among_the_translations_that_are_there(whole: Path, text: Path, tmp_path: Path) -> None:
    """Every other line has the teacher's second translation as its reference."""
    records = [record for number in range(6) for record in read_shard(shard_path(whole, number))]
    wanted = [record.hypotheses[record.line % 2].text if record.hypotheses else "" for record in records]
    write_lines(tmp_path / "text.de", wanted)
    before = {number: shard_path(whole, number).stat().st_mtime_ns for number in range(6)}
    copied = tmp_path / "data"
    shutil.copytree(whole, copied)
    found = distill(CHECKPOINT, [text], copied, SETTINGS, EVERY, references=[tmp_path / "text.de"])
    assert [target for _, target in read_pairs(found.corpus())] == [line for line in wanted if line]
    assert before == {number: shard_path(copied, number).stat().st_mtime_ns for number in range(6)}
    write_lines(tmp_path / "text.de", [record.hypotheses[0].text if record.hypotheses else "" for record in records])
    again = distill(CHECKPOINT, [text], copied, SETTINGS, EVERY, references=[tmp_path / "text.de"])
    assert again.mean_score > found.mean_score, "other references, other text"


def test_references_that_do_not_fit_are_refused(text: Path, tmp_path: Path) -> None:
    write_lines(tmp_path / "short.de", ["eins"])
    one, out = DistillSettings(), tmp_path / "data"
    for references, settings, message in (
        ([tmp_path / "short.de"], SETTINGS, "has 1 lines, and .* 94: references have the translation of each"),
        ([text, text], SETTINGS, "references: 2 files for 1 of source text; give one for each"),
        ([text], one, "give n_best 2 or more"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            distill(CHECKPOINT, [text], out, settings, references=references)
    assert not out.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beam": 5}, "beam: 3 there, 5 here"),
        ({"n_best": 1}, "n_best: 2 there, 1 here"),
        ({"precision": "fp32"}, 'precision: "int8" there, "fp32" here'),
        ({"shard_lines": 17}, "shard_lines: 16 there, 17 here"),
    ],
)
def test_another_search_is_refused(whole: Path, text: Path, changes: dict[str, object], message: str) -> None:
    before = bytes_of(whole)
    fields = vars(SETTINGS) | changes
    with pytest.raises(InvalidRequestError, match=message):
        distill(CHECKPOINT, [text], whole, DistillSettings(**fields), held_out=9)
    assert bytes_of(whole) == before


def test_another_teacher_and_another_text_are_refused(
    whole: Path, text: Path, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    with pytest.raises(InvalidRequestError, match=r"teacher: .* there, .* here.*choose another folder, or delete it"):
        distill(tiny_checkpoint, [text], whole, SETTINGS)
    (tmp_path / "t.en").write_text("Another text.\n", encoding="utf-8")
    with pytest.raises(InvalidRequestError, match="sources: "):
        distill(CHECKPOINT, [tmp_path / "t.en"], whole, SETTINGS)


def test_a_folder_of_other_files_is_left_alone(text: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("keep")
    with pytest.raises(InvalidRequestError, match=r"holds notes\.txt, and no distillation\.json"):
        distill(CHECKPOINT, [text], tmp_path, SETTINGS)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_two_processes_do_not_write_one_folder(whole: Path, text: Path) -> None:
    request = json.loads((whole / "distillation.json").read_text())
    del request["schema_version"]
    with (
        taken_folder(whole, request, FIRST),
        pytest.raises(InvalidRequestError, match="another process is translating into"),
    ):
        distill(CHECKPOINT, [text], whole, SETTINGS, held_out=9)
    distill(CHECKPOINT, [text], whole, SETTINGS, held_out=9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beam": 17}, "beam_size 17"),
        ({"n_best": 5}, "n_best 5"),
        ({"max_length": 2}, "max_length 2: choose 4"),
        ({"shard_lines": 0}, "shard_lines 0"),
        ({"workers": -1}, "workers -1"),
        ({"precision": "int7"}, "precision int7: choose 'auto', 'fp32'"),
    ],
)
def test_settings_out_of_range(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        DistillSettings(**changes)  # type: ignore[arg-type]


def test_a_precision_for_another_device(text: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="fp16: it is for cuda, and not for cpu"):
        distill(CHECKPOINT, [text], tmp_path / "d", DistillSettings(precision="fp16", device="cpu"))
    assert not (tmp_path / "d").exists()
