"""The commands that the README and the documents give exist, and take the arguments given; the README's chain runs."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from tests.cli.test_serve import serving
from tests.command import hmc_command
from tests.processes import REPOSITORY
from tests.tiny import SENTENCES
from typer.testing import CliRunner

from hmc.artifact import validate
from hmc.cli.bench import DefaultGroup
from hmc.cli.main import build

DOCUMENTS = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
SHELL = {"|", ">", "<", "&", "2>", "&&", ";"}
"""Words that end the arguments of a command."""


@pytest.mark.parametrize("command", ["demo", "test"])
def test_readme_gives_the_command(repository: Path, command: str) -> None:
    assert f"make {command}" in (repository / "README.md").read_text(encoding="utf-8")
    assert f"\n{command}:" in (repository / "Makefile").read_text(encoding="utf-8")


def hmc_calls(document: Path) -> list[list[str]]:
    """The arguments of every `hmc …` in the code blocks of a document; calls that contain `…` are left out."""
    found = []
    for block in re.findall(r"```(?:console|sh|bash)?\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            call = re.match(r"(?:\$ )?(?:[A-Z_]+=\S+ )*hmc (.*)", line.strip())
            words = shlex.split(call[1], comments=True) if call else []
            end = next((number for number, word in enumerate(words) if word in SHELL), len(words))
            if words[:end] and "…" not in words[:end]:
                found.append(words[:end])
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=[str(path.relative_to(REPOSITORY)) for path in DOCUMENTS])
def test_commands_take_the_arguments_that_a_document_gives(document: Path) -> None:
    for words in hmc_calls(document):
        name, command, rest = "hmc", hmc_command(), list(words)
        if rest in (["--version"], ["--help"]):
            continue
        while hasattr(command, "get_command"):
            rest = command.completed(rest) if isinstance(command, DefaultGroup) else rest
            name = rest.pop(0)
            command = command.get_command(None, name)
            assert command is not None, shlex.join(words)
        command.make_context(name, rest)  # raises for an argument that the command does not take


def test_calls_are_found() -> None:
    assert len(hmc_calls(REPOSITORY / "README.md")) >= 5


QUICK = {
    "train": [
        "--set", "tokenizer.vocab_size=120", "--set", "model.d_model=96", "--set", "model.ffn_dim=32",
        "--set", "model.encoder_layers=1", "--set", "model.decoder_layers=1", "--set", "model.heads=48",
        "--set", "train.steps=4", "--set", "train.batch_tokens=512", "--set", "train.warmup_steps=2",
        "--set", "train.cooldown_steps=2", "--set", "run.eval_every=4", "--set", "run.eval_sentences=2",
        "--set", "run.precision=32-true", "--set", "run.device=cpu",
    ],
    "prune": [
        "--close-steps", "10", "--recover-steps", "2", "--batch-tokens", "512", "--eval-sentences", "2",
        "--device", "cpu",
    ],
    "compile": ["--beam", "1"],
    "bench": ["--batch", "1", "--beam", "1", "--rounds", "1", "--latency-limit", "2", "--no-memory", "--device", "cpu"],
}  # fmt: skip
"""Command of the README → options that replace its settings by tiny ones. There are 144 heads, as in the README."""


@pytest.mark.slow
def test_the_chain_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From text to a served level: every command of that section, in its order, on a small text of each name."""
    section = (REPOSITORY / "README.md").read_text(encoding="utf-8").split("## From text to a served level")[1]
    (tmp_path / "section.md").write_text(section.split("\n## ")[0], encoding="utf-8")
    calls = [words for words in hmc_calls(tmp_path / "section.md") if words[0] in {*QUICK, "serve", "translate"}]
    assert [words[0] for words in calls] == ["train", "prune", "compile", "serve", "translate", "bench"]
    by_name = {words[0]: words for words in calls}
    for name in ("train", "val", "test"):
        lines = SENTENCES * 2 if name == "train" else SENTENCES[:4]
        (tmp_path / f"{name}.en").write_text("".join(f"{line}\n" for line in lines))
        (tmp_path / f"{name}.de").write_text("".join(f"{line.upper()}\n" for line in lines))
    (tmp_path / "recipes").symlink_to(REPOSITORY / "recipes")
    monkeypatch.chdir(tmp_path)

    def run(words: list[str]) -> str:
        ran = CliRunner().invoke(build(), [*words, *QUICK.get(words[0], [])])
        assert ran.exit_code == 0, ran.output
        return ran.stdout

    for name in ("train", "prune", "compile"):
        run(by_name[name])
    manifest = validate(tmp_path / "bundle")
    assert [level.name for level in manifest.levels if level.precision == "fp32"] == ["full", "h72", "h36"]
    assert all(level.quality for level in manifest.levels)
    with serving(*by_name["serve"][1:], "--device", "cpu") as (_, said):
        answered = run([str(said["address"]) if w == "localhost:50051" else w for w in by_name["translate"]])
    assert answered.count("\n") == 1  # the line may be empty: the model saw four updates
    run(by_name["bench"])
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["levels"]
