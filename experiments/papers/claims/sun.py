"""Sun et al. 2021, Alleviating the Inequality of Attention Heads for Neural Machine Translation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from experiments.papers.claims.claim import NOTICEABLE, SIGNIFICANT, Claim, Finding, above, below, both, if_true
from experiments.papers.over_seeds import Difference, difference, ratio
from experiments.papers.readings import bleu, over, result, spread
from experiments.papers.studies import BASELINE, Study
from hmc.training.analysis.common.records import ORDERS


def _seeds(ours: list[float], theirs: list[float]) -> str:
    numbers = f"{len(ours)} seeds each" if len(ours) == len(theirs) else f"{len(ours)} and {len(theirs)} seeds"
    return f"{numbers}, t interval"


def _bleu(folder: str, least: float, study: Study, to: str = BASELINE) -> Finding:
    ours, theirs = over(study, folder, bleu), over(study, to, bleu)
    found = difference(ours, theirs)
    return Finding(f"ΔBLEU {found.text()}", _seeds(ours, theirs), above(found, least))


def spread_ratio(study: Study, of: str, folder: str, to: str, how: str) -> tuple[list[float], list[float], Difference]:
    """A value of `spread` of each seed of two ways to train, and the ratio of their means. how: importance as
    measured."""
    ours, theirs = (over(study, each, lambda at, name, seed: spread(at, name, seed, how)[of]) for each in (folder, to))
    return ours, theirs, ratio(ours, theirs)


def _ratio(of: str, folder: str, to: str, study: Study) -> Finding:
    """Importance of heads divided by that of another way to train. The paper does not say how it measures it: two ways
    must agree."""
    ours, theirs, found = spread_ratio(study, of, folder, to, "sentence")
    _, _, per_token = spread_ratio(study, of, folder, to, "token")
    of_whom = f" of {to.capitalize()}'s" if to != BASELINE else ""
    text = f"{found.text(sign='')}{of_whom}; per token {per_token.text(sign='')}"
    return Finding(text, _seeds(ours, theirs), both(below(found, 1.0), below(per_token, 1.0)))


def _groups(study: Study) -> list[Mapping[str, float]]:
    """What masking each group of heads costs the first baseline, the most important group first."""
    rows = result(study, f"{BASELINE}-{study.size.seeds[0]}", "groups")["groups"]
    return [row["delta_bleu"] for row in rows]


def _first_group(study: Study) -> Finding:
    first, *others = _groups(study)
    near = min(row["value"] for row in others)
    true = first["p_value"] < SIGNIFICANT and first["value"] < near
    ours = f"{first['value']:+.2f} BLEU; other groups down to {near:+.2f}"
    return Finding(ours, f"outputs of one baseline, p {first['p_value']:.3f}", if_true(true))


def _cheap_groups(study: Study) -> Finding:
    rows = _groups(study)
    cheap = sum(row["value"] > -1 for row in rows)
    return Finding(f"{cheap} of {len(rows)} groups", "counted, outputs of one baseline", if_true(cheap >= 3))


def _curves(study: Study) -> Finding:
    curves = result(study, f"{BASELINE}-{study.size.seeds[0]}", "cumulative")["curves"]
    pairs = [(a["bleu"], b["bleu"]) for a, b in zip(*(curves[order][1:-1] for order in ORDERS), strict=True)]
    apart = [b["value"] - a["value"] for a, b in pairs]
    ours = f"from the other end {min(apart):.1f} to {max(apart):.1f} BLEU more, as heads are masked"
    lower = all(b["low"] > a["high"] for a, b in pairs)
    return Finding(ours, "outputs of one baseline; no intervals meet", if_true(lower))


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
    """BLEU with heads masked, minus that of another way to train. Not comparable is a model that is worse than the
    baseline with all heads."""
    ours, theirs = (over(study, each, read) for each in (folder, to))
    found, lost = difference(ours, theirs), difference(*(over(study, each, _whole) for each in (folder, BASELINE)))
    name = "the baseline" if to == BASELINE else to.capitalize()
    text = f"{what}, minus {name}'s: {found.text()}; with all heads {lost.value:+.2f} to the baseline"
    return Finding(text, _seeds(ours, theirs), "not comparable" if lost.value < -NOTICEABLE else above(found))


BOTH, IMPT = "headmask/baseline headmask/random-", "headmask/baseline headmask/random- headmask/important"
"""Steps of claims on Random, and on Impt. The first baseline is scored beside Random."""
GROUP, CURVE = partial(_masked, _top_group, "BLEU when masked"), partial(_masked, _curve, "mean BLEU of the curve")
CLAIMS = (
    Claim("Tables 2–4", "Random-18 gains BLEU", "+0.27 to +0.87 on nine sets", BOTH, partial(_bleu, "random", 0.0)),
    Claim("Tables 2–4", "Impt-18 costs at most 0.13 BLEU, and gains except on Vi–En", "−0.13 to +0.78 on nine sets",
          IMPT, partial(_bleu, "important", -0.13)),
    Claim("Section 4.2", "Random-18 is better than Impt-18", "“obviously”: +0.23 on average of nine sets", IMPT,
          partial(_bleu, "random", 0.0, to="important")),
    Claim("Section 4.1", "so it is for four language pairs, three of them with little text",
          "133 000 to 1.34 million pairs",
          untestable="the study is of one pair; `--size gpu` takes any"),
    Claim("Table 5", "Random-18 lowers the variance of importance", "0.43 to 0.51 of the baseline's", BOTH,
          partial(_ratio, "variance", "random", BASELINE)),
    Claim("Table 5", "Impt-18 lowers the variance", "0.11 to 0.14", IMPT,
          partial(_ratio, "variance", "important", BASELINE)),
    Claim("Table 5", "Impt-18 lowers it more than Random-18", "0.21 to 0.29 of Random's", IMPT,
          partial(_ratio, "variance", "important", "random")),
    Claim("Table 6", "Random-18 lowers the mean", "0.72 to 0.88", BOTH, partial(_ratio, "mean", "random", BASELINE)),
    Claim("Table 6", "Impt-18 lowers the mean", "0.70 to 1.06: in two of four columns", IMPT,
          partial(_ratio, "mean", "important", BASELINE)),
    Claim("Tables 5 and 6", "with Random-18 the deviation of importance falls faster than its mean",
          "deviation / mean, computed from both: 0.80 to 0.91 of the baseline's", BOTH,
          partial(_ratio, "relative", "random", BASELINE)),
    Claim("Tables 5 and 6", "so it does with Impt-18", "0.32 to 0.49", IMPT,
          partial(_ratio, "relative", "important", BASELINE)),
    Claim("Table 6", "means of importance are 15 to 85", "18 to 84 for baselines",
          untestable="the paper gives no unit; in nats per sentence no head is near it, and only ratios compare"),
    Claim("Section 2, figure 1", "masking the most important eighth costs most", "figure", "headmask/baseline-1",
          _first_group),
    Claim("Section 2, figure 1", "almost half of the groups make almost no difference",
          "figure; here 3 of 8 must cost less than 1 BLEU", "headmask/baseline-1", _cheap_groups),
    Claim("Section 2, figure 2", "masking from the important end costs more than from the other", "figure",
          "headmask/baseline-1", _curves),
    Claim("Section 4.3.2, figure 4", "with Random-18 quality is kept where the most important group is masked",
          "figure; here it must be above the baseline's", BOTH, partial(GROUP, "random", BASELINE)),
    Claim("Section 4.3.2, figure 4", "with Impt-18 more so", "figure; here it must be above Random's", IMPT,
          partial(GROUP, "important", "random")),
    Claim("Section 4.3.3, figure 5", "masking in training raises the curve that masks important heads first", "figure",
          BOTH, partial(CURVE, "random", BASELINE)),
    Claim("Section 4.3.3, figure 5", "so it does with Impt-18", "figure", IMPT, partial(CURVE, "important", BASELINE)),
)  # fmt: skip
