"""Every block of shell and Python in the README and the pages runs, or is at least read by the program it calls."""

from __future__ import annotations

import argparse
import ast
import asyncio
import gzip
import inspect
import json
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from tests import tutorial
from tests.command import done, hmc_command, run_hmc
from tests.guards.pages import DOCS, OPERATORS, README, Shell, Step, calls_of, matches, pages, steps
from tests.once import Once
from tests.ports import held_port
from tests.processes import REPOSITORY
from tests.tiny import SENTENCES, tiny_architecture, tiny_checkpoint_at

from hmc.artifact.checkpoint.checkpoint import save_checkpoint
from hmc.cli.bench import DefaultGroup
from hmc.cli.demo_steps import REF, SRC
from hmc.serving.client import Client
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings

ELSEWHERE = {
    ("README.md", "From text to a served level"): "test_readme.py runs it on small text",
    ("operations.md", "From nothing to a monitored service"): "test_operations.py runs it",
}
"""Sections whose blocks have a test of their own."""

NOT_RUN = {
    r"make |\.ci/|.*-m build|tar |tests/protos/": "builds; test_release.py and test_stubs.py do it",
    r"python3 -m venv|pip |pipx |\. \.venv/": "downloads; test_clean_install.py installs the wheel",
    r"python3\.12 experiments/installs": "needs another Python",
    r".*docker |kubectl ": "needs Docker or a cluster; tests/deploy reads the files",
    r"export RAY|ray |serve deploy|hmc .*--engine ray": "needs Ray; tests/serving/ray runs it",
    r"hmc (train|prune|distill|analyze)|torchrun ": "trains; test_readme.py and tests/cli run small ones",
    r"hmc (up|import)": "needs a model of another program; test_up.py has one",
    r"hmc demo": "takes two minutes; test_demo.py runs it on a few sentences",
    r"hmc compile .*--max-": "searches for long; tests/cli/compile does so with few heads",
    r"hmc .*--tls-": "needs certificates; test_operations.py makes some",
    r'hmc .*(--to fr|">>fra<<)': "needs a model of many languages; test_target_languages.py has one",
    r"grpcurl ": "is no part of HMC; tests/serving/server/test_admin.py asks as it does",
    r".*curl ": "tests/serving/http/test_documentation.py runs it",
}
"""How a command begins → why it is not run here. Calls of hmc, experiments and make are read all the same."""

QUICK = {
    "hmc bench compare": "--noise 1000",
    "hmc bench bundle.* --batch": "--sentences 8 --batch 1,8 --rounds 1 --no-memory",
    "hmc bench bundle(?!.* --batch)": "--sentences 8 --rounds 3 --no-memory",
    r"hmc bench bundle\S* --source test": "--levels full-int8,h36-int8",
    "hmc bench load": "--seconds 1 --rate 5",
    "hmc serve": "--print-config",
}
"""How a command begins → what is added, so that it takes little time. The tutorial's server is started."""

