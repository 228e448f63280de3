"""What a pruning run reads: its request, where the folder holds one already, and its training text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hmc.artifact.checkpoint import Checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.training.corpus import TokenCorpus
from hmc.training.parallel_text import DevText
from hmc.training.prune_settings import PruneSettings, same_request
from hmc.training.run_folder import REQUEST, has_results
from hmc.training.vocabulary import Vocabulary


def requested(out: Path, request: dict[str, Any], settings: PruneSettings) -> str | None:
    """Text for request.json; None where the file is that already.

    A run folder with results belongs to one request; only how it is carried out may change on resume, and nested
    fine-tuning may be added. Raises InvalidRequestError.
    """
    path, text = out / REQUEST, _text(request, settings)
    if not path.is_file():
        return text
    stored = path.read_text(encoding="utf-8")
    if same_request(stored, request, settings):
        former = json.loads(stored)
        whole = request | {"nested_steps": request["nested_steps"] or former.get("nested_steps", 0)}
        return _text(whole, settings) if any(former.get(key) != value for key, value in whole.items()) else None
    if has_results(out):
        raise InvalidRequestError(f"{out} holds a pruning run with other settings; choose another --out or delete it")
    return text


def prune_corpus(source: Checkpoint, train: Sequence[str], settings: PruneSettings, cache: Path) -> TokenCorpus:
    """The tokenised training text, sentences up to the model's positions. Raises InvalidRequestError if none is."""
    config, longest = source.config, min(settings.max_length, source.config.architecture.max_positions)
    languages = (config.source_language, config.target_language)
    return TokenCorpus.build(list(train), Vocabulary(source.tokenizer), longest, cache, languages)


class Fingerprints(Protocol):
    """What a state keeps of the inputs; empty where an earlier version wrote it."""

    corpus: str
    """Fingerprint of the tokenised training text."""
    dev: str
    """Fingerprint of the dev text."""
    source: str
    """Digest of the checkpoint that is pruned."""


def fingerprints_of(progress: Fingerprints) -> dict[str, str]:
    """What `Inputs.fingerprints` was when they were noted."""
    return {"corpus": progress.corpus, "dev": progress.dev, "source": progress.source}


@dataclass(frozen=True)
class Inputs:
    """What a run is made from."""

    corpus: TokenCorpus
    dev: DevText
    source: str
    """Digest of the checkpoint."""

    def note(self, progress: Fingerprints) -> None:
        """Writes down what they are."""
        progress.corpus, progress.dev, progress.source = self.corpus.fingerprint, self.dev.fingerprint, self.source

    def fingerprints(self) -> dict[str, str]:
        """The same as a record."""
        return {"corpus": self.corpus.fingerprint, "dev": self.dev.fingerprint, "source": self.source}

    def check_same(self, progress: Fingerprints, state: Path) -> None:
        """Raises InvalidRequestError unless a run that has come to `progress`, read from `state`, began with them."""
        self.corpus.check_same(progress.corpus, state)
        self.dev.check_same(progress.dev, state)
        if progress.source and progress.source != self.source:
            raise InvalidRequestError(
                f"the checkpoint is not the one that {state} began with: another one has its place; put it back, or "
                "choose another --out to prune the new one"
            )
        self.note(progress)


def _text(request: dict[str, Any], settings: PruneSettings) -> str:
    return json.dumps(request | {"settings": settings.model_dump(mode="json", exclude={"run"})}, indent=1)
