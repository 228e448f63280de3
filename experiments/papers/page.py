"""Writes the tables of docs/reproduction.md, and `results.json`, from what the steps of a study wrote.

No number is typed by hand but those of the papers. A row whose steps were not run says so.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from experiments.papers.claims import michel, sun, voita
from experiments.papers.claims.claim import Claim
from experiments.papers.over_seeds import difference, mean
from experiments.papers.readings import NotRunError, bleu, chrf, masked, over, quality
from experiments.papers.sizes import BESIDE, SIZES
from experiments.papers.studies import BASELINE, VARIANTS, Study, Variant
from experiments.support import marked
from hmc.training.analysis.common.result import Result, read_result
from hmc.training.analysis.common.summary import Summary, probability
from hmc.training.analysis.figures import masking, pruning, roles

CLAIMS: dict[str, tuple[Claim, ...]] = {"sun": sun.CLAIMS, "voita": voita.CLAIMS, "michel": michel.CLAIMS}
FIGURES = {
    "Importance of heads, in nats a sentence (Sun et al., figure 3, tables 5 and 6)": "compare/importance/compare",
    "BLEU with one group of heads masked, the most important first (Sun et al., figure 4)": "compare/groups/compare",
    "BLEU as heads are masked, from either end (Sun et al., figure 5)": "compare/cumulative/compare",
    "Heads that gates keep, by kind and by layer (Voita et al., figures 9 and 10)": "measure/survivors/survivors",
    "Roles of heads (Voita et al., figure 8)": "measure/roles-full/roles",
    "Relevance of each head in its layer (Voita et al., figures 1a and 2)": "measure/full/lrp",
    "Confidence of each head (Voita et al., figure 1b)": "measure/full/confidence",
    "What each head costs, masked alone (Michel et al., section 3.2)": "measure/full/ablate",
    "What each head costs, in nats a token, on two kinds of text (Michel et al., figure 2)": "measure/full/correlate",
    "BLEU without the least important heads, by epoch (Michel et al., figure 5)": "measure/epochs/profile",
}
"""Caption → result of an analysis, drawn anew with each page."""
DRAWN_BY: dict[str, Callable[[Result[Any], Path], list[Path]]] = {
    "ablate": masking.draw_ablate, "compare": masking.draw_compare, "confidence": roles.draw_confidence,
    "correlate": masking.draw_correlate, "lrp": roles.draw_lrp, "profile": masking.draw_profile,
    "roles": roles.draw_roles, "survivors": pruning.draw_survivors,
}  # fmt: skip
NOT_RUN = "not run"


def judged(study: Study, claim: Claim) -> dict[str, Any]:
    """A row of the page as data."""
    row: dict[str, Any] = {
        "source": claim.source, "claim": claim.claim, "theirs": claim.theirs, "steps": claim.steps, "ours": None,
        "basis": None, "verdict": "cannot be tested here" if claim.untestable else NOT_RUN, "why": claim.untestable,
    }  # fmt: skip
    names = [step.name for step in study.steps()]
    if study.given and any(not any(word in name for name in names) for word in claim.steps.split()):
        row |= {"verdict": "cannot be tested here", "why": "the recipe of a given model is not known"}
    elif claim.judge is not None:
        try:
            row |= asdict(claim.judge(study))
        except NotRunError as error:
            row["why"] = f"{error} is missing"
    return row


def claims(study: Study, name: str) -> str:
    """The claims of one source."""
    rows = [judged(study, claim) for claim in CLAIMS[name]]
    cells = tuple(
        (
            f"{row['claim']} ({row['source'][0].lower()}{row['source'][1:]})",
            row["theirs"],
            row["ours"] or "–",
            row["basis"] or (row["why"] if row["verdict"] != NOT_RUN else f"run `{row['steps']}`"),
            row["verdict"],
        )
        for row in rows
    )
    return Summary("", ("claim", "paper", "here", "rests on", "verdict"), cells).markdown()


Studies = dict[str, Study]
"""What names of trainings end in → the study that they are of; the first has the page."""


def headmask(studies: Studies) -> str:
    """One row for each way to train: BLEU and importance beside the baseline's of the same study."""
    columns = ("training", "seeds", "BLEU", "chrF", "Δ BLEU over seeds", "outputs differ (p)",
               "variance of I_h / baseline's", "per token", "mean / baseline's",
               "deviation / mean, / baseline's")  # fmt: skip
    rows, left = _rows(_headmask_row, studies, VARIANTS)
    return Summary("", columns, rows, left).markdown()


def _rows(
    cells: Callable[[Study, Variant], Iterable[str]], studies: Studies, variants: Sequence[Variant]
) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """A row for each way to train that was run, and a note that names those that were run in no study."""
    rows, left = [], dict.fromkeys(variant.name for variant in variants)
    for ending, study in studies.items():
        for variant in variants:
            with suppress(NotRunError):
                rows.append((f"{variant.name}{ending}", *cells(study, variant)))
                left.pop(variant.name, None)
    return tuple(rows), ((f"{NOT_RUN}: {'; '.join(left)}",) if left else ())


