"""Writes plain source text from files of sentence pairs: each sentence once, without test sets.

    python -m experiments.source_text deu-eng.short.tsv.gz --leave-out test.en,val.en.gz --out tatoeba.en

The source side is the first column of a line; columns are separated by tabs. Sentences of fewer than --words words are
not written, nor those of --leave-out, nor one that was written before. Sentences are compared by their words in lower
case. `hmc distill` then lets a teacher translate the result.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.mixed_text import plain, read
from experiments.support.script import run_script


def chosen(lines: list[str], left_out: set[str], words: int) -> list[str]:
    """Returns the first columns of `lines` that are long enough and new, in their order."""
    known, found = set(left_out), list[str]()
    for line in lines:
        sentence = line.split("\t")[0].strip()
        compared = plain(sentence)
        if len(compared.split()) >= words and compared not in known:
            known.add(compared)
            found.append(sentence)
    return found


def main() -> None:
    """Writes the text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="+", type=Path)
    parser.add_argument("--leave-out", default="", help="files, separated by commas")
    parser.add_argument("--words", type=int, default=4, help="fewest words of a sentence")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    left_out = {plain(line) for name in given.leave_out.split(",") if name for line in read(Path(name))}
    lines = chosen([line for path in given.pairs for line in read(path)], left_out, given.words)
    given.out.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(f"{len(lines)} sentences")


if __name__ == "__main__":
    run_script(main)
