"""What a model costs by a latency table, and files that are no tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tiny import tiny_architecture

from hmc.artifact import InvalidRequestError
from hmc.artifact.model.ffn import FfnWidths
from hmc.artifact.model.latency import Cost, LatencyTable, ServingSetting, Sizes, read_table, write_table
from hmc.artifact.model.layers import RemovedLayers

SETTING = ServingSetting(precision="int8", batch=1, beam=4, source_tokens=12, target_tokens=12, threads=1)


def table(step: int = 16) -> LatencyTable:
    """Costs that are easy to add up by hand."""
    return LatencyTable(
        setting=SETTING,
        architecture=tiny_architecture(),
        fixed_ms=10,
        layers={"encoder": 0.5, "decoder": 1.0},
        heads={
            "encoder_self": Cost(open_ms=0.1, each_ms=0.2),
            "decoder_self": Cost(open_ms=1, each_ms=2),
            "cross": Cost(open_ms=0, each_ms=1),
        },
        neurons={
            "encoder": Cost(open_ms=0, each_ms=0.01, step=step),
            "decoder": Cost(open_ms=2, each_ms=0.1, step=step),
        },
    )


def whole() -> Sizes:
    return Sizes.from_layout(tiny_architecture().full_layout(), tiny_architecture().full_ffn())


def test_costs_add_up() -> None:
    found = 10 + 2 * (0.5 + 0.1 + 4 * 0.2 + 48 * 0.01) + 2 * (1 + 1 + 4 * 2 + 4 * 1 + 2 + 48 * 0.1)
    assert table().ms(whole()) == pytest.approx(found)


def test_a_removed_layer_costs_nothing_and_blocks_are_whole() -> None:
    sizes = Sizes(
        heads={"encoder_self": (0, 1), "decoder_self": (0, 0), "cross": (0, 3)},
        neurons=FfnWidths(encoder=(0, 17), decoder=(0, 0)),
        removed=RemovedLayers(encoder=(0,), decoder=(0,)),
    )
    assert table().ms(sizes) == pytest.approx(10 + 0.5 + 0.1 + 0.2 + 32 * 0.01 + 1.0 + 3)
    assert table().floor_ms(whole()) == pytest.approx(12.5)
    blind = whole().model_copy(update={"heads": {**whole().heads, "cross": (0, 0)}})
    assert table().floor_ms(blind) == pytest.approx(11.5)


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_table(table(), tmp_path / "t.json")
    assert read_table(tmp_path / "t.json") == table()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a latency table of version 1"),
        ('{"schema_version": 9}', "its schema_version is 9"),
        ('{"schema_version": 1, "fixed_ms": -1}', "setting"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(InvalidRequestError, match=problem):
        read_table(tmp_path / "t.json")
    with pytest.raises(InvalidRequestError, match="measure it again"):
        read_table(tmp_path / "missing.json")
