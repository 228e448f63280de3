"""Gold dependency trees: a strict reader of CoNLL-U (universaldependencies.org/format.html).

It keeps the place of each syntactic word in the text, its head and its relation. The text comes from multiword tokens,
the tree from the words inside them. Empty nodes of the enhanced graph are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.storage.rows import text_lines

COLUMNS = 10


@dataclass(frozen=True)
class Word:
    """A syntactic word of a sentence."""

    form: str
    head: int
    """Index of the head among the sentence's words, -1 for the root."""
    relation: str
    """Universal relation with its subtype, e.g. `nsubj:pass`."""
    start: int
    end: int
    """End of its characters in the text. If a multiword token is not the joined forms of its words, the words share its
    span."""


@dataclass(frozen=True)
class Tree:
    """A sentence: its text, rebuilt from forms and `SpaceAfter=No`, and its words in order."""

    text: str
    words: tuple[Word, ...]


@dataclass
class _Draft:
    """A sentence of which only some lines have been read."""

    text: str = ""
    glue: bool = True
    words: list[tuple[str, int, str]] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    multiword: tuple[int, str, bool] | None = None
    """Last word of the open multiword token, its form, and whether a space follows."""

    def place(self, form: str, space_after: bool) -> tuple[int, int]:
        """Appends a form to the text and returns its span."""
        if not self.glue:
            self.text += " "
        start = len(self.text)
        self.text += form
        self.glue = not space_after
        return start, len(self.text)


def read_trees(path: Path) -> Iterator[Tree]:
    """Sentences of a CoNLL-U file, plain or gzip. Raises InvalidRequestError with the number of the faulty line."""
    draft = _Draft()
    number = 0
    try:
        for number, line in enumerate(text_lines(path), 1):  # noqa: B007 - for the message of an error
            if line.strip():
                if not line.startswith("#"):
                    _read_line(draft, line)
            elif draft.words:
                yield _finish(draft)
                draft = _Draft()
        if draft.words:
            yield _finish(draft)
    except ValueError as error:
        raise InvalidRequestError(f"{path} line {number}: {error}") from error


def _read_line(draft: _Draft, line: str) -> None:
    cells = line.split("\t")
    if len(cells) != COLUMNS:
        raise ValueError(f"{len(cells)} columns, CoNLL-U has {COLUMNS}, separated by TAB")
    name = cells[0]
    form = cells[1]
    head = cells[6]
    relation = cells[7]
    space_after = "SpaceAfter=No" not in cells[9].split("|")
    if "." in name:
        return
    if "-" in name:
        first, last = _whole_numbers(name, "-")
        if draft.multiword or first != len(draft.words) + 1 or last < first:
            raise ValueError(f"multiword token {name} does not start at the next word and end at it or later")
        draft.multiword = last, form, space_after
        return
    if name != str(len(draft.words) + 1):
        raise ValueError(f"word {name!r} where word {len(draft.words) + 1} was expected")
    if not head.isdecimal():
        raise ValueError(f"word {name} has head {head!r}; a gold tree needs a word number, or 0 for the root")
    draft.words.append((form, int(head) - 1, relation))
    if draft.multiword is None:
        draft.spans.append(draft.place(form, space_after))
    elif draft.multiword[0] == len(draft.words):
        _close_multiword(draft)


def _whole_numbers(name: str, separator: str) -> list[int]:
    parts = name.split(separator)
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise ValueError(f"{name!r} is no word number, range (3-4) or empty node (3.1)")
    return list(map(int, parts))


def _close_multiword(draft: _Draft) -> None:
    assert draft.multiword is not None
    _, form, space_after = draft.multiword
    forms = [word[0] for word in draft.words[len(draft.spans) :]]
    start, end = draft.place(form, space_after)
    if "".join(forms) == form:
        for part in forms:
            draft.spans.append((start, start + len(part)))
            start += len(part)
    else:
        draft.spans += [(start, end)] * len(forms)
    draft.multiword = None


def _finish(draft: _Draft) -> Tree:
    if draft.multiword:
        raise ValueError(f"the sentence before this line ends inside multiword token {draft.multiword[1]!r}")
    for number, (_, head, _) in enumerate(draft.words, 1):
        if head >= len(draft.words) or head == number - 1:
            raise ValueError(f"in the sentence before this line, word {number} has the impossible head {head + 1}")
    words = [
        Word(form, head, relation, start, end)
        for (form, head, relation), (start, end) in zip(draft.words, draft.spans, strict=True)
    ]
    return Tree(draft.text, tuple(words))
