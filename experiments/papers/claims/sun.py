"""Sun et al. 2021, Alleviating the Inequality of Attention Heads for Neural Machine Translation."""

from __future__ import annotations

from functools import partial

from experiments.papers.claims.claim import SIGNIFICANT, Claim, Finding, above, below, if_true
from experiments.papers.over_seeds import difference, ratio
from experiments.papers.readings import bleu, over, result, spread
from experiments.papers.studies import BASELINE, Study
from hmc.training.analysis.common.result import ORDERS


def _seeds(study: Study, *sides: list[float]) -> str:
    ours, theirs = map(len, sides)
    whole = len(study.size.seeds)
    return f"{whole} seeds each, t interval" if ours == theirs == whole else f"{ours} and {theirs} of {whole} seeds"


def _bleu(folder: str, least: float, study: Study) -> Finding:
    ours, theirs = over(study, folder, bleu), over(study, BASELINE, bleu)
    found = difference(ours, theirs)
    return Finding(f"ΔBLEU {found.text()}", _seeds(study, ours, theirs), above(found, least))


def _spread(of: str, study: Study, folder: str, seed: int) -> float:
    return spread(study, folder, seed)[of]


def _ratio(of: str, folder: str, study: Study) -> Finding:
    """Mean or variance of importance over heads, divided by that of the baseline."""
    ours, theirs = (over(study, each, partial(_spread, of)) for each in (folder, BASELINE))
    found = ratio(ours, theirs)
    return Finding(found.text(sign=""), _seeds(study, ours, theirs), below(found, 1.0))


def _groups(study: Study) -> Finding:
    rows = result(study, f"{BASELINE}-{study.size.seeds[0]}", "groups")["groups"]
    first, near = rows[0]["delta_bleu"], sum(row["delta_bleu"]["value"] > -1 for row in rows)
    true = (
        first["p_value"] < SIGNIFICANT and first["value"] == min(r["delta_bleu"]["value"] for r in rows) and near >= 4
    )
    ours = f"first group {first['value']:+.2f} BLEU; {near} of {len(rows)} groups cost less than 1"
    return Finding(ours, f"outputs of one baseline, p {first['p_value']:.3f}", if_true(true))


def _curves(study: Study) -> Finding:
    gap = result(study, f"{BASELINE}-{study.size.seeds[0]}", "cumulative")["gap"]["bleu"]
    return Finding(f"area between the curves {gap:.2f} BLEU", "outputs of one baseline", if_true(gap > 0))


def _top_group(study: Study, folder: str, seed: int) -> float:
    row = result(study, f"{folder}-{seed}", "groups")["groups"][0]
    return float(row["delta_bleu"]["value"])


def _maintained(folder: str, study: Study) -> Finding:
    ours, theirs = over(study, folder, _top_group), over(study, BASELINE, _top_group)
    found = difference(ours, theirs)
    text = f"ΔBLEU when masked, minus the baseline's: {found.text()}"
    return Finding(text, _seeds(study, ours, theirs), above(found))


def _curve(study: Study, folder: str, seed: int) -> float:
    """Mean BLEU, in per cent of that of all heads, as heads are masked, most important first."""
    points = result(study, f"{folder}-{seed}", "cumulative")["curves"][ORDERS[0]]
    whole = points[0]["bleu"]["value"]
    return 100 * sum(point["bleu"]["value"] for point in points[1:]) / len(points[1:]) / whole if whole else 0.0


def _robust(study: Study) -> Finding:
    ours, theirs = over(study, "random", _curve), over(study, BASELINE, _curve)
    found = difference(ours, theirs)
    text = f"mean BLEU of the curve, in % of all heads', minus the baseline's: {found.text(1)}"
    return Finding(text, _seeds(study, ours, theirs), above(found))


CLAIMS = (
    Claim("Tables 2–4", "Random-18 gains BLEU", "+0.27 to +0.87 on nine sets", "headmask/baseline headmask/random-",
          partial(_bleu, "random", 0.0)),
    Claim("Tables 2–4", "Impt-18 costs no BLEU", "−0.13 to +0.78 on nine sets", "headmask/baseline headmask/important",
          partial(_bleu, "important", -0.13)),
    Claim("Tables 2–4", "both gain in low-resource translation of several language pairs", "Ro, Vi, Tr, Zh",
          untestable="one language pair, and none of these corpora, is at hand; `--size gpu` takes any"),
    Claim("Table 5", "Random-18 lowers the variance of importance", "0.43 to 0.51 of the baseline's",
          "headmask/baseline headmask/random-", partial(_ratio, "variance", "random")),
    Claim("Table 5", "Impt-18 lowers it more", "0.11 to 0.14", "headmask/baseline headmask/important",
          partial(_ratio, "variance", "important")),
    Claim("Table 6", "Random-18 lowers the mean", "0.72 to 0.88", "headmask/baseline headmask/random-",
          partial(_ratio, "mean", "random")),
    Claim("Table 6", "Impt-18 lowers the mean", "0.70 to 1.06: in two of four rows",
          "headmask/baseline headmask/important", partial(_ratio, "mean", "important")),
    Claim("Table 6", "means of importance are 15 to 85", "18 to 84 for baselines",
          untestable="the paper gives no unit; in nats per sentence no head is near it, and only ratios compare"),
    Claim("Figure 1", "masking the most important eighth costs much, half of the groups almost nothing", "read off",
          "headmask/baseline-1", _groups),
    Claim("Figure 2", "masking from the important end costs more than from the other", "read off",
          "headmask/baseline-1", _curves),
    Claim("Figure 4", "with Random-18 the most important group can be masked", "read off",
          "headmask/baseline headmask/random-", partial(_maintained, "random")),
    Claim("Figure 4", "with Impt-18 too, and more steadily", "read off", "headmask/baseline headmask/important",
          partial(_maintained, "important")),
    Claim("Figure 5", "masking in training raises the curve that masks important heads first", "read off",
          "headmask/baseline headmask/random-", _robust),
)  # fmt: skip
