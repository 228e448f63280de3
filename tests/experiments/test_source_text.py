"""Plain source text from sentence pairs: new sentences that are long enough, each once."""

from experiments.source_text import chosen


def test_short_known_and_repeated_sentences_are_not_written() -> None:
    pairs = [
        "Go.\tGeh.",
        "The dog sleeps here.\tDer Hund schläft hier.",
        "the DOG sleeps here!\tDer Hund schläft hier!",
        "A cat sits there now.\tEine Katze sitzt jetzt dort.",
        "It rains very hard today.",
    ]
    assert chosen(pairs, {"a cat sits there now"}, 4) == ["The dog sleeps here.", "It rains very hard today."]
    assert chosen(pairs, set(), 1)[0] == "Go."
