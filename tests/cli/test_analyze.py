"""`hmc analyze`: every subcommand on a tiny checkpoint and real text, what it writes, what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.cli.conftest import Hmc
from tests.command import done, refused
from tests.guards.test_help_is_light import probe
from tests.support.files import write_lines
from tests.tiny import SENTENCES
from tests.training.analysis.helpers import scored_bundle

from hmc.artifact import load_checkpoint, read_manifest
from hmc.cli.analyze import ANALYSES
from hmc.training.analysis.common.result import read_result

FEW = ("--resamples", "100", "--device", "cpu")


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two parallel texts of four pairs."""
    folder, found = tmp_path_factory.mktemp("analyze"), []
    for name, start in (("a", 0), ("b", 5)):
        write_lines(folder / f"{name}.en", SENTENCES[start : start + 4])
        write_lines(folder / f"{name}.de", SENTENCES[start + 1 : start + 5])
        found.append(f"{folder}/{name}.en {folder}/{name}.de")
    return found[0], found[1]


COMMANDS = {
    "importance": ("--device", "cpu"),
    "ablate": (*FEW, "--head", "cross.0.3", "--head", "encoder_self.1.0"),
    "all-but-one": (*FEW, "--no-bleu"),
    "groups": (*FEW, "--groups", "3"),
    "cumulative": (*FEW, "--groups", "3", "--no-bleu"),
    "profile": (*FEW, "--shares", "0.5"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_table_the_data_and_the_figures(
    hmc: Hmc, tiny_checkpoint: Path, corpora: tuple[str, str], tmp_path: Path, command: str
) -> None:
    ran = hmc("analyze", command, tiny_checkpoint, "--data", corpora[0], "--out", tmp_path / "out", *COMMANDS[command])
    assert ran.exit_code == 0, ran.output
    assert "│" in ran.stdout
    assert f"wrote {tmp_path / 'out' / command}.json" in ran.stdout
    result = read_result(tmp_path / "out" / f"{command}.json", [command])
    assert result.corpora[0].sentences == 4
    assert result.checkpoints[0].heads == 24
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".json", ".svg", ".png"}


def test_json_on_standard_output_is_the_file(
    hmc: Hmc, tiny_checkpoint: Path, corpora: tuple[str, str], tmp_path: Path
) -> None:
    options = ("--data", corpora[0], "-o", tmp_path, "--sentences", "3", "--device", "cpu", "--json")
    ran = done(hmc("analyze", "importance", tiny_checkpoint, *options, "--save", tmp_path / "copy"))
    assert ran.stdout == (tmp_path / "importance.json").read_text(encoding="utf-8")
    assert "replaced" not in ran.stderr
    again = done(hmc("analyze", "importance", tiny_checkpoint, *options))
    assert f"--out {tmp_path}: what was there is replaced: importance.json, " in " ".join(again.stderr.split())
    assert json.loads(ran.stdout)["corpora"][0]["sentences"] == 3
    assert load_checkpoint(tmp_path / "copy").importance is not None


def test_scores_are_added_and_rank_heads_everywhere(
    hmc: Hmc, tiny_checkpoint: Path, corpora: tuple[str, str], tmp_path: Path
) -> None:
    """Each of four analyses adds its score to one checkpoint; groups, curves and the compiler rank by each."""
    checkpoint, options = tmp_path / "c", ("--data", corpora[0], "--device", "cpu")
    shutil.copytree(tiny_checkpoint, checkpoint)
    measured = {
        "importance": ("importance", "--importance", "token,layer"),
        "ablation": ("ablate", "--no-bleu", "--resamples", "100"),
        "relevance": ("lrp", "--forced"),
        "confidence": ("confidence", "--forced"),
    }
    for name, (command, *more) in measured.items():
        done(hmc("analyze", command, checkpoint, *options, *more, "--save", checkpoint, "-o", tmp_path / name))
    for name in ("gates", *measured):
        few = ("--rank-by", name, *FEW, "--no-bleu", "--groups", "3", "--data", corpora[0])
        for command in ("groups", "cumulative"):
            done(hmc("analyze", command, checkpoint, *few, "-o", tmp_path / f"by-{name}"))
            result = read_result(tmp_path / f"by-{name}" / f"{command}.json")
            assert result.settings["rank"] == {"by": "I_h" if name == "importance" else name, "from": str(checkpoint)}
        bundle = tmp_path / f"bundle-{name}"
        done(hmc("compile", checkpoint, "--target-heads", "16", "--rank-by", name, "-o", bundle))
        first = read_result(tmp_path / f"by-{name}" / "groups.json").data.groups[:2]
        [level] = read_manifest(bundle).levels
        assert {str(head) for head in level.layout.heads()} == {h for group in first for h in group.heads}


def test_the_seed_is_recorded_and_comes_from_sacrebleus_variable(
    hmc: Hmc, tiny_checkpoint: Path, corpora: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", "77")
    options = ("--data", corpora[0], *FEW, "--no-bleu", "--head", "cross.0.3")
    for name, more, seed in (("variable", (), 77), ("option", ("--seed", "5"), 5)):
        done(hmc("analyze", "ablate", tiny_checkpoint, *options, *more, "-o", tmp_path / name))
        settings = read_result(tmp_path / name / "ablate.json").settings
        assert settings["seed"] == seed
        assert (settings["test"], settings["trials"], settings["resamples"]) == ("sacrebleu paired-ar", 100, 100)
    ran = hmc("analyze", "ablate", tiny_checkpoint, *options, "--seed", "0", "-o", tmp_path / "none")
    assert ran.exit_code == 2
    assert "seed 0: sacreBLEU takes 0 as no seed" in ran.stderr


def test_results_are_compared_and_texts_correlated(
    hmc: Hmc, tiny_checkpoint: Path, corpora: tuple[str, str], tmp_path: Path
) -> None:
    both = ("--data", corpora[0], "--data", corpora[1])
    ran = done(hmc("analyze", "correlate", tiny_checkpoint, *both, "--out", tmp_path, "--device", "cpu"))
    assert "Pearson" in ran.stdout
    for name in ("x", "y"):
        options = ("--data", corpora[0], "--out", tmp_path / name, "--device", "cpu")
        assert hmc("analyze", "importance", tiny_checkpoint, *options).exit_code == 0
    files = [f"{name}={tmp_path / name / 'importance.json'}" for name in ("x", "y")]
    done(hmc("analyze", "compare", *files, "--out", tmp_path / "both"))
    assert (tmp_path / "both" / "compare.svg").is_file()


def test_survivors_and_trajectories_of_pruning(hmc: Hmc, tiny_checkpoint: Path, tmp_path: Path) -> None:
    done(hmc("analyze", "survivors", tiny_checkpoint, "--out", tmp_path / "s"))
    assert read_result(tmp_path / "s" / "survivors.json").data.budgets[0].heads == 24
    points = [{"stage": 0, "step": step, "open": 9.0, "unsettled": 0.0} for step in (1, 2)]
    (tmp_path / "trajectory.json").write_text(json.dumps(points), encoding="utf-8")
    done(hmc("analyze", "trajectory", f"run={tmp_path / 'trajectory.json'}", "--out", tmp_path / "t"))
    assert (tmp_path / "t" / "trajectory.svg").is_file()


def test_budgets_of_a_scored_bundle(hmc: Hmc, tiny_bundle: Path, tmp_path: Path) -> None:
    scored = scored_bundle(tiny_bundle, tmp_path / "scored", {"full": 30.0, "h12": 28.5})
    ran = done(hmc("analyze", "budgets", f"L0={scored}", "--out", tmp_path / "out"))
    assert "-1.50 (-2.00 to -1.00)" in ran.stdout
    ran = hmc("analyze", "budgets", f"L0={scored}", "--precision", "int8", "--out", tmp_path / "none")
    assert ran.exit_code == 2, ran.output
    assert "has no level in int8" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ablate", "--head", "cross.9.0"), "head cross.9.0 is not open in this checkpoint"),
        (("ablate", "--resamples", "3"), "resamples 3: choose 100 or more"),
        (
            ("groups", "--groups", "99", "--rank-data", "nowhere nowhere"),
            "groups 99: there are 24 open heads to mask; choose 1 to 24",
        ),
        (("cumulative", "--scope", "cross", "--groups", "9"), "groups 9: there are 8 open heads to mask"),
        (("groups", "--scope", "heads"), "--scope 'heads'"),
        (("groups", "--scores", "nowhere.json"), "nowhere.json: cannot be read"),
        (("groups", "--rank-by", "luck"), "--rank-by luck: choose one of gates, importance, ablation"),
        (
            ("groups", "--rank-by", "gates", "--importance", "token"),
            "--importance: it says how to measure what --rank-by",
        ),
        (("importance", "--importance", "words"), "--importance: 'words' names no importance"),
        (("ablate", "--head", "cross.0.3", "--no-bleu", "--save", "new"), "have no score; measure every head"),
        (("profile", "--shares", "a"), "--shares 'a': write numbers with commas"),
        (("importance", "--device", "tpu"), "device 'tpu': choose auto, cpu, cuda or cuda:N"),
        (("importance", "--sentences", "-1"), "sentences -1: choose 1 or more, or 0 for all"),
        (("correlate",), "1 texts: give exactly two"),
    ],
)
def test_refused(
    hmc: Hmc, tiny_checkpoint: Path, corpora: tuple[str, str], tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    name, *options = arguments
    refused(hmc("analyze", name, tiny_checkpoint, "--data", corpora[0], "--out", tmp_path / "out", *options), message)
    assert not (tmp_path / "out").exists()


def test_every_subcommand_has_the_same_outputs_and_a_help_in_panels(hmc: Hmc) -> None:
    for name in ANALYSES:
        ran = done(hmc("analyze", name, "--help"))
        for part in ("--out", "-o", "--json", "─ Output ─"):
            assert part in ran.stdout, (name, part)
        assert "─ Input ─" in ran.stdout or name in ("compare", "trajectory"), name


def test_a_misspelt_subcommand_is_named(hmc: Hmc) -> None:
    refused(hmc("analyze", "ablat"), "Did you mean 'ablate'")


def test_help_lists_the_subcommands_and_loads_nothing_heavy() -> None:
    printed, heavy = probe("analyze", "--help")
    assert heavy == []
    for command in (*COMMANDS, "correlate", "compare", "survivors", "budgets", "trajectory"):
        assert command in printed
    printed, heavy = probe("analyze", "ablate", "--help")
    assert heavy == []
    assert "--no-bleu" in printed
