"""Results of pruning: remaining heads by kind and layer, BLEU against open heads, gates over time."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from tests.artifact.model.test_latency import table, whole
from tests.support.files import write_pair
from tests.tiny import SENTENCES, tiny_checkpoint_at
from tests.training.analysis.helpers import scored_bundle
from tests.training.pruning.test_run_inputs import SETTINGS

from hmc.artifact import HeadLayout, InvalidRequestError, read_manifest
from hmc.artifact.bundle.manifest import write_manifest
from hmc.artifact.model.ffn import parse_neuron_budgets
from hmc.artifact.model.heads import KINDS
from hmc.training import PruneRequest, PruningRun
from hmc.training.analysis.across import budgets, survivors, trajectory
from hmc.training.analysis.common.records import HeadImportance, ImportanceData, MeanAndRange, Overlap
from hmc.training.analysis.common.result import Result, write_result
from hmc.training.analysis.common.subject import Subject, Text
from hmc.training.analysis.figures.pruning import draw_trajectory
from hmc.training.analysis.masking import importance
from hmc.training.pruning.stages import LatencyGoal, LatencyPlan

A = HeadLayout.from_json({"encoder_self": [[0, 1], [2]], "decoder_self": [[0, 1, 2], []], "cross": [[1], [0, 3]]})
B = HeadLayout.from_json({"encoder_self": [[1, 3], [2, 3]], "decoder_self": [[3], []], "cross": [[1, 2], [0, 3]]})
SMALL = HeadLayout.from_json({"encoder_self": [[1], []], "decoder_self": [[], []], "cross": [[], [3]]})


@pytest.fixture(scope="module")
def pruned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints of layouts A and B, of 9 heads each, and SMALL, of 2."""
    folder = tmp_path_factory.mktemp("pruned")
    for name, layout in (("a", A), ("b", B), ("small", SMALL)):
        tiny_checkpoint_at(folder / name, layout=layout)
    return {name: folder / name for name in ("a", "b", "small")}


def test_survivors_by_budget_kind_and_layer(pruned: dict[str, Path]) -> None:
    data = survivors.analyse([pruned["small"], pruned["a"], pruned["b"]]).data
    nine, two = data.budgets
    assert (nine.heads, nine.checkpoints, two.heads, two.checkpoints) == (9, 2, 2, 1)
    assert nine.kinds["encoder_self"] == MeanAndRange(mean=3.5, least=3.0, most=4.0)
    assert nine.kinds["decoder_self"] == MeanAndRange(mean=2.0, least=1.0, most=3.0)
    assert [layer.mean for layer in nine.layers["cross"]] == [1.5, 2.0]
    assert nine.without_heads == MeanAndRange(mean=1.0, least=1.0, most=1.0)
    assert two.without_heads.mean == 4.0
    assert two.agreement is None, "one checkpoint has no other to agree with"
    assert sum(nine.kinds[kind].mean for kind in KINDS) == 9


def test_shared_heads_are_set_against_what_numbers_by_layer_explain(pruned: dict[str, Path]) -> None:
    # Shared: encoder_self.0.1, encoder_self.1.2, cross.0.1, cross.1.0 and cross.1.3. By chance: Σ |a| · |b| / 4.
    assert survivors.shared(A, B, 4) == (5, (2 * 2 + 1 * 2 + 3 * 1 + 0 + 1 * 2 + 2 * 2) / 4)
    data = survivors.analyse([pruned["a"], pruned["b"]]).data
    assert data.budgets[0].agreement == Overlap(shared=5.0, by_chance=3.75)
    full = HeadLayout.full(2, 2, 4)
    assert survivors.shared(full, A, 4) == (9, 9.0), (
        "where every head of a layer is kept, chance explains all that is shared"
    )


def test_survivors_among_the_most_important_heads(pruned: dict[str, Path], tmp_path: Path) -> None:
    heads = [*A.heads(), *(head for head in HeadLayout.full(2, 2, 4).heads() if head not in set(A.heads()))]
    rows = [HeadImportance(**asdict(head), importance=-rank) for rank, head in enumerate(heads)]
    source = survivors.analyse([pruned["a"]]).checkpoints
    data = ImportanceData(heads=rows, all=importance.spread(np.arange(24.0)), kinds={})
    scores = write_result(Result(command="importance", checkpoints=source, data=data), tmp_path)
    found = survivors.analyse([pruned["a"], pruned["small"]], scores).data.budgets
    assert found[0].most_important is not None
    assert found[0].most_important.shared == 9.0
    assert found[1].most_important == Overlap(shared=1.0, by_chance=0.5), "of encoder_self.0.0 and encoder_self.0.1"
    fewer = data.model_copy(update={"heads": rows[:8]})
    few = write_result(Result(command="importance", checkpoints=source, data=fewer), tmp_path / "few")
    with pytest.raises(InvalidRequestError, match=r"the scores lack cross\.1\.3"):
        survivors.analyse([pruned["a"]], few)


