"""Wrong uses of a Translator, and their errors."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.serving.fakes import GUARD_S, eventually
from tests.tiny import SENTENCES

from hmc.artifact import InvalidRequestError
from hmc.artifact.errors import FailedPreconditionError, UnavailableError
from hmc.engine.requests.options import MAX_HEADS, MAX_PHRASE
from hmc.serving import DecodeOptions, Translator


@pytest.mark.parametrize(
    ("message", "misuse"),
    [
        ("texts takes a list, and not a NoneType", lambda t: t.translate(None)),
        ("texts takes a list, and not a generator", lambda t: t.translate(x for x in "ab")),
        (r"texts\[1\] is None: give a text", lambda t: t.translate(["a", None])),
        (r"references\[0\] is b'a': give a text", lambda t: t.score(["a"], [b"a"])),
        ("target_prefixes takes a list", lambda t: t.translate(["a"], target_prefixes="a")),
    ],
)
def test_texts_that_are_none(tiny_bundle: Path, message: str, misuse: Callable[[Any], Any]) -> None:
    with (
        Translator(tiny_bundle, "h5", device="cpu", threads=1) as translator,
        pytest.raises(InvalidRequestError, match=message),
    ):
        misuse(translator)


def test_lists_of_other_libraries(tiny_bundle: Path) -> None:
    with Translator(tiny_bundle, "h5", device="cpu", threads=1) as translator:
        found = translator.translate(np.array(SENTENCES))  # type: ignore[arg-type]  # as callers do
        assert [t.text for t in found] == [t.text for t in translator.translate(SENTENCES)]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"suppressed_phrases": ["a", "b" * (MAX_PHRASE + 1)]},
            rf"phrases\[1\] has 1001 characters: give at most {MAX_PHRASE}",
        ),
        ({"suppressed_tokens": [3]}, r"suppressed_tokens\[0\] is 3: give a text"),
        ({"attention_heads": ["cross.0.0"] * (MAX_HEADS + 1)}, f"1025 attention_heads: give at most {MAX_HEADS}"),
    ],
)
def test_lists_have_bounds(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        DecodeOptions(**fields)


def test_a_phrase_longer_than_any_translation_changes_nothing(tiny_bundle: Path) -> None:
    with Translator(tiny_bundle, "full", device="cpu", threads=1) as translator:
        long = "ab " * (MAX_PHRASE // 3)
        assert len(translator._tokenizer.encode_target(long)) > translator.manifest.architecture.max_positions
        options = DecodeOptions(suppressed_phrases=(long,))
        found = translator.translate(SENTENCES, options)
        assert [t.text for t in found] == [t.text for t in translator.translate(SENTENCES)]


def test_a_forked_process_is_refused(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Translator(tiny_bundle, "h5", device="cpu", threads=1) as translator:
        here = os.getpid()
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: here + 1)
            with pytest.raises(FailedPreconditionError, match=r"opened in another process.*open it in this one"):
                translator.translate(["a"])
        assert translator.translate(["a"])


def test_closing_at_once_ends_calls_that_wait(tiny_bundle: Path) -> None:
    translator = Translator(tiny_bundle, "full", device="cpu", threads=1, max_rows=4, queue_size=20)
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            while True:
                translator.translate(SENTENCES * 50)
        except UnavailableError as error:
            errors.append(error)

    threads = [threading.Thread(target=wait, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    eventually(lambda: translator.pending >= 20)  # a full queue: the threads wait for space
    translator.close(drain=False)
    for thread in threads:
        thread.join(GUARD_S)
    assert len(errors) == 3
