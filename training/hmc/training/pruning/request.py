"""The request of a pruning run: its checks, what the run folder keeps of it, and the training text that it names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hmc.artifact.checkpoint.checkpoint import Checkpoint, check_checkpoint, load_config
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.ffn import NeuronBudget
from hmc.training.data.corpus import TokenCorpus
from hmc.training.data.counts import Limit
from hmc.training.data.parallel_text import check_corpora
from hmc.training.data.vocabulary import Vocabulary
from hmc.training.distillation.teacher import teacher_path
from hmc.training.pruning.settings import PruneSettings
from hmc.training.runs.folder import REQUEST, WHERE, differences, has_results, where
from hmc.training.runs.processes import check_device


def check_request(settings: PruneSettings, neurons: Sequence[NeuronBudget], nested_steps: int) -> None:
    """Raises InvalidRequestError when settings contradict each other, InvalidArtifactError for a damaged teacher, and
    as `check_device`."""
    nested = settings.nested
    check_device(settings.run)
    teacher_path(settings.distill, Path())  # here any path stands for the checkpoint that is pruned
    if settings.distill.teacher:
        check_checkpoint(Path(settings.distill.teacher))
    if nested.heads != "checkpoints" and not nested_steps:
        raise InvalidRequestError("--nested-heads belongs to --nested-steps: give a number of updates")
    if nested.heads != "checkpoints" and (neurons or settings.l0_lambda is not None):
        raise InvalidRequestError(
            f"--nested-heads {nested.heads} closes no gates: leave --target-ffn and --l0-lambda out"
        )
    if nested_steps and nested.teacher == "in-place" and not settings.distill.active:
        raise InvalidRequestError("--nested-teacher in-place belongs to --distill: give a weight, such as 0.9")
    if nested_steps and nested.teacher == "in-place" and settings.distill.teacher:
        raise InvalidRequestError("--nested-teacher in-place learns from the largest level: leave --teacher out")
    if nested_steps and nested.teacher == "in-place" and nested.levels != "sandwich":
        raise InvalidRequestError(
            "--nested-teacher in-place needs a largest level in every update: leave out "
            f"--nested-levels {nested.levels}"
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
            f"{out} holds a pruning run with other settings{named}; give the same, choose another --out, or delete "
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
        given = former.pop("settings")
        worked_with: dict[str, Any] = {
            "bpe_dropout": 0.0,
            "bpe_dropout_copies": 1,
            "settle_gates": given.get("l0_lambda") is not None,
        }
        worked_with["nested"] = {"levels": "one"}
        former_settings = PruneSettings.model_validate(worked_with | given)
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
    config = source.config
    longest = length_limit(source, settings).tokens
    languages = (config.source_language, config.target_language)
    vocabulary = Vocabulary(source.tokenizer)
    return TokenCorpus.build(list(train), vocabulary, longest, cache, languages, settings.segmentation())


def length_limit(source: Checkpoint, settings: PruneSettings) -> Limit:
    """Returns the longest sentence that is trained on, in tokens: `settings.max_length`, or fewer if the model has
    fewer positions."""
    return Limit.within(settings.max_length, source.architecture.max_positions, "--max-length")
