"""Which translations are dropped, and for which reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmc.artifact import InvalidRequestError
from hmc.pipelines import Filters
from hmc.pipelines.distillation.filters import repeats


def reason(source: str, target: str, filters: Filters | None = None, **lengths: int) -> str | None:
    found = {"source_tokens": 10, "target_tokens": 11} | lengths
    return (filters or Filters()).reason_to_drop(source, target, unfinished=False, **found)


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("Ein Hund läuft.", 1),
        ("ha ha ha", 3),
        ("Ha ha HA!", 2),
        ("der Mann und der Mann und der Mann und", 3),
        ("ein Mann und ein Mann mit Hund", 1),
        ("ein Mann ein Mann mit Hund", 2),
        ("a b c d e f g h a b c d e f g h a b c d e f g h", 3),
        (". . . . . . . .", 1),
        ("- - - Ja - - -", 1),
        ("", 1),
        ("ja ja nein ja ja ja", 3),
        ("犬が走る犬が走る犬が走る草の上", 3),
        ("犬が走る草の上", 1),
        ("のののののの", 3),
    ],
)
def test_loops_are_counted(text: str, times: int) -> None:
    assert repeats(text) == times


@given(st.lists(st.sampled_from("ab"), max_size=14))
def test_counts_are_those_of_the_plainest_form(words: list[str]) -> None:
    """Tries every sequence at every place."""
    most = 1
    for start in range(len(words)):
        for size in range(1, 9):
            again = 1
            while words[start + again * size : start + (again + 1) * size] == words[start : start + size] != []:
                again += 1
            if len(words[start : start + size]) == size:
                most = max(most, again)
    assert repeats(" ".join(words)) == most


def test_a_loop_drops_unless_the_source_has_it_too() -> None:
    assert reason("He laughs loudly.", "Er lacht lacht lacht laut.") == "loop"
    assert reason("Ha ha ha!", "Ha ha ha, so!") is None
    assert reason("He laughs loudly.", "Er lacht lacht laut.") is None
    assert reason("He laughs loudly.", "Er lacht lacht laut.", Filters(max_repeats=1)) == "loop"


def test_copies_are_found_whatever_their_case_and_blanks() -> None:
    assert reason("A  dog runs.", "a dog runs. ") == "copy"
    assert reason("A dog runs.", "Ein Hund rennt.") is None


def test_lengths_may_differ_more_in_short_sentences() -> None:
    assert reason("Hi.", "Einen schönen guten Tag.", source_tokens=2, target_tokens=10) is None
    assert reason("Hi.", "Einen schönen guten Tag zusammen.", source_tokens=2, target_tokens=11) == "length_ratio"
    assert reason("long", "kurz", source_tokens=56, target_tokens=20) == "length_ratio"
    assert reason("long", "kurz", source_tokens=55, target_tokens=20) is None


def test_no_text_and_no_end() -> None:
    assert reason("A dog.", " ") == "no_text"
    assert reason("A dog.", "Ein\nHund.") == "no_text"
    found = Filters().reason_to_drop("A dog.", "Ein Hund", source_tokens=3, target_tokens=3, unfinished=True)
    assert found == "unfinished"


def test_a_reason_can_be_kept() -> None:
    keep = Filters(keep=("copy", "loop", "length_ratio", "unfinished"))
    assert reason("A dog.", "a dog.", keep) is None
    assert reason("A dog.", "x x x x", keep) is None
    assert reason("A dog.", "", keep) == "no_text"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keep": ("copies",)}, "keep copies: choose 'unfinished', 'copy', 'loop' or 'length_ratio'"),
        ({"keep": ("no_text",)}, "keep no_text: choose"),
        ({"max_length_ratio": 0.5}, "max_length_ratio 0.5: choose 1 or more"),
        ({"max_length_ratio": float("nan")}, "max_length_ratio nan"),
        ({"max_repeats": 0}, "max_repeats 0: choose 1 or more"),
    ],
)
def test_values_out_of_range(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        Filters(**arguments)  # type: ignore[arg-type]