def _headmask_row(study: Study, variant: Variant) -> Iterator[str]:
    folder, scores = variant.folder, over(study, variant.folder, bleu)
    seeds = len(variant.seeds(study.size))
    yield str(seeds) if len(scores) == seeds else f"{len(scores)} of {seeds}"
    for values in (scores, over(study, folder, chrf)):
        yield f"{sum(values) / len(values):.2f}"
    if folder == BASELINE:
        found = mean(scores)
        yield f"± {found.high - found.value:.2f}" if math.isfinite(found.high) else "–"
        yield from ("–", "1", "1", "1", "1")
        return
    yield difference(scores, over(study, BASELINE, bleu)).text()
    yield ", ".join(probability(p) for p in over(study, folder, _tested))
    for how, of in (("sentence", "variance"), ("token", "variance"), ("sentence", "mean"), ("sentence", "relative")):
        yield f"{sun.spread_ratio(study, of, folder, BASELINE, how)[2].value:.2f}"


def _tested(study: Study, folder: str, seed: int) -> float:
    """p-value of the outputs of a training against those of the first baseline."""
    return quality(study, f"headmask-{folder}-{seed}", "this").p_value


def masks(studies: Studies) -> str:
    """Which heads were masked, as the logs count it."""
    columns = ("training", "masked in the update before too, share of heads", "most masked head, share of updates",
               "heads masked in more than half", "what it tests")  # fmt: skip

    def cells(study: Study, variant: Variant) -> tuple[str, ...]:
        found = over(study, variant.folder, masked)
        again, most, often = (sum(each[name] for each in found) / len(found) for name in ("again", "most", "often"))
        return (f"{again:.2f}", f"{most:.2f}", f"{often:.1f}", variant.tests or "the paper's method")

    rows, left = _rows(cells, studies, [variant for variant in VARIANTS if variant.headmask])
    size = next(iter(studies.values())).size
    note = f"by chance {size.masked / size.total:.3f} of the masked heads are masked again"
    return Summary("", columns, rows, (note, *left)).markdown()


def table2(study: Study) -> str:
    """Voita et al., table 2: BLEU minus that of all heads, of pruning and from scratch."""
    full = 29.6
    rows = []
    for heads in study.size.budgets:
        theirs = [f"{value - full:+.2f}" for value in voita.PAPER.get(heads, ())] or ["–", "–"]
        ours, trained = NOT_RUN, NOT_RUN
        with suppress(NotRunError):
            ours = _mean(voita.pruned(study, heads))
        with suppress(NotRunError):
            trained = _mean(voita.controls(study, heads))
        try:
            scratch = quality(study, f"voita-scratch{heads}", "scratch")
            low, high = scratch.ci_low, scratch.ci_high
            apart = f"{scratch.bleu_delta:+.2f} ({low:+.2f} to {high:+.2f}), p {probability(scratch.p_value)}"
        except NotRunError:
            apart = NOT_RUN
        rows.append((str(heads), *theirs, ours, trained, apart))
    columns = ("heads", "paper, pruned", "paper, from scratch", "pruned", "as many updates, hardly a head closed",
               "from scratch minus pruned, outputs of one each")  # fmt: skip
    return Summary("", columns, tuple(rows)).markdown()


def _mean(values: list[float]) -> str:
    """Mean over seeds, with its interval."""
    if len(values) == 1:
        return f"{values[0]:+.2f}, one seed"
    return f"{mean(values).text()}, {len(values)} seeds"


def figures(study: Study, folder: Path) -> str:
    """Draws what the study found into `folder`; returns Markdown that shows it. Figures of what this folder of results
    lacks stay."""
    lines = []
    for caption, name in FIGURES.items():
        found, target = study.root / f"{name}.json", folder / f"{study.root.name}-{name.replace('/', '-')}.svg"
        if found.is_file():
            result = read_result(found, [found.stem])
            if found.stem == "roles" and not any(head.roles for head in result.data.heads):
                continue  # nothing but grey
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory() as place:
                drawn = DRAWN_BY[found.stem](result, Path(place))
                shutil.copyfile(next(path for path in drawn if path.suffix == ".svg"), target)
        if target.is_file():
            lines.append(f"{caption}:\n\n![{caption}]({folder.name}/{target.name})\n")
    return "\n".join(lines) or "No figure yet.\n"


def setup(study: Study, size: str) -> str:
    """What the numbers of the page are of."""
    what = f"the model `{study.given}`" if study.given else "the first baseline"
    seeds, further = (", ".join(map(str, some)) for some in (study.size.seeds, study.size.further))
    return (
        f"Size `{size}`: {study.size.says}. Heads are studied on {what}. "
        f"HeadMask masks {study.size.masked} of {study.size.total} heads. Seeds: "
        f"{seeds}{f'; of Impt also {further}' if further else ''}.\n"
    )


def write(study: Study, size: str, page: Path) -> None:
    """Rewrites the tables of the page in place, and `results.json` among the results."""
    studies = {"": study}
    if study.kept is not None and study.given is None:
        for other, name in BESIDE.get(size, {}).items():
            studies[f", {name}"] = Study(SIZES[other], study.kept.parent / other, study.data)
    tables: dict[str, Callable[[], str]] = {
        "setup": lambda: setup(study, size),
        **{f"claims-{name}": partial(claims, study, name) for name in CLAIMS},
        "headmask": lambda: headmask(studies),
        "masks": lambda: masks(studies),
        "table2": lambda: table2(study),
        "figures": lambda: figures(study, page.with_suffix("")),
    }
    text = marked.fill(page.read_text(encoding="utf-8"), lambda name: tables[name](), tables)
    page.write_text(text, encoding="utf-8")
    found = {name: [judged(study, claim) for claim in rows] for name, rows in CLAIMS.items()}
    study.root.mkdir(parents=True, exist_ok=True)
    (study.root / "results.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
