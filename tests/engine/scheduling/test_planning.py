"""Where the search of a request runs, at levels whose graphs can search on the device."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tiny import tiny_architecture

from hmc.artifact import read_manifest
from hmc.engine.decoding.constraints import Constraints
from hmc.engine.requests.caller import Priority
from hmc.engine.runtime.device import Device
from hmc.engine.runtime.sessions import LevelSessions
from hmc.engine.scheduling.planning import plan_job, why_on_host
from hmc.serving import DecodeOptions, Sampling

SOURCE = [5, 9, 40, 7, 0]
LONGEST = tiny_architecture().max_positions - 1
PLAIN = (
    DecodeOptions(),
    DecodeOptions(beam_size=1),
    DecodeOptions(beam_size=16, n_best=16, length_penalty=0.0, min_length=3, max_length=9, token_scores=True),
)
ON_HOST: dict[str, tuple[DecodeOptions, Constraints]] = {
    "sampling": (DecodeOptions(sampling=Sampling()), Constraints()),
    "prefix": (DecodeOptions(), Constraints((5,))),
    "given": (DecodeOptions(beam_size=1), Constraints((5, 0), complete=True)),
    "suppressed": (DecodeOptions(), Constraints(suppressed=((5,),))),
    "n-grams": (DecodeOptions(), Constraints(no_repeat_ngram_size=2)),
    "alignment": (DecodeOptions(alignment=True), Constraints()),
    "coverage": (DecodeOptions(coverage_penalty=0.5), Constraints()),
    "repetition": (DecodeOptions(repetition_penalty=1.5), Constraints()),
    "patience": (DecodeOptions(patience=2.0), Constraints()),
}


@pytest.fixture(scope="module")
def sessions(lively_device_bundle: Path) -> LevelSessions:
    manifest = read_manifest(lively_device_bundle)
    return LevelSessions.open(lively_device_bundle, manifest.architecture, manifest.level("h12"), Device("cpu"), 1)


@pytest.mark.parametrize("options", PLAIN)
def test_plain_requests_search_in_the_graph(sessions: LevelSessions, options: DecodeOptions) -> None:
    assert why_on_host(options, Constraints()) is None
    job = plan_job(sessions, SOURCE, options, Constraints(), priority=Priority.BULK)
    assert job.mode.variant == ("search_greedy" if options.beam_size == 1 else "search_beam")
    assert (job.mode.rows, job.mode.interactive) == (options.beam_size, False)


@pytest.mark.parametrize("name", ON_HOST)
def test_all_other_requests_search_on_the_host(sessions: LevelSessions, name: str) -> None:
    options, constraints = ON_HOST[name]
    assert why_on_host(options, constraints)
    variant = plan_job(sessions, SOURCE, options, constraints).mode.variant
    assert variant not in ("search_greedy", "search_beam")


def test_each_has_a_reason_of_its_own() -> None:
    reasons = {why_on_host(*request) for request in ON_HOST.values()}
    assert len(reasons) == len(ON_HOST) - 1  # suppressed tokens and n-grams share theirs
    assert None not in reasons


def test_streams_search_on_the_host(sessions: LevelSessions) -> None:
    assert why_on_host(DecodeOptions(), Constraints(), lambda _: None)
    job = plan_job(sessions, SOURCE, DecodeOptions(), Constraints(), progress=lambda _: None)
    assert job.mode.variant is None


def test_a_level_for_cpus_has_no_search_in_its_graphs(lively_bundle: Path) -> None:
    manifest = read_manifest(lively_bundle)
    level = LevelSessions.open(lively_bundle, manifest.architecture, manifest.level("h12"), Device("cpu"), 1)
    assert [plan_job(level, SOURCE, options, Constraints()).mode.variant for options in PLAIN] == [None, "greedy", None]


@pytest.mark.parametrize(
    ("options", "prefix", "limit"),
    [
        (DecodeOptions(), 0, 2 * len(SOURCE) + 10),
        (DecodeOptions(min_length=30), 0, 30),
        (DecodeOptions(), 25, 25 + 10),
        (DecodeOptions(max_length=4), 0, 4),
        (DecodeOptions(max_length=1000), 0, LONGEST),
        (DecodeOptions(min_length=LONGEST), 0, LONGEST),
    ],
)
def test_the_length_limit_is_the_documented_one(
    sessions: LevelSessions, options: DecodeOptions, prefix: int, limit: int
) -> None:
    job = plan_job(sessions, SOURCE, options, Constraints((5,) * prefix))
    assert job.rules.limit == limit


def test_the_default_limit_is_at_most_what_the_model_takes(sessions: LevelSessions) -> None:
    assert plan_job(sessions, [5] * 50 + [0], DecodeOptions(), Constraints()).rules.limit == LONGEST
