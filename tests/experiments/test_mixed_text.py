"""New sentences of words that were seen between the same neighbours."""

from experiments.mixed_text import mixed, plain, words_of

ANIMALS = ["horse", "goat", "monkey", "sheep", "camel", "donkey"]
PLACES = ["river", "garden", "castle", "market", "tunnel", "harbour"]
CAPTIONS = [f"a {animal} near the {place}." for animal, place in zip(ANIMALS, PLACES, strict=True)]
FILLER = ["a near the . a near the ."] * 20 + [f"{word} {word}" for word in map(chr, range(97, 123)) for _ in range(9)]
FILLER += [f"w{n}x w{n}x w{n}x" for n in range(40)]
"""Makes the frequent words, which stay, others than animals and places."""


def test_words_are_exchanged_within_their_places_and_known_sentences_are_not_written() -> None:
    left_out = {plain("A GOAT near the river!")}
    found = mixed([CAPTIONS, FILLER], left_out, 100, seed=3)
    assert found == mixed([CAPTIONS, FILLER], left_out, 100, seed=3)
    assert found
    assert len(set(map(plain, found))) == len(found)
    assert not set(map(plain, found)) & (left_out | set(map(plain, CAPTIONS)))
    for line in found:
        first, animal, near, the, place, stop = words_of(line)
        assert (first, near, the, stop) == ("a", "near", "the", ".")
        assert animal in ANIMALS
        assert place in PLACES


def test_no_more_lines_than_asked_for() -> None:
    assert len(mixed([CAPTIONS, FILLER], set(), 2, seed=1)) == 2
