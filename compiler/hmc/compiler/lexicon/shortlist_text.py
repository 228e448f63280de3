"""Vocabulary shortlists: the text they are learned from, and their length."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hmc.artifact.bundle.shortlist import Lexicon
from hmc.artifact.checkpoint.checkpoint import Checkpoint
from hmc.artifact.tokenizer.tokenizer import Tokenizer, open_tokenizer
from hmc.compiler.lexicon.model1 import encode_pairs, learn_lexicon

FREQUENT, BEST = 100, 20


@dataclass(frozen=True)
class ShortlistText:
    """Parallel text, and how many candidates are learned from it."""

    sources: Sequence[str]
    targets: Sequence[str]
    frequent: int = FREQUENT
    """How many of the most frequent target tokens are candidates of every sentence."""
    best: int = BEST
    """How many translations of each source token are candidates."""


def lexicon_of(text: ShortlistText, checkpoint: Checkpoint) -> Lexicon:
    """Learns a lexicon in the checkpoint's vocabulary. Raises InvalidRequestError for text that cannot be used."""
    arch, tokenizer = checkpoint.architecture, open_tokenizer(checkpoint.tokenizer)
    learnt = learn_lexicon(
        encode_pairs(text.sources, text.targets, tokenizer),
        arch,
        best=min(text.best, arch.vocab_size),
        frequent=min(text.frequent, arch.vocab_size),
    )
    return learnt if arch.source_vocab_size is None else with_copies(learnt, tokenizer)


def with_copies(lexicon: Lexicon, tokenizer: Tokenizer) -> Lexicon:
    """Adds the target token that is spelled like the source token to its translations: names and numbers are copied."""
    rows = np.split(lexicon.targets, lexicon.starts[1:-1])
    for source, row in enumerate(rows):
        same = tokenizer.find(tokenizer.source_piece(source))
        if same is not None and same != lexicon.pad_id and same not in row:
            rows[source] = np.append(row, np.int32(same))
    starts = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return dataclasses.replace(lexicon, starts=starts, targets=np.concatenate(rows))
