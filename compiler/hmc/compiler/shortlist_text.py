"""What vocabulary shortlists are learned from, and how long they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hmc.artifact.checkpoint import Checkpoint
from hmc.artifact.shortlist import Lexicon
from hmc.artifact.tokenizer import open_tokenizer
from hmc.compiler.lexicon import encode_pairs, learn_lexicon

FREQUENT, BEST = 100, 20


@dataclass(frozen=True)
class ShortlistText:
    """Parallel text, and how many candidates come from it."""

    sources: Sequence[str]
    targets: Sequence[str]
    frequent: int = FREQUENT
    """The most frequent target tokens, which are candidates of every sentence."""
    best: int = BEST
    """Translations of each source token."""


def lexicon_of(text: ShortlistText, checkpoint: Checkpoint) -> Lexicon:
    """Learns a lexicon in the checkpoint's vocabulary. Raises InvalidRequestError for text that cannot be used."""
    arch = checkpoint.architecture
    return learn_lexicon(
        encode_pairs(text.sources, text.targets, open_tokenizer(checkpoint.tokenizer)), arch.vocab_size,
        best=min(text.best, arch.vocab_size), frequent=min(text.frequent, arch.vocab_size),
        eos_id=arch.eos_id, pad_id=arch.pad_id, unk_id=arch.unk_id,
    )  # fmt: skip
