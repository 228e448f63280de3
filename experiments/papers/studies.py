"""What is trained and measured for each paper, as steps; `readings` finds what they write."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from experiments.papers.sizes import Size
from experiments.papers.steps import EACH, Step
from hmc.artifact.checkpoint.checkpoint import checkpoint_digest, load_config
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.heads import KINDS, HeadLayout

BASELINE = "baseline"
HALF = 1
"""Place among the budgets of the one that leaves fewer than half of the heads."""


@dataclass(frozen=True)
class Variant:
    """One way to train."""

    folder: str
    name: str
    """As tables show it."""
    headmask: str | None
    """`{n}`: an eighth of the heads. `{quarter}`: a quarter of the updates."""
    tests: str = ""
    """What it would show."""
    parts: int = 1
    """Parts that a batch is divided into."""
    tuned: bool = False
    """Starts from the trained baseline of the first seed."""
    repairs: bool = False
    """Whether its first seed did what the paper reports of Impt, so that the others are trained too."""

    further: bool = False
    """Whether it has the further seeds of a size."""

    def seeds(self, size: Size) -> tuple[int, ...]:
        """The seeds that it is trained with: one, but for the systems of the paper and what repairs Impt."""
        if self.tests and not self.repairs:
            return size.seeds[:1]
        return (*size.seeds, *(size.further if self.further else ()))

    def mask(self, size: Size) -> str | None:
        """The masking as `--headmask` takes it."""
        return self.headmask and self.headmask.format(n=size.masked, quarter=size.updates // 4)


VARIANTS = (
    Variant(BASELINE, "baseline", None),
    Variant("random", "Random", "random:{n}"),
    Variant("important", "Impt", "important:{n}", further=True),
    Variant("attention", "Impt, one head an attention", "important:1/attention", "masks gather in one attention"),
    Variant("layer", "Impt, normalised by layer", "important:{n},layer", "values of layers are not comparable"),
    Variant(
        "signed",
        "Impt, signed",
        "important:{n},signed",
        "untrained heads are chosen for their noise",
        repairs=True,
    ),
    Variant("token", "Impt, per token", "important:{n},token", "the estimator, that of the released program"),
    Variant("batch", "Impt, per batch", "important:{n},batch", "the estimator, one gradient for a batch"),
    Variant("part", "Impt, a mask for each of 4 parts", "important:{n},part", "masked heads are not trained", parts=4),
    Variant(
        "after",
        "Impt, after a quarter",
        "important:{n},after={quarter}",
        "heads are masked before they learn",
    ),
    Variant(
        "tuned",
        "Impt, from the trained baseline",
        "important:{n}",
        "heads are masked before they learn: from trained heads",
        tuned=True,
    ),
    Variant("longer", "baseline, trained on", None, "what the further updates do by themselves", tuned=True),
    Variant("rescaled", "Impt, rescaled", "important:{n},rescaled", "outputs are larger without masks (Impt)"),
    Variant("rescaled-random", "Random, rescaled", "random:{n},rescaled", "outputs are larger without masks (Random)"),
)


@dataclass(frozen=True)
class Study:
    """A size with the folders of inputs and results."""

    size: Size
    root: Path
    data: Path
    given: Path | None = None
    """A checkpoint to study in place of the first baseline."""
    kept: Path | None = None
    """Results of the study that stay with the project, see `steps.keep`."""

    @property
    def model(self) -> Path:
        """The model whose heads are studied and pruned."""
        return self.given or self.trained(BASELINE, self.size.seeds[0])

    def text(self, named: str) -> str:
        """A text of the size."""
        return named.format(data=self.data)

    def texts(self) -> tuple[str, ...]:
        """All texts of the size."""
        size = self.size
        return tuple(self.text(named) for named in (size.train, size.dev, size.test, *size.kinds, size.trees))

    def trained(self, folder: str, seed: int) -> Path:
        """The checkpoint of a training."""
        return self.root / "train" / f"{folder}-{seed}" / "final"

    def trainings(self) -> Iterator[tuple[Variant, int]]:
        """Every variant with its seeds; what has fewer comes later."""
        size = self.size
        every = ((v, seed) for seed in (*size.seeds, *size.further) for v in VARIANTS if seed in v.seeds(size))
        yield from sorted(every, key=lambda training: len(training[0].seeds(size)) < len(size.seeds))

    def measured(self, name: str) -> Path:
        """The folder of analyses of a model."""
        return self.root / "measure" / name

    def score(self, name: str) -> Path:
        """The bundle that scores checkpoints on the test set."""
        return self.root / "score" / name

    def pruned(self, name: str) -> Path:
        """The folder of a pruning run."""
        return self.root / "prune" / name

    def steps(self) -> list[Step]:
        """All steps, in an order in which each comes after what it needs. None is run that needs a first baseline
        which may not use its source."""
        first, every = self.trained(BASELINE, self.size.seeds[0]), [*headmask(self), *voita(self), *michel(self)]
        return [replace(step, refused=lambda: uses_source(self)) if first in step.needs else step for step in every]


def settings(study: Study) -> dict[str, Any]:
    """What results depend on that the name of a size does not say: its settings, the texts, and a given model."""
    size = asdict(replace(study.size, says="", minutes={}))
    files = {path for path in map(Path, " ".join(study.texts()).split()) if path.is_file()}
    return {
        "size": json.loads(json.dumps(size)),
        "bytes of texts": {path.name: path.stat().st_size for path in sorted(files)},
        "model": None if study.given is None else checkpoint_digest(study.given),
    }


def check_same(study: Study, file: Path) -> None:
    """Raises InvalidRequestError where the results beside `file` are of other settings (see `settings`)."""
    if not file.is_file():
        return
    there, now = json.loads(file.read_text(encoding="utf-8")), settings(study)
    texts = {name for name in there["bytes of texts"] if name in now["bytes of texts"]}
    for found in (there, now):
        found["bytes of texts"] = {name: found["bytes of texts"][name] for name in texts}
    if changed := [key for key in now if there.get(key) != now[key]]:
        raise InvalidRequestError(
            f"{file.parent} has results of another {' and other '.join(changed)}: choose another --runs and --kept, or "
            "delete the results"
        )


def check_model(study: Study) -> None:
    """Raises InvalidRequestError for a given model that has not the heads of the size."""
    if study.given is None:
        return
    size, layout = study.size, load_config(study.given).layout
    if layout != HeadLayout.full(size.layers, size.layers, size.heads):
        raise InvalidRequestError(
            f"{study.given} must have {size.layers} + {size.layers} layers of {size.heads} heads, all of them open, as "
            "the claims are about; choose another --size or model"
        )


def uses_source(study: Study) -> str | None:
    """Why nothing can be compared with the first baseline, or None."""
    path = study.trained(BASELINE, study.size.seeds[0])
    bleu = float(json.loads((path / "metrics.json").read_text())["dev"]["bleu"])
    if bleu >= study.size.least_bleu:
        return None
    return (
        f"the baseline has dev BLEU {bleu:.1f}, below {study.size.least_bleu:g}: it may not use its source. Choose a "
        f"lower rate in {study.size.recipe} or a longer warm-up in experiments/papers/sizes.py, and delete {study.root}"
        + (f" and {study.kept}" if study.kept else "")
    )


def _train(study: Study, name: str, folder: str, seed: int, settings: Sequence[str], mask: str | None = None) -> Step:
    size, out = study.size, study.root / "train" / f"{folder}-{seed}"
    common = [
        f"data.train={json.dumps([study.text(size.train)])}", f"data.dev={json.dumps(study.text(size.dev))}",
        *size.settings, f"train.warmup_steps={size.warmup}", f"train.seed={seed}", "train.accumulate=1",
    ]  # fmt: skip
    first = study.trained(BASELINE, size.seeds[0])
    is_first = out == first.parent
    if not is_first:  # all trainings have one tokenizer, so that seeds differ in nothing else
        common.append(f"tokenizer.model={json.dumps(str(first))}")
    words = [word for setting in (*common, *settings, *size.extra) for word in ("--set", setting)]
    words += ["--headmask", mask] if mask else []
    kind = "train two passes" if (mask or "").startswith("important") else "train"
    needs = () if is_first else (first,)
    return Step(name, kind, ("train", size.recipe, *words, "--out", str(out)), out / "final", needs, weights=True)


def _analyze(
    study: Study, name: str, command: str, model: Path, out: Path, *options: object, text: str | None = None,
    kind: str | None = None, needs: Sequence[Path] | None = None,
) -> Step:  # fmt: skip
    """text: None is the test set. needs: None is the model."""
    arguments = ("analyze", command, str(model), "--data", study.text(text or study.size.test), *map(str, options))
    made = out / f"{command}.json"
    return Step(name, kind or command, (*arguments, "--out", str(out)), made, tuple(needs or (model,)))


def _score(study: Study, name: str, checkpoints: dict[str, Path], needs: Sequence[Path] = ()) -> Step:
    """Scores checkpoints on the test set in one bundle; differences are to the first."""
    source, target = study.text(study.size.test).split()
    named = [f"{level}={path}" for level, path in checkpoints.items()]
    made, needs = study.score(name.replace("/", "-")), tuple(needs or checkpoints.values())
    return Step(f"{name}/score", "score", ("compile", *named, "--eval", source, target, "-o", str(made)), made, needs)


def headmask(study: Study) -> Iterator[Step]:
    """Sun et al. 2021: every training, its importance, its groups and curves, its BLEU beside the first baseline's."""
    size = study.size
    for variant, seed in study.trainings():
        name, model = f"headmask/{variant.folder}-{seed}", study.trained(variant.folder, seed)
        settings = [
            f"train.steps={size.updates}", f"train.batch_tokens={size.batch_tokens // variant.parts}",
        ]  # fmt: skip
        if variant.parts > 1:
            settings.append(f"train.accumulate={variant.parts}")
        if variant.tuned:
            settings.append(f"model.start_from={json.dumps(str(study.trained(BASELINE, size.seeds[0])))}")
        yield _train(study, f"{name}/train", variant.folder, seed, settings, variant.mask(size))
        out = study.measured(f"{variant.folder}-{seed}")
        for how in ("sentence", "token"):
            yield _analyze(
                study, f"{name}/importance-{how}", "importance", model, out / how, "--importance", how,
                "--sentences", size.sentences, text=size.dev,
            )  # fmt: skip
        scores = out / "sentence" / "importance.json"
        for command, groups in (("groups", 8), ("cumulative", 8)):
            yield _analyze(
                study, f"{name}/{command}", command, model, out, "--scores", scores, "--groups", groups,
                "--sentences", size.sentences, kind="masks", needs=(model, scores),
            )  # fmt: skip
        reference = study.trained(BASELINE, size.seeds[0])
        if reference != model:
            yield _score(study, name, {"reference": reference, "this": model})
    first = {v.name: study.measured(f"{v.folder}-{size.seeds[0]}") for v in VARIANTS if not v.tests or v.repairs}
    for command, inner in (("importance", "sentence/"), ("groups", ""), ("cumulative", "")):
        files = {name: folder / f"{inner}{command}.json" for name, folder in first.items()}
        out = study.root / "compare" / command
        arguments = ("analyze", "compare", *(f"{n}={path}" for n, path in files.items()), "--out", str(out))
        yield Step(f"headmask/compare-{command}", "compare", arguments, out / "compare.json", tuple(files.values()))


