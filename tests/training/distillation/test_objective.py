"""What a student learns from the layers of its teacher, and which teachers are refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny import tiny_architecture, tiny_checkpoint_at
from tests.training.runs.test_updater import FABRIC, CountWaits, batches, make_model

from hmc.artifact import HeadLayout, InvalidRequestError, load_checkpoint
from hmc.artifact.model.layers import RemovedLayers
from hmc.training import Batch, HeadMask, HeadMaskSpec, Transformer, Vocabulary, build_transformer, mask_to_layout
from hmc.training.distillation.objective import lesson_of, observe, taught_loss
from hmc.training.distillation.settings import DistillSection
from hmc.training.distillation.teacher import Distillation, Teacher, load_teacher
from hmc.training.runs.optimizer import make_optimizer
from hmc.training.runs.recipe import TrainSection
from hmc.training.runs.updater import Updater

EVERYTHING = DistillSection(weight=0.6, temperature=1.5, hidden=0.7, attention=0.3)


def another_model(seed: int = 9) -> Transformer:
    torch.manual_seed(seed)
    return build_transformer(tiny_architecture(), dropout=0.3)


def updater(model: Transformer, distill: DistillSection, teacher: Transformer | None, **more: Any) -> Updater:
    section = TrainSection(accumulate=2, dropout=0.0, warmup_steps=1)
    optimizer = make_optimizer([{"params": list(model.parameters()), "name": "weights"}], section)
    of = Distillation(distill, Teacher(teacher, distill) if teacher else None)
    return Updater(FABRIC, model, optimizer, cycle(batches()), section, distillation=of, **more)


def part(batch: Batch, **weights: float) -> float:
    """The loss with label smoothing 0, of weights that are 0 unless given."""
    distill = DistillSection.model_validate(weights)
    model, teacher = make_model(), another_model()
    lesson = Teacher(teacher, distill).lesson(batch)
    return taught_loss(model, observe(model, batch, distill), batch, lesson, distill, 0.0).item()


@pytest.mark.parametrize("what", ["hidden", "attention"])
def test_outputs_of_modules_are_compared_without_padding(what: str) -> None:
    """Against outputs that hooks of the test's own collect."""
    batch = batches()[1]
    assert batch.source_padded
    model, teacher = make_model(), another_model().eval()
    found: list[list[torch.Tensor]] = []
    for one in (model, teacher):
        kept: list[torch.Tensor] = []
        layers = [*one.encoder_layers, *one.decoder_layers]
        modules = layers if what == "hidden" else [attention for *_, attention in one.attentions()]
        for module in modules:
            module.register_forward_hook(lambda _m, _a, output, kept=kept: kept.append(output.detach()))
        one(batch.source, batch.target_in)
        found.append(kept)
    source, target = batch.source.ne(2), batch.target_out.ne(2)
    means: list[float] = []
    for own, other in zip(*found, strict=True):
        real = source if own.shape[1] == source.shape[1] and len(means) < 2 else target
        means.append(float((own - other)[real].square().mean()))
    expected = batch.tokens * sum(means) / len(means)
    assert part(batch, **{what: 2.0}) - part(batch) == pytest.approx(2 * expected, rel=1e-4)


def test_layers_that_were_removed_are_left_out_of_the_comparison() -> None:
    """A student without a layer runs no attention there, and its teacher does."""
    batch, distill = batches()[1], DistillSection(attention=1.0)
    student = build_transformer(tiny_architecture(), removed=RemovedLayers(encoder=(0,), decoder=()))
    lesson = Teacher(another_model(), distill).lesson(batch)
    loss = taught_loss(student, observe(student, batch, distill), batch, lesson, distill, 0.0)
    assert torch.isfinite(loss)


def test_nothing_of_the_teacher_changes_and_it_has_no_dropout() -> None:
    teacher = another_model()
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    one = updater(make_model(), EVERYTHING, teacher)
    one.update(1)
    assert not any(parameter.requires_grad or parameter.grad is not None for parameter in teacher.parameters())
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())
    first, again = (Teacher(teacher, EVERYTHING).lesson(batches()[0]) for _ in range(2))
    assert torch.equal(first.logits.states, again.logits.states)
    assert not first.logits.states.requires_grad


def test_a_student_comes_nearer_to_its_teacher() -> None:
    model, distill = make_model(), DistillSection(weight=1.0)
    one = updater(model, distill, another_model())
    losses = [one.update(step, None, {"weights": 1e-3}).loss for step in range(1, 30)]
    assert losses[-1] < 0.5 * losses[0]


def test_off_is_the_training_without_it_bit_by_bit() -> None:
    without, off = make_model(), make_model()
    section = TrainSection(accumulate=2, dropout=0.0, warmup_steps=1)
    optimizer = make_optimizer([{"params": list(without.parameters()), "name": "weights"}], section)
    plain = Updater(FABRIC, without, optimizer, cycle(batches()), section)
    other = updater(off, DistillSection(), None)
    for step in (1, 2):
        assert plain.update(step).loss == other.update(step).loss
    assert all(torch.equal(a, b) for a, b in zip(without.parameters(), off.parameters(), strict=True))


