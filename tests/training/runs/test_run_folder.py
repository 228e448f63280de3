"""A run folder belongs to one run: files that another program put there are neither read nor replaced."""

from __future__ import annotations

import errno
import json
import logging
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.processes import environment
from tests.tiny import tiny_checkpoint_at

from hmc.artifact import InvalidRequestError
from hmc.training.runs.folder import check_pruning_folder, check_training_folder, hold, release
from hmc.training.runs.log import RunLog


def foreign(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("mine")
    return file


@pytest.mark.parametrize("name", ["final/thesis.tex", "state/app.js", "checkpoints/a", "tokenizer.model", "cache/x"])
def test_training_refuses_a_folder_with_foreign_files(tmp_path: Path, name: str) -> None:
    check_training_folder(tmp_path / "nothing")
    foreign(tmp_path / "notes.txt")
    check_training_folder(tmp_path)
    foreign(tmp_path / name)
    entry = Path(name).parts[0]
    with pytest.raises(InvalidRequestError, match=rf"holds {entry}, and no recipe\.json that says which run wrote it"):
        check_training_folder(tmp_path)


def test_a_run_of_the_other_command(tmp_path: Path) -> None:
    foreign(tmp_path / "train" / "recipe.json")
    foreign(tmp_path / "prune" / "request.json")
    with pytest.raises(InvalidRequestError, match=r"holds request\.json, and no recipe\.json"):
        check_training_folder(tmp_path / "prune")
    with pytest.raises(InvalidRequestError, match=r"holds recipe\.json, and no request\.json"):
        check_pruning_folder(tmp_path / "train", ["h12"])


@pytest.mark.parametrize(("name", "what"), [("final", "a checkpoint"), ("state", "a training state")])
def test_files_that_were_added_to_a_run_later(tmp_path: Path, name: str, what: str) -> None:
    foreign(tmp_path / "recipe.json")
    tiny_checkpoint_at(tmp_path / "final")
    foreign(tmp_path / "state" / "progress.json").write_text("{}")
    check_training_folder(tmp_path)
    foreign(tmp_path / name / "README.md")
    with pytest.raises(InvalidRequestError, match=rf"{name} holds files that do not belong to {what}: README\.md"):
        check_training_folder(tmp_path)


def test_checkpoints_that_pruning_will_write(tmp_path: Path) -> None:
    foreign(tmp_path / "request.json")
    tiny_checkpoint_at(tmp_path / "h12")
    check_pruning_folder(tmp_path, ["h12"])
    foreign(tmp_path / "h12" / "README.md")
    check_pruning_folder(tmp_path, ["h5"])
    with pytest.raises(InvalidRequestError, match=r"h12 holds files that do not belong to a checkpoint: README\.md"):
        check_pruning_folder(tmp_path, ["h12"])


HOLDER = """
import sys
from pathlib import Path
from hmc.training.runs.log import RunLog
from hmc.training.runs.folder import hold
hold(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_two_processes_are_not_in_one_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(InvalidRequestError, match=r"another process is working in .*run; wait for it, or choose"):
            hold(tmp_path / "run")
        other.kill()
    for _ in range(2):
        hold(tmp_path / "run")
    assert subprocess.run(command, input=b"", check=False, env=environment()).returncode == 1
    release(tmp_path / "run")
    assert subprocess.run(command, input=b"", check=False, env=environment()).returncode == 0
    hold(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    hold(tmp_path / "run")  # it is another folder
    assert subprocess.run(command, input=b"", check=False, env=environment()).returncode == 1
    release(tmp_path / "run")


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.lockf", none)
    hold(tmp_path)
    check_training_folder(tmp_path)  # the file of the lock alone is nobody's run
    release(tmp_path)


def test_a_resumed_run_logs_each_update_once_and_leaves_other_logs(tmp_path: Path) -> None:
    for part, start, steps in (("", 0, (1, 2, 3)), ("nested", 0, (1, 2)), ("", 2, (3, 4))):
        with RunLog("title", tmp_path, 4, start, part=part) as log:
            for step in steps:
                log.report(step, {"loss": 1.0})
        if not start:
            with (tmp_path / "log.jsonl").open("a") as file:
                file.write("null\n{")
    logged = {
        name: [json.loads(line)["step"] for line in (tmp_path / name).read_text().splitlines()]
        for name in ("log.jsonl", "log-nested.jsonl")
    }
    assert logged == {"log.jsonl": [1, 2, 3, 4], "log-nested.jsonl": [1, 2]}


@pytest.mark.parametrize("verbose", [False, True])
def test_a_terminal_gets_details_with_verbose_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, verbose: bool
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    logger = logging.getLogger("hmc")
    level = logger.level
    logger.setLevel(logging.DEBUG if verbose else logging.NOTSET)
    with RunLog("prune", tmp_path, 4) as log:
        logger.setLevel(level)
        log.detail("dev text: 4 sentence pairs")
        log.say("after, 12 heads: dev BLEU 30.00")
        log.say_warnings(["much is left out"])
        log.report(2, {"loss": 1.5, "rate": 0.25})
    shown = capsys.readouterr().err
    assert ("dev text: 4 sentence pairs" in shown, "rate 0.25" in shown) == (verbose, verbose)
    for said in ("after, 12 heads: dev BLEU 30.00", "warning: much is left out", "loss 1.5", " 50%", "left:"):
        assert said in shown


def test_a_log_gets_details(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunLog("prune", tmp_path, 4) as log:
        log.detail("dev text: 4 sentence pairs")
        log.report(2, {"loss": 1.5, "rate": 0.25})
    shown = capsys.readouterr().err
    assert "dev text: 4 sentence pairs\nprune 2/4  loss 1.5  rate 0.25" in shown
