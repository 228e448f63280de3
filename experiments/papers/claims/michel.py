"""Michel et al. 2019, Are Sixteen Heads Really Better than One?, and the authors' article about it."""

from __future__ import annotations

import numpy as np

from experiments.papers.claims.claim import SIGNIFICANT, Claim, Finding, if_true, positive
from experiments.papers.readings import result
from experiments.papers.studies import Study
from hmc.artifact.model.heads import KINDS
from hmc.training.analysis.across.correlate import spearman
from hmc.training.analysis.common.result import ORDERS
from hmc.training.analysis.common.summary import probability


def _alone(study: Study) -> Finding:
    heads = result(study, "full", "ablate")["heads"]
    worse = sum(row["delta_bleu"]["p_value"] < SIGNIFICANT and row["delta_bleu"]["value"] < 0 for row in heads)
    better = sum(row["delta_bleu"]["p_value"] < SIGNIFICANT and row["delta_bleu"]["value"] > 0 for row in heads)
    sure = sum(row["delta_loss"]["p_value"] < SIGNIFICANT for row in heads)
    ours = f"{worse} of {len(heads)} heads cost BLEU, {better} gain it; {sure} change the loss"
    wide = np.median([row["delta_bleu"]["high"] - row["delta_bleu"]["low"] for row in heads]) / 2
    basis = f"outputs of one model, p < {SIGNIFICANT}; intervals are about ±{wide:.1f} BLEU"
    return Finding(ours, basis, if_true(worse + better <= len(heads) / 10))


def _one_left(study: Study) -> Finding:
    layers = result(study, "full", "all-but-one")["layers"]
    kept = sum(not (x["delta_bleu"]["p_value"] < SIGNIFICANT and x["delta_bleu"]["value"] < 0) for x in layers)
    same = sum(not x["delta_loss"]["p_value"] < SIGNIFICANT for x in layers)
    ours = f"one head costs no significant BLEU in {kept} of {len(layers)} attentions, no significant loss in {same}"
    return Finding(ours, f"outputs of one model, p < {SIGNIFICANT}", if_true(kept > 0))


def _by_importance(study: Study) -> Finding:
    data = result(study, "full", "cumulative")
    share = 0.0
    for point in data["curves"][ORDERS[1]][1:]:
        if point["delta_bleu"]["p_value"] < SIGNIFICANT and point["delta_bleu"]["value"] < 0:
            break
        share = round(point["masked"] / data["heads"], 1)  # tenths are whole heads
    ours = f"{100 * share:.0f} % of the heads without a significant loss"
    return Finding(ours, f"outputs of one model, p < {SIGNIFICANT}", if_true(0.2 <= share < 1))


def _two_texts(study: Study) -> Finding:
    found = result(study, "full", "correlate")
    by_value, by_rank = found["pearson"], found["spearman"]
    ours = f"r = {by_value['value']:.2f}, p {probability(by_value['p_value'])}; of ranks {by_rank['value']:.2f}"
    sure = positive(by_value) if by_value["p_value"] < SIGNIFICANT else "undecided"
    return Finding(ours, f"Δ loss of every head of one model, p < {SIGNIFICANT}", sure)


def _cross(study: Study) -> Finding:
    """What one head alone costs in an attention, by kind."""
    rows = result(study, "full", "all-but-one")["layers"]
    found = {kind: [row["delta_bleu"]["value"] for row in rows if row["kind"] == kind] for kind in KINDS}
    means = {kind: sum(values) / len(values) for kind, values in found.items() if values}
    ours = "BLEU with one head, mean of layers: " + ", ".join(
        f"{kind.replace('_', ' ')} {value:+.2f}" for kind, value in means.items()
    )
    return Finding(ours, "counted, one model", if_true(min(means, key=lambda kind: means[kind]) == "cross"))


def _proxy(study: Study) -> Finding:
    importance = [row["importance"] for row in result(study, "full", "importance")["heads"]]
    alone = [row["delta_loss"]["value"] for row in result(study, "full", "ablate")["heads"]]
    found = spearman(np.array(importance), np.array(alone), 1)
    ours = f"rank correlation {found.value:.2f} ({found.low:.2f} to {found.high:.2f})"
    return Finding(ours, "heads of one model", positive(found.to_json()))


def _course(study: Study) -> Finding:
    """The share of heads that can go for a tenth of BLEU, after the first epochs and at the end."""
    rows = result(study, "epochs", "profile")["checkpoints"]
    shares = []
    for row in rows:
        within = [p["share"] for p in row["points"] if p["relative_bleu"] and p["relative_bleu"]["value"] >= 0.9]
        shares.append(max(within, default=0.0))
    first = ", ".join(f"{100 * share:.0f} %" for share in shares[:3])
    end = f"{100 * shares[-1]:.0f} % at the end"
    ours = f"heads that can be masked for 10 % of BLEU: {first} after epochs 1, 2 and 3; {end}"
    last = rows[-1]["points"][0]["bleu"]["value"]
    basis = f"one training of {study.size.epoch_updates} updates, which ends at {last:.1f} BLEU"
    verdict = if_true(shares[-1] >= 0.4 > shares[0]) if last >= study.size.least_bleu else "undecided"
    return Finding(ours, basis, verdict)


CLAIMS = (
    Claim("Section 3.2", "masked alone, at most a tenth of the heads change BLEU", "8 of 96 heads, half of them gain",
          "michel/ablate", _alone),
    Claim("Section 3.3", "in some attentions one head is enough", "most layers", "michel/all-but-one", _one_left),
    Claim("Sections 3.3 and 5", "cross-attention needs several heads most", "read off", "michel/all-but-one", _cross),
    Claim("Section 3.4", "the effect of a head on two kinds of text correlates", "positive, linear", "michel/correlate",
          _two_texts),
    Claim("Section 4", "at least 20 % of the heads can be pruned by importance without loss, but not all",
          "20 % on WMT; up to 60 % in the article", "michel/cumulative", _by_importance),
    Claim("Section 4.1", "importance ranks heads as masking each does", "first-order approximation",
          "michel/importance michel/ablate", _proxy),
    Claim("Section 4.3", "pruned heads make BERT faster", "up to 17.5 % more sentences a second",
          untestable="HMC has encoder–decoder models only; README has what removed heads save in them"),
    Claim("Section 6", "at first all heads matter alike; later 40 % can go for 10 % of BLEU",
          "from epoch 3 in the article", "michel/epochs michel/profile", _course),
    Claim("Sections 3 and 4", "the same holds for BERT on MultiNLI", "12 layers of 12 heads",
          untestable="HMC has encoder–decoder models only"),
)  # fmt: skip