def voita(study: Study) -> Iterator[Step]:
    """Voita et al. 2019: gates on all heads, and on the encoder's; heads that stay; roles, relevance, confidence."""
    size, model = study.size, study.model
    text = ("--data", study.text(size.train), "--dev", study.text(size.dev))
    last, control = f"h{size.budgets[-1]}", size.nearly_all(size.total, size.budgets)
    for name, folder, seed, budgets in (
        *((f"prune-{seed}", f"seed{seed}", seed, size.budgets) for seed in size.seeds),
        *(  # all but the first go as far as the claim on half of the heads
            (f"control-{seed}", f"control{seed}", seed, control[: None if seed == size.seeds[0] else HALF + 1])
            for seed in size.seeds
        ),
    ):
        out, levels = study.pruned(folder), {f"h{number}": study.pruned(folder) / f"h{number}" for number in budgets}
        targets = ",".join(map(str, budgets))
        options = ("--target-heads", targets, *size.pruning, "--seed", str(seed), *text, "--out", str(out))
        end = levels[f"h{budgets[-1]}"]
        yield Step(f"voita/{name}", "prune", ("prune", str(model), *options), end, (model,), weights=True)
        yield _score(study, f"voita/{name}", {"full": model, **levels}, (model, end))
    every = [study.pruned(f"seed{seed}") / f"h{number}" for seed in size.seeds for number in size.budgets]
    ends = tuple(study.pruned(f"seed{seed}") / last for seed in size.seeds)
    out = study.measured("survivors")
    arguments = ("analyze", "survivors", *map(str, every), "--out", str(out))
    yield Step("voita/survivors", "survivors", arguments, out / "survivors.json", ends)
    if study.given is None:  # the recipe that made the model is known only of a baseline of this study
        yield from _from_scratch(study)
    encoder, whole = study.pruned("encoder"), study.pruned("encoder-control")
    names, controls = (
        [f"enc{number}" for number in budgets]
        for budgets in (size.encoder_budgets, size.nearly_all(size.layers * size.heads, size.encoder_budgets))
    )
    for out, found in ((encoder, names), (whole, controls)):
        options = (
            "--target-heads", ";".join(level.replace("enc", "enc=") for level in found), "--scope", "encoder_self",
            "--freeze", "decoder", *size.pruning, *text, "--out", str(out),
        )  # fmt: skip
        arguments = ("prune", str(model), *options)
        yield Step(f"voita/prune-{out.name}", "prune", arguments, out / found[-1], (model,), weights=True)
    for level, as_many_updates in zip(names, controls, strict=True):
        both = {"control": whole / as_many_updates, "pruned": encoder / level}
        yield _score(study, f"voita/prune-{level}", both, (encoder / names[-1], whole / controls[-1]))
    frequencies = ("--frequencies", study.text(size.train).split()[0])
    for name, checkpoint, needs in (("full", model, model), *((n, encoder / n, encoder / names[-1]) for n in names)):
        yield _analyze(
            study, f"voita/roles-{name}", "roles", checkpoint, study.measured(f"roles-{name}"), "--trees",
            study.text(size.trees), *frequencies, "--sentences", size.sentences, needs=(needs,),
        )  # fmt: skip
    for command in ("lrp", "confidence"):
        yield _analyze(
            study, f"voita/{command}", command, model, study.measured("full"), "--sentences", size.few, text=size.dev
        )


