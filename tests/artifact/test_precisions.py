"""The table of precisions is complete."""

from __future__ import annotations

from typing import get_args

import pytest

from hmc.artifact import PRECISIONS, InvalidRequestError, Precision
from hmc.artifact.precisions import names_for, precision_named


def test_every_name_has_a_row_and_a_rank_of_its_own() -> None:
    assert tuple(PRECISIONS) == get_args(Precision)
    assert sorted(traits.rank for traits in PRECISIONS.values()) == list(range(len(PRECISIONS)))


def test_shortlists_need_integers() -> None:
    assert all(traits.quantised for traits in PRECISIONS.values() if traits.shortlists)


def test_a_name_is_read() -> None:
    assert [precision_named(name) for name in PRECISIONS] == list(PRECISIONS)
    with pytest.raises(InvalidRequestError, match=f"precision 'fp8': choose {', '.join(PRECISIONS)}"):
        precision_named("fp8")


def test_names_for_messages() -> None:
    assert names_for("cpu") == "fp32, int8 or int4"
    assert names_for("cuda") == "fp16 or bf16"
