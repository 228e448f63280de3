"""The study of the papers: steps run once and in order, statistics over seeds, claims and their steps, the page."""

from __future__ import annotations

import json
import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from experiments.papers import page
from experiments.papers.__main__ import main
from experiments.papers.claims import sun
from experiments.papers.claims.claim import Claim, Finding, above, below
from experiments.papers.over_seeds import Difference, difference, mean, ratio
from experiments.papers.readings import NotRunError, over
from experiments.papers.sizes import SIZES
from experiments.papers.steps import EACH, Driver, Step, keep, left_of, restore, some_of
from experiments.papers.studies import VARIANTS, Study, check_same, settings
from tests.processes import REPOSITORY
from tests.tiny import tiny_architecture, tiny_checkpoint_at

from hmc.artifact import InvalidRequestError
from hmc.benchmark.measure.validity import student
from hmc.training import HeadMaskSpec, load_recipe

STAND_IN = """
import sys
from pathlib import Path
*words, out = sys.argv[1:]
if "fail" in words:
    sys.exit(3)
Path(out).write_text(" ".join(words))
"""
"""In place of `hmc`: writes its arguments to the last of them."""


def driver(folder: Path) -> Driver:
    return Driver(folder, (sys.executable, "-c", STAND_IN), {"slow": 30.0})


def study(folder: Path, size: str = "papers") -> Study:
    return Study(SIZES[size], folder, Path("data"))


def test_steps_run_once_and_what_needs_a_failed_one_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, whole, failed, last = (tmp_path / name for name in ("a-1", "whole", "failed", "last"))
    steps = [
        Step("one", "slow", ("x", str(first)), first),
        Step("each", "quick", (f"{EACH}{tmp_path}/a-*", "y", str(whole)), whole, (first,)),
        Step("bad", "slow", ("fail", str(failed)), failed),
        Step("after", "slow", ("z", str(last)), last, (failed,)),
        Step("refused", "slow", ("z", str(last)), tmp_path / "other", refused=lambda: "not now"),
    ]
    assert driver(tmp_path).plan(steps)[-1] == "left: 5 steps, about 2.0 h"
    assert driver(tmp_path).run(steps) == 1
    assert first.read_text() == "x"
    assert whole.read_text() == f"{first} y"
    errors = capsys.readouterr().err
    assert "bad: exit status 3" in errors
    assert f"after: needs {failed}" in errors
    assert "refused: not now" in errors
    first.write_text("kept")
    assert driver(tmp_path).run(steps[:2]) == 0
    assert first.read_text() == "kept"
    assert set(driver(tmp_path).times()) == {"one", "each"}
    assert "slow: 1 of 4 done" in driver(tmp_path).plan(steps)[0]


def test_a_training_whose_results_are_kept_is_not_made_again(tmp_path: Path) -> None:
    runs, kept = tmp_path / "runs", tmp_path / "kept"
    values, groups = runs / "measure/a-1/sentence/importance.json", runs / "measure/a-1/groups.json"
    trained, score = runs / "train/a-1/final", runs / "score/a/bundle.json"
    steps = [
        Step("train", "slow", ("x", str(trained)), trained, weights=True),
        Step("score", "quick", ("y", str(score)), score.parent, (trained,)),
        Step("importance", "quick", ("z", str(values)), values, (trained,)),
        Step("groups", "quick", ("z", str(groups)), groups, (trained, values)),
    ]
    first = runs / "train/baseline-1/final/weights"
    for path in (score, values, groups, trained / "weights", trained.parent / "log.jsonl", first):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.name)
    assert left_of(steps) == []
    keep(runs, kept)
    shutil.rmtree(runs)
    assert left_of(steps) == steps
    restore(kept, runs)
    assert left_of(steps) == []
    assert {p.relative_to(kept).as_posix() for p in kept.rglob("*") if p.is_file()} == {
        "score/a/bundle.json", "measure/a-1/groups.json", "measure/a-1/sentence/importance.json",
        "train/a-1/log.jsonl", "train/baseline-1/final/weights",
    }  # fmt: skip
    assert not (runs / "train/a-1").exists(), "a training goes on in a folder that has logs"
    assert first.read_text() == "weights", "everything starts from the first baseline"
    groups.write_text("newer")
    restore(kept, runs)
    assert groups.read_text() == "newer"
    values.unlink()
    assert left_of(steps) == steps, "weights that are made again are other weights"
    (trained / "weights").parent.mkdir(parents=True)
    assert [step.name for step in left_of(steps)] == ["importance"]


def test_no_step_begins_after_the_minutes(tmp_path: Path) -> None:
    steps = [Step("one", "quick", ("x", str(tmp_path / "one")), tmp_path / "one")]
    assert driver(tmp_path).run(steps, minutes=-1) == 0
    assert not (tmp_path / "one").exists()


