"""Parallel corpora: plain text, gzip, TSV and hub names, tokenised once into memory-mapped Arrow files."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain, islice, repeat, zip_longest
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.tokenizer_files import TokenizerFiles
from hmc.training.vocabulary import Vocabulary

Pair = tuple[str, str]


def _lines(path: Path) -> Iterator[str]:
    if not path.is_file():
        raise InvalidRequestError(f"corpus file {path} does not exist (paths are relative to the working directory)")
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as handle:
            for line in handle:
                yield line.rstrip("\n")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"{path} is not UTF-8: {error}; convert it first, e.g. with iconv") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InvalidRequestError(f"{path}: not a whole gzip file ({error}); copy it again, or unpack it") from error
    except OSError as error:
        raise InvalidRequestError(f"{path}: cannot be read: {error.strerror}") from error


def read_pairs(corpus: str, languages: tuple[str, str] = ("en", "de")) -> Iterator[Pair]:
    """Sentence pairs of a corpus named as in a recipe (see `DataSection`). Raises InvalidRequestError."""
    if corpus.startswith("hub:"):
        yield from _hub_pairs(corpus.removeprefix("hub:"), languages)
        return
    files = corpus.split()
    if len(files) == 1 and ".tsv" in files[0]:
        for number, line in enumerate(_lines(Path(files[0])), 1):
            source, tab, target = line.partition("\t")
            if not tab:
                raise InvalidRequestError(f"{files[0]} line {number}: no TAB between source and target")
            yield source, target.split("\t")[0]
        return
    if len(files) != 2:
        raise InvalidRequestError(f"corpus {corpus!r}: give 'SRC TGT' (two files), 'FILE.tsv' or 'hub:NAME'")
    sides: Iterator[tuple[str | None, str | None]] = zip_longest(_lines(Path(files[0])), _lines(Path(files[1])))
    for number, pair in enumerate(sides, 1):
        if pair[0] is None or pair[1] is None:
            raise InvalidRequestError(f"{files[0]} and {files[1]} differ in length: one ends before line {number}")
        yield pair[0], pair[1]


def check_corpora(corpora: Sequence[str]) -> None:
    """Reads the first pair of every corpus on disk. Raises InvalidRequestError as `read_pairs`."""
    for corpus in corpora:
        if not corpus.startswith("hub:"):
            next(read_pairs(corpus), None)


def read_dev(corpus: str, languages: tuple[str, str], sentences: int) -> list[Pair]:
    """The first pairs of a dev corpus. Raises InvalidRequestError as `read_pairs`, and when there is none."""
    pairs = list(islice(read_pairs(corpus, languages), sentences))
    if not any(source.strip() and target.strip() for source, target in pairs):
        raise InvalidRequestError(f"dev corpus {corpus!r} has no sentence pair to score; give one with text in it")
    return pairs


def _hub_pairs(name: str, languages: tuple[str, str]) -> Iterator[Pair]:
    import datasets

    path, _, config = name.partition(":")
    try:
        rows = datasets.load_dataset(path, config or None, split="train", streaming=True)
    except (OSError, ValueError, RuntimeError) as error:  # no network, no such data set, a missing configuration
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


class Segmentation(NamedTuple):
    """How training text becomes tokens: BPE-dropout probability, drawn segmentations of each pair, seed.

    BPE-dropout is not reproducible: SentencePiece 0.2.3 draws differently in every process, whatever its seed. The seed
    here only tells draws in `cache` apart; a run that resumes finds its own there.
    """

    dropout: float = 0.0
    copies: int = 1
    seed: int = 1


class TokenCorpus:
    """A tokenised corpus on disk: Arrow lists of token ids, memory-mapped, plus both lengths in memory."""

    def __init__(self, rows: Any) -> None:
        """rows: a `datasets.Dataset` with columns `source`, `target` (ids with EOS) and their lengths."""
        self._rows = rows
        numbers = rows.with_format("numpy")
        self.source_lengths = np.asarray(numbers["source_length"][:], np.int32)
        self.target_lengths = np.asarray(numbers["target_length"][:], np.int32)

    def __len__(self) -> int:
        return len(self.source_lengths)

    def batch(self, indices: npt.NDArray[np.int64]) -> tuple[list[list[int]], list[list[int]]]:
        """Source and target ids of the given rows."""
        rows = self._rows[indices.tolist()]
        return rows["source"], rows["target"]

    @cached_property
    def fingerprint(self) -> str:
        """Digest of all token ids in their order: equal text, tokenised equally."""
        digest = hashlib.blake2b(digest_size=16)
        for lengths in (self.source_lengths, self.target_lengths):
            digest.update(lengths.tobytes())
        for side in ("source", "target"):
            for chunk in self._rows.data.column(side).chunks:
                digest.update(np.ascontiguousarray(chunk.flatten().to_numpy()).tobytes())
        return digest.hexdigest()

    def check_same(self, fingerprint: str, state: Path) -> None:
        """Raises InvalidRequestError unless a run that began with text of `fingerprint` may go on with this one.

        Empty: an earlier version wrote the state and kept no fingerprint.
        """
        if fingerprint and fingerprint != self.fingerprint:
            raise InvalidRequestError(
                f"the training text, or its tokens in cache/, is not what {state} was trained with; put it back, or "
                "choose another --out to train with the new one (BPE-dropout draws new tokens when cache/ is deleted)"
            )

    @classmethod
    def build(
        cls,
        corpora: list[str],
        vocabulary: Vocabulary,
        max_length: int,
        cache: Path,
        languages: tuple[str, str],
        segmentation: Segmentation | None = None,
    ) -> TokenCorpus:
        """Tokenises `corpora` into `cache`, or maps what is there already for the same input.

        Pairs with an empty side, or with a side longer than max_length tokens, EOS counted, are left out. Raises
        InvalidRequestError as `read_pairs`, and when no pair is left.
        """
        segmentation = segmentation or Segmentation()
        import datasets

        key = hashlib.sha256(
            json.dumps([corpora, [_stamp(c) for c in corpora], max_length, vocabulary.digest, segmentation]).encode()
        )
        folder = cache / key.hexdigest()[:16]
        if not (folder / "dataset_info.json").is_file():
            datasets.disable_progress_bars()
            features = datasets.Features(
                {c: datasets.List(datasets.Value("int32")) for c in ("source", "target")}
                | {c: datasets.Value("int32") for c in ("source_length", "target_length")}
            )
            try:
                rows = datasets.Dataset.from_generator(
                    _rows,
                    features=features,
                    cache_dir=str(cache / "arrow"),
                    gen_kwargs={
                        "corpora": corpora,
                        "model": vocabulary.serialized,
                        "max_length": max_length,
                        "languages": languages,
                        "segmentation": segmentation,
                    },
                    fingerprint=key.hexdigest()[:32],
                )
            except datasets.exceptions.DatasetGenerationError as error:
                if isinstance(error.__cause__, InvalidRequestError):  # what `read_pairs` says is the message
                    raise error.__cause__ from None
                raise
            cast(datasets.Dataset, rows).save_to_disk(str(folder))
        return cls(datasets.Dataset.load_from_disk(str(folder)))


def _stamp(corpus: str) -> list[list[object]]:
    files = [Path(f) for f in corpus.split() if not corpus.startswith("hub:")]
    return [[str(f.absolute()), f.stat().st_size, f.stat().st_mtime_ns] for f in files if f.is_file()]


def _rows(
    corpora: list[str], model: TokenizerFiles, max_length: int, languages: tuple[str, str], segmentation: Segmentation
) -> Iterator[dict[str, object]]:
    vocabulary, found = Vocabulary(model), False
    for corpus in corpora:
        for source, target in chain.from_iterable(
            repeat(p, segmentation.copies) for p in read_pairs(corpus, languages)
        ):
            ids = vocabulary.encode_pair(source, target, segmentation.dropout)
            if all(1 < len(side) <= max_length for side in ids):
                found = True
                yield {"source": ids[0], "target": ids[1], "source_length": len(ids[0]), "target_length": len(ids[1])}
    if not found:
        raise InvalidRequestError(f"training text {corpora}: no sentence pair of 1 to {max_length} tokens a side")
