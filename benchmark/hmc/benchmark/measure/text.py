"""Sentence files and test sets: one sentence on each line, in UTF-8, plain or gzip."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.storage.rows import text_lines
from hmc.serving.requests.options import MAX_TEXT_BYTES


def read_sentences(path: Path | str) -> list[str]:
    """Reads the lines of a file, as `text_lines` does.

    Raises InvalidRequestError for a file that is missing, empty, damaged or not UTF-8, naming the line.
    """
    sentences = list(text_lines(Path(path)))
    if not any(sentence.strip() for sentence in sentences):
        raise InvalidRequestError(f"{path}: holds no sentence; give one sentence a line")
    return sentences


def check_pairs(number: int, name: Path | str) -> None:
    """Raises InvalidRequestError if `number` sentence pairs, of a file, are too few for a significance test."""
    if number < 2:
        raise InvalidRequestError(
            f"{name}: {number} sentence pair, and the significance of a BLEU difference needs 2 or more; give more, or "
            "no references"
        )


def named_test_set(name: str, pair: str) -> tuple[Path, Path]:
    """The files of a test set of sacreBLEU: sources and, where it has several, the first references.

    pair: languages, such as en-de. Nothing is downloaded. Raises InvalidRequestError for a name that sacreBLEU does not
    have, for a pair that the set does not have, and for a set that is not on this machine, with the command that brings
    it here.
    """
    from sacrebleu.dataset import DATASETS

    if name not in DATASETS:
        raise InvalidRequestError(
            f"test_set {name}: sacreBLEU has no set of this name (`sacrebleu --list` shows them); for sentences of "
            "your own give their file"
        )
    if pair not in DATASETS[name].langpairs:
        raise InvalidRequestError(f"test_set {name}: sacreBLEU's set is not for {pair}, the languages of the bundle")
    folder = Path(os.environ.get("SACREBLEU") or Path.home() / ".sacrebleu") / name  # as sacreBLEU finds it
    reference = next(field for field in DATASETS[name].fieldnames(pair) if field.startswith("ref"))
    files = [folder / f"{name.replace('/', '_')}.{pair}.{field.replace(':', '-')}" for field in ("src", reference)]
    if missing := [file for file in files if not file.is_file()]:
        raise InvalidRequestError(
            f"test_set {name}: {missing[0]} is not on this machine, and hmc downloads nothing; "
            f"`sacrebleu -t {name} -l {pair} --echo src ref > /dev/null` downloads it"
        )
    return files[0], files[1]


@dataclass(frozen=True)
class TestSet:
    """Source sentences and, to score translations, their references. Line n of one belongs to line n of the other."""

    __test__ = False  # not a test class, whatever its name says to pytest

    name: str
    sources: tuple[str, ...]
    references: tuple[str, ...] | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """The source lines that are not blank. Only these are timed, since blank lines take no time."""
        return tuple(source for source in self.sources if source.strip())

    @classmethod
    def read(
        cls, src: Path | str, ref: Path | str | None = None, *, name: str | None = None, limit: int | None = None
    ) -> TestSet:
        """Reads the first `limit` lines (None: all) of both files. name: by default the name of `src` without suffixes.

        Raises InvalidRequestError as `read_sentences` does, for files of different lengths, for a single pair, and for
        a source line that is too long to be translated.
        """
        src = Path(src)
        sources = read_sentences(src)
        references = read_sentences(ref) if ref is not None else None
        if references is not None and len(references) != len(sources):
            raise InvalidRequestError(
                f"{src} has {len(sources)} lines and {ref} has {len(references)}: "
                "each source line needs its reference on the same line"
            )
        if limit is not None and limit < 1:
            raise InvalidRequestError(f"limit {limit}: choose 1 sentence or more, or leave it out for all")
        if references is not None:
            check_pairs(len(references[:limit]), src)
        for number, source in enumerate(sources[:limit], 1):
            if (size := len(source.encode())) > MAX_TEXT_BYTES:
                raise InvalidRequestError(
                    f"{src}: line {number} has {size:,} bytes, and a text may have {MAX_TEXT_BYTES:,}; "
                    "give one sentence a line"
                )
        return cls(
            name or src.name.removesuffix(".gz").rsplit(".", 1)[0],
            tuple(sources[:limit]),
            tuple(references[:limit]) if references is not None else None,
        )
