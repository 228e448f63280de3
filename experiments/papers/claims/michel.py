"""Michel et al. 2019, Are Sixteen Heads Really Better than One?, and the authors' article about it."""

from __future__ import annotations

from collections import Counter
from itertools import takewhile
from statistics import fmean

import numpy as np

from experiments.papers.claims.claim import (
    NOTICEABLE,
    SIGNIFICANT,
    Claim,
    Finding,
    Verdict,
    both,
    if_true,
    positive,
    without_loss,
)
from experiments.papers.readings import result
from experiments.papers.studies import Study
from hmc.artifact.model.heads import KINDS
from hmc.training.analysis.across.correlate import spearman
from hmc.training.analysis.common.records import ORDERS
from hmc.training.analysis.common.summary import probability

FEWEST_EPOCHS = 10
"""Epochs after which the paper's second regime begins."""


def _alone(study: Study) -> Finding:
    """Counts heads of the encoder, as the paper's table does."""
    every = result(study, "full", "ablate")["heads"]
    heads = [row["delta_bleu"] for row in every if row["kind"] == "encoder_self"]
    change = sum(row["p_value"] < SIGNIFICANT for row in heads)
    small = sum(row["low"] > -NOTICEABLE and row["high"] < NOTICEABLE for row in heads)
    sure = sum(row["delta_loss"]["p_value"] < SIGNIFICANT for row in every)
    wide = np.median([row["high"] - row["low"] for row in heads]) / 2
    ours = f"{change} of {len(heads)} heads of the encoder; of all {len(every)}, {sure} change the loss"
    basis = f"outputs of one model, p < {SIGNIFICANT}; intervals are about ±{wide:.1f} BLEU"
    most = len(heads) / 10
    verdict: Verdict = "does not hold" if change > most else "holds" if len(heads) - small <= most else "undecided"
    return Finding(ours, basis, verdict)


def _one_left(study: Study) -> Finding:
    layers = result(study, "full", "all-but-one")["layers"]
    found = Counter(without_loss(row["delta_bleu"]) for row in layers)
    lose, enough = found["does not hold"], found["holds"]
    ours = (
        f"of {len(layers)} attentions {enough} lose less than {NOTICEABLE} BLEU with one head, {lose} lose BLEU, "
        f"{len(layers) - lose - enough} cannot be told"
    )
    most = len(layers) / 2
    verdict: Verdict = "does not hold" if lose > most else "holds" if enough > most else "undecided"
    basis = f"outputs of one model, p < {SIGNIFICANT}; the head is chosen by loss on the same text"
    return Finding(ours, basis, verdict)


def _by_importance(study: Study) -> Finding:
    data = result(study, "full", "cumulative")
    share = 0.0
    for point in data["curves"][ORDERS[1]][1:]:
        if without_loss(point["delta_bleu"]) == "does not hold":
            break
        share = round(point["masked"] / data["heads"], 1)  # tenths are whole heads
    ours = f"{100 * share:.0f} % of the heads without a significant loss"
    return Finding(ours, f"outputs of one model, p < {SIGNIFICANT}", if_true(0.2 <= share < 1))


def _two_texts(study: Study) -> Finding:
    found = result(study, "full", "correlate")
    by_value, by_rank = found["pearson"], found["spearman"]
    low, high, p = by_value["low"], by_value["high"], probability(by_value["p_value"])
    ours = f"r = {by_value['value']:.2f} ({low:.2f} to {high:.2f}), p {p}; of ranks {by_rank['value']:.2f}"
    sure = positive(by_value) if by_value["p_value"] < SIGNIFICANT else "undecided"
    return Finding(ours, f"loss of every head of one model, p < {SIGNIFICANT}", sure)