@pytest.mark.parametrize(("layers", "heads"), [(3, 4), (2, 5), (1, 4), (2, 3)])
def test_scores_of_another_architecture_are_refused(
    pruned: dict[str, Path], tmp_path: Path, layers: int, heads: int
) -> None:
    layout = HeadLayout.full(layers, layers, heads)
    data = ImportanceData(
        layout=layout.to_json(),
        heads_per_layer=heads,
        heads=[HeadImportance(**asdict(head), importance=1.0) for head in layout.heads()],
        all=importance.spread(np.ones(1)),
        kinds={},
    )
    source = survivors.analyse([pruned["small"]]).checkpoints
    scores = write_result(Result(command="importance", checkpoints=source, data=data), tmp_path)
    with pytest.raises(InvalidRequestError, match=r"another architecture: .* have 2 \+ 2 layers of 4 heads"):
        survivors.analyse([pruned["small"]], scores)


def test_a_ranking_measured_on_a_checkpoint_serves(subject: Subject, text: Text, tmp_path: Path) -> None:
    scores = write_result(importance.analyse(subject, text), tmp_path)
    (only,) = survivors.analyse([subject.path], scores).data.budgets
    assert only.most_important is not None
    assert only.most_important.shared == subject.layout.total


def test_survivors_refuses_what_cannot_be_counted_together(pruned: dict[str, Path], uneven_checkpoint: Path) -> None:
    with pytest.raises(InvalidRequestError, match="are the same checkpoint; give each of them once"):
        survivors.analyse([pruned["a"], pruned["a"]])
    with pytest.raises(InvalidRequestError, match="different architectures"):
        survivors.analyse([pruned["a"], uneven_checkpoint])
    with pytest.raises(InvalidRequestError, match="one or more checkpoints"):
        survivors.analyse([])