def test_steps_that_need_nothing_of_each_other_run_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first two wait for each other's file; the third is begun when the first has ended."""
    meet = "import sys, time\nfrom pathlib import Path\nout, other = map(Path, sys.argv[1:])\nout.touch()\n"
    together = Driver(tmp_path, (sys.executable, "-c", meet + "while not other.exists(): time.sleep(0.01)"), {})
    a, b, c, lost = (tmp_path / name for name in ("a", "b", "c", "lost"))
    steps = [
        Step("a", "slow", (str(a), str(b)), a),
        Step("after", "slow", (str(c), str(a)), c, (a,)),
        Step("b", "slow", (str(b), str(a)), b),
        Step("never", "slow", (str(c), str(a)), c, (lost,)),
    ]
    assert together.run(steps, jobs=2) == 1
    begun = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("[")]
    assert sorted(begun[:2]) == ["a", "b"]
    assert begun[2:] == ["after"]
    assert set(together.times()) == {"a", "b", "after"}


def test_a_choice_of_steps_brings_what_they_need(tmp_path: Path) -> None:
    steps = study(tmp_path).steps()
    chosen = [step.name for step in some_of(steps, ["headmask/random-2/score"])]
    assert chosen == [f"headmask/{name}" for name in (
        "baseline-1/train", "random-2/train", "random-2/score")]  # fmt: skip
    assert some_of(steps, []) == steps


@pytest.mark.parametrize("size", SIZES)
def test_steps_are_in_order_and_recipes_can_be_read(size: str, tmp_path: Path) -> None:
    found = study(tmp_path, size)
    made: list[Path] = []
    for step in found.steps():
        assert step.makes not in made, step.name
        for need in step.needs:
            assert need in made, (step.name, need)
        made.append(step.makes)
        if step.arguments[0] == "train":
            words = iter(step.arguments[2:])
            settings = [next(words) for word in words if word == "--set"]
            recipe = load_recipe(REPOSITORY / step.arguments[1], settings)
            assert recipe.model.heads == found.size.heads
            assert recipe.model.encoder_layers == recipe.model.decoder_layers == found.size.layers
    for variant in VARIANTS:
        if mask := variant.mask(found.size):
            HeadMaskSpec.parse(mask)


@pytest.mark.parametrize("size", SIZES)
def test_all_trainings_have_batches_of_one_size(size: str, tmp_path: Path) -> None:
    sizes = set()
    for step in study(tmp_path, size).steps():
        if step.arguments[0] == "train":
            words = iter(step.arguments[2:])
            train = load_recipe(
                REPOSITORY / step.arguments[1], [next(words) for word in words if word == "--set"]
            ).train
            sizes.add(train.batch_tokens * train.accumulate)
            assert train.accumulate == (4 if "/part-" in step.name else 1)
    assert sizes == {SIZES[size].batch_tokens}


def test_a_given_model_is_studied_in_place_of_the_baseline(tmp_path: Path) -> None:
    given = Study(SIZES["papers"], tmp_path, Path("data"), Path("shipped"))
    names = {step.name for step in given.steps()}
    assert not any("scratch" in name for name in names), "its recipe is not known"
    [pruning] = [step for step in given.steps() if step.name == "voita/prune-1"]
    assert pruning.arguments[:2] == ("prune", "shipped")


def test_nothing_is_measured_on_a_baseline_that_may_ignore_its_source(tmp_path: Path) -> None:
    papers = study(tmp_path)
    (papers.model).mkdir(parents=True)
    for bleu, refused in ((10.0, True), (29.0, False)):
        (papers.model / "metrics.json").write_text(json.dumps({"dev": {"bleu": bleu}}))
        for name in ("headmask/random-1/train", "michel/ablate", "voita/prune-1", "voita/lrp"):
            [step] = [step for step in papers.steps() if step.name == name]
            assert (step.refused() is not None) is refused, name


def test_what_is_done_for_one_model_is_not_done_for_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept, runs = tmp_path / "kept", tmp_path / "runs"
    for name in ("measure/full/ablate.json", "train/baseline-1/final/weights"):
        (kept / "papers" / name).parent.mkdir(parents=True, exist_ok=True)
        (kept / "papers" / name).write_text("{}")
    options = ["--size", "papers", "--runs", str(runs), "--kept", str(kept), "michel/ablate"]
    assert main(["plan", *options]) == 0
    assert "done  michel/ablate" in capsys.readouterr().out
    mine, small = tmp_path / "mine" / "final", tmp_path / "small" / "final"
    tiny_checkpoint_at(mine, arch=tiny_architecture(encoder_layers=6, decoder_layers=6, heads=8, head_dim=4))
    tiny_checkpoint_at(small)
    assert main(["plan", *options, "--model", str(mine)]) == 0
    assert "left  michel/ablate" in capsys.readouterr().out
    assert (runs / "papers-mine-final/train/baseline-1/final/weights").exists(), "what trains begins with its tokenizer"
    with pytest.raises(InvalidRequestError, match=r"must have 6 \+ 6 layers of 8 heads"):
        main(["plan", *options, "--model", str(small)])


