"""A drafter saves steps and changes nothing: not a token, not a score, whatever it guesses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.serving.test_run_ahead import requests
from tests.tiny import SENTENCES, tiny_architecture, tiny_checkpoint_at

from hmc.artifact.bundle import read_manifest
from hmc.artifact.checkpoint import load_checkpoint, save_checkpoint
from hmc.compiler.bundle_builder import LevelRequest
from hmc.compiler.bundle_writer import compile_bundle
from hmc.compiler.shortlist_text import ShortlistText
from hmc.serving import DecodeOptions, Translator, drafter
from hmc.serving.drafter import Drafter
from hmc.serving.engine import Engine
from hmc.serving.results import Hypothesis
from hmc.serving.row_caches import RowCaches
from hmc.serving.sessions import Device, LevelSessions

GREEDY = DecodeOptions(beam_size=1, min_length=20, max_length=60)
Open = Callable[[str, str | None], Engine]


@pytest.fixture(scope="module")
def drafters(lively_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints that guess always, often, and hardly ever right."""
    folder = tmp_path_factory.mktemp("drafters")
    noisy, rng = load_checkpoint(lively_checkpoint), np.random.default_rng(3)
    for name, tensor in noisy.tensors.items():
        noisy.tensors[name] = (tensor + 0.03 * tensor.std() * rng.standard_normal(tensor.shape)).astype(np.float32)
    save_checkpoint(noisy, folder / "often")
    tiny_checkpoint_at(folder / "never", seed=8, arch=tiny_architecture(d_model=16, decoder_layers=1, heads=1))
    return {"always": lively_checkpoint, "often": folder / "often", "never": folder / "never"}


