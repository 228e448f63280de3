"""What v1 promises, checked without buf: every name and number of the baseline is still there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet

from hmc.v1 import translation_pb2 as pb


def test_every_field_of_the_baseline_is_the_same(repository: Path) -> None:
    baseline = FileDescriptorSet.FromString((repository / "tests/data/hmc_v1.binpb").read_bytes())
    (before,) = (file for file in baseline.file if file.package == "hmc.v1")
    assert len(before.message_type) > 30
    now: Any = pb.DESCRIPTOR
    for message in before.message_type:
        fields = now.message_types_by_name[message.name].fields_by_number
        for field in message.field:
            kept = fields[field.number]
            assert (kept.name, kept.type, kept.is_repeated) == (field.name, field.type, field.label == 3)
    for service in before.service:
        methods = now.services_by_name[service.name].methods_by_name
        for method in service.method:
            kept = methods[method.name]
            types = f".{kept.input_type.full_name}", f".{kept.output_type.full_name}"
            assert types == (method.input_type, method.output_type)


def test_everything_is_in_the_baseline(repository: Path) -> None:
    """What is not in it is not promised. docs/protocol.md has the command that writes it again."""
    baseline = FileDescriptorSet.FromString((repository / "tests/data/hmc_v1.binpb").read_bytes())
    (before,) = (file for file in baseline.file if file.package == "hmc.v1")
    promised: set[tuple[str, int | str]]
    present: set[tuple[str, int | str]]
    promised = {(message.name, field.number) for message in before.message_type for field in message.field}
    promised |= {(service.name, method.name) for service in before.service for method in service.method}
    now: Any = pb.DESCRIPTOR
    present = {(message.name, n) for message in now.message_types_by_name.values() for n in message.fields_by_number}
    present |= {(service.name, n) for service in now.services_by_name.values() for n in service.methods_by_name}
    assert present == promised


def test_scores_read_as_translations_do_for_clients_compiled_before() -> None:
    """Score used to answer with TranslateResponse."""
    pairs = [
        [(f.number, f.name, f.type, f.is_repeated) for f in m.DESCRIPTOR.fields]
        for m in (pb.ScoreResponse, pb.TranslateResponse)
    ]
    assert pairs[0] == pairs[1]