def test_results_of_other_settings_or_text_are_not_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def texts(folder: Path, of: Study, longer: str = "") -> Study:
        for text in replace(of, data=folder).texts():
            for name in text.split():
                Path(name).parent.mkdir(parents=True, exist_ok=True)
                Path(name).write_text("text" + longer * ("train" in name))
        return replace(of, data=folder)

    mine = texts(tmp_path / "data", study(tmp_path / "runs"))
    file = tmp_path / "settings.json"
    check_same(mine, file)
    file.write_text(json.dumps(settings(mine)))
    check_same(replace(mine, size=replace(mine.size, says="again", minutes={"train": 1.0})), file)
    check_same(replace(mine, data=tmp_path / "elsewhere"), file)  # such as `page` where no text is
    with pytest.raises(InvalidRequestError, match="has results of another bytes of texts: choose another --runs"):
        check_same(texts(tmp_path / "other", mine, "more"), file)
    with pytest.raises(InvalidRequestError, match="has results of another size"):
        check_same(replace(mine, size=replace(mine.size, updates=7)), file)
    with pytest.raises(SystemExit):
        main(["run", "--data", str(tmp_path / "none"), "--runs", str(tmp_path / "r"), "--kept", str(tmp_path / "k")])
    assert "val.de.gz" in capsys.readouterr().err, "what is missing is said before anything is run"


def test_the_page_of_the_project_is_not_of_tiny_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["page", "--runs", str(tmp_path), "--kept", str(tmp_path / "kept")])
    assert "docs/reproduction.md is of --size papers" in capsys.readouterr().err


def test_a_model_that_lost_bleu_does_not_stand_masks_better(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """30 without its most important heads, where the baseline has 15; but 20 with all heads, where that has 31."""
    bleu = {"important": (30.0, 20.0), "random": (25.0, 31.5), "baseline": (15.0, 31.0)}

    def over(_study: Study, folder: str, read: object) -> list[float]:
        value = bleu[folder][read is sun._whole]
        return [value - 0.1, value, value + 0.1]

    monkeypatch.setattr(sun, "over", over)
    judge = {name: sun.GROUP(name, "baseline", study(tmp_path)).verdict for name in ("important", "random")}
    assert judge == {"important": "not comparable", "random": "holds"}


def test_the_command_says_what_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["plan", "--size", "papers", "--runs", str(tmp_path), "--kept", str(tmp_path / "kept"), "michel/ablate"])
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["left  headmask/baseline-1/train", "left  michel/ablate"]
    assert lines[-1].startswith("left: 2 steps, about ")
    with pytest.raises(SystemExit):
        main(["plan", "nothing-of-that-name"])


def test_every_claim_names_steps_that_exist_or_says_why_not(tmp_path: Path) -> None:
    steps = study(tmp_path).steps()
    for claims in page.CLAIMS.values():
        for claim in claims:
            assert bool(claim.untestable) != bool(claim.judge), claim.claim
            if claim.judge:
                for word in claim.steps.split():
                    assert some_of(steps, [word]), (claim.claim, word)
                with pytest.raises(NotRunError):
                    claim.judge(study(tmp_path))


def test_differences_over_seeds_by_hand() -> None:
    """Variances 8 and 2 of two seeds each: standard error √(8/2 + 2/2), Welch's degrees of freedom 25 / 17."""
    found = difference([2.0, 6.0], [1.0, 3.0])
    assert found.value == 2
    assert found.high - 2 == pytest.approx(12.706 * math.sqrt(5))
    many = difference([2.0, 6.0, 4.0, 4.0, 4.0], [1.0, 3.0, 2.0, 2.0, 2.0])  # 2 and 0.5; degrees 0.25 / 0.0425
    assert many.high - 2 == pytest.approx(2.571 * math.sqrt(0.5))
    assert difference([2.0, 2.0], [1.0, 1.0]) == Difference(1.0, 1.0, 1.0)
    alone = difference([5.0], [1.0, 3.0])
    assert alone.high - alone.value == pytest.approx(12.706 * math.sqrt(2 * 1.5))
    assert math.isinf(difference([5.0], [3.0]).high)
    assert "one seed each" in difference([5.0], [3.0]).text()
    both = ratio([2.0, 8.0], [1.0, 1.0])
    assert both.value == pytest.approx(4)
    assert both.low < 1 < both.high
    centre = mean([1.0, 2.0, 3.0])
    assert centre.value == 2
    assert centre.high - 2 == pytest.approx(4.303 / math.sqrt(3))
    quantiles = [student(freedom) for freedom in range(1, 40)]
    assert quantiles == sorted(quantiles, reverse=True)
    assert quantiles[-1] == pytest.approx(2.023, abs=5e-4)  # 39 degrees of freedom