def _from_scratch(study: Study) -> Iterator[Step]:
    """The layouts that gates chose, trained from the first update (table 2, right column)."""
    size, seed = study.size, study.size.seeds[0]
    for number in size.budgets:
        pruned, folder = study.pruned(f"seed{seed}"), f"scratch{number}"
        settings = [
            f"train.steps={size.updates}", f"train.batch_tokens={size.batch_tokens}",
            f"model.layout={json.dumps(str(pruned / f'h{number}'))}",
        ]  # fmt: skip
        step, end = _train(study, f"voita/{folder}/train", folder, seed, settings), pruned / f"h{size.budgets[-1]}"
        yield replace(step, needs=(*step.needs, end))
        both = {"pruned": pruned / f"h{number}", "scratch": study.trained(folder, seed)}
        yield _score(study, f"voita/{folder}", both, (end, both["scratch"]))


def michel(study: Study) -> Iterator[Step]:
    """Michel et al. 2019: heads masked alone, kept alone, by importance; two kinds of text; the course of training."""
    size, model, out = study.size, study.model, study.measured("full")
    few = ("--sentences", size.sentences)
    yield _analyze(study, "michel/importance", "importance", model, out, *few, text=size.dev)
    yield _analyze(study, "michel/ablate", "ablate", model, out, *few, kind="masks")
    yield _analyze(study, "michel/all-but-one", "all-but-one", model, out, *few, kind="masks")
    theirs = ("--importance", "token,layer")  # what the programs of section 4 pass to the authors' script
    yield _analyze(study, "michel/importance-layer", "importance", model, out / "layer", *theirs, *few, text=size.dev)
    scores = out / "layer" / "importance.json"
    yield _analyze(
        study, "michel/cumulative", "cumulative", model, out, "--scores", scores, "--groups", 10, *few, kind="masks",
        needs=(model, scores),
    )  # fmt: skip
    for part in KINDS:
        yield _analyze(
            study, f"michel/cumulative-{part}", "cumulative", model, out / part, "--scores", scores, "--scope", part,
            "--groups", 5, *few, kind="masks", needs=(model, scores),
        )  # fmt: skip
    second = study.text(size.kinds[1])
    yield _analyze(study, "michel/correlate", "correlate", model, out, "--data", second, *few, text=size.kinds[0])
    seed = size.seeds[0]
    settings = [
        f"train.steps={size.epoch_updates}", f"train.cooldown_steps={size.epoch_updates // 2}",
        f"train.batch_tokens={size.batch_tokens}", "run.eval_every=epoch", "run.keep=every",
    ]  # fmt: skip
    yield _train(study, "michel/epochs/train", "epochs", seed, settings)
    run = study.trained("epochs", seed).parent
    arguments = (
        "analyze", "profile", f"{EACH}{run / 'checkpoints' / 'step-*'}", "--data", study.text(size.test),
        *map(str, few), *theirs, "--rank-data", study.text(size.dev), "--out", str(study.measured("epochs")),
    )  # fmt: skip
    yield Step("michel/profile", "profile", arguments, study.measured("epochs") / "profile.json", (run / "final",))
