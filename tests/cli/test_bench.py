"""`hmc bench`."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.benchmark import fakes
from tests.command import done, refused, run_hmc
from tests.manifests import changed_manifest
from typer.testing import Result

from hmc.artifact import Manifest, read_manifest
from hmc.benchmark import runner
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings


def run(*arguments: str | Path) -> Result:
    return run_hmc(["bench", *arguments])


SMALL = ("--batch", "1,2", "--beam", "2", "--rounds", "1", "--threads", "1", "--no-memory")


def test_contract_then_table_then_files(tiny_bundle: Path, tmp_path: Path, src: Path, ref: Path) -> None:
    bundle, out = tmp_path / "bundle", tmp_path / "out.json"
    shutil.copytree(tiny_bundle, bundle)
    ran = run(
        bundle,
        "--source",
        src,
        "--reference",
        ref,
        *SMALL,
        "--out",
        out,
        "--plot",
        tmp_path / "picture.svg",
        "--record",
    )
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.startswith("Timed: ")
    assert ran.stdout.index("Not timed: ") < ran.stdout.index("BLEU ") < ran.stdout.index("Latency of a request")
    assert "round 1 of 1" in ran.stderr
    assert json.loads(out.read_text(encoding="utf-8"))["schema_version"] == 2
    assert (tmp_path / "picture.svg").read_text().startswith("<svg")
    level = read_manifest(bundle).level("h5")
    assert level.quality is not None
    assert level.latency is not None


def test_files_that_are_replaced_are_named_before_the_measurement(
    tiny_bundle: Path, tmp_path: Path, src: Path, ref: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = replace(fakes.whole_report(), began="2026-11-28T10:00:00+00:00")
    monkeypatch.setattr(runner, "run_benchmark", lambda *_, **__: report)
    where = (tiny_bundle, "--source", src, "--reference", ref)
    files = ("-o", tmp_path / "r.json", "--html", tmp_path / "r.html", "--plot", tmp_path / "p.svg")
    assert "replaced" not in done(run(*where, *files)).stderr
    said = " ".join(done(run(*where, *files)).stderr.split())
    place = tmp_path / "r.json"
    assert f"--out {place}: the report on {report.bundle.path} of {report.began} will be replaced at the end" in said
    assert f"--html {tmp_path / 'r.html'}: the existing file will be replaced at the end" in said
    assert f"--plot {tmp_path / 'p.svg'}: the existing file will be replaced at the end" in said


def test_json_on_standard_output_is_all_there_is(tiny_bundle: Path, src: Path) -> None:
    ran = done(run(tiny_bundle, "--source", src, "--levels", "full, h5", *SMALL, "--json"))
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
        (("--plot", "p.svg"), "--plot shows BLEU against speed: give references with --reference FILE"),
        (("--reference", "missing.de"), "missing.de: no such file"),
        (("--plot", "p.png"), "--plot p.png: the picture is SVG; give a name that ends in .svg"),
        (("--threads", "99999999999"), "threads 99999999999: choose 0 (one per physical core) or more, and at most"),
        (("--workers", "100000"), "workers 100000: choose 0 (as measured) or more, and at most"),
    ],
)
def test_refused_before_anything_is_measured(
    tiny_bundle: Path, src: Path, arguments: tuple[str, str], message: str
) -> None:
    ran = refused(run(tiny_bundle, "--source", src, *SMALL, *arguments), message)
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
        ("--plot", bundle / "full" / "p.svg"),
    ):
        refused(run(bundle, "--source", src, "--reference", ref, *SMALL, option, out), "would overwrite")
    assert before == {path: path.read_bytes() for path in before}
    both = ("--out", tmp_path / "p.svg", "--plot", tmp_path / "p.svg")
    assert "which is --out's file too" in run(bundle, "--source", src, "--reference", ref, *SMALL, *both).stderr


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
    ran = run(bundle, "--source", src, "--reference", ref, "--levels", "full", *SMALL, "--record", where)
    assert ran.exit_code == 2
    assert "has been compiled again since its levels were measured" in ran.stderr
    assert read_manifest(bundle).level("full").quality is None
    assert json.loads(ran.stdout if where == "--json" else Path("out.json").read_text())["levels"]  # not lost


def test_run_may_be_said_or_left_out(tiny_bundle: Path, src: Path) -> None:
    for words in ((), ("run",)):
        done(run(*words, tiny_bundle, "--source", src, "--levels", "h5", *SMALL, "--json"))
    assert "compare" in run("--help").stdout
    assert run().exit_code == 2


def test_a_page_and_two_reports_that_are_compared(tiny_bundle: Path, tmp_path: Path, src: Path, ref: Path) -> None:
    two = ("--batch", "1", "--beam", "2", "--rounds", "3", "--threads", "1", "--no-memory", "--levels", "full")
    a, b, html = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "page.html"
    done(run(tiny_bundle, "--source", src, "--reference", ref, *two, "-o", a, "--html", html))
    assert html.read_text(encoding="utf-8").startswith("<!doctype html>")
    report = json.loads(a.read_text(encoding="utf-8"))
    for at in report["levels"][0]["latency"]:
        at["samples_ms"] = [[2 * ms for ms in times] for times in at["samples_ms"]]
    b.write_text(json.dumps(report), encoding="utf-8")
    same = run("compare", a, a)
    assert same.exit_code == 0
    assert "Nothing is known to be worse." in same.stdout
    slower = run("compare", a, b, "--noise", "0")
    assert "+100.0%" in slower.stdout
    assert run("compare", a, b, "--noise", "500").exit_code == 0
    listed = run("compare", a, b, "--json")
    assert json.loads(listed.stdout)["times"][0]["change"] == pytest.approx(1.0, abs=0.001)
    assert run("compare", a, src).exit_code == 2


def test_worse_is_an_exit_code(tmp_path: Path) -> None:
    for name, factor in (("a", 1.0), ("b", 1.5)):
        report = fakes.whole_report()
        rounds = tuple((first * factor, 2 * factor) for first in (1.0, 1.0, 1.01))
        at = replace(report.levels[0].latency[0], samples_ms=rounds)
        levels = (replace(report.levels[0], latency=(at,)),)
        changed = replace(report, levels=levels, peers=(), conditions=replace(report.conditions, rounds=3))
        (tmp_path / name).write_text(changed.to_json(), encoding="utf-8")
    ran = run("compare", tmp_path / "a", tmp_path / "b")
    assert (ran.exit_code, ran.stdout.splitlines()[-1][:44]) == (3, "Worse: full at batch 1, beam 4 takes +50.0%.")
    assert run("compare", tmp_path / "b", tmp_path / "a").exit_code == 0


def test_load_on_a_server(tiny_bundle: Path, tmp_path: Path, src: Path) -> None:
    times, out = tmp_path / "times", tmp_path / "load.json"
    times.write_text("0\n0.01\n0.02\n", encoding="utf-8")
    with BackgroundServer(tiny_bundle, ServerSettings(port=0, levels=("h5",), device="cpu", threads=1)) as server:
        where = ("load", "--server", server.address, "--source", src, "--beam", "1", "--objective", "60000")
        ran = done(run(*where, "--level", "h5", "--arrivals", times, "-o", out))
        assert "Load on h5, times arrivals, beam 1" in ran.stdout
        assert run(*where, "--level", "h7").exit_code == 2
        assert "--rate '1,x': write numbers with commas" in run(*where, "--rate", "1,x").stderr
    written = json.loads(out.read_text(encoding="utf-8"))
    assert [point["answered"] for point in written["points"]] == [3]


def test_a_named_set_is_read_where_it_is_and_never_fetched(
    tiny_bundle: Path, tmp_path: Path, src: Path, ref: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SACREBLEU", str(tmp_path / "sets"))
    manifest = read_manifest(tiny_bundle)
    pair = f"{manifest.source_language}-{manifest.target_language}"
    small = (*SMALL, "--levels", "full", "--json")
    missing = run(tiny_bundle, "--test-set", "wmt20", *small)
    assert missing.exit_code == 2
    assert "is not on this machine, and hmc downloads nothing; `sacrebleu -t wmt20 -l" in missing.stderr
    (tmp_path / "sets" / "wmt20").mkdir(parents=True)
    for field, file in (("src", src), ("ref", ref)):
        shutil.copy(file, tmp_path / "sets" / "wmt20" / f"wmt20.{pair}.{field}")
    ran = done(run(tiny_bundle, "--test-set", "wmt20", *small))
    assert json.loads(ran.stdout)["conditions"]["test_set"] == "wmt20"
    assert "sacreBLEU has no set of this name" in run(tiny_bundle, "--test-set", "wmt1820", *small).stderr
    assert "give sentences with --source FILE" in run(tiny_bundle, *small).stderr
