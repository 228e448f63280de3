"""SIGTERM at any moment: the command says what is kept and ends with 143, and again it ends with the same bytes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.processes import environment
from tests.support import stopped
from tests.support.files import write_pair
from tests.support.forks import Forks
from tests.tiny import SENTENCES, tiny_checkpoint_at

pytestmark = pytest.mark.slow
SCRIPT = Path(stopped.__file__)
SIGTERM = 128 + signal.SIGTERM
UPDATE = "hmc.training.runs.updater/Updater.update"
RECIPE = """
[data]
train = [{text}]
dev = {text}
[tokenizer]
vocab_size = 120
[model]
d_model = 32
ffn_dim = 48
encoder_layers = 1
decoder_layers = 2
heads = 2
[train]
steps = 9
batch_tokens = 256
warmup_steps = 4
dropout = 0.2
[run]
device = "cpu"
devices = {processes}
save_every = 100
eval_every = 4
eval_sentences = 2
log_every = 1
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds text, and a checkpoint to prune."""
    made = tmp_path_factory.mktemp("stopped")
    text = json.dumps(write_pair(made, SENTENCES * 4))
    for processes in (1, 2):
        recipe = RECIPE.replace("{text}", text).replace("{processes}", str(processes))
        (made / f"{processes}.toml").write_text(recipe)
    tiny_checkpoint_at(made / "c")
    return made


class Commands:
    """Runs a command in processes of its own."""

    def __init__(self, forks: Forks, folder: Path, name: str, processes: int) -> None:
        self.forks, self.folder, self.name, self.processes = forks, folder, name, processes

    def run(self, out: Path, moment: str = "none") -> tuple[list[int], str]:
        """Returns exit codes and what the first process said on standard error."""
        out.parent.mkdir(exist_ok=True)
        corpus = f"{self.folder / 't.en'} {self.folder / 't.de'}"
        words: tuple[str | Path, ...] = ("train", self.folder / f"{self.processes}.toml")
        if self.name == "prune":
            budget = ("--target-heads", "9", "--close-steps", "12", "--recover-steps", "5", "--nested-steps", "4")
            rest = ("--batch-tokens", "256", "--eval-sentences", "2", "--device", "cpu", "--save-every", "1000")
            words = ("prune", self.folder / "c", "--data", corpus, "--dev", corpus, *budget, *rest)
        words = (moment, *words, "--out", out)
        errors = out.parent / "stderr-0"
        if self.processes == 1:
            started = self.forks.start(SCRIPT, *words, errors=errors)
            codes = [self.forks.wait(started)]
        else:
            folders = [out.parent] * self.processes
            codes = self.forks.run_group(
                SCRIPT, *words, folders=folders, devices=self.processes, variables={"HMC_TEST_PROCESSES": 2}
            )
        return codes, errors.read_text()


def bytes_of_results(out: Path) -> dict[str, bytes]:
    """What the run has made: checkpoints and states. Their provenance names no time."""
    names = ("model.safetensors", "weights.safetensors", "optimizer.safetensors", "rng.safetensors", "metrics.json")
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.name in names}


_whole: dict[tuple[str, int], dict[str, bytes]] = {}
"""What commands make that nothing stops."""


def check(commands: Commands, tmp_path: Path, moment: str, said: str) -> None:
    """Stops the command at a moment, and again lets it end."""
    key = (commands.name, commands.processes)
    if key not in _whole:
        codes, errors = commands.run(tmp_path / "whole")
        assert codes == [0] * commands.processes, errors
        _whole[key] = bytes_of_results(tmp_path / "whole")
    out = tmp_path / "stopped" / "run"
    codes, errors = commands.run(out, moment)
    assert codes == [SIGTERM] * commands.processes, errors
    assert f"hmc: SIGTERM: {said.format(out=out)}\n" in errors
    assert "Traceback" not in errors
    if commands.processes == 2:
        assert "hmc: SIGTERM" not in (out.parent / "stderr-1").read_text(), "one process speaks for all"
    codes, errors = commands.run(out)
    assert codes == [0] * commands.processes, errors
    found = bytes_of_results(out)
    assert found.keys() == _whole[key].keys()
    assert [name for name in found if found[name] != _whole[key][name]] == []


SAVED = "update {number} is saved in {{out}}/state; the same command goes on from there"
BEGINS_ANEW = "no update is saved in {out} yet; the same command begins with the first one"
KEPT = "the last state that was saved in {out} is kept; the same command goes on from there"


@pytest.mark.parametrize(
    ("moment", "said"),
    [
        (f"0/{UPDATE}/3", SAVED.format(number=3)),
        ("0/hmc.training.trainer.trainer/evaluate/1", SAVED.format(number=4)),
        (f"0/{UPDATE}/9", SAVED.format(number=9)),
        ("0/hmc.training.data.corpus/TokenCorpus.build/1", BEGINS_ANEW),
        ("0/hmc.training.trainer.trainer/TrainingRun._finish/1", KEPT),
    ],
)
def test_train(forks: Forks, folder: Path, tmp_path: Path, moment: str, said: str) -> None:
    check(Commands(forks, folder, "train", 1), tmp_path, moment, said)


@pytest.mark.parametrize(
    ("moment", "said"),
    [
        (f"0/{UPDATE}/5", SAVED.format(number=5)),
        (f"0/{UPDATE}/12", SAVED.format(number=12)),  # the gates of the last one are closed by the same command
        ("0/hmc.training.pruning.run/ClosingSchedule.finish/1", KEPT),
        (f"0/{UPDATE}/15", SAVED.format(number=15)),
        ("0/hmc.training.pruning.run/PruningRun._finish/1", KEPT),
        (f"0/{UPDATE}/19", "update 2 is saved in {out}/nested-state; the same command goes on from there"),
    ],
)
def test_prune(forks: Forks, folder: Path, tmp_path: Path, moment: str, said: str) -> None:
    check(Commands(forks, folder, "prune", 1), tmp_path, moment, said)


@pytest.mark.parametrize(
    ("name", "moment", "said"),
    [
        ("train", f"1/{UPDATE}/3", SAVED.format(number=3)),
        ("train", "0/hmc.training.trainer.trainer/evaluate/1", SAVED.format(number=4)),
        ("train", "0/hmc.training.data.corpus/TokenCorpus.build/1", BEGINS_ANEW),
        ("prune", f"1/{UPDATE}/14", SAVED.format(number=14)),
        ("prune", "0/hmc.training.pruning.run/PruningRun._finish/1", KEPT),
    ],
)
def test_two_processes_stop_together(
    forks: Forks, folder: Path, tmp_path: Path, name: str, moment: str, said: str
) -> None:
    """A signal to one of them, whichever it is, ends both after the same update."""
    check(Commands(forks, folder, name, 2), tmp_path, moment, said)


def test_a_run_of_processes_that_it_starts_itself(folder: Path, tmp_path: Path) -> None:
    """Fabric kills the first process where another one ends with an error: its exit code is that of the signal."""
    command = [sys.executable, "-m", "hmc.cli", "train", folder / "2.toml", "-o", tmp_path / "run"]
    command += ["--set", "train.steps=1000"]
    with subprocess.Popen(
        list(map(str, command)), stderr=subprocess.PIPE, text=True, env=environment(OMP_NUM_THREADS="1")
    ) as process:
        assert process.stderr is not None
        said = list[str]()
        for line in process.stderr:
            said.append(line)
            if line.startswith("train 2/1000"):
                process.send_signal(signal.SIGTERM)
        assert process.wait() == SIGTERM, said
    assert "is saved in" in said[-1]
    assert "Traceback" not in "".join(said)
    assert (tmp_path / "run" / "state").is_dir()
