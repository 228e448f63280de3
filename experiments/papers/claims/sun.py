"""Sun et al. 2021, Alleviating the Inequality of Attention Heads for Neural Machine Translation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from experiments.papers.claims.claim import SIGNIFICANT, Claim, Finding, above, below, if_true
from experiments.papers.over_seeds import difference, ratio
from experiments.papers.readings import bleu, over, result, spread
from experiments.papers.studies import BASELINE, Study
from hmc.training.analysis.common.result import ORDERS


def _seeds(ours: list[float], theirs: list[float]) -> str:
    numbers = f"{len(ours)} seeds each" if len(ours) == len(theirs) else f"{len(ours)} and {len(theirs)} seeds"
    return f"{numbers}, t interval"


def _bleu(folder: str, least: float, study: Study, to: str = BASELINE) -> Finding:
    ours, theirs = over(study, folder, bleu), over(study, to, bleu)
    found = difference(ours, theirs)
    return Finding(f"ΔBLEU {found.text()}", _seeds(ours, theirs), above(found, least))


def _spread(of: str, study: Study, folder: str, seed: int) -> float:
    return spread(study, folder, seed)[of]


def _ratio(of: str, folder: str, to: str, study: Study) -> Finding:
    """Mean or variance of importance over heads, divided by that of another way to train."""
    ours, theirs = (over(study, each, partial(_spread, of)) for each in (folder, to))
    found = ratio(ours, theirs)
    text = found.text(sign="") + (f" of {to.capitalize()}'s" if to != BASELINE else "")
    return Finding(text, _seeds(ours, theirs), below(found, 1.0))


def _groups(study: Study) -> Finding:
    rows = result(study, f"{BASELINE}-{study.size.seeds[0]}", "groups")["groups"]
    first, near = rows[0]["delta_bleu"], sum(row["delta_bleu"]["value"] > -1 for row in rows)
    true = (
        first["p_value"] < SIGNIFICANT and first["value"] == min(r["delta_bleu"]["value"] for r in rows) and near >= 3
    )
    ours = f"first group {first['value']:+.2f} BLEU; {near} of {len(rows)} groups cost less than 1"
    return Finding(ours, f"outputs of one baseline, p {first['p_value']:.3f}", if_true(true))


def _curves(study: Study) -> Finding:
    gap = result(study, f"{BASELINE}-{study.size.seeds[0]}", "cumulative")["gap"]["bleu"]
    return Finding(f"area between the curves {gap:.2f} BLEU", "outputs of one baseline", if_true(gap > 0))


def _top_group(study: Study, folder: str, seed: int) -> float:
    """BLEU without the most important group of heads."""
    return float(result(study, f"{folder}-{seed}", "groups")["groups"][0]["bleu"]["value"])


def _curve(study: Study, folder: str, seed: int) -> float:
    """Mean BLEU as heads are masked, most important first."""
    points = result(study, f"{folder}-{seed}", "cumulative")["curves"][ORDERS[0]]
    return sum(float(point["bleu"]["value"]) for point in points[1:]) / len(points[1:])


def _whole(study: Study, folder: str, seed: int) -> float:
    """BLEU with all heads, of the same sentences."""
    return float(result(study, f"{folder}-{seed}", "groups")["full"]["bleu"]["value"])


def _masked(read: Callable[[Study, str, int], float], what: str, folder: str, to: str, study: Study) -> Finding:
    """BLEU with heads masked, minus that of another way to train. What is worse than the baseline with all heads cannot
    hold."""
    ours, theirs = (over(study, each, read) for each in (folder, to))
    found, lost = difference(ours, theirs), difference(*(over(study, each, _whole) for each in (folder, BASELINE)))
    name = "the baseline" if to == BASELINE else to.capitalize()
    text = f"{what}, minus {name}'s: {found.text()}; with all heads {lost.value:+.2f} to the baseline"
    return Finding(text, _seeds(ours, theirs), "does not hold" if lost.high < 0 else above(found))


BOTH, IMPT = "headmask/baseline headmask/random-", "headmask/baseline headmask/random- headmask/important"
"""Steps of claims on Random, and on Impt. The first baseline is scored beside Random."""
GROUP, CURVE = partial(_masked, _top_group, "BLEU when masked"), partial(_masked, _curve, "mean BLEU of the curve")
CLAIMS = (
    Claim("Tables 2–4", "Random-18 gains BLEU", "+0.27 to +0.87 on nine sets", BOTH, partial(_bleu, "random", 0.0)),
    Claim("Tables 2–4", "Impt-18 costs at most 0.13 BLEU", "−0.13 to +0.78 on nine sets", IMPT,
          partial(_bleu, "important", -0.13)),
    Claim("Section 4.2", "Random-18 is better than Impt-18", "“obviously”: +0.23 on average of nine sets", IMPT,
          partial(_bleu, "random", 0.0, to="important")),
    Claim("Tables 2–4", "both gain in low-resource translation of several language pairs", "Ro, Vi, Tr, Zh",
          untestable="one language pair, and none of these corpora, is at hand; `--size gpu` takes any"),
    Claim("Table 5", "Random-18 lowers the variance of importance", "0.43 to 0.51 of the baseline's", BOTH,
          partial(_ratio, "variance", "random", BASELINE)),
    Claim("Table 5", "Impt-18 lowers it more", "0.11 to 0.14; 0.21 to 0.29 of Random's", IMPT,
          partial(_ratio, "variance", "important", "random")),
    Claim("Table 6", "Random-18 lowers the mean", "0.72 to 0.88", BOTH, partial(_ratio, "mean", "random", BASELINE)),
    Claim("Table 6", "Impt-18 lowers the mean", "0.70 to 1.06: in two of four rows", IMPT,
          partial(_ratio, "mean", "important", BASELINE)),
    Claim("Tables 5 and 6", "with Random-18 the deviation of importance falls faster than its mean",
          "deviation / mean: 0.80 to 0.91 of the baseline's", BOTH, partial(_ratio, "relative", "random", BASELINE)),
    Claim("Tables 5 and 6", "so it does with Impt-18", "0.32 to 0.49", IMPT,
          partial(_ratio, "relative", "important", BASELINE)),
    Claim("Table 6", "means of importance are 15 to 85", "18 to 84 for baselines",
          untestable="the paper gives no unit; in nats per sentence no head is near it, and only ratios compare"),
    Claim("Figure 1", "masking the most important eighth costs most, almost half of the groups less than 1 BLEU",
          "read off", "headmask/baseline-1", _groups),
    Claim("Figure 2", "masking from the important end costs more than from the other", "read off",
          "headmask/baseline-1", _curves),
    Claim("Figure 4", "with Random-18 the most important group can be masked: BLEU is above the baseline's then",
          "read off", BOTH, partial(GROUP, "random", BASELINE)),
    Claim("Figure 4", "with Impt-18 more steadily: BLEU is above Random's then", "read off", IMPT,
          partial(GROUP, "important", "random")),
    Claim("Figure 5", "masking in training raises the curve that masks important heads first", "read off", BOTH,
          partial(CURVE, "random", BASELINE)),
)  # fmt: skip
