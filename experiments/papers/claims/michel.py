"""Michel et al. 2019, Are Sixteen Heads Really Better than One?, and the authors' article about it."""

from __future__ import annotations

import numpy as np

from experiments.papers.claims.claim import SIGNIFICANT, Claim, Finding, if_true, positive
from experiments.papers.readings import result
from experiments.papers.studies import Study
from hmc.training.analysis.across.correlate import spearman
from hmc.training.analysis.common.result import ORDERS
from hmc.training.analysis.common.summary import probability


def _alone(study: Study) -> Finding:
    heads = result(study, "full", "ablate")["heads"]
    worse = sum(row["delta_bleu"]["p_value"] < SIGNIFICANT and row["delta_bleu"]["value"] < 0 for row in heads)
    better = sum(row["delta_bleu"]["p_value"] < SIGNIFICANT and row["delta_bleu"]["value"] > 0 for row in heads)
    ours = f"{worse} of {len(heads)} heads cost BLEU, {better} gain it"
    return Finding(ours, f"outputs of one model, p < {SIGNIFICANT}", if_true(worse <= len(heads) / 10))


def _one_left(study: Study) -> Finding:
    layers = result(study, "full", "all-but-one")["layers"]
    kept = sum(not (x["delta_bleu"]["p_value"] < SIGNIFICANT and x["delta_bleu"]["value"] < 0) for x in layers)
    ours = f"one head is enough in {kept} of {len(layers)} attentions"
    return Finding(ours, f"outputs of one model, p < {SIGNIFICANT}", if_true(kept > 0))


def _by_importance(study: Study) -> Finding:
    data = result(study, "full", "cumulative")
    share = 0.0
    for point in data["curves"][ORDERS[1]][1:]:
        if point["delta_bleu"]["p_value"] < SIGNIFICANT and point["delta_bleu"]["value"] < 0:
            break
        share = point["masked"] / data["heads"]
    ours = f"{100 * share:.0f} % of the heads without a significant loss"
    return Finding(ours, f"outputs of one model, p < {SIGNIFICANT}", if_true(0.1 <= share < 1))


def _two_texts(study: Study) -> Finding:
    found = result(study, "full", "correlate")["pearson"]
    ours = f"r = {found['value']:.2f} ({found['low']:.2f} to {found['high']:.2f}), p {probability(found['p_value'])}"
    return Finding(ours, "Δ loss of every head of one model", positive(found))


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
    ours = f"heads that can go for 10 % of BLEU: {first} after the first epochs, {100 * shares[-1]:.0f} % at the end"
    return Finding(ours, "one training", if_true(shares[-1] >= 0.4 > shares[0]))


CLAIMS = (
    Claim("Section 3.2", "few heads matter when masked alone", "very few", "michel/ablate", _alone),
    Claim("Section 3.3", "in some attentions one head is enough", "a few layers", "michel/all-but-one", _one_left),
    Claim("Section 3.4", "the effect of a head on two kinds of text correlates", "positive, linear", "michel/correlate",
          _two_texts),
    Claim("Section 4", "many heads can be pruned by importance without loss, but not all", "up to 60 %",
          "michel/cumulative", _by_importance),
    Claim("Section 4.1", "importance ranks heads as masking each does", "first-order approximation",
          "michel/importance michel/ablate", _proxy),
    Claim("Section 5", "at first all heads matter alike; soon 40 % can go for 10 % of BLEU", "from epoch 3",
          "michel/epochs michel/profile", _course),
    Claim("Sections 3 and 4", "the same holds for BERT on MultiNLI", "12 layers of 12 heads",
          untestable="HMC has encoder–decoder models only"),
)  # fmt: skip
