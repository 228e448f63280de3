"""`hmc bench`."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from hmc.artifact.bundle import read_manifest
from hmc.cli.main import build


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(build(), ["bench", *map(str, arguments)])


@pytest.fixture
def src(tmp_path: Path) -> Path:
    path = tmp_path / "set.en"
    path.write_text("A man.\nA dog runs.\nTwo women.\n", encoding="utf-8")
    return path


@pytest.fixture
def ref(tmp_path: Path) -> Path:
    path = tmp_path / "set.de"
    path.write_text("Ein Mann.\nEin Hund läuft.\nZwei Frauen.\n", encoding="utf-8")
    return path


SMALL = ("--batch", "1,2", "--beam", "2", "--rounds", "1", "--threads", "1", "--no-memory")


def test_contract_then_table_then_files(tiny_bundle: Path, tmp_path: Path, src: Path, ref: Path) -> None:
    bundle, out = tmp_path / "bundle", tmp_path / "out.json"
    shutil.copytree(tiny_bundle, bundle)
    ran = run(bundle, "--src", src, "--ref", ref, *SMALL, "--json", out, "--plot", tmp_path / "pareto", "--record")
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.startswith("Timed: ")
    assert ran.stdout.index("Not timed: ") < ran.stdout.index("BLEU ") < ran.stdout.index("Latency of a request")
    assert "round 1 of 1" in ran.stderr
    assert json.loads(out.read_text(encoding="utf-8"))["schema_version"] == 1
    assert (tmp_path / "pareto.png").is_file()
    assert (tmp_path / "pareto.svg").is_file()
    level = read_manifest(bundle).level("h5")
    assert level.quality is not None
    assert level.latency is not None


def test_json_on_standard_output_is_all_there_is(tiny_bundle: Path, src: Path) -> None:
    ran = run(tiny_bundle, "--src", src, "--levels", "full, h5", *SMALL, "--json", "-")
    assert ran.exit_code == 0, ran.output
    assert [level["name"] for level in json.loads(ran.stdout)["levels"]] == ["full", "h5"]
    assert ran.stderr.startswith("Timed: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--batch", "1,x"), "--batch '1,x': write whole numbers with commas, e.g. 1,32"),
        (("--batch", "0"), "batch 0: choose 1 or more"),
        (("--batch", "100"), "batch 100: only 3 sentences are timed"),
        (("--levels", "h5,h5"), "levels h5,h5: give each level once"),
        (("--levels", "h7"), "unknown level 'h7'"),
        (("--levels", ","), "levels: name at least one, or say all"),
        (("--device", "tpu"), "device 'tpu': choose auto, cpu, cuda or cuda:N"),
        (("--json", "nowhere/out.json"), "folder nowhere does not exist; create it first"),
        (("--plot", "pareto"), "--plot shows BLEU against latency: give references with --ref FILE"),
        (("--ref", "missing.de"), "missing.de: no such file"),
    ],
)
def test_refused_before_anything_is_measured(
    tiny_bundle: Path, src: Path, arguments: tuple[str, str], message: str
) -> None:
    ran = run(tiny_bundle, "--src", src, *SMALL, *arguments)
    assert ran.exit_code == 2
    assert message in ran.stderr
    assert ran.stdout == ""
