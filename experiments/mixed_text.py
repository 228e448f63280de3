"""Makes more source text of a corpus' kind: its sentences, with some words exchanged for others seen in the same place.

    python -m experiments.mixed_text train.en.gz tatoeba.en --leave-out test.en,calibration.en --out mixed.en

A word may be exchanged for any word that some text has between the same two neighbours; rare words are drawn more often
than they occur. The sentences come from the first text, the neighbours from all texts. Sentences of the texts and of
--leave-out (test sets) are not written, whatever their case and punctuation. `hmc distill` then lets the teacher
translate the result: a student learns there what the teacher does with words that the corpus hardly has.
"""

from __future__ import annotations

import argparse
import gzip
import re
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from experiments.support.script import run_script

FREQUENT = 60
"""The most frequent words stay as they are: mostly function words."""
SHARE = 0.3
"""Probability that another word is exchanged, if it has any partner."""
FLATTEN = 0.4
"""A word is drawn with its count between the two neighbours to this power."""


def read(path: Path) -> list[str]:
    """Returns the lines of a plain or gzip file."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return raw.decode("utf-8").splitlines()


def plain(line: str) -> str:
    """Returns the words of a line in lower case: what sentences are compared by."""
    return " ".join(re.findall(r"\w+", line.lower()))


def words_of(line: str) -> list[str]:
    """Returns words and punctuation marks."""
    return re.findall(r"[\w'-]+|[^\w\s]", line)


def joined(words: list[str]) -> str:
    """Returns the line of these words."""
    return re.sub(r" ([.,!?;:])", r"\1", " ".join(words))


def mixed(texts: list[list[str]], left_out: set[str], number: int, seed: int) -> list[str]:
    """Returns `number` new sentences, or fewer when those of the first text do not give as many."""
    known = left_out | {plain(line) for text in texts for line in text}
    counts: Counter[str] = Counter()
    places: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for text in texts:
        for line in text:
            words = ["", *words_of(line), ""]
            counts.update(words)
            for left, word, right in zip(words, words[1:], words[2:], strict=False):
                places[left, right][word] += 1
    frequent = {word for word, _ in counts.most_common(FREQUENT)}
    draw, found = np.random.default_rng(seed), list[str]()
    for index in draw.permutation(np.repeat(np.arange(len(texts[0])), 3)):
        words = ["", *words_of(texts[0][index]), ""]
        for i in range(1, len(words) - 1):
            if words[i] in frequent or not words[i].isalpha() or draw.random() >= SHARE:
                continue
            choices = places[words[i - 1], words[i + 1]]
            others = [word for word in choices if word != words[i] and word.isalpha() and word not in frequent]
            if others:
                weights = np.array([choices[word] for word in others]) ** FLATTEN
                words[i] = others[int(draw.choice(len(others), p=weights / weights.sum()))]
        line = joined(words[1:-1])
        if plain(line) not in known:
            known.add(plain(line))
            found.append(line)
        if len(found) == number:
            break
    return found


def main() -> None:
    """Writes the text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="+", type=Path)
    parser.add_argument("--leave-out", default="", help="files, separated by commas")
    parser.add_argument("--lines", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    left_out = {plain(line) for name in given.leave_out.split(",") if name for line in read(Path(name))}
    lines = mixed([read(path) for path in given.texts], left_out, given.lines, given.seed)
    given.out.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    run_script(main)
