"""Ways to copy phrases into translations as they are: how many survive, and what the rest of the sentence loses.

`python -m experiments.keep BUNDLE` translates 105 English captions, each with a phrase that models seldom copy:
URLs, e-mail addresses, numbers, emoji, placeholders. For each way it prints in how many translations the phrase occurs
exactly once, and chrF of the rest against a German reference. The bundle is from English to German.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from sacrebleu.metrics import CHRF

from hmc.serving import Translator
from hmc.serving.documents.keeping import paste
from hmc.serving.documents.local import translate_document
from hmc.serving.requests.options import DecodeOptions, Segmentation, TextOptions

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
Way = Callable[[Translator, str, str], str]
TRACED = DecodeOptions(alignment=True)


def plain(translator: Translator, text: str, _phrase: str) -> str:
    """No protection."""
    return translator.translate([text], segmentation="none")[0].text


def placeholder(word: str) -> Way:
    """A word stands for the phrase."""
    return lambda translator, text, phrase: translator.translate([text.replace(phrase, word)], segmentation="none")[
        0
    ].text.replace(word, phrase)


def forced(translator: Translator, text: str, phrase: str) -> str:
    """What attends to the phrase, and all after it, gives way to a target prefix that ends with the phrase."""

    def size(part: str) -> int:
        return (
            len(translator.translate([part], TRACED, segmentation="none")[0].source_pieces) - 1 if part.strip() else 0
        )

    found = translator.translate([text], TRACED, segmentation="none")[0]
    begin = text.index(phrase)
    first, last = size(text[:begin]), size(text[: begin + len(phrase)])
    hits = [n for n, token in enumerate(found.tokens) if first <= token.attention.index(max(token.attention)) < last]
    if not hits:
        return found.text
    prefix = "".join(token.piece for token in found.tokens[: hits[0]]).replace("▁", " ").strip()
    return translator.translate([text], target_prefixes=[f"{prefix} {phrase}".strip()], segmentation="none")[0].text


def around(translator: Translator, text: str, phrase: str) -> str:
    """The text before and after the phrase is translated by itself."""
    done = [
        each.text for each in translator.translate([part.strip() for part in text.split(phrase)], segmentation="none")
    ]
    return f" {phrase} ".join(done)


def pasted(translator: Translator, text: str, phrase: str) -> str:
    """The number 99 stands for the phrase; the word that attends most to it gives way to the phrase."""
    return (
        paste(translator.translate([text.replace(phrase, "99")], TRACED, segmentation="none")[0], {"99": phrase}) or ""
    )


def kept(translator: Translator, text: str, phrase: str) -> str:
    """What the service does."""
    texts = TextOptions(Segmentation.AUTO, keep=(phrase,))
    return "".join(piece.text for piece in translate_document(translator, text, None, texts))


WAYS: dict[str, Way] = {
    "no protection": plain, "placeholder XYZ": placeholder("XYZ"), "placeholder 99": placeholder("99"),
    "forced copy": forced, "text around": around, "99, pasted": pasted, "keep": kept,
}  # fmt: skip


def main(bundle: str) -> None:
    """Prints one line for each way."""
    pairs = [(frame, phrase) for frame in FRAMES for phrase in PHRASES]
    rests = [target.replace("{}", "") for (_, target), _ in pairs]
    with Translator(bundle, device="cpu") as translator:
        for name, way in WAYS.items():
            made = [way(translator, source.replace("{}", phrase), phrase) for (source, _), phrase in pairs]
            count = sum(text.count(phrase) == 1 for text, (_, phrase) in zip(made, pairs, strict=True))
            without = [text.replace(phrase, "") for text, (_, phrase) in zip(made, pairs, strict=True)]
            print(f"{name:16} {count:4} of {len(pairs)}  chrF {CHRF().corpus_score(without, [rests]).score:5.1f}")


if __name__ == "__main__":
    main(sys.argv[1])
