"""What a pruning run is asked for, its checks, its plan, and what the run folder keeps of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hmc.artifact.checkpoint.checkpoint import Checkpoint, check_checkpoint, load_checkpoint, load_config
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.budgets import HeadBudget
from hmc.artifact.model.ffn import NeuronBudget
from hmc.training.data.corpus import TokenCorpus, count_pairs
from hmc.training.data.counts import Limit
from hmc.training.data.parallel_text import DevText, check_corpora, read_dev
from hmc.training.data.vocabulary import Vocabulary
from hmc.training.distillation.teacher import teacher_path
from hmc.training.pruning.settings import PruneSettings
from hmc.training.pruning.stages import LatencyPlan, Stage, as_budgets, plan_latency_stages, plan_stages
from hmc.training.runs.folder import REQUEST, STATES, WHERE, check_pruning_folder, differences, has_results, where
from hmc.training.runs.processes import check_device


@dataclass(frozen=True)
class PruneRequest:
    """What a pruning run is asked for."""

    source: Path
    """Converged checkpoint."""
    targets: Sequence[int | HeadBudget]
    """Head budgets, largest first; a number counts heads in `settings.scope`. Empty with `settings.l0_lambda`, or to
    prune neurons alone."""
    train: Sequence[str]
    """Training corpora."""
    dev: str
    """Dev corpus."""
    out: Path
    """Run folder."""
    settings: PruneSettings
    neurons: Sequence[NeuronBudget] = ()
    """One budget for all targets, or one for each."""
    nested_steps: int = 0
    """Updates of nested fine-tuning, which follows the stages. With `settings.nested.heads` other than `checkpoints` it
    ranks the heads itself, and no gates are closed."""
    latency: LatencyPlan | None = None
    """Latencies to reach, in place of all budgets."""
    control: bool = False
    """Also train all heads for as many updates as the last checkpoint had. A run that has ended may get this later."""

    def record(self, budgets: Sequence[HeadBudget]) -> dict[str, Any]:
        """Returns what the run folder keeps of the request, beside its settings. budgets: of its targets."""
        record: dict[str, Any] = {
            "source": str(self.source),
            "targets": [budget.name for budget in budgets],
            "train": list(self.train),
            "dev": self.dev,
            "nested_steps": self.nested_steps,
        }
        if self.neurons:
            record["neurons"] = list(map(str, self.neurons))
        if self.latency:
            record["latency"] = self.latency.request()
        return record


@dataclass(frozen=True)
class PrunePlan:
    """A request after the checks that need no work."""

    request: PruneRequest
    source: Checkpoint
    settings: PruneSettings
    """Those of the request, with what the checkpoint fills in (`PruneSettings.following`)."""
    budgets: list[HeadBudget]
    stages: list[Stage]
    dev: DevText
    text: str | None
    """See `request_text`."""

    @property
    def limit(self) -> Limit:
        """The longest sentence that is trained on."""
        return length_limit(self.source, self.settings)

    @property
    def steps(self) -> int:
        """Updates of all stages."""
        return sum(stage.steps for stage in self.stages)

    def describe(self) -> dict[str, str]:
        """Describes in words what `prune` would do. Reads the texts to their end, but those on the hub."""
        request = self.request
        settings = self.settings
        source = self.source
        stages = self.stages if settings.nested.heads == "checkpoints" else []
        closing = sum(stage.steps for stage in stages)
        languages = languages_of(source)
        vocabulary = Vocabulary(source.tokenizer)
        counts = count_pairs(request.train, languages, vocabulary, self.limit.tokens)
        lines = {
            "model": f"{request.source}: {source.layout.total} heads, {source.ffn_widths.total:,} feed-forward neurons",
            "text": f"{', '.join(request.train)} ({' to '.join(languages)}): {counts.summary(self.limit)}",
            "dev text": f"{request.dev}: {self.dev.summary()}",
        }
        for stage in stages:
            path = str(request.out / stage.folder)
            updates = f"{stage.kind}, {stage.steps:,} updates"
            lines[path] = f"{lines[path]}, {updates}" if path in lines else updates
        if request.nested_steps:
            lines["nested"] = f"{request.nested_steps:,} updates"
        if request.control:
            lines["control"] = f"all heads, {closing + request.nested_steps:,} updates"
        tokens = settings.batch_tokens * settings.accumulate
        lines["updates"] = f"of {tokens:,} tokens, by {settings.optimizer}"
        goes_on = any((request.out / name).is_dir() for name in STATES)
        lines["folder"] = f"{request.out}: {'a run that goes on' if goes_on else 'a new run'}"
        warnings = [
            *counts.warnings(self.limit),
            *self.dev.warnings(vocabulary, source.architecture.max_positions),
        ]
        for steps in (closing, request.nested_steps):
            if steps:
                warnings += settings.warmup_problems(steps)
        if warnings:
            lines["warning"] = "; ".join(warnings)
        return lines


def plan_pruning(request: PruneRequest) -> PrunePlan:
    """Checks a request, and writes nothing.

    Raises InvalidRequestError or InvalidArtifactError with what to do.
    """
    source = load_checkpoint(request.source)
    settings = request.settings.following(source.config.provenance)
    budgets = as_budgets(request.targets, settings)
    if request.latency:
        stages = plan_latency_stages(request.latency, source, settings, [*budgets, *request.neurons])
    else:
        stages = plan_stages(budgets, source.layout, settings, request.neurons, source.ffn_widths.total)
    if request.nested_steps < 0:
        raise InvalidRequestError(f"nested_steps {request.nested_steps}: give 0 (no nested fine-tuning) or more")
    languages = languages_of(source)
    check_corpora(request.train, languages)
    dev = read_dev(request.dev, languages, settings.run.eval_sentences)
    check_pruning_folder(request.out, dict.fromkeys(stage.folder for stage in stages))
    text = request_text(request.out, request.record(budgets), settings)
    return PrunePlan(request, source, settings, budgets, stages, dev, text)


def languages_of(checkpoint: Checkpoint) -> tuple[str, str]:
    """Returns the source and the target language of a checkpoint."""
    return checkpoint.config.source_language, checkpoint.config.target_language


def check_request(settings: PruneSettings, neurons: Sequence[NeuronBudget], nested_steps: int) -> None:
    """Raises InvalidRequestError when settings contradict each other, InvalidArtifactError for a damaged teacher, and
    as `check_device`."""
    nested = settings.nested
    check_device(settings.run)
    teacher_path(settings.distill, Path())  # here any path stands for the checkpoint that is pruned
    if settings.distill.teacher:
        check_checkpoint(Path(settings.distill.teacher))
    if nested.heads != "checkpoints" and not nested_steps:
        raise InvalidRequestError("nested.heads belongs to nested_steps: give a number of updates")
    if nested.heads != "checkpoints" and (neurons or settings.l0_lambda is not None):
        raise InvalidRequestError(f"nested.heads {nested.heads} closes no gates: leave target_ffn and l0_lambda out")
    if nested_steps and nested.teacher == "in-place" and not settings.distill.active:
        raise InvalidRequestError("nested.teacher in-place belongs to distill.weight: give one, such as 0.9")
    if nested_steps and nested.teacher == "in-place" and settings.distill.teacher:
        raise InvalidRequestError("nested.teacher in-place learns from the largest level: leave the teacher out")
    if nested_steps and nested.teacher == "in-place" and nested.levels != "sandwich":
        raise InvalidRequestError(
            f"nested.teacher in-place needs a largest level in every update: leave out nested.levels {nested.levels}"
        )


def request_text(out: Path, request: dict[str, Any], settings: PruneSettings) -> str | None:
    """Returns the text to write to request.json; None when the file in the folder `out` has it already.

    A run folder with results belongs to one request. Only `settings.run` may change when the run resumes, and nested
    fine-tuning may be added. Raises InvalidRequestError, naming the differences, for another request.
    """
    request = request | {WHERE: where(out)}
    path = out / REQUEST
    text = _text(request, settings)
    if not path.is_file():
        return text
    stored = path.read_text(encoding="utf-8")
    different = request_differences(stored, request, settings)
    if different == []:
        former = json.loads(stored)
        whole = request | {"nested_steps": request["nested_steps"] or former.get("nested_steps", 0)}
        return _text(whole, settings) if any(former.get(key) != value for key, value in whole.items()) else None
    if has_results(out):
        named = f" ({'; '.join(different)})" if different else ""
        raise InvalidRequestError(
            f"{out} holds a pruning run with other settings{named}; give the same, choose another folder, or delete "
            f"{out}"
        )
    return text


def _text(request: dict[str, Any], settings: PruneSettings) -> str:
    return json.dumps(request | {"settings": settings.model_dump(mode="json", exclude={"run"})}, indent=1)


def request_differences(stored: str, request: dict[str, Any], settings: PruneSettings) -> list[str] | None:
    """Compares a request with `stored`, the text of a request.json; returns one line for each difference.

    None: `stored` cannot be read. How a run is carried out (`settings.run`) is not compared. Nested fine-tuning may be
    left out or added. An earlier version may have stored fewer settings: they have the values that it worked with, and
    `dev` and `nested_steps` are not compared. Names of files are compared by place (`runs.folder.differences`).
    """
    here = request.get(WHERE) or where(Path())
    try:
        former = json.loads(stored)
        settings_text = former.pop("settings")
        worked_with: dict[str, Any] = {
            "bpe_dropout": 0.0,
            "bpe_dropout_copies": 1,
            "settle_gates": settings_text.get("l0_lambda") is not None,
            "nested": {"levels": "one"},
        }
        former_settings = PruneSettings.model_validate(worked_with | settings_text)
    except (json.JSONDecodeError, AttributeError, KeyError, TypeError, ValidationError):
        return None
    if not former.get("nested_steps"):
        former_settings = former_settings.model_copy(update={"nested": settings.nested})
    former = {WHERE: here, "dev": request["dev"]} | former
    if not (former.get("nested_steps") and request["nested_steps"]):
        former["nested_steps"] = request["nested_steps"]
    before = former | former_settings.model_dump(mode="json", exclude={"run"})
    return differences(before, request | {WHERE: here} | settings.model_dump(mode="json", exclude={"run"}))


def check_inputs(checkpoint: Path, settings: PruneSettings, corpora: Sequence[str]) -> None:
    """Checks in advance what a pruning run would otherwise refuse only after other work, such as translating.

    Reads the first pairs of corpora in the languages of a checkpoint. Raises as `check_corpora` and
    `PruneSettings.following`, and InvalidArtifactError for a checkpoint that cannot be used.
    """
    check_checkpoint(checkpoint)
    config = load_config(checkpoint)
    settings.following(config.provenance)
    check_corpora(corpora, (config.source_language, config.target_language))


def prune_corpus(source: Checkpoint, train: Sequence[str], settings: PruneSettings, cache: Path) -> TokenCorpus:
    """Returns the tokenised training text: sentences that fit into the model's positions, split as `settings` say.

    Raises InvalidRequestError when no sentence pair is left.
    """
    longest = length_limit(source, settings).tokens
    vocabulary = Vocabulary(source.tokenizer)
    return TokenCorpus.build(list(train), vocabulary, longest, cache, languages_of(source), settings.segmentation())


def length_limit(source: Checkpoint, settings: PruneSettings) -> Limit:
    """Returns the longest sentence that is trained on, in tokens: `settings.max_length`, or fewer if the model has
    fewer positions."""
    return Limit.within(settings.max_length, source.architecture.max_positions, "--max-length")