def test_seeds_that_were_run_count_without_the_others(tmp_path: Path) -> None:
    def read(_study: Study, _folder: str, seed: int) -> int:
        if seed > 2:
            raise NotRunError(str(seed))
        return 10 * seed

    def none(_study: Study, _folder: str, seed: int) -> int:
        raise NotRunError(str(seed))

    assert over(study(tmp_path), "random", read) == [10, 20]
    with pytest.raises(NotRunError, match="3"):
        over(study(tmp_path), "random", none)
    seeds = {name: over(study(tmp_path), name, lambda _, __, seed: seed) for name in ("important", "signed", "token")}
    assert seeds == {"important": [1, 2, 3, 4], "signed": [1, 2, 3], "token": [1]}


def test_verdicts_are_decided_where_the_interval_is_on_one_side() -> None:
    assert [above(Difference(0.5, *ends)) for ends in ((0.1, 1), (-1, -0.1), (-1, 1))] == [
        "holds", "does not hold", "undecided",
    ]  # fmt: skip
    assert below(Difference(0.5, 0.4, 0.6), 1.0) == "holds"
    assert below(Difference(0.5, 0.4, 1.6), 1.0) == "undecided"
    assert below(Difference(1.5, 1.4, 1.6), 1.0) == "does not hold"


def test_the_page_says_what_is_run_and_what_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (
        Claim("Table 1", "it is so", "9", "michel", lambda _: Finding("8", "3 seeds", "undecided")),
        Claim("Table 2", "it is more so", "9", "michel/ablate", page.CLAIMS["michel"][0].judge),
        Claim("Table 3", "it is so elsewhere", "9", untestable="there is no elsewhere"),
        Claim("Table 4", "so it is from scratch", "9", "no/such", lambda _: Finding("8", "3 seeds", "undecided")),
    )
    monkeypatch.setitem(page.CLAIMS, "sun", rows)
    given = replace(study(tmp_path / "runs"), given=Path("model"))
    text = (REPOSITORY / "docs" / "reproduction.md").read_text(encoding="utf-8")
    (tmp_path / "page.md").write_text(text, encoding="utf-8")
    page.write(given, "papers", tmp_path / "page.md")
    written = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "| it is so (table 1) | 9 | 8 | 3 seeds | undecided |" in written
    assert "| it is more so (table 2) | 9 | – | run `michel/ablate` | not run |" in written
    assert "| it is so elsewhere (table 3) | 9 | – | there is no elsewhere | cannot be tested here |" in written
    assert [row["verdict"] for row in json.loads((tmp_path / "runs" / "results.json").read_text())["sun"]] == [
        "undecided", "not run", "cannot be tested here", "cannot be tested here",
    ]  # fmt: skip
    (tmp_path / "page.md").write_text("<!-- table: luck -->\n<!-- end -->\n")
    with pytest.raises(InvalidRequestError, match="table luck: unknown"):
        page.write(study(tmp_path / "runs"), "papers", tmp_path / "page.md")


def test_the_page_is_what_the_kept_results_give(tmp_path: Path) -> None:
    kept = REPOSITORY / "experiments" / "papers" / "results" / "papers"
    restore(kept, tmp_path / "papers")
    again = tmp_path / "reproduction.md"
    shutil.copyfile(REPOSITORY / "docs" / "reproduction.md", again)
    page.write(Study(SIZES["papers"], tmp_path / "papers", Path("data"), None, kept), "papers", again)
    assert again.read_text(encoding="utf-8") == (REPOSITORY / "docs" / "reproduction.md").read_text(encoding="utf-8")
    figures = {file.name for file in (tmp_path / "reproduction").iterdir()}
    assert figures == {file.name for file in (REPOSITORY / "docs" / "reproduction").iterdir()}


def test_what_another_machine_trained_stands_beside_its_own_baselines(tmp_path: Path) -> None:
    kept = REPOSITORY / "experiments" / "papers" / "results"
    ours, theirs = (Study(SIZES[name], kept / name, tmp_path) for name in ("papers", "papers-h200"))
    table, alone = page.headmask({"": ours, ", H200": theirs}), page.headmask({"": theirs})
    rows = [line.replace(", H200", "") for line in table.splitlines() if ", H200" in line]
    assert rows == [line for line in alone.splitlines() if line.startswith(("| baseline", "| Random", "| Impt"))]
    assert len(rows) > 5
