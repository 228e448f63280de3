"""Vocabulary shortlists: which target tokens a source token may need, learned from translated text by IBM Model 1.

See Brown et al. 1993.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from hmc.artifact.bundle.shortlist import Lexicon
from hmc.artifact.checkpoint.checkpoint import Checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.tokenizer.tokenizer import Tokenizer, open_tokenizer

Ids = Sequence[int]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
ITERATIONS = 5
"""Rounds of expectation maximisation."""
LEAST_PROBABILITY = 1e-3
"""Translations with a smaller t(target | source) are left out. On Multi30k, lists that this limit cuts cover more than
lists of equal length that only `best` cuts; a limit ten times as high covers less."""
MAX_LINKS = 100_000_000
"""Links aligned at most: 150 000 pairs of 25 and 25 tokens."""
LINKS_AT_ONCE = 8_000_000
FREQUENT = 100
BEST = 20


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
    arch = checkpoint.architecture
    tokenizer = open_tokenizer(checkpoint.tokenizer)
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


def encode_pairs(sources: Sequence[str], targets: Sequence[str], tokenizer: Tokenizer) -> Iterator[tuple[Ids, Ids]]:
    """Token ids of parallel texts for `learn_lexicon`, one pair at a time.

    Raises InvalidRequestError for unequal counts, before the first pair.
    """
    if len(sources) != len(targets):
        raise InvalidRequestError(
            f"{len(sources)} source and {len(targets)} target texts: line n of one must translate line n of the other"
        )
    return (
        (encode_line(tokenizer, source, "shortlist"), tokenizer.encode(target, target=True))
        for source, target in zip(sources, targets, strict=True)
    )


def encode_line(tokenizer: Tokenizer, text: str, use: str) -> list[int]:
    """Token ids of a source line. Raises InvalidRequestError with its beginning and the use of the text."""
    try:
        return tokenizer.encode(text)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"the line {text[:40]!r} of the text for the {use}: {error}. Change it") from error


def learn_lexicon(
    pairs: Iterable[tuple[Ids, Ids]],
    arch: Architecture,
    *,
    best: int,
    frequent: int,
) -> Lexicon:
    """The `best` translations of every source token, and the `frequent` target tokens that occur most.

    pairs: (source ids, target ids), with EOS or without: EOS and padding are not aligned. At most MAX_LINKS links are
    aligned: of more, evenly spaced pairs are. Frequencies are counted in all pairs. The unknown token is aligned like
    any word. Ties go to the smaller id.

    Memory: 8 bytes a token of the corpus, 4 a link, 40 a distinct pair of tokens: 3 GB for a million pairs of 25.
    Raises InvalidRequestError for no usable pair, ids outside the vocabulary, and counts that make no sense.
    """
    for name, count in (("best", best), ("frequent", frequent)):
        if not 1 <= count <= arch.vocab_size:
            raise InvalidRequestError(f"{name} {count}: choose 1 to {arch.vocab_size}, the size of the vocabulary")
    sizes = arch.source_size, arch.vocab_size
    bitext = Bitext.read(pairs, sizes, (arch.eos_id, arch.pad_id))
    always = np.union1d(_most_frequent(bitext.target, arch.vocab_size, frequent), [arch.eos_id, arch.unk_id])
    table = translation_table(bitext.sampled(MAX_LINKS), sizes)
    starts, targets = table.best(best, LEAST_PROBABILITY, arch.source_size)
    own = None if arch.source_vocab_size is None else arch.vocab_size
    return Lexicon(always.astype(np.int32), starts, targets, arch.pad_id, own)


def _most_frequent(tokens: Ints, vocab_size: int, count: int) -> Longs:
    """The `count` tokens that occur most in `tokens`, or all if they are fewer."""
    occurrences = np.bincount(tokens, minlength=vocab_size)
    order = np.argsort(-occurrences, kind="stable")[:count]
    return order[occurrences[order] > 0]


@dataclass(frozen=True)
class Bitext:
    """P sentence pairs as flat arrays; a sentence is never empty."""

    source: Ints
    """`[S]`: the source sentences, one after the other."""
    source_lengths: Longs
    """`[P]`."""
    target: Ints
    target_lengths: Longs

    @classmethod
    def read(cls, pairs: Iterable[tuple[Ids, Ids]], sizes: tuple[int, int], skipped: Sequence[int]) -> Bitext:
        """Keeps the tokens that are not `skipped`, and the pairs that have some on both sides.

        sizes: of the source and of the target vocabulary.
        """
        tokens = (array("i"), array("i"))
        lengths = (array("q"), array("q"))
        for pair in pairs:
            kept = [[token for token in side if token not in skipped] for side in pair]
            if all(kept):
                for side in (0, 1):
                    tokens[side].extend(kept[side])
                    lengths[side].append(len(kept[side]))
        source, target = (np.frombuffer(side, np.intc).astype(np.int32, copy=False) for side in tokens)
        if not len(source):
            raise InvalidRequestError("no sentence pair has words on both sides: give parallel text to learn from")
        for name, ids, size in (("source", source, sizes[0]), ("target", target, sizes[1])):
            if ids.min() < 0 or ids.max() >= size:
                worst = ids.min() if ids.min() < 0 else ids.max()
                raise InvalidRequestError(
                    f"{name} token {worst} is outside the vocabulary, 0 to {size - 1}: encode with its tokenizer"
                )
        return cls(source, np.frombuffer(lengths[0], np.int64), target, np.frombuffer(lengths[1], np.int64))

    def sampled(self, max_links: int) -> Bitext:
        """Evenly spaced pairs that have about `max_links` links together; all pairs if they have no more."""
        links = int(((self.source_lengths + 1) * self.target_lengths).sum())
        pairs = len(self.source_lengths)
        if links <= max_links:
            return self
        kept = np.zeros(pairs, np.bool_)
        kept[np.linspace(0, pairs - 1, max(1, pairs * max_links // links)).astype(np.int64)] = True
        return Bitext(
            self.source[np.repeat(kept, self.source_lengths)],
            self.source_lengths[kept],
            self.target[np.repeat(kept, self.target_lengths)],
            self.target_lengths[kept],
        )


@dataclass(frozen=True)
class TranslationTable:
    """t(target | source) of the D pairs of tokens that occur together, ordered by source, then target."""

    source: Ints
    """`[D]`; the number of source tokens is the empty word."""
    target: Ints
    probability: Floats

    def best(self, count: int, least: float, sources: int) -> tuple[Longs, Ints]:
        """Row starts `[sources + 1]` and targets `[E]`: the `count` most probable that reach `least`, best first."""
        likely = np.flatnonzero((self.probability >= least) & (self.source < sources))
        rounded = -self.probability[likely].astype(
            np.float32
        )  # so that equal probabilities compare as equal, whatever their rounding errors
        order = likely[np.lexsort((self.target[likely], rounded, self.source[likely]))]
        rank = np.arange(len(order)) - np.searchsorted(self.source[order], self.source[order])
        order = order[rank < count]
        return np.searchsorted(self.source[order], np.arange(sources + 1)).astype(np.int64), self.target[order]


def translation_table(bitext: Bitext, sizes: tuple[int, int]) -> TranslationTable:
    """Model 1 with the empty word, by expectation maximisation from a uniform start (section 4.1, equations 14 and 17).

    Every alignment is as probable as every other, so a link's share of its target position is its t over the sum of t
    of all links there; the next t are the sums of these shares, normalised for each source token.
    """
    pair_keys, links = zip(*_links(bitext, *sizes), strict=True)
    keys = np.concatenate(pair_keys)
    keys.sort()
    keys = keys[np.diff(keys, prepend=-1) > 0]  # np.unique without the inverse hashes, which takes 40 times as long
    rows = [np.searchsorted(keys, distinct).astype(np.int32) for distinct in pair_keys]
    del pair_keys
    source, target = (part(keys, sizes[1]).astype(np.int32) for part in (np.floor_divide, np.remainder))
    del keys
    probability = np.ones(len(source))
    for _ in range(ITERATIONS):
        counts = np.zeros(len(source))
        for row, chunk in zip(rows, links, strict=True):
            counts[row] += chunk.counts(probability[row])
        probability = counts / np.bincount(source, counts)[source]
    return TranslationTable(source, target, probability)


@dataclass(frozen=True)
class _Links:
    """N links of T target positions: of each with every position of its source sentence and with the empty word.

    Those of one target position stand together. They are between D distinct pairs of tokens.
    """

    pair: Ints
    """`[N]`: which of the D pairs."""
    widths: Ints
    """`[T]`: links of each target position."""

    def counts(self, probability: Floats) -> Floats:
        """`[D]` t(target | source) → `[D]` expected counts of the pairs: equation 17 of section 4.1."""
        t = probability[self.pair]
        totals = np.add.reduceat(t, np.cumsum(self.widths) - self.widths)
        return np.asarray(np.bincount(self.pair, t / np.repeat(totals, self.widths), len(probability)), np.float64)


def _links(bitext: Bitext, sources: int, vocab_size: int) -> Iterator[tuple[Longs, _Links]]:
    """All links of a bitext, about LINKS_AT_ONCE at a time, and their pairs as `[D]` source · V + target, ascending.

    The empty word is source token `sources`.
    """
    source = np.insert(bitext.source, np.cumsum(bitext.source_lengths) - bitext.source_lengths, sources)
    lengths = bitext.source_lengths + 1
    widths = np.repeat(lengths, bitext.target_lengths)
    starts = np.repeat(np.cumsum(lengths) - lengths, bitext.target_lengths)
    chunks = np.cumsum(widths) // LINKS_AT_ONCE
    for begin, end in pairwise([0, *(np.flatnonzero(np.diff(chunks)) + 1).tolist(), len(chunks)]):
        width = widths[begin:end]
        shift = starts[begin:end] - (np.cumsum(width) - width)
        linked = source[np.arange(width.sum()) + np.repeat(shift, width)]
        keys = linked * np.int64(vocab_size) + np.repeat(bitext.target[begin:end], width)
        distinct, pair = np.unique(keys, return_inverse=True)
        yield distinct, _Links(pair.astype(np.int32), width.astype(np.int32))
