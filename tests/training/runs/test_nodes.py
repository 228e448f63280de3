"""Two nodes (a torchrun of its own each, gloo, CPU) learn what one node with two processes does; a killed node."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from tests.ports import held_port
from tests.support.files import write_pair
from tests.support.forks import Forks
from tests.tiny import SENTENCES
from tests.training.runs.test_processes import recipe

from hmc.artifact import load_checkpoint
from hmc.training import Recipe

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("on_a_node.py")
STEPS = 12


@contextmanager
def node(settings: Recipe, folder: Path, port: int, stop: int = 0) -> Iterator[subprocess.Popen[str]]:
    """One node's torchrun, with the working directory `folder` and the run folder `run` in it."""
    (folder / "recipe.json").write_text(settings.model_dump_json())
    errors = (folder / f"stderr-{os.urandom(4).hex()}").open("w")
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={settings.run.nodes}"),
            *(f"--nproc-per-node={settings.run.devices}", "--rdzv-backend=c10d", "--rdzv-id=test"),
            *(f"--rdzv-endpoint=localhost:{port}", str(SCRIPT), "recipe.json", "run", str(stop), "90"),
        ],
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1"},
    )
    try:
        yield process
    finally:
        process.terminate()  # torchrun ends its processes
        process.communicate(timeout=600)
        errors.close()


def of_nodes(corpus: Path, nodes: int, devices: int) -> Recipe:
    """Two processes with dropout, so that each has random numbers of its own."""
    made = recipe(f"{corpus}/t.en {corpus}/t.de", 2, STEPS, dropout=0.3)
    return made.model_copy(update={"run": made.run.model_copy(update={"nodes": nodes, "devices": devices})})


def run_forked(forks: Forks, settings: Recipe, folders: list[Path], wait: float = 90) -> list[int]:
    """Runs a process in each folder, without torchrun; returns their statuses."""
    for folder in folders:
        (folder / "recipe.json").write_text(settings.model_dump_json())
    words = ("recipe.json", "run", "0", str(wait))
    return forks.run_group(SCRIPT, *words, folders=folders, devices=settings.run.devices)


def run_all(settings: Recipe, folders: list[Path]) -> list[int]:
    """Runs a node in each folder; returns their statuses."""
    with ExitStack() as running:
        port = running.enter_context(held_port())
        nodes = [running.enter_context(node(settings, folder, port)) for folder in folders]
        return [process.wait(timeout=600) for process in nodes]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_pair(folder, SENTENCES * 4)
    return folder


@pytest.fixture(scope="module")
def one_node(corpus: Path, forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of two processes on one node."""
    folder = tmp_path_factory.mktemp("one")
    assert run_forked(forks, of_nodes(corpus, 1, 2), [folder, folder]) == [0, 0]
    return folder / "run"


def assert_equal(run: Path, other: Path) -> None:
    found, expected = load_checkpoint(run / "final"), load_checkpoint(other / "final")
    assert all(np.array_equal(found.tensors[name], expected.tensors[name]) for name in expected.tensors)


def test_two_nodes_learn_what_one_does(corpus: Path, one_node: Path, tmp_path: Path) -> None:
    assert run_all(of_nodes(corpus, 2, 1), [tmp_path, tmp_path]) == [0, 0]
    assert_equal(tmp_path / "run", one_node)
    assert not list((tmp_path / "run").glob(".shared*"))


def _waiting(*nodes: subprocess.Popen[str]) -> tuple[subprocess.Popen[str], subprocess.Popen[str], int]:
    """The other node, the node whose process waits, and the id of that process."""
    with selectors.DefaultSelector() as selector:
        for process in nodes:
            assert process.stdout is not None
            selector.register(process.stdout, selectors.EVENT_READ, process)
        [(key, _), *_] = selector.select(timeout=600)
    words = key.data.stdout.readline().split()
    assert words[:1] == ["waits"], words
    [other] = [process for process in nodes if process is not key.data]
    return other, key.data, int(words[1])


def test_after_a_node_is_killed_the_run_goes_on(corpus: Path, one_node: Path, forks: Forks, tmp_path: Path) -> None:
    """Process 1 is killed in update 8, and so is the torchrun of its node. The other node ends by itself. The same
    processes go on, forked: what torchrun does at a start, another test shows."""
    settings = of_nodes(corpus, 2, 1)
    with (
        held_port() as port,
        node(settings, tmp_path, port, 8) as first,
        node(settings, tmp_path, port, 8) as second,
    ):
        left, killed, worker = _waiting(first, second)
        killed.kill()
        os.kill(worker, signal.SIGKILL)
        assert left.wait(timeout=600) != 0
        assert killed.wait() == -signal.SIGKILL
    assert json.loads((tmp_path / "run" / "state" / "progress.json").read_text())["step"] == 6
    assert run_forked(forks, settings, [tmp_path, tmp_path]) == [0, 0]
    assert_equal(tmp_path / "run", one_node)


def test_nodes_that_do_not_share_the_folder_are_refused(corpus: Path, forks: Forks, tmp_path: Path) -> None:
    """Both have a folder `run`, each in a working directory of its own."""
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    assert 0 not in run_forked(forks, of_nodes(corpus, 2, 1), folders, wait=1)
    said = ["".join(path.read_text() for path in folder.glob("stderr*")) for folder in folders]
    assert any("process 1 of 2 does not see what process 0 writes to run" in text for text in said)
    assert any("a run on several nodes needs a folder that all of them share" in text for text in said)
    assert not any(list(folder.glob("run/*")) for folder in folders), "nothing is written before"


def test_nodes_with_a_copy_of_the_text_each(corpus: Path, one_node: Path, forks: Forks, tmp_path: Path) -> None:
    """Only the first process tokenises, whatever path and times the files have elsewhere."""
    folders = [tmp_path / "a", tmp_path / "b"]
    for number, folder in enumerate(folders):
        folder.mkdir()
        for name in ("t.en", "t.de"):
            shutil.copy(corpus / name, folder / name)
            os.utime(folder / name, (number, number))
    (tmp_path / "a" / "run").mkdir()
    (tmp_path / "b" / "run").symlink_to(tmp_path / "a" / "run")
    settings = of_nodes(corpus, 2, 1)
    data = settings.data.model_copy(update={"train": ["t.en t.de"], "dev": "t.en t.de"})
    assert run_forked(forks, settings.model_copy(update={"data": data}), folders) == [0, 0]
    assert len(list((tmp_path / "a" / "run" / "cache").glob("*/dataset_info.json"))) == 1
    assert_equal(tmp_path / "a" / "run", one_node)
