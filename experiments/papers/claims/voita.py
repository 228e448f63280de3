"""Voita et al. 2019, Analyzing Multi-Head Self-Attention."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.papers.claims.claim import NOTICEABLE, Claim, Finding, above, below, if_true, positive
from experiments.papers.over_seeds import Difference, difference, mean
from experiments.papers.readings import NotRunError, bleu, over, quality, result
from experiments.papers.studies import BASELINE, HALF, Study
from hmc.artifact.model.heads import KINDS, AttentionKind
from hmc.training.analysis.across.correlate import ranks, spearman
from hmc.training.analysis.roles.roles import role_label

PAPER = {75: (29.62, 29.47), 58: (29.36, 28.95), 36: (29.06, 28.56), 26: (28.90, 28.41)}
"""Table 2, WMT: heads → BLEU of pruning and from scratch; the baseline has 29.6."""


RARE = 0.5
"""Share of sentences in which a head for rare words points to one of the two rarest."""


def pruned(study: Study, heads: int) -> list[float]:
    """BLEU of pruning to a budget minus that of the model that is pruned, for every seed that was run. Raises
    NotRunError if none was."""
    return _changes(study, "prune", f"h{heads}")


def controls(study: Study, heads: int) -> list[float]:
    """BLEU after as many updates as pruning to a budget takes, with hardly a head closed, minus that before them; for
    every seed that was run. Raises NotRunError if none was."""
    size = study.size
    nearly = size.nearly_all(size.total, size.budgets)[size.budgets.index(heads)]
    return _changes(study, "control", f"h{nearly}")


def _changes(study: Study, name: str, level: str) -> list[float]:
    found = list[float]()
    for seed in study.size.seeds:
        with suppress(NotRunError):  # not every control has every budget
            found.append(quality(study, f"voita-{name}-{seed}", level).bleu_delta)
    if not found:
        raise NotRunError(f"voita-{name}")
    return found


def _all_kinds(place: int, bound: float, study: Study) -> Finding:
    """place: of the budget among those of all kinds."""
    heads = study.size.budgets[place]
    ours, trained = pruned(study, heads), controls(study, heads)
    found = difference(ours, trained)
    basis = f"prunings of one model: {len(ours)}, controls of {study.size.controls}: {len(trained)}; t interval"
    text = f"{heads} of {study.size.total} heads: {found.text()} BLEU; before the updates {fmean(ours):+.2f}"
    return Finding(text, basis, above(found, bound))


def _scratch(study: Study) -> Finding:
    found = {n: quality(study, f"voita-scratch{n}", "scratch") for n in study.size.budgets}
    ours = ", ".join(f"{n}: {q.bleu_delta:+.2f}" for n, q in found.items())
    value = fmean(q.bleu_delta for q in found.values())
    baselines = over(study, BASELINE, bleu)
    noise = mean(baselines)
    reach = (noise.high - noise.value) * (len(baselines) / len(found)) ** 0.5  # as if each layout had a seed of its own
    apart = Difference(value, value - reach, value + reach)
    basis = f"{len(found)} layouts of one pruning, nested, each trained once; t interval by the noise of the baselines"
    return Finding(f"{ours}; mean {apart.text()}", basis, below(apart))


def _encoder(place: int, bound: float, study: Study) -> Finding:
    """BLEU with few heads in the encoder, minus that after as many updates with nearly all. place: of the budget among
    those of the encoder."""
    heads = study.size.encoder_budgets[place]
    found = quality(study, f"voita-prune-enc{heads}", "pruned")
    cost = Difference(found.bleu_delta, found.ci_low, found.ci_high)
    empty = study.size.layers - len({row["layer"] for row in _roles(study, f"enc{heads}")})
    ours = f"{heads}: {cost.text()} BLEU" + (f"; {empty} of {study.size.layers} layers are empty" if empty else "")
    return Finding(ours, "outputs of one pruning and one control", above(cost, bound))


def _survivors(study: Study) -> Mapping[str, Any]:
    """Heads that stay after each pruning."""
    return result(study, "survivors", "survivors")


def _kinds(first: bool, study: Study) -> Finding:
    """first: whether the encoder's heads go first; else whether cross-attention's stay longest."""
    left = {b["heads"]: [b["kinds"][kind]["mean"] for kind in KINDS] for b in _survivors(study)["budgets"]}
    ours = "; ".join(f"{n}: {'/'.join(f'{x:.0f}' for x in row)}" for n, row in left.items())
    _, decoder, cross = left[min(left)]
    true = all(row[0] == min(row) for row in left.values()) if first else cross >= decoder
    basis = f"means of {len(study.size.seeds)} prunings of one model"
    return Finding(f"encoder/decoder/cross at {ours}", basis, if_true(true))


def _layers(kind: AttentionKind, study: Study) -> Finding:
    """Heads of the lower half of the layers minus those of the upper half, summed over the budgets of each seed."""
    middle = study.size.layers // 2
    budgets: dict[int, list[int]] = {}  # of each, the seeds in their order
    for one in _survivors(study)["layouts"]:
        apart = sum(map(len, one[kind][:middle])) - sum(map(len, one[kind][middle:]))
        budgets.setdefault(sum(len(layer) for each in KINDS for layer in one[each]), []).append(apart)
    found = mean([sum(seed) for seed in zip(*budgets.values(), strict=True)])
    verdict = above(found) if kind == "decoder_self" else below(found)
    ours = f"lower minus upper half, summed over budgets: {found.text(0)}"
    return Finding(ours, f"{len(study.size.seeds)} prunings of one model, t interval", verdict)


def _roles(study: Study, name: str) -> list[Mapping[str, Any]]:
    heads = result(study, f"roles-{name}", "roles")["heads"]
    return [row for row in heads if row["kind"] == "encoder_self"]


def _functions(study: Study) -> Finding:
    found = {
        name: {role_label(role) for row in _roles(study, name) for role in row["roles"]}
        for name in ("full", *(f"enc{n}" for n in study.size.encoder_budgets))
    }
    middle = f"enc{study.size.encoder_budgets[min(1, len(study.size.encoder_budgets) - 1)]}"
    ours = "; ".join(f"{name}: {', '.join(sorted(labels)) or 'none'}" for name, labels in found.items())
    verdict = if_true(found["full"] <= found[middle]) if found["full"] else "undecided"
    return Finding(ours, "one pruning of the encoder", verdict)


def _last_pruned(study: Study) -> Finding:
    """Share of heads with a role among all, and among those that stay."""
    few = study.size.encoder_budgets[min(1, len(study.size.encoder_budgets) - 1)]
    shares = {
        name: fmean(bool(row["roles"]) for row in _roles(study, name)) if _roles(study, name) else 0.0
        for name in ("full", f"enc{few}")
    }
    ours = "; ".join(f"{name}: {100 * share:.0f} % have a role" for name, share in shares.items())
    verdict = if_true(shares[f"enc{few}"] > shares["full"]) if shares["full"] else "undecided"
    return Finding(ours, "one pruning of the encoder", verdict)


def _relations(study: Study) -> Finding:
    """The best head by relation and direction, and the best fixed position: % of both directions, head/position."""
    best: dict[str, dict[str, tuple[float, float]]] = {}
    for row in _roles(study, "full"):
        for task in row["syntax"]:
            ways, way = best.setdefault(task["relation"], {}), task["direction"]
            ways[way] = max(ways.get(way, (0.0, 0.0)), (task["accuracy"], task["baseline"]))
    both = {name: [f"{100 * head:.0f}/{100 * base:.0f}" for head, base in ways.values()] for name, ways in best.items()}
    ours = "head/position: " + ", ".join(f"{name} {' and '.join(scores)}" for name, scores in both.items())
    better = [head > base for ways in best.values() for head, base in ways.values()]
    return Finding(ours, "one model, gold trees", if_true(all(better)))


def _rare(study: Study) -> Finding:
    first = [row for row in _roles(study, "full") if row["layer"] == 0]
    best = max(first, key=lambda row: row["rare_words"]["two_rarest"])["rare_words"]
    rarest, two, chance = (100 * best[name] for name in ("rarest", "two_rarest", "chance"))
    ours = f"{rarest:.0f} % rarest, {two:.0f} % one of the two rarest (by chance {chance:.0f} %)"
    return Finding(ours, "best head of the first layer, one model", if_true(best["two_rarest"] > RARE))


def _rare_is_relevant(study: Study) -> Finding:
    """Whether the most relevant head of the first layer is the one that finds rare words best, if one does."""
    first = [row for row in _roles(study, "full") if row["layer"] == 0]
    finder = max(first, key=lambda row: row["rare_words"]["two_rarest"])
    best, share = finder["index"], finder["rare_words"]["two_rarest"]
    relevance = {
        row["index"]: row["relevance"]
        for row in result(study, "full", "lrp")["heads"]
        if (row["kind"], row["layer"]) == ("encoder_self", 0)
    }
    place = sorted(relevance, key=lambda index: -relevance[index]).index(best) + 1
    verdict = if_true(place == 1) if share > RARE else "undecided"
    ours = f"number {place} of {len(relevance)} by relevance ({relevance[best]:.2f}), finds {100 * share:.0f} %"
    return Finding(ours, "one model", verdict)


def _confident(study: Study) -> Finding:
    rows = result(study, "full", "confidence")["heads"]
    known = {(row["kind"], row["layer"], row["index"]): row["confidence"] for row in rows}
    positional = [
        known[row["kind"], row["layer"], row["index"]]
        for row in _roles(study, "full")
        if any(role["role"] == "positional" for role in row["roles"])
    ]
    if not positional:
        return Finding("no positional head", "one model", "undecided")
    ours = f"{len(positional)} positional heads, least confident {min(positional):.2f}"
    return Finding(ours, "one model", if_true(min(positional) > 0.8))


def _agreement(study: Study) -> Finding:
    """Relevance and confidence as ranks within each layer of the encoder."""
    rows = {
        name: [row for row in result(study, "full", command)["heads"] if row["kind"] == "encoder_self"]
        for name, command in (("relevance", "lrp"), ("confidence", "confidence"))
    }
    within = {name: _within_layers([(row["layer"], row[name]) for row in found]) for name, found in rows.items()}
    found = spearman(within["relevance"], within["confidence"], 1, len({row["layer"] for row in rows["relevance"]}))
    ours = f"rank correlation {found.value:.2f} ({found.low:.2f} to {found.high:.2f})"
    return Finding(ours, "encoder heads of one model, ranks within layers", positive(found.to_json()))


def _within_layers(values: list[tuple[int, float]]) -> npt.NDArray[np.float64]:
    layers = sorted({layer for layer, _ in values})
    return np.concatenate([ranks(np.array([value for at, value in values if at == layer])) for layer in layers])


def _few_relevant(study: Study) -> Finding:
    heads = [row for row in result(study, "full", "lrp")["heads"] if row["kind"] == "encoder_self"]
    layers = {row["layer"] for row in heads}
    shares = [sorted((row["relevance"] for row in heads if row["layer"] == n), reverse=True) for n in sorted(layers)]
    top, equal = fmean(sum(row[:2]) for row in shares), fmean(2 / len(row) for row in shares)
    ours = f"two heads of a layer have {100 * top:.0f} % of its relevance; equal shares: {100 * equal:.0f} %"
    return Finding(ours, "encoder of one model", if_true(top > 0.5))


def _exception(study: Study) -> Finding:
    """Whether the most relevant head of the first layer is not its most confident one."""
    of_first = {
        command: {
            row["index"]: row[value]
            for row in result(study, "full", command)["heads"]
            if (row["kind"], row["layer"]) == ("encoder_self", 0)
        }
        for command, value in (("lrp", "relevance"), ("confidence", "confidence"))
    }
    relevance, sure = of_first["lrp"], of_first["confidence"]
    best = max(relevance, key=lambda index: relevance[index])
    place = sorted(sure, key=lambda index: -sure[index]).index(best) + 1
    ours = f"number {place} of {len(sure)} by confidence ({sure[best]:.2f}); relevance {relevance[best]:.2f}"
    return Finding(ours, "one model", if_true(place > len(sure) / 2))


PRUNINGS = "voita/prune-1 voita/prune-2 voita/prune-3 voita/control-"
CLAIMS = (
    Claim("Table 2", "almost half of all heads can go without a loss", "75 of 144: +0.02", PRUNINGS,
          partial(_all_kinds, 0, -NOTICEABLE)),
    Claim("Table 2", "more than half can go for at most 0.25 BLEU", "58 of 144: −0.24", PRUNINGS,
          partial(_all_kinds, HALF, -0.25)),
    Claim("Table 2", "the same layouts trained from scratch are worse", "−0.15 to −0.50",
          "voita/scratch", _scratch),
    Claim("Table 2", "so they can on OpenSubtitles", "61 of 144: −0.17; 28: −0.13",
          untestable="its text of millions of sentences is not at hand"),
    Claim("Figure 7", "with 10 of the encoder's 48 heads left, the decoder frozen, at most 0.15 BLEU is lost",
          "10 of 48: −0.15 (WMT)", "voita/prune-enc voita/roles", partial(_encoder, -2, -0.15)),
    Claim("Figure 7, footnote 9", "with 4 left at most 0.25, though layers are empty", "4 of 48: −0.25 (OpenSubtitles)",
          "voita/prune-enc voita/roles", partial(_encoder, -1, -0.25)),
    Claim("Figure 9", "heads of the encoder go first", "encoder/decoder/cross at 36: 8/13/15", "voita/survivors",
          partial(_kinds, True)),
    Claim("Figure 9", "those of cross-attention stay longest", "the same", "voita/survivors", partial(_kinds, False)),
    Claim("Section 6.3.2, figure 10", "self-attention of the decoder stays in the lower layers", "figure",
          "voita/survivors", partial(_layers, "decoder_self")),
    Claim("Section 6.3.2, figure 10", "cross-attention stays in the higher layers", "figure", "voita/survivors",
          partial(_layers, "cross")),
    Claim("Figure 8", "17 of 48 encoder heads keep every function", "all functions at 17", "voita/roles", _functions),
    Claim("Abstract", "heads with a role are pruned last", "–", "voita/roles", _last_pruned),
    Claim("Table 1", "the best head finds each relation better than the best fixed position",
          "45/35 to 82/72 on WMT", "voita/roles-full", _relations),
    Claim("Figure 4", "so it does for Russian, German and French", "three languages",
          untestable="the models here translate into one language; another one needs its own text"),
    Claim("Section 5.3", "a head of the first layer points to one of the two rarest words in over half of the cases",
          "66 % rarest, 83 % two rarest on OpenSubtitles; > 50 % on WMT", "voita/roles-full", _rare),
    Claim("Section 5.3", "the most relevant head of the first layer is that of rare words", "in all four models",
          "voita/roles-full voita/lrp", _rare_is_relevant),
    Claim("Section 5.1", "every positional head has a confidence above 0.8", "> 0.8",
          "voita/roles-full voita/confidence", _confident),
    Claim("Section 4, figure 1", "relevance agrees with confidence", "to a reasonable extent",
          "voita/lrp voita/confidence", _agreement),
    Claim("Section 4", "but for the most relevant head of the first layer, which is not confident", "figure",
          "voita/lrp voita/confidence", _exception),
    Claim("Section 4", "in each layer a few heads are far more relevant than the others (here: two have half)",
          "figure", "voita/lrp", _few_relevant),
    Claim("Section 6.3.2", "decoder self-attention matters more for long sentences", "24 against 8 tokens",
          untestable="it takes two models of two domains with millions of sentences each"),
    Claim("Sections 6.1, 6.2.2", "gates end open or closed; heads take over functions of closed ones", "figures 6, 8",
          untestable="HMC makes every gate decide (decision 0006), and no head here has a function"),
)  # fmt: skip