@pytest.mark.parametrize("distill", [EVERYTHING, DistillSection(weight=0.9)])
@pytest.mark.parametrize("headmask", [None, "random:7", "important:7"])
def test_an_update_with_a_teacher_does_not_wait_for_the_device(distill: DistillSection, headmask: str | None) -> None:
    model = make_model()
    spec = HeadMaskSpec.parse(headmask) if headmask else None
    masking = HeadMask(model, model.arch.full_layout(), spec, 1, 0.1).applied if spec else None
    one = updater(model, distill, another_model(), masking=masking)
    one.update(1)
    with CountWaits() as counted:
        one.update(2)
        assert counted.found == {}


def test_a_teacher_begins_with_its_own_start_token() -> None:
    """As the models of M2M100, whose decoders start from another token than those that are trained here."""
    model, batch, distill = another_model(), batches()[0], DistillSection(weight=0.5)
    fed: list[torch.Tensor] = []
    for module in (model.decoder_layers[0],):
        module.register_forward_hook(lambda _m, given, _o: fed.append(given[0].detach()))
    started = batch.target_in.clone()
    started[:, 0] = 5
    Teacher(model, distill, start_id=5).lesson(batch)
    Teacher(model, distill).lesson(replace(batch, target_in=started))
    Teacher(model, distill).lesson(batch)
    assert torch.equal(fed[0], fed[1])
    assert not torch.equal(fed[0], fed[2])


def test_which_start_token_a_teacher_begins_with(tmp_path: Path) -> None:
    arch = tiny_architecture(start_id=0)
    teacher = tiny_checkpoint_at(tmp_path / "teacher", arch=arch)
    distill = DistillSection(weight=0.5, teacher=str(tmp_path / "teacher"))
    vocabulary = Vocabulary(teacher.tokenizer)
    for student, start in ((arch, None), (tiny_architecture(), 0)):
        loaded = load_teacher(distill, None, student, vocabulary, 9)
        assert loaded is not None
        assert loaded._start_id == start


def test_passes_add_their_gradients_and_the_first_teaches_the_others() -> None:
    """Two passes in one update against the losses of each, with the lesson of the first pass."""
    distill, batch = DistillSection(weight=0.5), batches()[0]
    model, every = make_model(), make_model().arch.full_layout()
    small = HeadLayout.from_heads(list(every.heads())[:9], 2, 2)
    whole = observe(model, batch, distill)
    lesson = lesson_of(model, whole)
    plain = updater(make_model(), DistillSection(), None).loss(
        batch.source, batch.target_in, batch.target_out, batch.real, batch.source_padded
    )
    mask_to_layout(model, every, small)
    taught = taught_loss(model, observe(model, batch, distill), batch, lesson, distill, 0.1)
    expected = torch.autograd.grad((plain.detach() + taught) / 2 / batch.tokens, model.shared.weight)[0]
    assert not torch.isclose(expected, torch.zeros_like(expected)).all()

    student = make_model()
    one = updater(student, distill, None)
    one.settings = TrainSection(accumulate=1, dropout=0.0, warmup_steps=1, clip_norm=0)
    one.batches = cycle([batch])
    passes = [lambda: mask_to_layout(student, every, every), lambda: mask_to_layout(student, every, small)]
    update = one.update(1, None, {"weights": 0.0}, passes)
    assert update.loss == pytest.approx((plain + taught).item() / 2 / batch.tokens, rel=1e-5)
    alone = make_model()
    single = updater(alone, DistillSection(), None)
    single.settings, single.batches = one.settings, cycle([batch])
    single.update(1, None, {"weights": 0.0})
    assert student.shared.weight.grad is not None
    assert alone.shared.weight.grad is not None
    together = expected + alone.shared.weight.grad / 2
    torch.testing.assert_close(student.shared.weight.grad, together, rtol=1e-3, atol=1e-6)


# -- teachers that are refused -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teachers")
    tiny_checkpoint_at(folder / "c")
    return folder


def loaded(folder: Path, distill: DistillSection, longest: int = 20, **arch: object) -> Teacher | None:
    student = tiny_architecture(**arch)
    vocabulary = Vocabulary(load_checkpoint(folder / "c").tokenizer)
    return load_teacher(distill, folder / "c", student, vocabulary, longest)


def test_without_distillation_none_is_loaded(folder: Path) -> None:
    assert loaded(folder, DistillSection()) is None
    assert loaded(folder, DistillSection(weight=0.5)) is not None
    assert loaded(folder, DistillSection(weight=0.5), d_model=64) is not None, "words alone need no equal widths"


@pytest.mark.parametrize(
    ("distill", "longest", "arch", "message"),
    [
        (DistillSection(teacher="t"), 20, {}, "set distill.weight"),
        (DistillSection(weight=0.5), 97, {}, "96 positions, and sentences have up to 97"),
        (DistillSection(hidden=1.0), 20, {"d_model": 64}, "d_model is 32, the student's 64"),
        (DistillSection(attention=1.0), 20, {"decoder_layers": 3}, "decoder_layers is 2, the student's 3"),
        (DistillSection(weight=0.5), 20, {"vocab_size": 130}, "not the student's"),
    ],
)
def test_teachers_that_do_not_fit(
    folder: Path, distill: DistillSection, longest: int, arch: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        loaded(folder, distill, longest, **arch)


def test_a_compiled_loss_gives_no_layers() -> None:
    with pytest.raises(InvalidRequestError, match=r"leave run\.compile out"):
        updater(make_model(), EVERYTHING, another_model(), compiled=True)