def test_levels_of_as_many_heads_make_a_point(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = scored_bundle(tiny_bundle, tmp_path / "b", {"full": 30.0, "h12": 28.5, "h5": 20.0})
    manifest = read_manifest(bundle)
    twin = manifest.level("h12").model_copy(deep=True)
    assert twin.quality is not None
    twin.name, twin.quality.bleu, twin.quality.bleu_delta = "h12-other-seed", 29.5, -0.5
    manifest.levels.append(twin)
    write_manifest(manifest, bundle)
    result = budgets.analyse({"L0": bundle})
    twin.parameters //= 2
    write_manifest(manifest, bundle)
    with pytest.raises(InvalidRequestError, match="h12 and h12-other-seed have equal heads, and other neurons"):
        budgets.analyse({"L0": bundle})
    points = result.data.series["L0"].points
    assert [point.heads for point in points] == [24, 12, 5]
    assert points[1].bleu == MeanAndRange(mean=29.0, least=28.5, most=29.5)
    assert points[1].bleu_delta.mean == -1.0
    assert result.settings["beam"] == 4
    rows = budgets.summary(result).rows
    assert rows[0] == ("L0", "24", "1", "30.00", "–", "–", "–")
    assert rows[1] == ("L0", "12", "2", "29.00", "28.50 to 29.50", "-1.00", "–")
    assert rows[2] == ("L0", "5", "1", "20.00", "–", "-10.00 (-10.50 to -9.50)", "0.010")


def test_scores_that_cannot_be_compared_are_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    one = scored_bundle(tiny_bundle, tmp_path / "one", {"full": 30.0})
    other = scored_bundle(tiny_bundle, tmp_path / "other", {"full": 30.0}, beam=1)
    with pytest.raises(
        InvalidRequestError, match="beam is 1, but 4 in the first level: these scores cannot be compared"
    ):
        budgets.analyse({"one": one, "other": other})
    with pytest.raises(InvalidRequestError, match="has no level in fp16; it has fp32"):
        budgets.analyse({"one": one}, "fp16")
    with pytest.raises(InvalidRequestError, match="level full has no scores; compile the bundle with a test set"):
        budgets.analyse({"one": tiny_bundle})
    with pytest.raises(InvalidRequestError, match="one or more bundles"):
        budgets.analyse({})


def point(stage: int, step: int, opened: float, **more: float) -> dict[str, float]:
    return {"stage": stage, "step": step, "loss": 2.0, "open": opened, "unsettled": 3.0, **more}


def test_updates_are_counted_through_the_closing_stages(tmp_path: Path) -> None:
    kinds = {f"open/{kind}": 4.0 for kind in KINDS}
    points = [
        point(0, 50, 20.0, budget=19.0, **kinds),
        point(0, 100, 16.0, budget=16.0, **kinds),
        point(2, 50, 12.0, budget=10.0, **kinds),
        point(2, 100, 10.0, budget=10.0, **kinds),
    ]
    points[-1]["unsettled"] = 0.0
    (tmp_path / "trajectory.json").write_text(json.dumps(points))
    result = trajectory.analyse({"run": tmp_path / "trajectory.json"})
    found = result.data.runs["run"].points
    assert [p.update for p in found] == [50, 100, 150, 200]
    assert [len(stage) for stage in trajectory.stages(found)] == [2, 2]
    assert trajectory.summary(result).rows == (
        ("run", "1", "100", "16", "16.0", "4.0", "4.0", "4.0", "3", "3"),
        ("run", "2", "200", "10", "10.0", "4.0", "4.0", "4.0", "3", "0"),
    )


def test_the_lambda_form_has_no_budget(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps([point(0, 50, 20.0, **{"open/encoder_self": 20.0})]))
    result = trajectory.analyse({"λ": tmp_path / "t.json"})
    assert trajectory.summary(result).rows == (("λ", "1", "50", "–", "20.0", "20.0", "–", "–", "3", "3"),)


@pytest.mark.parametrize("content", ["[]", "{}", '[{"stage": 0}]', "[3]"])
def test_what_is_no_trajectory_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "t.json").write_text(content)
    with pytest.raises(InvalidRequestError, match=r"not a trajectory\.json of hmc prune"):
        trajectory.analyse({"t": tmp_path / "t.json"})
    (tmp_path / "t.json").write_text("{")
    with pytest.raises(InvalidRequestError, match="not JSON"):
        trajectory.analyse({"t": tmp_path / "t.json"})
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        trajectory.analyse({"t": tmp_path / "none.json"})


@pytest.mark.parametrize("asked", ["neurons", "both", "latency"])
def test_a_trajectory_of_every_kind_of_budget(tmp_path: Path, asked: str) -> None:
    """The files are those that runs of `hmc prune` write."""
    corpus = write_pair(tmp_path / "text", SENTENCES * 2)
    tiny_checkpoint_at(tmp_path / "c")
    neurons = parse_neuron_budgets("" if asked == "latency" else "50%")
    plan = None
    if asked == "latency":
        plan = LatencyPlan(table(), (LatencyGoal("2x", table().ms(whole()) / 2),))
    PruningRun(
        PruneRequest(
            tmp_path / "c",
            [9] if asked == "both" else [],
            [corpus],
            corpus,
            tmp_path / "p",
            SETTINGS,
            neurons,
            latency=plan,
        )
    ).run()
    result = trajectory.analyse({asked: tmp_path / "p" / "trajectory.json"})
    expected = {"neurons": ["neurons"], "both": ["heads", "neurons"], "latency": ["heads", "latency_ms"]}
    assert set(expected[asked]) <= set(trajectory.quantities(result.data.runs.values()))
    table_of = trajectory.summary(result)
    assert len(table_of.rows) == 1
    assert len(table_of.rows[0]) == len(table_of.columns)
    assert ("latency ms" in table_of.columns) == (asked == "latency")
    assert "neurons" in table_of.columns
    assert [path.suffix for path in draw_trajectory(result, tmp_path)] == [".svg", ".png"]


def test_tables_of_results_need_no_pytorch() -> None:
    modules = "across.budgets", "across.compare", "across.trajectory", "across.survivors", "figures.pruning"
    imports = "; ".join(f"import hmc.training.analysis.{module}" for module in modules)
    check = f"import sys; sys.modules['torch'] = None; {imports}"
    finished = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
