"""Inputs of a pruning run: its request, which the run folder keeps, its training text and its checkpoint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hmc.artifact.checkpoint.checkpoint import Checkpoint, load_checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.training.data.corpus import TokenCorpus
from hmc.training.data.parallel_text import DevText, check_corpora
from hmc.training.data.vocabulary import Vocabulary
from hmc.training.distillation.teacher import check_same_teacher
from hmc.training.pruning.settings import PruneSettings, request_differences
from hmc.training.runs.folder import REQUEST, has_results


def request_text(out: Path, request: dict[str, Any], settings: PruneSettings) -> str | None:
    """Returns the text to write to request.json; None when the file in the folder `out` has it already.

    A run folder with results belongs to one request. Only `settings.run` may change when the run resumes, and nested
    fine-tuning may be added. Raises InvalidRequestError, naming the differences, for another request.
    """
    path, text = out / REQUEST, _text(request, settings)
    if not path.is_file():
        return text
    stored = path.read_text(encoding="utf-8")
    differences = request_differences(stored, request, settings)
    if differences == []:
        former = json.loads(stored)
        whole = request | {"nested_steps": request["nested_steps"] or former.get("nested_steps", 0)}
        return _text(whole, settings) if any(former.get(key) != value for key, value in whole.items()) else None
    if has_results(out):
        named = f" ({'; '.join(differences)})" if differences else ""
        raise InvalidRequestError(
            f"{out} holds a pruning run with other settings{named}; choose another --out or delete it"
        )
    return text


def check_text(checkpoint: Path, corpora: Sequence[str]) -> None:
    """Reads the first pairs of corpora in the languages of a checkpoint. Raises as `check_corpora`."""
    if corpora:
        config = load_checkpoint(checkpoint).config
        check_corpora(corpora, (config.source_language, config.target_language))


def prune_corpus(source: Checkpoint, train: Sequence[str], settings: PruneSettings, cache: Path) -> TokenCorpus:
    """Returns the tokenised training text: sentences that fit into the model's positions, split as `settings` say.

    Raises InvalidRequestError when no sentence pair is left.
    """
    config, longest = source.config, min(settings.max_length, source.config.architecture.max_positions)
    languages = (config.source_language, config.target_language)
    vocabulary = Vocabulary(source.tokenizer)
    return TokenCorpus.build(list(train), vocabulary, longest, cache, languages, settings.segmentation())


class Fingerprints(Protocol):
    """Fingerprints of the inputs that a saved state keeps; empty in states of earlier versions."""

    corpus: str
    """Fingerprint of the tokenised training text."""
    dev: str
    """Fingerprint of the dev text."""
    source: str
    """Digest of the checkpoint that is pruned."""
    teacher: str
    """Digest of the teacher; empty without one."""


def fingerprints_of(progress: Fingerprints) -> dict[str, str]:
    """Returns the fingerprints in `progress` in the form of `Inputs.fingerprints`."""
    found = {"corpus": progress.corpus, "dev": progress.dev, "source": progress.source}
    return found | ({"teacher": progress.teacher} if progress.teacher else {})


@dataclass(frozen=True)
class Inputs:
    """The texts and the checkpoint of a run."""

    corpus: TokenCorpus
    dev: DevText
    source: str
    """Digest of the checkpoint."""
    teacher: str = ""
    """Digest of the teacher; empty without one."""

    def note(self, progress: Fingerprints) -> None:
        """Writes the fingerprints into `progress`."""
        progress.corpus, progress.dev, progress.source = self.corpus.fingerprint, self.dev.fingerprint, self.source
        progress.teacher = self.teacher

    def fingerprints(self) -> dict[str, str]:
        """Returns the fingerprints as JSON values."""
        found = {"corpus": self.corpus.fingerprint, "dev": self.dev.fingerprint, "source": self.source}
        return found | ({"teacher": self.teacher} if self.teacher else {})

    def check_same(self, progress: Fingerprints, state: Path) -> None:
        """Raises InvalidRequestError when the inputs differ from those of `progress`, which was read from `state`.

        Notes the inputs in `progress` when they agree.
        """
        self.corpus.check_same(progress.corpus, state)
        self.dev.check_same(progress.dev, state)
        if progress.source and progress.source != self.source:
            raise InvalidRequestError(
                f"the checkpoint is not the one that {state} began with; restore that checkpoint, or choose another "
                "--out to prune the new one"
            )
        check_same_teacher(progress.teacher, self.teacher, state)
        self.note(progress)


def _text(request: dict[str, Any], settings: PruneSettings) -> str:
    return json.dumps(request | {"settings": settings.model_dump(mode="json", exclude={"run"})}, indent=1)
