"""Batches that are made ahead of time: the same ones, in the same order, resumable at any of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import pytest
import torch
from tests.support.files import write_pair
from tests.tiny import SENTENCES, tiny_tokenizer

from hmc.training import Vocabulary
from hmc.training.data.batches import BatchStream, made_ahead, to_device
from hmc.training.data.corpus import TokenCorpus


@pytest.fixture
def corpus(tmp_path: Path) -> TokenCorpus:
    text = write_pair(tmp_path, SENTENCES * 4, SENTENCES * 4)
    return TokenCorpus.build([text], Vocabulary(tiny_tokenizer()), 200, tmp_path / "cache", ("en", "de"))


def test_items_keep_their_order_and_another_thread_makes_them() -> None:
    made: list[str] = []

    def items() -> Iterator[int]:
        for number in count():
            made.append(threading.current_thread().name)
            yield number

    begun: list[str] = []
    ahead = made_ahead(items(), 3, lambda: begun.append(threading.current_thread().name))
    assert list(islice(ahead, 20)) == list(range(20))
    assert set(made) == set(begun)
    assert threading.current_thread().name not in made
    assert len(begun) == 1
    ahead.close()  # type: ignore[attr-defined]  # a generator


def test_an_error_is_raised_where_its_item_would_be() -> None:
    def items() -> Iterator[int]:
        yield from (0, 1)
        raise ValueError("a damaged row")

    ahead = made_ahead(items(), 4)
    assert [next(ahead), next(ahead)] == [0, 1]
    with pytest.raises(ValueError, match="a damaged row"):
        next(ahead)


def test_a_stream_with_batches_ahead_is_the_same_stream(corpus: TokenCorpus) -> None:
    """Over the end of an epoch, and its position counts only the batches that were taken."""
    plain, ahead = BatchStream(corpus, 128, 1, 2), BatchStream(corpus, 128, 1, 2, ahead=3)
    batches = iter(ahead)
    for expected in islice(iter(plain), 30):
        found = next(batches)
        assert found.source.equal(expected.source)
        assert found.target_out.equal(expected.target_out)
        assert (ahead.epoch, ahead.index) == (plain.epoch, plain.index)
    assert plain.epoch > 0


def test_a_resumed_stream_repeats_no_batch_and_skips_none(corpus: TokenCorpus) -> None:
    first = BatchStream(corpus, 128, 1, 2, ahead=3)
    batches = iter(first)
    for _ in range(5):
        next(batches)
    second = BatchStream(corpus, 128, 1, 2)
    second.epoch, second.index = first.epoch, first.index
    for _ in range(9):
        assert next(batches).source.equal(next(iter(second)).source)


def test_a_cpu_makes_no_batches_ahead(corpus: TokenCorpus) -> None:
    """Its cores compute the updates."""
    assert BatchStream(corpus, 128, 1, 2).ahead == 0
    assert BatchStream(corpus, 128, 1, 2, device=torch.device("cuda", 0)).ahead > 0


def test_a_tensor_stays_where_it_is() -> None:
    tensor = torch.arange(3)
    assert to_device(tensor, torch.device("cpu")) is tensor
