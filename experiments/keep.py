"""Ways to copy phrases into translations as they are: how many survive, and what the rest of the sentence loses.

`python -m experiments.keep BUNDLE` translates 105 English captions, each with a phrase that no model translates: URLs,
e-mail addresses, numbers, emoji, placeholders. It prints, for each way, in how many translations every phrase occurs
exactly once more, and chrF against the German reference with the phrase in it. The bundle is from English to German.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

from sacrebleu.metrics import CHRF

from hmc.serving import Translator
from hmc.serving.requests.options import DecodeOptions

FRAMES = (
    ("A man is standing next to {}.", "Ein Mann steht neben {}."),
    ("Two dogs run across the grass with {}.", "Zwei Hunde rennen mit {} über das Gras."),
    ("A woman holds a sign that says {}.", "Eine Frau hält ein Schild, auf dem {} steht."),
    ("The boy looks at {} and laughs.", "Der Junge schaut {} an und lacht."),
    ("{} is written on the red wall.", "{} steht auf der roten Wand."),
    ("A girl with {} on her shirt sits at a table.", "Ein Mädchen mit {} auf dem Hemd sitzt an einem Tisch."),
    ("Several people wait in front of {}.", "Mehrere Personen warten vor {}."),
)
PHRASES = (
    "https://example.com/a?b=1&c=2", "www.hmc-project.org", "http://10.0.0.1:8080/x_y", "anna.b@example.com",
    "info@müller.de", "1,234.56", "42", "+49 30 901820", "2026-11-23", "😀", "❤️‍🔥", "{name}", "%(count)d", "${USER_ID}",
    "<b>",
)  # fmt: skip
WORDS = ("XY", "X1", "XYZ", "7", "99", "Z")


def plain(translator: Translator, text: str, phrase: str) -> str:
    """No protection."""
    return translator.translate([text])[0].text


def placeholder(word: str) -> Callable[[Translator, str, str], str]:
    """The phrase is replaced by a word that the model may copy."""

    def translate(translator: Translator, text: str, phrase: str) -> str:
        return translator.translate([text.replace(phrase, word)])[0].text.replace(word, phrase)

    return translate


def forced(translator: Translator, text: str, phrase: str) -> str:
    """The words that attend to the phrase give way to it in a target prefix, from which the search goes on."""
    first = translator.translate([text], DecodeOptions(alignment=True))[0]
    begin = len(
        translator.translate([text[: text.index(phrase)] or "."], DecodeOptions(alignment=True))[0].source_pieces
    )
    before = begin - 1 if text.index(phrase) else 0
    after = len(
        translator.translate([text[: text.index(phrase) + len(phrase)]], DecodeOptions(alignment=True))[0].source_pieces
    )
    hits = [
        n for n, token in enumerate(first.tokens) if before <= token.attention.index(max(token.attention)) < after - 1
    ]
    if not hits:
        return first.text
    pieces = [token.piece for token in first.tokens[: hits[0]]]
    prefix = "".join(pieces).replace("▁", " ").strip()
    return translator.translate([text], target_prefixes=[f"{prefix} {phrase}".strip()])[0].text


def around(translator: Translator, text: str, phrase: str) -> str:
    """The text before and after the phrase is translated by itself."""
    parts = text.split(phrase)
    done = [t.text for t in translator.translate(parts)]
    return phrase.join(
        (" " if p[:1] == " " and d else "") + d + (" " if p[-1:] == " " and d else "")
        for p, d in zip(parts, done, strict=True)
    )


def paste(word: str) -> Callable[[Translator, str, str], str]:
    """A word stands for the phrase; the word of the translation that attends to it most gives way to the phrase."""

    def translate(translator: Translator, text: str, phrase: str) -> str:
        done = translator.translate([text.replace(phrase, word)], DecodeOptions(alignment=True))[0]
        spelled = "".join(done.source_pieces)
        begin = spelled.find(word)
        ends, at = [], 0
        for piece in done.source_pieces:
            at += len(piece)
            ends.append(at)
        tokens = [
            n for n, end in enumerate(ends) if begin < end and ends[n] - len(done.source_pieces[n]) < begin + len(word)
        ]
        weights = [sum(t.attention[n] for n in tokens) for t in done.tokens[: len(done.tokens) - 1]]
        if not weights:
            return phrase
        best = weights.index(max(weights))
        first, last = best, best + 1
        while first > 0 and not done.tokens[first].piece.startswith("▁"):
            first -= 1
        while (
            last < len(weights)
            and not done.tokens[last].piece.startswith("▁")
            and done.tokens[last].piece not in ".,!?"
        ):
            last += 1
        write = lambda some: "".join(t.piece for t in some).replace("▁", " ").strip()
        before, after = write(done.tokens[:first]), write(done.tokens[last:-1])
        glue = "" if not after or after[0] in ".,!?" else " "
        return f"{before} {phrase}{glue}{after}".strip()

    return translate


def first_that(
    words: tuple[str, ...], last: Callable[[Translator, str, str], str] | None = None
) -> Callable[[Translator, str, str], str]:
    """The first word that occurs exactly once in its translation, as a word."""

    def translate(translator: Translator, text: str, phrase: str) -> str:
        for word in words:
            if word in text.replace(phrase, ""):
                continue
            done = translator.translate([text.replace(phrase, word)])[0].text
            if done.count(word) == 1 and re.search(rf"(?<!\w){word}(?!\w)", done):
                return done.replace(word, phrase)
        return last(translator, text, phrase) if last else ""

    return translate


NUMBERS = ("99", "12", "20", "10", "30", "55", "88", "100", "2014")
WAYS: dict[str, Callable[[Translator, str, str], str]] = {
    "plain": plain, **{f"placeholder {word}": placeholder(word) for word in WORDS}, "forced": forced, "around": around,
    **{f"paste {w}": paste(w) for w in ("99", "7")}, **{f"only {w}": first_that((w,)) for w in NUMBERS}, "numbers": first_that(NUMBERS), "first 4": first_that(NUMBERS[:4]),
    "4, then paste": first_that(NUMBERS[:4], paste("99")),
}  # fmt: skip


def main(bundle: str) -> None:
    """Prints one line for each way."""
    with Translator(bundle, device="cpu") as translator:
        for name, way in WAYS.items():
            made, wanted, kept = [], [], 0
            for source, target in FRAMES:
                for phrase in PHRASES:
                    made.append(way(translator, source.replace("{}", phrase), phrase))
                    wanted.append(target.replace("{}", phrase))
                    kept += made[-1].count(phrase) == 1
            without = [m.replace(p, "") for m, p in zip(made, PHRASES * len(FRAMES), strict=True)]
            bare = [w.replace(p, "") for w, p in zip(wanted, PHRASES * len(FRAMES), strict=True)]
            rest = CHRF().corpus_score(without, [bare]).score
            print(f"{name:16} {kept:4} of {len(made)} kept  chrF {rest:5.1f}  {made[3]!r} {made[40]!r}")


if __name__ == "__main__":
    main(sys.argv[1])
