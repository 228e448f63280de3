"""Training text as token ids: tokenised once into Arrow files, which are memory-mapped."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.storage.files import digest_problems, sha256_remembered, write_digests, write_whole
from hmc.artifact.tokenizer.files import TokenizerFiles
from hmc.training.data.counts import Limit, PairCounts
from hmc.training.data.parallel_text import corpus_files, filled_pairs, is_by_rows, read_pairs
from hmc.training.data.vocabulary import Vocabulary

log = logging.getLogger(__name__)
COUNTS = "counts.json"
"""File beside the tokens: what was read and what was left out (`PairCounts`)."""
FILES = "files.json"
"""File in the cache: the sha256 of every text file, so that an unchanged file is not read again."""
ARROW = "arrow"
"""Folder in the cache that tokens are first written to."""
KEY_DIGITS = 16
"""Hexadecimal digits in the name of a folder of tokens."""


class Splitting(NamedTuple):
    """How words are split into tokens (BPE-dropout, Provilkov et al. 2020).

    BPE-dropout is not reproducible: SentencePiece 0.2.3 draws differently in every process, whatever its seed. A run
    that resumes reads the tokens it drew from its cache.
    """

    dropout: float = 0.0
    """Probability of skipping a merge."""
    copies: int = 1
    """Segmentations drawn of each sentence pair."""
    seed: int = 1
    """Names the draw within the cache; it does not seed SentencePiece."""


class TokenCorpus:
    """A tokenised corpus: token ids memory-mapped from disk, sentence lengths (EOS counted) in memory."""

    def __init__(self, folder: Path) -> None:
        """folder: a `datasets.Dataset` with columns `source`, `target` (ids, EOS last) and their lengths, as `build`
        writes it."""
        import datasets

        self.folder = folder
        self._rows = cast(datasets.Dataset, datasets.Dataset.load_from_disk(str(folder)))
        self.source_lengths = self._numbers("source_length")
        self.target_lengths = self._numbers("target_length")

    def __len__(self) -> int:
        return len(self.source_lengths)

    @property
    def counts(self) -> PairCounts:
        """The pairs that were read and the pairs that were left out. Tokens of earlier versions have only the pairs
        that were kept."""
        path = self.folder / COUNTS
        return PairCounts(**json.loads(path.read_text())) if path.is_file() else PairCounts(len(self))

    def batch(self, indices: npt.NDArray[np.int64]) -> tuple[list[list[int]], list[list[int]]]:
        """Returns source and target ids of the given rows."""
        rows = self._rows[indices.tolist()]
        return rows["source"], rows["target"]

    def _numbers(self, column: str) -> npt.NDArray[np.int32]:
        """A column of numbers, copied piece by piece: 4 bytes a row, and nothing more while it is made."""
        numbers = np.empty(len(self._rows), np.int32)
        start = 0
        for chunk in self._rows.data.column(column).chunks:
            numbers[start : start + len(chunk)] = chunk.to_numpy()
            start += len(chunk)
        return numbers

    @cached_property
    def fingerprint(self) -> str:
        """Digest of all token ids in their order. Equal for equal text that is tokenised equally."""
        digest = hashlib.blake2b(digest_size=16)
        for lengths in (self.source_lengths, self.target_lengths):
            digest.update(lengths.tobytes())
        for side in ("source", "target"):
            for chunk in self._rows.data.column(side).chunks:
                digest.update(np.ascontiguousarray(chunk.flatten().to_numpy()).tobytes())
        return digest.hexdigest()

    def check_same(self, fingerprint: str, state: Path) -> None:
        """Raises InvalidRequestError if the tokens do not have the `fingerprint` that was saved in `state`.

        An empty fingerprint, of a state written by an earlier version, is not compared.
        """
        if fingerprint and fingerprint != self.fingerprint:
            raise InvalidRequestError(
                f"the training text, or its tokens in cache/, is not what {state} was trained with; restore it, or "
                "choose another folder to train with the new text (BPE-dropout draws new tokens when cache/ is deleted)"
            )

    def drop_others(self) -> None:
        """Deletes all other tokens of the cache: tokens of earlier texts, and tokens that were never finished."""
        name = re.compile(rf"[0-9a-f]{{{KEY_DIGITS}}}|{ARROW}")
        for entry in self.folder.parent.iterdir():
            if name.fullmatch(entry.name) and entry.name != self.folder.name:
                shutil.rmtree(entry)

    @classmethod
    def build(
        cls,
        corpora: list[str],
        vocabulary: Vocabulary,
        max_length: int,
        cache: Path,
        languages: tuple[str, str],
        segmentation: Splitting | None = None,
    ) -> TokenCorpus:
        """Tokenises `corpora` into the folder `cache`, or maps the tokens that it already holds for the same input.

        A text file is known by its bytes, wherever it lies and whenever it was written. Tokens that changed since they
        were written are made again, with a warning. Pairs are left out when a side is empty or longer than `max_length`
        tokens (EOS counted). languages: source and target, which choose the columns of JSONL, Parquet and hub corpora.
        Rows are read, tokenised and written some thousands at a time. Raises InvalidRequestError as `read_pairs`, when
        no pair is left, and for dropout in a unigram vocabulary.
        """
        segmentation = segmentation or Splitting()
        vocabulary.encode("a", dropout=segmentation.dropout)  # refuses what it cannot do before all text is read
        settings = (max_length, vocabulary.digest, segmentation)
        remembered = (cache / FILES).is_file()
        key = _key(corpora, languages, settings, cache / FILES)
        if remembered and not (cache / key[:KEY_DIGITS]).is_dir():
            # All text will be read: so read it for its digests too, in case the file that remembers them is damaged.
            (cache / FILES).unlink()
            key = _key(corpora, languages, settings, cache / FILES)
        folder = cache / key[:KEY_DIGITS]
        if problems := digest_problems(folder):
            log.warning("the tokens in %s are damaged, and are made again: %s", folder, "; ".join(problems))
            shutil.rmtree(folder)
        if not (folder / "dataset_info.json").is_file():
            arguments: dict[str, object] = {
                "corpora": corpora,
                "model": vocabulary.serialized,
                "max_length": max_length,
                "languages": languages,
                "segmentation": segmentation,
                "counts_file": folder / COUNTS,
            }
            _write_tokens(folder, key, arguments)
        return cls(folder)


def _write_tokens(folder: Path, key: str, arguments: dict[str, object]) -> None:
    """Writes the rows of `_rows(**arguments)` to a folder of tokens."""
    import datasets

    datasets.disable_progress_bars()
    features = datasets.Features(
        {c: datasets.List(datasets.Value("int32")) for c in ("source", "target")}
        | {c: datasets.Value("int32") for c in ("source_length", "target_length")}
    )
    arrow = folder.with_name(ARROW)
    try:
        rows = datasets.Dataset.from_generator(
            _rows, features=features, cache_dir=str(arrow), gen_kwargs=arguments, fingerprint=key[:32]
        )
    except datasets.exceptions.DatasetGenerationError as error:
        if isinstance(error.__cause__, (InvalidRequestError, OSError)):
            raise error.__cause__ from None  # its message names the problem
        raise
    cast(datasets.Dataset, rows).save_to_disk(str(folder))
    shutil.rmtree(arrow)  # the same rows: the disk need not hold them twice
    write_digests(folder)


READ_BY = (".gz", ".jsonl", ".parquet", ".tsv")
"""Suffixes of files that say how they are read."""


def _key(corpora: list[str], languages: tuple[str, str], settings: tuple[object, ...], memory: Path) -> str:
    """Returns a digest of what tokens depend on: `settings`, the bytes of the text, and how it is read.

    memory: see `sha256_remembered`. A corpus on the hub is known by its name. Languages count where they choose
    columns: text files are read alike for all of them.
    """
    files = [list(filter(Path.is_file, corpus_files(corpus))) for corpus in corpora]
    digests = sha256_remembered(list(chain.from_iterable(files)), memory)
    inputs = list[object]()
    for corpus, group in zip(corpora, files, strict=True):
        contents = []
        for file in group:
            suffixes = [suffix for suffix in file.suffixes if suffix in READ_BY]
            contents.append([suffixes, digests[file]])
        inputs.append([contents or corpus, list(languages) if is_by_rows(corpus) else []])
    # The empty list keeps the keys of earlier versions, whose tokens of BPE-dropout could not be drawn again.
    return hashlib.sha256(json.dumps([[], inputs, *settings]).encode()).hexdigest()


def _rows(
    corpora: list[str], model: TokenizerFiles, max_length: int, languages: tuple[str, str], segmentation: Splitting,
    counts_file: Path,
) -> Iterator[dict[str, object]]:  # fmt: skip
    vocabulary = Vocabulary(model)
    counts = PairCounts()
    for source, target in kept_pairs(corpora, languages, vocabulary, max_length, counts, segmentation):
        yield {"source": source, "target": target, "source_length": len(source), "target_length": len(target)}
    counts.check(corpora, Limit(max_length, ""))
    counts_file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(counts_file, json.dumps(counts.to_json()))


def kept_pairs(
    corpora: Sequence[str], languages: tuple[str, str], vocabulary: Vocabulary, max_length: int, counts: PairCounts,
    segmentation: Splitting,
) -> Iterator[tuple[list[int], list[int]]]:  # fmt: skip
    """Yields the token ids of the pairs that are trained on, EOS last, and counts all pairs into `counts`.

    It has the arguments of `TokenCorpus.build`. Raises as `read_pairs`.
    """
    for corpus in corpora:
        for source, target in read_pairs(corpus, languages, counts):
            least = 1 + len(vocabulary.opening(source))  # of a blank target: EOS, and the language that it begins with
            for _ in range(segmentation.copies):
                ids = vocabulary.encode_pair(source, target, segmentation.dropout)
                counts.pairs += 1
                counts.tokens += len(ids[1])
                if len(ids[0]) <= 1 or len(ids[1]) <= least:
                    counts.empty += 1
                elif max(map(len, ids)) > max_length:
                    counts.too_long += 1
                    counts.lost_tokens += len(ids[1])
                else:
                    yield ids


def count_pairs(
    corpora: Sequence[str], languages: tuple[str, str], vocabulary: Vocabulary | None, max_length: int
) -> PairCounts:
    """Reads corpora to their end, except corpora on the hub, and counts the pairs on which a run would train.

    vocabulary: None: the text is not tokenised, and only empty sides are counted. Raises as `read_pairs`.
    """
    counts = PairCounts()
    local = [corpus for corpus in corpora if not corpus.startswith("hub:")]
    if vocabulary:
        for _ in kept_pairs(local, languages, vocabulary, max_length, counts, Splitting()):
            pass
        return counts
    for corpus in local:
        for _ in filled_pairs(read_pairs(corpus, languages, counts), counts):
            pass
    return counts
