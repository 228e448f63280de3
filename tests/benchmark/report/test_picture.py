"""The picture of quality against speed."""

import itertools
import random
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from tests import levels_picture
from tests.benchmark import fakes
from tests.processes import REPOSITORY

from hmc.artifact import InvalidRequestError
from hmc.benchmark.report import picture
from hmc.benchmark.report.picture import Box, Point, draw, frontier, points

SVG = "{http://www.w3.org/2000/svg}"


def point(name: str, speed: float, bleu: float, *, peer: bool = False) -> Point:
    return Point(name, speed, bleu, f"{speed:.1f}×, {bleu:.1f} BLEU", peer)


def named(text: str) -> list[str]:
    """The names of the systems that a picture shows, in its order."""
    return [label.text or "" for label in ET.fromstring(text).iter(f"{SVG}text") if label.get("class") == "q-label"]


def test_the_file_is_one_picture_and_the_same_each_time(tmp_path: Path) -> None:
    file = picture.write_picture(fakes.report(), tmp_path / "new" / "first.svg")
    assert ET.parse(file).getroot().tag == f"{SVG}svg"
    assert file.read_bytes() == picture.write_picture(fakes.report(), tmp_path / "second.svg").read_bytes()


def test_speeds_are_relative_to_the_reference_level_or_to_the_other_engine() -> None:
    assert [p.speed for p in points(fakes.report())] == pytest.approx([1, 20 / 15, 2.5])
    whole = fakes.whole_report()
    found = {p.name: p for p in points(whole)}
    assert found["Peer"].peer
    assert found["Peer"].speed == 1
    assert "times as fast as Peer" in picture.picture(whole)


def test_a_label_says_the_speed_and_what_is_lost() -> None:
    assert [p.note for p in points(fakes.report())] == ["1.0×, 30.0 BLEU", "1.3×, −0.5 BLEU", "2.5×, −1.0 BLEU"]


def test_recorded_scores_are_shown_where_they_are_asked_for() -> None:
    report = fakes.whole_report()
    kept = fakes.quality("any", 28.0, -1.3, -0.7, reference=29.0).model_copy(update={"test_set": "six kinds"})
    levels = tuple(replace(level, recorded=kept) for level in report.levels)
    known = replace(report, levels=levels, peers=(replace(report.peers[0], recorded=kept),))
    assert {p.bleu for p in points(known, recorded=True)} == {28.0}
    assert "BLEU, six kinds →" in picture.picture(known, recorded=True)
    assert [p.note for p in points(known)] == [p.note for p in points(report)]
    with pytest.raises(InvalidRequestError, match="the picture shows BLEU"):
        points(report, recorded=True)


def test_levels_that_another_level_beats_are_left_out_and_engines_are_not() -> None:
    found = [point("best", 1, 30), point("beaten", 2, 20), point("fast", 5, 25), point("Peer", 0.5, 10, peer=True)]
    assert [p.name for p in frontier(found)] == ["fast", "best"]
    assert sorted(named(draw(found, "title", "x", "y"))) == ["Peer", "best", "fast"]


def boxes(text: str) -> list[Box]:
    """The area of each label, as the widest usual font has it."""
    root, found = ET.fromstring(text), list[Box]()
    labels = [t for t in root.iter(f"{SVG}text") if t.get("class") in ("q-label", "q-note")]
    for name, note in zip(labels[::2], labels[1::2], strict=True):
        left, top = float(name.get("x", 0)), float(name.get("y", 0)) - 12
        width = picture.LETTER * max(len(name.text or ""), len(note.text or ""))
        found.append(Box(left, top, left + width, top + 2 * picture.LINE))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_no_label_covers_another_one_or_leaves_the_picture(seed: int) -> None:
    chance = random.Random(seed)
    levels = [
        point(f"h{n}-int8", 1 + n * chance.uniform(0.1, 0.5), 40 - n * chance.uniform(0.2, 0.4)) for n in range(6)
    ]
    shown = boxes(draw([*levels, point("CTranslate2", 1, 40, peer=True)], "title", "x", "y"))
    assert not any(one.overlaps(other) for one, other in itertools.combinations(shown, 2))
    assert all(box.left >= 0 and box.right <= picture.WIDTH and box.bottom <= picture.HEIGHT for box in shown)


def test_names_are_text_and_not_markup() -> None:
    text = draw([point("<a&b>", 1, 30)], "a < b", "x", "y")
    assert named(text) == ["<a&b>"]
    assert re.search("<a&b>", text) is None


def test_a_report_without_quality_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="measure with references"):
        picture.picture(fakes.report(with_quality=False))


def test_the_picture_of_the_documents_shows_what_was_measured() -> None:
    """Times of a report, and recorded BLEU. `make docs` draws it."""
    text = (REPOSITORY / "docs" / "quality.svg").read_text(encoding="utf-8")
    assert text == levels_picture.picture() + "\n"
    assert {"all 144 heads", "75 heads", "fast", "CTranslate2"} <= set(named(text))
