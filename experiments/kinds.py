"""Prepares the text of the shipped model: six kinds of English and German, for training, choosing and telling.

    python -m experiments.kinds DATA --out text

Writes `train.KIND.tsv.gz`, `dev.KIND.tsv.gz` and `test.KIND.tsv.gz` below --out, and `dev.tsv.gz` with all kinds
in turn, English TAB German. A pair whose source occurs in any test set is not trained on. DEV pairs of each kind
are held out for choosing checkpoints and levels: those whose source has the lowest hash, so that adding text keeps
most of them. Captions have a dev set of their own.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import re
from itertools import chain, zip_longest
from pathlib import Path

from experiments.support.script import run_script

KINDS = ("captions", "everyday", "help", "packages", "ui", "news")
DEV = 200
"""Pairs of each kind that are held out."""

Pairs = list[tuple[str, str]]


def read(path: Path) -> list[str]:
    """Returns the lines of a plain or gzip file."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return raw.decode("utf-8").splitlines()


def plain(line: str) -> str:
    """Returns the words of a line in lower case: what sentences are compared by."""
    return " ".join(re.findall(r"\w+", line.lower()))


def table(path: Path) -> Pairs:
    """Reads lines of English TAB German."""
    return [(source, target) for source, target in (line.split("\t")[:2] for line in read(path))]


def sides(folder: Path, name: str) -> Pairs:
    """Reads two line-aligned files."""
    return list(zip(read(folder / f"{name}.en.gz"), read(folder / f"{name}.de.gz"), strict=True))


def train_text(data: Path, kind: str) -> Pairs:
    """Returns the pairs of one kind that may be trained on, before any is left out."""
    if kind == "captions":
        return sides(data / "multi30k", "train")
    pairs = table(data / "mixed" / f"{kind}.train.tsv.gz")
    return pairs + table(data / "tatoeba" / "deu-eng.short.tsv.gz") if kind == "everyday" else pairs


def test_text(data: Path, kind: str) -> Pairs:
    """Returns the test set of one kind."""
    if kind == "captions":
        return sides(data / "multi30k", "test_2016_flickr")
    return table(data / "mixed" / f"{kind}.test.tsv.gz")


def held_out(pairs: Pairs) -> Pairs:
    """Returns the pairs whose source has the lowest hash."""
    return sorted(pairs, key=lambda pair: hashlib.sha256(pair[0].encode()).digest())[:DEV]


def write(path: Path, pairs: Pairs) -> None:
    """Writes the pairs, the same bytes each time."""
    text = "".join(f"{source}\t{target}\n" for source, target in pairs)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def main() -> None:
    """Writes the files and prints how many pairs each has."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with multi30k, tatoeba, mixed and tests")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    tests = {kind: test_text(given.data, kind) for kind in KINDS}
    public = chain.from_iterable(sides(given.data / "tests", name) for name in ("newstest2019", "flores_dev"))
    unseen = {plain(source) for source, _ in chain(public, *tests.values())}
    devs = dict[str, Pairs]()
    for kind in KINDS:
        pairs = [pair for pair in train_text(given.data, kind) if plain(pair[0]) not in unseen]
        devs[kind] = held_out(sides(given.data / "multi30k", "val") if kind == "captions" else pairs)
        kept_back = {plain(source) for source, _ in devs[kind]}
        pairs = [pair for pair in pairs if plain(pair[0]) not in kept_back]
        for part, found in (("train", pairs), ("dev", devs[kind]), ("test", tests[kind])):
            write(given.out / f"{part}.{kind}.tsv.gz", found)
        print(f"{kind}: {len(pairs)} to train on, {len(devs[kind])} dev, {len(tests[kind])} test")
    in_turn = [pair for row in zip_longest(*devs.values()) for pair in row if pair]
    write(given.out / "dev.tsv.gz", in_turn)


if __name__ == "__main__":
    run_script(main)
