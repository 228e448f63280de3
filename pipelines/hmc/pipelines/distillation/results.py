"""Results of a distillation: parallel text that training reads, what was dropped and why, and a report."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from sacrebleu.metrics import BLEU

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.significance import tokenizer_of
from hmc.artifact.storage.files import whole_file, write_whole
from hmc.pipelines.distillation.filters import Filters, Reason
from hmc.pipelines.distillation.shards import Record, read_shard, shard_path
from hmc.pipelines.distillation.sources import SourceFile, all_lines

REPORT = "report.json"
DROPPED = "dropped.tsv"
TRAIN = ("train.source.txt", "train.target.txt")
DEV = ("dev.source.txt", "dev.target.txt")
JUDGED = 1000
"""References that show which tokenizer BLEU takes."""
MOST_HELD_OUT = 0.1
"""Largest share of the translations that is held out as dev text."""


@dataclass(frozen=True)
class Distilled:
    """The results in a distillation folder."""

    folder: Path
    lines: int
    """Source lines."""
    train: int
    """Sentence pairs of the training text."""
    dev: int
    """Sentence pairs that were held out."""
    dropped: dict[str, int]
    """Reason → number of lines that it dropped."""
    mean_score: float
    """Mean of log P / length over the pairs that stayed: a teacher that is sure of its text comes near 0."""

    def corpus(self) -> str:
        """Returns the training text as recipes and `--data` name it."""
        return _corpus(self.folder, TRAIN)

    def dev_corpus(self) -> str:
        """Returns the held-out text as recipes and `--dev` name it. Raises InvalidRequestError if no dev text was held
        out."""
        if not self.dev:
            raise InvalidRequestError(f"{self.folder} holds out no dev text: too few translations passed the filters")
        return _corpus(self.folder, DEV)

    def losses(self) -> list[str]:
        """Returns a line for each reason that dropped source lines, for users."""
        return [f"{number:,} of {self.lines:,} lines dropped: {reason}" for reason, number in self.dropped.items()]

    def to_json(self) -> dict[str, Any]:
        """Returns the results as JSON values."""
        return asdict(self) | {"folder": str(self.folder)}


def write_results(
    folder: Path, shards: int, filters: Filters, held_out: int, references: Sequence[SourceFile] = ()
) -> Distilled:
    """Filters the translations of `shards` files, and writes text and report. Existing text is not touched.

    held_out: sentence pairs to hold out as dev text, at most MOST_HELD_OUT of all; they are spread evenly. references:
    of every source line. The translation of a line that is closest to its reference is taken. Raises
    InvalidRequestError if no translation passes the filters, InvalidArtifactError for a damaged file.
    """
    request: dict[str, Any] = {"filters": filters.to_json(), "held_out": held_out, "shards": shards}
    if references:
        request["references"] = [file.identity() for file in references]
    if (former := _read(folder, request)) is not None:
        return former
    taken = _closest(folder, shards, references) if references else None
    reasons = [record.skipped or _reason(record, filters) for record in _records(folder, shards, taken)]
    counts = Counter[str](reason for reason in reasons if reason)
    kept = len(reasons) - counts.total()
    dev = min(held_out, int(kept * MOST_HELD_OUT))
    chosen = {(2 * index + 1) * kept // (2 * dev) for index in range(dev)}
    (folder / REPORT).unlink(missing_ok=True)  # it is of the text that is replaced now
    score = _write_text(folder, zip(_records(folder, shards, taken), reasons, strict=True), chosen)
    if not kept:
        raise InvalidRequestError(
            f"none of {len(reasons):,} lines is left to train with ({_listed(counts)}); {folder / DROPPED} has each of "
            "them"
        )
    found = Distilled(folder, len(reasons), kept - dev, dev, dict(sorted(counts.items())), round(score / kept, 4))
    results = found.to_json()
    del results["folder"]
    write_whole(folder / REPORT, (json.dumps({"request": request, **results}, indent=1) + "\n").encode())
    return found


def _write_text(folder: Path, rows: Iterable[tuple[Record, str | None]], dev: Collection[int]) -> float:
    """Writes training text, dev text and what was dropped; returns the sum of the scores of what stays.

    rows: each record with the reason to drop it. dev: positions, among the records that stay, of the dev text.
    """
    score = 0.0
    position = 0
    with ExitStack() as stack:
        dropped, *text = (stack.enter_context(whole_file(folder / name)) for name in (DROPPED, *TRAIN, *DEV))
        for record, reason in rows:
            best = record.hypotheses[0] if record.hypotheses else None
            if reason or best is None:
                cells = (reason or "", str(record.line + 1), record.source, best.text if best else "")
                dropped.write(("\t".join(map(_cell, cells)) + "\n").encode())
                continue
            sides = text[2:] if position in dev else text[:2]
            for file, side in zip(sides, (record.source, best.text), strict=True):
                file.write(f"{side}\n".encode())
            score = score + best.score
            position = position + 1
    return score


def _records(folder: Path, shards: int, taken: Sequence[int] | None = None) -> Iterator[Record]:
    """Yields every record, with the taken one of its translations first."""
    for record in (record for number in range(shards) for record in read_shard(shard_path(folder, number))):
        first = taken[record.line] if taken else 0
        yield replace(record, hypotheses=record.hypotheses[first:]) if first else record


def _closest(folder: Path, shards: int, references: Sequence[SourceFile]) -> list[int]:
    """Returns which translation of each line has the highest sentence BLEU (Kim & Rush 2016, section 3.3); of equal
    ones, the one that the teacher prefers."""
    paths = [file.path for file in references]
    tokenizer = tokenizer_of([line.text for line in islice(all_lines(paths), JUDGED)])
    bleu = BLEU(tokenize=tokenizer, effective_order=True)
    lines = all_lines(paths)
    found = []
    for record, line in zip(_records(folder, shards), lines, strict=True):
        scores = [bleu.sentence_score(h.text, [line.text]).score for h in record.hypotheses]
        found.append(scores.index(max(scores)) if scores else 0)
    return found


def _reason(record: Record, filters: Filters) -> Reason | None:
    best = record.hypotheses[0]
    return filters.reason_to_drop(
        record.source,
        best.text,
        source_tokens=record.source_tokens,
        target_tokens=best.tokens,
        unfinished=best.unfinished,
    )


def _read(folder: Path, request: dict[str, Any]) -> Distilled | None:
    """Returns the results that are there; None if they are of other filters, or not complete."""
    try:
        found = json.loads((folder / REPORT).read_text(encoding="utf-8"))
        if found.pop("request") != json.loads(json.dumps(request)):
            return None
        results = Distilled(folder, **found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return results if all((folder / name).is_file() for name in (*TRAIN, *DEV, DROPPED)) else None


def _corpus(folder: Path, names: tuple[str, str]) -> str:
    paths = [str(folder / name) for name in names]
    quote = next((q for q in ("", "'", '"') if not any(c in "".join(paths) for c in (q or " \t'\""))), None)
    if quote is None:
        raise InvalidRequestError(f"{folder}: a path with both kinds of quotes cannot be named as a corpus; rename it")
    return " ".join(f"{quote}{path}{quote}" for path in paths)


def _cell(text: str) -> str:
    return text.replace("\t", " ").replace("\n", " ")


def _listed(reasons: Counter[str]) -> str:
    return ", ".join(f"{reason} {number:,}" for reason, number in sorted(reasons.items()))
