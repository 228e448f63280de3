"""Parallel corpora as text: plain files, gzip, TSV, JSONL, Parquet and names on the hub."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, zip_longest
from pathlib import Path

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.storage.rows import text_lines
from hmc.training.data.counts import PairCounts
from hmc.training.data.rows import ENDINGS, Pair, is_rows, mapped_pairs, row_pairs
from hmc.training.data.vocabulary import Vocabulary

FORMS = (
    "'SRC TGT' (two files), one or more 'FILE.tsv', 'FILE.jsonl' or 'FILE.parquet', a pattern such as "
    "'data/*.parquet' or 'hub:NAME'"
)
SHOWN = 40
"""Characters of a side that a message shows."""


def corpus_names(corpus: str) -> list[Path]:
    """Returns the paths and patterns that a corpus is made of; an empty list for a hub corpus.

    Paths with spaces must be quoted, '…' or "…". Raises InvalidRequestError when a quote is not closed.
    """
    if corpus.startswith("hub:"):
        return []
    plain = list(map(Path, corpus.split()))
    if all(path.is_file() for path in plain):  # file names may themselves contain quotes
        return plain
    words = shlex.shlex(corpus, posix=True)
    words.whitespace_split = True
    words.escape = ""
    words.commenters = ""
    try:
        return list(map(Path, words))
    except ValueError as error:
        raise InvalidRequestError(f"corpus {corpus!r}: {error}; put paths with spaces in quotes") from error


def corpus_files(corpus: str) -> list[Path]:
    """Returns the files of a corpus in the order of reading; an empty list for a hub corpus.

    Patterns become the JSONL and Parquet files that they match, sorted by name. Raises InvalidRequestError as
    `corpus_names`, for a folder, and for a pattern that matches no such file.
    """
    return list(chain.from_iterable(map(_matching, corpus_names(corpus))))


def is_by_rows(corpus: str) -> bool:
    """Whether a corpus has JSONL or Parquet files, or is on the hub. Languages then choose its columns, and it may be
    larger than memory. Raises InvalidRequestError as `corpus_names`."""
    names = corpus_names(corpus)
    return all(map(is_rows, names)) if names else corpus.startswith("hub:")


def _matching(name: Path) -> list[Path]:
    if name.is_dir():
        raise InvalidRequestError(
            f"corpus {name}: a folder, which may hold text for training and for testing; name its shards by a pattern, "
            f"such as '{name}/train-*.parquet'"
        )
    if name.is_file() or not any(sign in str(name) for sign in "*?["):
        return [name]
    root = Path(name.anchor)
    files = sorted(path for path in root.glob(str(name.relative_to(root))) if not path.name.startswith("."))
    if not files:
        raise InvalidRequestError(f"corpus {str(name)!r}: no file matches this pattern")
    if others := [str(path) for path in files if not is_rows(path)]:
        raise InvalidRequestError(
            f"corpus {str(name)!r}: the pattern also matches {others[0]}, and it has to stand for {', '.join(ENDINGS)}"
        )
    return files


def read_pairs(
    corpus: str, languages: tuple[str, str] = ("en", "de"), counts: PairCounts | None = None
) -> Iterator[Pair]:
    """Yields the sentence pairs of a corpus, named as in a recipe (see `DataSection`).

    languages: source and target language; they choose the columns of JSONL, Parquet and hub corpora. counts: gets the
    lines of TSV files that have more than two columns. Raises InvalidRequestError when the name is malformed, a file is
    missing or unreadable, lacks the columns, or two files differ in length.
    """
    if corpus.startswith("hub:"):
        yield from _hub_pairs(corpus.removeprefix("hub:"), languages)
        return
    files = corpus_files(corpus)
    if files and all(map(is_rows, files)):
        for file in files:
            yield from row_pairs(file, languages)
        return
    if files and all(map(_is_tsv, files)):
        for file in files:
            yield from _tsv_pairs(file, counts)
        return
    if mixed := [str(file) for file in files if is_rows(file) or _is_tsv(file)]:
        raise InvalidRequestError(
            f"corpus {corpus!r}: {mixed[0]} has both sides, and cannot be one of two: give {FORMS}"
        )
    if len(files) != 2:
        raise InvalidRequestError(f"corpus {corpus!r}: give {FORMS}; paths with spaces in quotes")
    sides: Iterator[tuple[str | None, str | None]] = zip_longest(text_lines(files[0]), text_lines(files[1]))
    for number, pair in enumerate(sides, 1):
        if pair[0] is None or pair[1] is None:
            raise InvalidRequestError(f"{files[0]} and {files[1]} differ in length: one ends before line {number}")
        yield pair[0], pair[1]


def _is_tsv(file: Path) -> bool:
    return file.name.removesuffix(".gz").endswith(".tsv")


def _tsv_pairs(file: Path, counts: PairCounts | None = None) -> Iterator[Pair]:
    """The pairs of one file. A blank line is a pair of two empty sides."""
    for number, line in enumerate(text_lines(file), 1):
        source, tab, rest = line.partition("\t")
        if not tab and line.strip():
            raise InvalidRequestError(f"{file} line {number}: no TAB between source and target")
        target, _, more = rest.partition("\t")
        if counts is not None and more.strip():
            counts.more_columns += 1
            counts.columns = counts.columns or f"{file} line {number}: {source[:SHOWN]!r} and {target[:SHOWN]!r}"
        yield source, target


def check_corpora(corpora: Sequence[str], languages: tuple[str, str]) -> None:
    """Reads the first pair of every corpus on disk, and of each of its shards, to find mistakes early.

    Raises InvalidRequestError as `read_pairs`.
    """
    for corpus in corpora:
        if corpus.startswith("hub:"):
            continue
        if is_by_rows(corpus):
            for file in corpus_files(corpus):
                next(row_pairs(file, languages), None)
        elif all(map(_is_tsv, files := corpus_files(corpus))):
            for file in files:
                next(_tsv_pairs(file), None)
        else:
            next(read_pairs(corpus, languages), None)


def filled_pairs(pairs: Iterable[Pair], counts: PairCounts) -> Iterator[Pair]:
    """Yields the pairs with text on both sides. Counts all pairs, and the pairs that are left out."""
    for source, target in pairs:
        counts.pairs += 1
        if source.strip() and target.strip():
            yield source, target
        else:
            counts.empty += 1


def first_pairs(corpus: str, pairs: Iterable[Pair], count: int | None) -> list[Pair]:
    """Returns the first `count` of `pairs`, which are read from `corpus`; None: all of them.

    Text files are read to their end, because only there does it show that two files differ in length. Raises
    InvalidRequestError as `read_pairs`.
    """
    remaining = iter(pairs)
    found = list(islice(remaining, count))
    if not is_by_rows(corpus):
        for _ in remaining:
            pass
    return found


@dataclass(frozen=True)
class DevText:
    """The dev text of a run."""

    pairs: list[Pair]
    """The pairs that are scored: the first pairs of the corpus."""
    everything: list[Pair]
    """The pairs of the whole corpus that can be scored; of a hub corpus only those that are."""
    counts: PairCounts = field(default_factory=PairCounts, compare=False)
    """What was read, and what is left out."""

    def summary(self) -> str:
        """Returns how many pairs are scored, and how many are left out."""
        scored = f"{len(self.pairs):,} of {len(self.everything):,} pairs are scored"
        return scored + (f" ({self.counts.empty:,} with an empty side are left out)" if self.counts.empty else "")

    def warnings(self, vocabulary: Vocabulary, positions: int) -> list[str]:
        """Returns warnings about the texts. positions: of the model; longer sources are shortened to so many tokens."""
        warnings = self.counts.warnings()
        if cut := sum(len(vocabulary.encode(source)) > positions for source, _ in self.pairs):
            warnings.append(
                f"{cut:,} of the dev sources that are scored are longer than the {positions} positions of the model, "
                "and are shortened: divide them into sentences"
            )
        return warnings

    @property
    def fingerprint(self) -> str:
        """Number and digest of the scored pairs."""
        return _fingerprint(self.pairs)

    def check_same(self, fingerprint: str, state: Path) -> None:
        """Raises InvalidRequestError when the text differs from the one with `fingerprint`, saved in `state`.

        Only as many pairs as the fingerprint covers are compared: the number of scored pairs (`run.eval_sentences`) may
        change. An empty fingerprint, of a state written by an earlier version, is not compared.
        """
        count = int(fingerprint.partition(":")[0] or 0)
        if len(self.everything) < count and len(self.pairs) == len(self.everything):
            raise InvalidRequestError(
                f"{state} was scored on {count} pairs of the dev text, and this run reads {len(self.pairs)}: give "
                f"run.eval_sentences={count} or more, restore the dev text, or choose another folder"
            )
        if fingerprint and _fingerprint(self.everything[:count]) != fingerprint:
            raise InvalidRequestError(
                f"the dev text is not what {state} was scored on, and scores of two texts cannot be compared; restore "
                "the dev text, or choose another folder"
            )


def _fingerprint(pairs: Sequence[Pair]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for pair in pairs:
        digest.update("\n".join((*pair, "")).encode())
    return f"{len(pairs)}:{digest.hexdigest()}"


def read_dev(corpus: str, languages: tuple[str, str], sentences: int) -> DevText:
    """Reads a dev corpus; its first `sentences` pairs with text on both sides are scored.

    Raises InvalidRequestError as `read_pairs`, and when no pair has text on both sides.
    """
    from_hub = corpus.startswith("hub:")
    counts = PairCounts()
    full = filled_pairs(read_pairs(corpus, languages, counts), counts)
    everything = list(islice(full, sentences if from_hub else None))
    pairs = everything[:sentences]
    if not pairs:
        raise InvalidRequestError(f"dev corpus {corpus!r} has no sentence pair to score; give one with text in it")
    return DevText(pairs, everything, counts)


def _hub_pairs(name: str, languages: tuple[str, str]) -> Iterator[Pair]:
    import datasets

    path, _, config = name.partition(":")
    try:
        rows = datasets.load_dataset(path, config or None, split="train", streaming=True)
    except (OSError, ValueError, RuntimeError) as error:  # no network, unknown data set, missing configuration
        raise InvalidRequestError(f"corpus hub:{name}: cannot be read from the hub: {error}") from error
    yield from mapped_pairs(rows, languages, f"corpus hub:{name}")
