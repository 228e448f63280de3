"""Reading CoNLL-U: multiword tokens, empty nodes, spacing, and what is refused."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.files import write_lines

from hmc.artifact import InvalidRequestError
from hmc.training.analysis.roles.conllu import Tree, read_trees


def row(name: str, form: str, head: str = "0", relation: str = "root", misc: str = "_") -> str:
    return "\t".join([name, form, "_", "_", "_", "_", head, relation, "_", misc])


def write(folder: Path, *lines: str) -> Path:
    path = folder / "t.conllu"
    write_lines(path, lines)
    return path


def spans(tree: Tree) -> list[tuple[str, str]]:
    return [(word.form, tree.text[word.start : word.end]) for word in tree.words]


def test_words_multiword_tokens_and_empty_nodes(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "# sent_id = 1",
        row("1", "I", "4", "nsubj"),
        row("2-3", "don't", "_", "_"),
        row("2", "do", "4", "aux"),
        row("3", "n't", "4", "advmod"),
        row("4", "go", "0", "root"),
        row("4.1", "go", "_", "_"),
        row("5-6", "zum", "_", "_", "SpaceAfter=No"),
        row("5", "zu", "7", "case"),
        row("6", "dem", "7", "det"),
        row("7", "!", "4", "punct", "Gloss=x|SpaceAfter=No"),
        "",
        "# second",
        row("1", "Yes"),
    )
    first, second = read_trees(path)
    assert first.text == "I don't go zum!"
    assert spans(first) == [
        ("I", "I"), ("do", "do"), ("n't", "n't"), ("go", "go"), ("zu", "zum"), ("dem", "zum"), ("!", "!"),
    ]  # fmt: skip
    assert [(word.head, word.relation) for word in first.words][:4] == [
        (3, "nsubj"), (3, "aux"), (3, "advmod"), (-1, "root"),
    ]  # fmt: skip
    assert second.text == "Yes"


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    plain = write(tmp_path, row("1", "Zoë"))
    expected = list(read_trees(plain))
    plain.write_bytes(b"\xef\xbb\xbf" + plain.read_bytes())
    assert list(read_trees(plain)) == expected


@pytest.mark.parametrize(
    "damage", [lambda packed: packed[:-12], lambda packed: packed[:12] + b"\xff\xff" + packed[14:]]
)
def test_damaged_gzip(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    plain = write(tmp_path, *(row("1", f"Zoë{n}") + "\n" for n in range(200)))
    packed = tmp_path / "t.conllu.gz"
    packed.write_bytes(damage(gzip.compress(plain.read_bytes(), mtime=0)))
    with pytest.raises(InvalidRequestError, match=r"t\.conllu\.gz is not a whole gzip file"):
        list(read_trees(packed))


def test_gzip_is_the_same(tmp_path: Path) -> None:
    plain = write(tmp_path, row("1", "Zoë"))
    packed = tmp_path / "t.conllu.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert list(read_trees(packed)) == list(read_trees(plain))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["1\tword"], "line 1: 2 columns, CoNLL-U has 10"),
        ([row("1", "a"), row("3", "b", "1")], "line 2: word '3' where word 2 was expected"),
        ([row("1", "a", "_")], "line 1: word 1 has head '_'"),
        ([row("1", "a", "5"), ""], "line 2: in the sentence before this line, word 1 has the impossible head 5"),
        ([row("1", "a", "1"), ""], "word 1 has the impossible head 1"),
        ([row("1-x", "a")], "'1-x' is no word number"),
        ([row("2-3", "a")], "multiword token 2-3 does not start at the next word"),
        ([row("1-2", "ab", "_"), row("1", "a"), ""], "ends inside multiword token 'ab'"),
    ],
)
def test_what_is_refused(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        list(read_trees(write(tmp_path, *lines)))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="no such file"):
        list(read_trees(tmp_path / "none.conllu"))
    (tmp_path / "latin.conllu").write_bytes("1\tZoë".encode("latin-1"))
    with pytest.raises(InvalidRequestError, match="UTF-8"):
        list(read_trees(tmp_path / "latin.conllu"))
    (tmp_path / "t.gz").write_bytes(b"not gzip")
    with pytest.raises(InvalidRequestError, match=r"t\.gz"):
        list(read_trees(tmp_path / "t.gz"))


@pytest.mark.parametrize(("name", "sentences"), [("en_ewt-ud-test", 2077), ("en_pud-ud-test", 1000)])
def test_texts_of_the_treebanks(data: Path, name: str, sentences: int) -> None:
    """The rebuilt text is the one in the treebank's own comment, and every word is found in it."""
    path = data / "ud" / f"{name}.conllu.gz"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    with gzip.open(path, "rt", encoding="utf-8") as handle:
        texts = [line.removeprefix("# text = ").rstrip("\n") for line in handle if line.startswith("# text = ")]
    trees = list(read_trees(path))
    assert len(trees) == sentences
    assert [" ".join(tree.text.split()) for tree in trees] == [" ".join(text.split()) for text in texts]
    assert sum(form == text for tree in trees for form, text in spans(tree)) > 0.99 * sum(len(t.words) for t in trees)
