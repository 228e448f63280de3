"""`torch.compile`: refused where it cannot work; elsewhere one graph serves every shape and every mask.

Meta tensors have shapes and no values. They take the code paths of a GPU, so that no GPU is needed to trace them.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.tiny import tiny_architecture
from tests.training.runs.test_updater import batches

from hmc.artifact import HeadLayout
from hmc.artifact.errors import DeviceUnavailableError
from hmc.training import HeadGates, NeuronGates, build_transformer, mask_to_layout
from hmc.training.distillation.settings import DistillSection
from hmc.training.distillation.teacher import Teacher
from hmc.training.runs.processes import check_compilable, make_fabric
from hmc.training.runs.recipe import RunSection
from hmc.training.runs.updater import SummedLoss

META = torch.device("meta")


def test_a_cpu_refuses_to_compile() -> None:
    with pytest.raises(DeviceUnavailableError, match=r"run\.compile is for CUDA.*on cpu.*leave run"):
        make_fabric(RunSection(device="cpu", compile=True))


@pytest.mark.parametrize(
    ("capability", "triton", "message"),
    [((6, 1), True, "capability 7.0, and Old GPU has 6.1"), ((8, 0), False, "needs Triton"), ((8, 0), True, None)],
)
def test_a_gpu_that_cannot_compile_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], triton: bool, message: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Old GPU")
    monkeypatch.setattr("hmc.training.runs.processes.find_spec", lambda _: object() if triton else None)
    device = torch.device("cuda", 0)
    if message is None:
        check_compilable(device)
        return
    with pytest.raises(DeviceUnavailableError, match=message):
        check_compilable(device)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that `compiled` makes."""
    for module in ("layers", "transformer", "cpu"):  # autocast does not know meta tensors
        monkeypatch.setattr(f"hmc.training.model.{module}.precision_of", lambda x: x.dtype)
    torch._dynamo.reset()
    return []


def compiled(loss: SummedLoss, graphs: list[Any]) -> Any:
    """`fullgraph` makes every break of the graph an error; the backend counts the graphs."""

    def backend(graph: Any, _: object) -> Any:
        graphs.append(graph)
        return graph

    return torch.compile(loss, dynamic=True, backend=backend, fullgraph=True)


def test_one_graph_serves_every_shape_and_every_mask(graphs: list[Any]) -> None:
    model = build_transformer(tiny_architecture(), dropout=0.1)
    every = model.arch.full_layout()
    model.to(META)
    loss = compiled(SummedLoss(model, 0.1), graphs)

    def update() -> int:
        for batch in batches():
            on_meta = batch.to(META)
            loss(on_meta.source, on_meta.target_in, on_meta.target_out, on_meta.real, on_meta.source_padded).backward()
        return len(graphs)

    assert update() == 1, "two shapes, one graph"
    for number in (10, 7, 5):
        mask_to_layout(model, every, HeadLayout.from_heads(list(every.heads())[:number], 2, 2))
        assert update() == 2, "a second graph, for masks; other masks are other inputs of it"
    HeadGates(model, every, 2.0)
    NeuronGates(model, 2.0)
    assert [update(), update()] == [3, 3], "a third graph, for sampled gates"


def test_one_graph_serves_every_shape_with_a_teacher(graphs: list[Any]) -> None:
    distill = DistillSection(weight=0.5, temperature=2.0)
    model, teacher = (build_transformer(tiny_architecture(), dropout=0.1).to(META) for _ in range(2))
    loss = compiled(SummedLoss(model, 0.1, distill), graphs)
    for batch in batches():
        on_meta = batch.to(META)
        fields = (on_meta.source, on_meta.target_in, on_meta.target_out, on_meta.real, on_meta.source_padded)
        loss(*fields, Teacher(teacher, distill).lesson(on_meta)).backward()
    assert len(graphs) == 1
