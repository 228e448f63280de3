"""Parallel corpora as text: plain files, gzip, TSV and names on the hub."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, NamedTuple, cast

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.storage.text import text_lines

Pair = tuple[str, str]


def corpus_files(corpus: str) -> list[Path]:
    """Returns the files that a corpus names; an empty list for a hub corpus.

    Paths with spaces must be quoted, '…' or "…". Raises InvalidRequestError when a quote is not closed.
    """
    if corpus.startswith("hub:"):
        return []
    plain = [Path(name) for name in corpus.split()]
    if all(path.is_file() for path in plain):  # file names may themselves contain quotes
        return plain
    words = shlex.shlex(corpus, posix=True)
    words.whitespace_split, words.escape, words.commenters = True, "", ""
    try:
        return [Path(name) for name in words]
    except ValueError as error:
        raise InvalidRequestError(f"corpus {corpus!r}: {error}; put paths with spaces in quotes") from error


def read_pairs(corpus: str, languages: tuple[str, str] = ("en", "de")) -> Iterator[Pair]:
    """Yields the sentence pairs of a corpus, named as in a recipe (see `DataSection`).

    languages: source and target language; only hub corpora use them, to choose the columns. Raises InvalidRequestError
    when the name is malformed, a file is missing or unreadable, or two files differ in length.
    """
    if corpus.startswith("hub:"):
        yield from _hub_pairs(corpus.removeprefix("hub:"), languages)
        return
    files = corpus_files(corpus)
    if len(files) == 1 and ".tsv" in files[0].name:
        for number, line in enumerate(text_lines(files[0]), 1):
            source, tab, target = line.partition("\t")
            if not tab:
                raise InvalidRequestError(f"{files[0]} line {number}: no TAB between source and target")
            yield source, target.split("\t")[0]
        return
    if len(files) != 2:
        raise InvalidRequestError(
            f"corpus {corpus!r}: give 'SRC TGT' (two files), 'FILE.tsv' or 'hub:NAME'; paths with spaces in quotes"
        )
    sides: Iterator[tuple[str | None, str | None]] = zip_longest(text_lines(files[0]), text_lines(files[1]))
    for number, pair in enumerate(sides, 1):
        if pair[0] is None or pair[1] is None:
            raise InvalidRequestError(f"{files[0]} and {files[1]} differ in length: one ends before line {number}")
        yield pair[0], pair[1]


def check_corpora(corpora: Sequence[str]) -> None:
    """Reads the first pair of every corpus on disk, to find mistakes early. Raises as `read_pairs`."""
    for corpus in corpora:
        if not corpus.startswith("hub:"):
            next(read_pairs(corpus), None)


def first_pairs(corpus: str, pairs: Iterable[Pair], count: int | None) -> list[Pair]:
    """Returns the first `count` of `pairs`, which are read from `corpus`; None: all of them.

    Files are read to their end, because only there does it show that two files differ in length. Raises
    InvalidRequestError as `read_pairs`.
    """
    remaining = iter(pairs)
    found = list(islice(remaining, count))
    if not corpus.startswith("hub:"):
        for _ in remaining:
            pass
    return found


class DevText(NamedTuple):
    """The dev text of a run."""

    pairs: list[Pair]
    """The pairs that are scored: the first pairs of the corpus."""
    everything: list[Pair]
    """The whole corpus; of a hub corpus only the pairs that are scored."""

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
        if fingerprint and _fingerprint(self.everything[:count]) != fingerprint:
            raise InvalidRequestError(
                f"the dev text is not what {state} was scored on, and scores of two texts cannot be compared; restore "
                "the dev text, or choose another --out"
            )


def _fingerprint(pairs: Sequence[Pair]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for pair in pairs:
        digest.update("\n".join((*pair, "")).encode())
    return f"{len(pairs)}:{digest.hexdigest()}"


def read_dev(corpus: str, languages: tuple[str, str], sentences: int) -> DevText:
    """Reads a dev corpus; its first `sentences` pairs are scored.

    Raises InvalidRequestError as `read_pairs`, and when no pair has text on both sides.
    """
    from_hub = corpus.startswith("hub:")
    everything = list(islice(read_pairs(corpus, languages), sentences if from_hub else None))
    pairs = everything[:sentences]
    if not any(source.strip() and target.strip() for source, target in pairs):
        raise InvalidRequestError(f"dev corpus {corpus!r} has no sentence pair to score; give one with text in it")
    return DevText(pairs, everything)


def _hub_pairs(name: str, languages: tuple[str, str]) -> Iterator[Pair]:
    import datasets

    path, _, config = name.partition(":")
    try:
        rows = datasets.load_dataset(path, config or None, split="train", streaming=True)
    except (OSError, ValueError, RuntimeError) as error:  # no network, unknown data set, missing configuration
        raise InvalidRequestError(f"corpus hub:{name}: cannot be read from the hub: {error}") from error
    for row in rows:
        try:
            pair = cast(dict[str, Any], row)["translation"]
            both = pair[languages[0]], pair[languages[1]]
        except KeyError as error:
            raise InvalidRequestError(
                f"corpus hub:{name}: its rows have no {error}; HMC takes data sets with a `translation` column that "
                f"holds {languages[0]} and {languages[1]}"
            ) from error
        yield both