@pytest.fixture(scope="module")
def bundles(
    lively_checkpoint: Path, drafters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Levels full and h12, in fp32, int8 and int4 and with shortlists, with each drafter."""
    text = ShortlistText(SENTENCES, [*SENTENCES[5:], *SENTENCES[:5]], frequent=30, best=12)
    requests = [LevelRequest(lively_checkpoint, heads) for heads in (24, 12)]
    found = {}
    for name, checkpoint in drafters.items():
        found[name] = tmp_path_factory.mktemp("drafted") / name
        compile_bundle(
            requests, found[name], precisions=("fp32", "int8", "int4"), calibration=SENTENCES, shortlist=text,
            drafter=checkpoint,
        )  # fmt: skip
    return found


def sessions_of(bundle: Path, level: str) -> LevelSessions:
    manifest = read_manifest(bundle)
    return LevelSessions.open(bundle, manifest.architecture, manifest.level(level), Device("cpu"), 1)


def drafter_of(bundle: Path) -> LevelSessions:
    found = read_manifest(bundle).drafter
    assert found is not None
    return LevelSessions.open(bundle, found.architecture, found.level, Device("cpu"), 1, variant="greedy")


@pytest.fixture
def opened(bundles: dict[str, Path]) -> Iterator[Open]:
    engines: list[Engine] = []

    def start(level: str, name: str | None) -> Engine:
        sessions = sessions_of(bundles[name or "often"], level)
        sessions.drafter = drafter_of(bundles[name]) if name else None
        engines.append(Engine(sessions, queue_size=500, max_rows=8))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close(drain=False)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random model is never sure of anything: drafters guess all the same."""
    monkeypatch.setattr(drafter, "WORTH", -1e9)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens that each chain read."""
    found: list[int] = []
    run_chain = RowCaches.run_chain

    def noted(self: RowCaches, tokens: Any) -> Any:
        found.append(len(tokens))
        return run_chain(self, tokens)

    monkeypatch.setattr(RowCaches, "run_chain", noted)
    return found


def decode(engine: Engine, *, alone: bool) -> list[tuple[Hypothesis, ...]]:
    futures = []
    for source, options, constraints in requests():
        futures.append(engine.submit(source, options, constraints))
        if alone:
            wait(futures)
    return [future.result().hypotheses for future in futures]


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("name", ["always", "often", "never"])
@pytest.mark.parametrize("level", ["full", "full-int8", "h12-int4", "full-int8-shortlist", "h12-int4-shortlist"])
def test_what_is_found_does_not_depend_on_it(level: str, name: str, opened: Open, read: list[int]) -> None:
    expected = decode(opened(level, None), alone=True)
    assert not read
    drafted = opened(level, name)
    for alone in (True, False):
        found = decode(drafted, alone=alone)
        assert len(read) > 30
        for one, other in zip(found, expected, strict=True):
            assert [h.ids for h in one] == [h.ids for h in other]
            if level == "full":
                assert np.allclose(one[0].token_scores, other[0].token_scores, atol=1e-4)
            else:
                assert one == other


@pytest.mark.usefixtures("eager")
def test_a_drafter_that_is_right_saves_most_steps(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, steps = opened("full-int8-shortlist", "always"), []

    def count(name: str) -> None:
        call = getattr(RowCaches, name)

        def noted(self: RowCaches, given: Any) -> Any:
            if self.session is engine.sessions.decoders["greedy"]:
                steps.append(name)
            return call(self, given)

        monkeypatch.setattr(RowCaches, name, noted)

    for name in ("run", "run_on", "run_chain"):
        count(name)
    tokens, options = 0, DecodeOptions(beam_size=1, max_length=60)
    for source in ([n, n + 9, n + 30, 0] for n in range(3, 60)):
        [hypothesis] = engine.submit(source, options).result().hypotheses
        tokens += len(hypothesis.token_scores)
    assert len(steps) < tokens / 2
    assert steps.count("run_chain") > len(steps) / 3


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("name", ["always", "often"])
def test_guesses_depend_only_on_what_is_written(bundles: dict[str, Path], name: str) -> None:
    sessions, rng = drafter_of(bundles[name]), np.random.default_rng(2)
    used = Drafter(sessions)
    for _ in range(4):
        source = [*rng.integers(3, 120, 7).tolist(), 0]
        used.begin(source)
        written: list[int] = []
        for _ in range(12):
            fresh = Drafter(sessions)
            fresh.begin(source)
            most = int(rng.integers(1, 8))
            guesses = fresh.guess(written, most)
            assert used.guess(written, most) == guesses
            assert len(guesses) <= most
            back, on = rng.integers(0, 3), rng.integers(0, len(guesses) + 1)
            written = [
                *written[: len(written) - back],
                *guesses[:on],
                *rng.integers(3, 120, rng.integers(0, 12)).tolist(),
            ]


def test_it_stops_where_it_sees_no_hope(bundles: dict[str, Path]) -> None:
    unsure = Drafter(drafter_of(bundles["never"]))
    unsure.begin([5, 9, 30, 0])
    assert unsure.guess([], 7) == []


def test_it_guesses_within_its_positions(bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafter, "WORTH", -1e9)
    found = Drafter(drafter_of(bundles["always"]))  # 96 positions
    found.begin([5, 9, 30, 0])
    written = [7] * 92
    assert len(found.guess(written, 7)) <= 3
    assert found.guess([7] * 95, 7) == []


@pytest.mark.usefixtures("eager")
def test_who_listens_hears_the_same_text_in_fewer_pieces(bundles: dict[str, Path]) -> None:
    options = DecodeOptions(beam_size=1, min_length=20, max_length=40)
    heard = {}
    for drafted in (False, True):
        with Translator(bundles["always"], "full-int8", threads=1, drafter=drafted) as translator:
            heard[drafted] = [list(translator.stream(text, options)) for text in SENTENCES[:4]]
    for few, many in zip(heard[True], heard[False], strict=True):
        assert "".join(part.text for part in few) == "".join(part.text for part in many)
        assert few[-1].translation == many[-1].translation
    assert sum(map(len, heard[True])) < sum(map(len, heard[False])) / 2


@pytest.mark.usefixtures("eager")
def test_a_translator_takes_the_drafter_of_its_bundle(bundles: dict[str, Path], read: list[int]) -> None:
    texts = SENTENCES[:3]
    with Translator(bundles["often"], "h12-int8", threads=1, drafter=False) as plain:
        expected = [plain.translate([text], GREEDY) for text in texts]
        held = plain.weights
    assert not read
    with Translator(bundles["often"], "h12-int8", threads=1) as drafted:
        assert [drafted.translate([text], GREEDY) for text in texts] == expected
        assert held.keys() < drafted.weights.keys()
    assert read