DOCUMENTS = [README, REPOSITORY / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
RUN = [page for page in pages() if steps(page)]


# ---- read ----


def read_by_hmc(words: list[str]) -> None:
    """Raises for a command that hmc has not, and for an argument that it does not take by this name."""
    name, command, rest, context = "hmc", hmc_command(), list(words), None
    while hasattr(command, "get_command") and rest not in (["--version"], ["--help"]):
        context = command.make_context(name, [], parent=context, resilient_parsing=True)
        rest = command.completed(rest) if isinstance(command, DefaultGroup) else rest
        name = rest.pop(0)
        command = command.get_command(context, name)
        assert command is not None, shlex.join(words)
    if not hasattr(command, "get_command"):
        command.make_context(name, rest, parent=context)


def read_by_module(module: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Raises for an argument that the module does not take. It does nothing else."""

    class Read(Exception):
        pass

    def reading(parse: Callable[..., object]) -> Callable[..., None]:
        def then_stop(*given: object) -> None:
            parse(*given)
            raise Read

        return then_stop

    for name in ("parse_args", "parse_intermixed_args"):
        monkeypatch.setattr(argparse.ArgumentParser, name, reading(getattr(argparse.ArgumentParser, name)))
    monkeypatch.setattr(sys, "argv", [module, *words])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # another test may have imported the module
        with pytest.raises(Read):
            runpy.run_module(module, run_name="__main__")


@pytest.mark.parametrize("page", DOCUMENTS, ids=[str(page.relative_to(REPOSITORY)) for page in DOCUMENTS])
def test_programs_take_the_arguments_that_a_page_gives(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in steps(page):
        for program, words in calls_of(step) if step.kind == "shell" else ():
            if program == "hmc":
                read_by_hmc(words)
            elif program == "make":
                makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
                assert f"\n{words[0]}:" in makefile or "=" in words[0], step.text
            else:
                with monkeypatch.context() as patch:
                    read_by_module(program, words, patch)


@pytest.mark.parametrize("page", DOCUMENTS, ids=[str(page.relative_to(REPOSITORY)) for page in DOCUMENTS])
def test_a_page_names_files_and_extras_that_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"[\s`](?:\./)?((?:deploy|examples|recipes|experiments|\.ci)/[\w./-]+\w)", text)
    assert [name for name in named if not (REPOSITORY / name).exists()] == []
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = re.findall(r"(?:headmask|\.|hmc)\[([a-z,]+)\]'", text)
    assert {extra for found in extras for extra in found.split(",")} <= set(project["optional-dependencies"])


def test_a_wrong_command_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    read_by_hmc(["levels", "bundle"])
    with pytest.raises(Exception, match="No such option"):
        read_by_hmc(["levels", "bundle", "--no-such-option"])
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        read_by_module("experiments.memory", ["--no-such-option"], patch)


# ---- run ----


def _bundle_at(path: Path, checkpoint: Path) -> None:
    """A model at the levels that pages name, with quality and latency of a few sentences."""
    few = path.with_suffix(".texts")
    few.mkdir(exist_ok=True)
    for side, file in (("en", SRC), ("de", REF)):
        (few / f"test.{side}").write_text("".join(file.read_text(encoding="utf-8").splitlines(keepends=True)[:8]))
    test = few / "test.en", few / "test.de"
    commands: tuple[list[str | Path], ...] = (
        ["compile", f"full={checkpoint}", f"h72={checkpoint}@72", f"h36={checkpoint}@36", "--precision", "fp32,int8",
         "--calibrate", test[0], "--eval", *test, "--beam", "1", "-o", path],
        ["bench", path, "--source", test[0], "--reference", test[1], "--batch", "1", "--beam", "1", "--rounds", "1",
         "--no-memory", "--record"],
    )  # fmt: skip
    for words in commands:
        done(run_hmc(words))


def _texts_at(folder: Path) -> None:
    """Text of every name and form that pages use."""
    source, target = (file.read_text(encoding="utf-8").splitlines(keepends=True) for file in (SRC, REF))
    for name, part in (("train", slice(120, 240)), ("val", slice(100, 120)), ("test", slice(0, 33))):
        (folder / f"{name}.en").write_text("".join(source[part]), encoding="utf-8")
        (folder / f"{name}.de").write_text("".join(target[part]), encoding="utf-8")
    for name in ("corpus.en", "in.txt", "letter.txt"):
        (folder / name).write_text("".join(source[:3]), encoding="utf-8")
    (folder / "page.md").write_text("# A dog\n\nTwo {name} run. See https://example.org now.\n", encoding="utf-8")
    with gzip.open(folder / "text.en.gz", "wt", encoding="utf-8") as packed:
        packed.writelines(source[:20])
    for number in (1, 2):
        with gzip.open(folder / f"part-{number}.jsonl.gz", "wt", encoding="utf-8") as packed:
            packed.write(json.dumps({"text": source[number]}) + "\n")
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"text": source[:2]}), folder / "corpus.parquet")


def _checkpoint_at(path: Path) -> None:
    """A tiny checkpoint of 144 heads, which says little."""
    arch = tiny_architecture(d_model=48, heads=16, head_dim=3, encoder_layers=3, decoder_layers=3)
    checkpoint = tiny_checkpoint_at(path, arch=arch)
    checkpoint.tensors["final_logits_bias"].reshape(-1)[arch.eos_id] += 9
    save_checkpoint(checkpoint, path)


@pytest.fixture(scope="module")
def bundle(once: Once) -> Path:
    return once(_bundle_at, once(_checkpoint_at))


@pytest.fixture(scope="module")
def server(bundle: Path) -> Iterator[BackgroundServer]:
    # What is measured on a few sentences picks any level as the recommended one; pages unload h36-int8.
    settings = ServerSettings(port=0, device="cpu", threads=1, workers=1, default_level="full-int8")
    with BackgroundServer({"en-de": bundle, "fr-en": bundle}, settings) as running:
        yield running


@pytest.fixture
def folder(bundle: Path, once: Once, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what pages name. What a command writes there stays there."""
    for name in ("bundle", "BUNDLE", "bundle-1", "bundle-2", "runs/fast/bundle"):
        (tmp_path / name).mkdir(parents=True)
        for file in (path for path in bundle.rglob("*") if path.is_file()):
            copy = tmp_path / name / file.relative_to(bundle)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.hardlink_to(file)
    pruned = (f"runs/pruned/{name}" for name in ("h72", "h36", "nested", "control", "distilled/checkpoint"))
    for name in ("CHECKPOINT", "ckpt", "A", "B", "ckpt-ranked", "runs/below/nested", *pruned):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).symlink_to(once(_checkpoint_at))
    _texts_at(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=[page.name for page in RUN])
def test_a_page_runs(page: Path, server: BackgroundServer, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every block that can, in its order, against one server, or against that which the page starts."""
    with held_port() as own:
        starts = page.name == "tutorial.md"
        used = str(own) if starts else server.address.rpartition(":")[2]
        shell = Shell(folder, {"50051": used})
        try:
            for step in steps(page):
                if (page.name, step.section) in ELSEWHERE:
                    continue
                shown = list(map(shell.here, step.shown))
                if step.kind == "python":
                    run_python(shell.here(step.text), f"localhost:{used}")
                    assert capsys.readouterr().out
                elif starts and step.text.startswith("hmc serve"):
                    assert matches(shown, shell.start(step.text))
                elif reason(step) is None:
                    printed = run_shell(shell, step.text.replace("HOST:PORT", f"localhost:{used}"), starts)
                    timed = step.text.startswith(("hmc bench", "hmc admin status"))
                    assert matches(shown, printed, numbers=not timed), f"{step.text}\nprinted:\n{printed}"
        finally:
            shell.close()


def reason(step: Step) -> str | None:
    """Why a command is not run."""
    command = step.text.replace("\\\n", " ")
    return next((why for begins, why in NOT_RUN.items() if re.match(begins, command)), None)


def run_shell(shell: Shell, command: str, whole: bool) -> str:
    """What a command prints: one that is `hmc` alone runs in this process, which is quicker."""
    added = " ".join(words for begins, words in QUICK.items() if re.match(begins, command))
    command = f"{command} {added}" if added else command
    words = shlex.split(shell.here(command).replace("\\\n", " "), comments=True)
    if words[0] != "hmc" or OPERATORS & set(words) or "$" in command:
        return shell.run(command)
    ran = done(run_hmc(words[1:], env={"COLUMNS": "120"}))
    return ran.stdout


def run_python(source: str, address: str) -> None:
    """Runs a block, in an event loop where it waits. What a reader has to fill in is filled in; there is no TLS."""
    here = re.sub(r'"[ab]:\d+"', f'"{address}"', source).replace(', tls_ca="ca.pem"', "")
    with Client(address) as client:
        text = "A man. A dog runs.\n\n{name} waits."
        known = {"token": "secret", "lines": SENTENCES[:3], "text": text, "client": client}
        _run(compile(here, "block", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), known)


def _run(code: CodeType, names: dict[str, Any]) -> None:
    async def waiting() -> None:
        await eval(code, names)  # noqa: S307 - the blocks are ours

    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(waiting())
    else:
        exec(code, names)


def test_blocks_are_found_and_every_reason_is_one() -> None:
    kinds = [step.kind for page in RUN for step in steps(page)]
    assert kinds.count("shell") > 100
    assert kinds.count("python") >= 4
    everything = [step for page in RUN for step in steps(page)]
    tests = {file.name for file in (REPOSITORY / "tests").rglob("test_*.py")}
    assert set(re.findall(r"test_\w+\.py", " ".join([*NOT_RUN.values(), *ELSEWHERE.values()]))) <= tests
    skipped = [why for why in NOT_RUN.values() if not any(reason(step) == why for step in everything)]
    assert skipped == [], "no command of a page is left out for this reason"


def test_the_script_of_the_tutorial_is_the_page() -> None:
    committed = (REPOSITORY / "examples" / "tutorial.sh").read_text(encoding="utf-8")
    assert committed == tutorial.script(), "run `make docs`"
    assert subprocess.run(["bash", "-n"], input=committed, text=True, check=False).returncode == 0


def test_lines_are_compared() -> None:
    assert matches(["a …", "c"], "x\na b\nc\n")
    assert not matches(["a …", "d"], "x\na b\nc\n")
    assert matches([" 1.5 ms  2,000"], "│ 7 ms\n12 │".replace("│", ""), numbers=False)
    assert not matches(["1.5 ms"], "7 ms")
    page = ["bundle: version 0123456789abcdef, en to de", "  full  144 heads  BLEU 64.15 (+0.00)  default"]
    printed = "bundle: version fedcba9876543210, en to de\n  full  144 heads  BLEU 64.1 (-0.10)  default"
    assert matches(page, printed)
    assert not matches(page, printed.replace("144", "143"))
