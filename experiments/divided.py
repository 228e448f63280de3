"""One line of several sentences: divided before it is translated, or translated as a whole.

    python -m experiments.divided BUNDLE packages.test.tsv.gz [--captions test.en test.de]

Translates paragraphs of at least two sentences, greedily. For each way it prints how many sentences the translations
have, of those of the sources, in how many paragraphs one is missing, and BLEU. A file has a source and its translation
on each line, with a tab between them. --captions: two files of captions, three of which make a paragraph.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Callable, Sequence
from pathlib import Path

from sacrebleu.metrics import BLEU

from hmc.serving import DecodeOptions, Translator
from hmc.serving.documents.local import translate_document
from hmc.serving.requests.options import Segmentation, TextOptions
from hmc.serving.text.segmentation.sentences import sentences

GREEDY = DecodeOptions(beam_size=1)
CAPTIONS = 3
"""Captions in a paragraph."""
Pair = tuple[str, str]
Way = Callable[[Translator, Sequence[str]], list[str]]


def count(text: str, language: str) -> int:
    """Sentences of a text."""
    return sum(1 for _ in sentences(text, language))


def paragraphs(path: Path) -> list[Pair]:
    """Pairs of a .tsv.gz whose source has two sentences or more."""
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    pairs = [(source, target) for source, target in (line.split("\t") for line in lines)]
    return [pair for pair in pairs if count(pair[0], "en") > 1]


def captions(source: Path, target: Path) -> list[Pair]:
    """Captions and their translations, three in each pair."""
    sides = [path.read_text(encoding="utf-8").splitlines() for path in (source, target)]
    joined = [[" ".join(side[n : n + CAPTIONS]) for n in range(0, len(side) - CAPTIONS, CAPTIONS)] for side in sides]
    return list(zip(*joined, strict=True))


def whole(translator: Translator, texts: Sequence[str]) -> list[str]:
    """Each paragraph at once, as one sentence."""
    futures = [translator.submit(text, GREEDY, block=True) for text in texts]
    return [future.result().text for future in futures]


def divided(translator: Translator, texts: Sequence[str]) -> list[str]:
    """Each sentence by itself."""
    options = TextOptions(Segmentation.SENTENCE)
    return ["".join(p.text for p in translate_document(translator, text, GREEDY, options)) for text in texts]


WAYS: dict[str, Way] = {"whole": whole, "divided": divided}


def main() -> None:
    """Prints a line for each text and way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--captions", type=Path, nargs=2)
    parser.add_argument("--most", type=int, default=150, help="paragraphs of each text")
    given = parser.parse_args()
    texts = {given.pairs.name: paragraphs(given.pairs)}
    if given.captions:
        texts["captions"] = captions(*given.captions)
    with Translator(given.bundle, device="cpu", threads=1) as translator:
        for name, pairs in texts.items():
            sources, references = map(list, zip(*pairs[: given.most], strict=True))
            asked = [count(source, "en") for source in sources]
            for way, translate in WAYS.items():
                made = translate(translator, sources)
                found = [count(text, "de") for text in made]
                missing = sum(got < wanted for got, wanted in zip(found, asked, strict=True))
                kept = sum(min(got, wanted) for got, wanted in zip(found, asked, strict=True))
                bleu = BLEU().corpus_score(made, [references]).score
                print(
                    f"{name:22} {way:8} {kept:4} of {sum(asked)} sentences, {missing:3} of {len(made)} paragraphs lose "
                    f"one, BLEU {bleu:5.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