def _cross(study: Study) -> Finding:
    """What one head alone costs in an attention, by kind: in BLEU and in nats, which must agree."""
    rows = result(study, "full", "all-but-one")["layers"]
    costs = {
        measured: {kind: sign * fmean(row[measured]["value"] for row in rows if row["kind"] == kind) for kind in KINDS}
        for measured, sign in (("delta_bleu", -1), ("delta_loss", 1))
    }
    bleu, loss = costs["delta_bleu"], costs["delta_loss"]
    last = next(row["delta_bleu"]["value"] for row in reversed(rows) if row["kind"] == "cross")
    ours = (
        f"BLEU {', '.join(f'{-value:+.2f}' for value in bleu.values())}, last layer of cross-attention {last:+.2f}; "
        f"loss {', '.join(f'{value:+.3f}' for value in loss.values())}"
    )
    most = [if_true(max(cost, key=lambda kind: cost[kind]) == "cross") for cost in (bleu, loss)]
    return Finding(ours, "counted, one model", both(*most))


def _within_kinds(study: Study) -> Finding:
    """Where BLEU is lowest with the last of five groups of one kind left, and all other heads open."""
    few = {kind: result(study, f"full/{kind}", "cumulative")["curves"][ORDERS[1]][-2]["bleu"] for kind in KINDS}
    *others, cross = few.values()
    ours = "with a fifth of encoder, decoder, cross: BLEU " + ", ".join(f"{each['value']:.1f}" for each in few.values())
    lowest = all(cross["high"] < other["low"] for other in others)
    verdict: Verdict = "holds" if lowest else "undecided"
    if any(cross["low"] > other["high"] for other in others):
        verdict = "does not hold"
    return Finding(ours, "outputs of one model, 95 % intervals", verdict)


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
        near = takewhile(lambda p: p["relative_bleu"] and p["relative_bleu"]["value"] >= 0.9, row["points"])
        shares.append(max((point["share"] for point in near), default=0.0))
    *epochs, end = shares
    first = ", ".join(f"{100 * share:.0f} %" for share in epochs[:3])
    ours = f"{first} after the first {min(3, len(epochs))} of {len(epochs)} epochs; {100 * end:.0f} % at the end"
    last = rows[-1]["points"][0]["bleu"]["value"]
    basis = f"one training of {study.size.epoch_updates} updates, which ends at {last:.1f} BLEU"
    enough = last >= study.size.least_bleu and len(epochs) >= FEWEST_EPOCHS
    return Finding(ours, basis, if_true(end >= 0.4 > shares[0]) if enough else "undecided")


CLAIMS = (
    Claim("Section 3.2, table 1", "masked alone, at most a tenth of the encoder's heads change BLEU",
          "8 of 96, half of them gain", "michel/ablate", _alone),
    Claim("Section 3.3, table 2", "in most attentions one head is enough", "most layers", "michel/all-but-one",
          _one_left),
    Claim("Section 3.3, table 2", "cross-attention needs several heads most",
          "BLEU of encoder, decoder, cross −0.31, +0.11, −2.50; last layer of cross-attention −13.56",
          "michel/all-but-one", _cross),
    Claim("Section 3.4, figure 2", "the effect of a head on two kinds of text correlates", "r = 0.56 (BLEU)",
          "michel/correlate", _two_texts),
    Claim("Section 4", "at least 20 % of the heads can be pruned by importance without loss, but not all",
          "20 % on WMT; up to 60 % in the article", "michel/cumulative", _by_importance),
    Claim("Section 4.1", "importance ranks heads as the loss without each does",
          "derived in the article, to first order", "michel/importance michel/ablate", _proxy),
    Claim("Section 4.3", "pruned heads make BERT faster", "up to 17.5 % more sentences a second",
          untestable="HMC has encoder–decoder models only; README has what removed heads save in them"),
    Claim("Section 5, figure 4", "pruned by importance within one kind, cross-attention suffers most",
          "about 30 BLEU with a fifth of the encoder's or decoder's heads, none with 40 % of cross-attention's",
          "michel/cumulative-", _within_kinds),
    Claim("Section 6, figure 5", "at first all heads matter alike; later 40 % can go for 10 to 15 % of BLEU",
          "from epoch 10 of 40; from epoch 3 in the article", "michel/epochs michel/profile", _course),
    Claim("Sections 3 and 4", "the same holds for BERT on MultiNLI", "12 layers of 12 heads",
          untestable="HMC has encoder–decoder models only"),
)  # fmt: skip
