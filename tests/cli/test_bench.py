"""`hmc bench`."""

import json
import shutil
from pathlib import Path

import pytest
from tests.command import run_hmc
from tests.manifests import changed_manifest
from typer.testing import Result

from hmc.artifact.bundle.manifest import Manifest, read_manifest
from hmc.benchmark import runner


def run(*arguments: str | Path) -> Result:
    return run_hmc(["bench", *arguments])


SMALL = ("--batch", "1,2", "--beam", "2", "--rounds", "1", "--threads", "1", "--no-memory")


def test_contract_then_table_then_files(tiny_bundle: Path, tmp_path: Path, src: Path, ref: Path) -> None:
    bundle, out = tmp_path / "bundle", tmp_path / "out.json"
    shutil.copytree(tiny_bundle, bundle)
    ran = run(bundle, "--src", src, "--ref", ref, *SMALL, "--out", out, "--plot", tmp_path / "pareto", "--record")
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.startswith("Timed: ")
    assert ran.stdout.index("Not timed: ") < ran.stdout.index("BLEU ") < ran.stdout.index("Latency of a request")
    assert "round 1 of 1" in ran.stderr
    assert json.loads(out.read_text(encoding="utf-8"))["schema_version"] == 2
    assert (tmp_path / "pareto.png").is_file()
    assert (tmp_path / "pareto.svg").is_file()
    level = read_manifest(bundle).level("h5")
    assert level.quality is not None
    assert level.latency is not None


def test_json_on_standard_output_is_all_there_is(tiny_bundle: Path, src: Path) -> None:
    ran = run(tiny_bundle, "--src", src, "--levels", "full, h5", *SMALL, "--json")
    assert ran.exit_code == 0, ran.output
    assert [level["name"] for level in json.loads(ran.stdout)["levels"]] == ["full", "h5"]
    assert ran.stderr.startswith("Timed: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--batch", "1,x"), "--batch '1,x': write whole numbers with commas, e.g. 1,32"),
        (("--batch", "0"), "batch 0: choose 1 or more"),
        (("--batch", "100"), "batch 100: only 4 sentences are timed"),
        (("--levels", "h5,h5"), "levels h5,h5: give each level once"),
        (("--levels", "h7"), "unknown level 'h7'"),
        (("--levels", ","), "levels: name at least one, or say all"),
        (("--device", "tpu"), "device 'tpu': choose auto, cpu, cuda, cuda:N or several"),
        (("-o", "nowhere/out.json"), "folder nowhere does not exist; create it first"),
        (("--plot", "pareto"), "--plot shows BLEU against latency: give references with --ref FILE"),
        (("--ref", "missing.de"), "missing.de: no such file"),
        (("--plot", "."), "--plot .: give the beginning of a file's name"),
        (("--threads", "99999999999"), "threads 99999999999: choose 0 (one per physical core) or more, and at most"),
        (("--workers", "100000"), "workers 100000: choose 1 or more, and at most"),
    ],
)
def test_refused_before_anything_is_measured(
    tiny_bundle: Path, src: Path, arguments: tuple[str, str], message: str
) -> None:
    ran = run(tiny_bundle, "--src", src, *SMALL, *arguments)
    assert ran.exit_code == 2
    assert message in ran.stderr
    assert ran.stdout == ""


def test_what_is_read_is_not_written_over(tiny_bundle: Path, tmp_path: Path, src: Path, ref: Path) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(tiny_bundle, bundle)
    (tmp_path / "same.de").symlink_to(ref)
    (tmp_path / "hard.en").hardlink_to(src)
    before = {path: path.read_bytes() for path in (src, ref, bundle / "bundle.json")}
    for option, out in (
        ("--out", src),
        ("--out", tmp_path / "same.de"),
        ("--out", tmp_path / "hard.en"),
        ("--out", bundle / "bundle.json"),
        ("--plot", bundle / "full" / "p"),
    ):
        ran = run(bundle, "--src", src, "--ref", ref, *SMALL, option, out)
        assert ran.exit_code == 2, ran.output
        assert "would be written over" in ran.stderr
    assert before == {path: path.read_bytes() for path in before}
    both = ("--out", tmp_path / "p.svg", "--plot", tmp_path / "p")
    assert "which is --out's file too" in run(bundle, "--src", src, "--ref", ref, *SMALL, *both).stderr


@pytest.mark.parametrize("where", ["--json", "--out=out.json"])
def test_a_bundle_compiled_again_meanwhile_keeps_its_own_scores(
    tiny_bundle: Path, tmp_path: Path, src: Path, ref: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    bundle = tmp_path / "bundle"
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_bundle, bundle)

    plain = runner.record

    def compiled_again(bundle: Path, _: object) -> Manifest:
        with changed_manifest(Path(bundle)) as raw:
            raw["version"] = "another"
        return plain(bundle, _)  # type: ignore[arg-type]  # as given

    monkeypatch.setattr(runner, "record", compiled_again)
    ran = run(bundle, "--src", src, "--ref", ref, "--levels", "full", *SMALL, "--record", where)
    assert ran.exit_code == 2
    assert "has been compiled again since its levels were measured" in ran.stderr
    assert read_manifest(bundle).level("full").quality is None
    assert json.loads(ran.stdout if where == "--json" else Path("out.json").read_text())["levels"]  # not lost
