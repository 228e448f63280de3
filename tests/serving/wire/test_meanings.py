"""The page of statuses is the one that the code writes, and it has every status and call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.pages import statuses

from hmc.serving.wire.status import MEANINGS, STATUSES_OF_CALLS, TABLE
from hmc.v1 import translation_pb2 as pb


def test_the_page_is_up_to_date(repository: Path) -> None:
    committed = (repository / "docs/statuses.md").read_text(encoding="utf-8")
    assert committed == statuses(), "run `make docs`"


def test_every_status_has_a_meaning_and_every_call_its_statuses() -> None:
    services: Any = pb.DESCRIPTOR.services_by_name
    assert set(STATUSES_OF_CALLS) == {method.name for service in services.values() for method in service.methods}
    answered = {code for codes in STATUSES_OF_CALLS.values() for code in codes}
    assert answered == set(MEANINGS)
    assert {code for _, code in TABLE} <= answered
