"""Relevance propagation: rules by hand, a model by hand, and conservation at every layer of a random model."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from tests.tiny import FORMS, random_layout, random_tensors, tiny_architecture

from hmc.artifact import HeadLayout
from hmc.artifact.model.architecture import Architecture
from hmc.training import FixedMask, Transformer, build_transformer
from hmc.training.analysis.common.subject import Subject, Text
from hmc.training.analysis.common.trace import FeedForwardTrace, trace_encoder
from hmc.training.analysis.relevance import (
    LrpScores,
    Relevance,
    analyse,
    sentence_relevance,
    summary,
    through_attention,
    through_linear,
    through_product,
    through_sum,
)
from hmc.training.model.checkpoints import import_tensors

SOURCE, TARGET_IN = [5, 9, 30, 11, 17, 0], [2, 40, 41, 42, 43]


def make_model(activation: str = "relu", layout: HeadLayout | None = None, form: str | None = None) -> Transformer:
    arch = tiny_architecture(activation=activation).model_copy(update=FORMS[form] if form else {})
    layout = layout or arch.full_layout()
    model = build_transformer(arch, layout)
    import_tensors(model, random_tensors(arch, layout))
    return model.eval()


def test_contributions_of_one_sign_share_in_proportion() -> None:
    """Definition 3 of the paper: w = W_uv u / Σ W_u'v u'."""
    x, weight = torch.tensor([[1.0, -2.0]]), torch.tensor([[3.0, -0.5], [1.0, -2.0]])
    # contributions: to the first output 3 and 1, to the second 1 and 4
    found = through_linear(torch.tensor([[[8.0, 10.0]]]), x, weight)
    torch.testing.assert_close(found, torch.tensor([[[8 * 3 / 4 + 10 * 1 / 5, 8 * 1 / 4 + 10 * 4 / 5]]]))


def test_contributions_of_both_signs_have_one_half_each() -> None:
    x, weight = torch.tensor([[1.0, 1.0, 1.0]]), torch.tensor([[3.0, 1.0, -2.0]])
    found = through_linear(torch.tensor([[[1.0]]]), x, weight)
    torch.testing.assert_close(found, torch.tensor([[[0.375, 0.125, 0.5]]]))


def test_cancelling_contributions_stay_bounded() -> None:
    """Where the plain ratio would divide by 1e-6."""
    first, second = through_sum(torch.ones(1, 1, 1), torch.tensor([[1.0]]), torch.tensor([[-1.0 + 1e-6]]))
    torch.testing.assert_close(first, torch.full((1, 1, 1), 0.5))
    torch.testing.assert_close(second, torch.full((1, 1, 1), 0.5))


def test_without_contributions_all_inputs_share() -> None:
    found = through_linear(torch.ones(1, 1, 1), torch.zeros(1, 4), torch.ones(1, 4))
    torch.testing.assert_close(found, torch.full((1, 1, 4), 0.25))
    weights = torch.tensor([[[0.25, 0.75, 0.0]]])
    found = through_attention(torch.ones(1, 1, 1, 1), weights, torch.zeros(1, 3, 1))
    torch.testing.assert_close(found, torch.tensor([0.5, 0.5, 0.0]).view(1, 1, 3, 1))
    kept, updated = through_sum(torch.ones(1, 1, 1), torch.zeros(1, 1), torch.zeros(1, 1))
    assert (kept.item(), updated.item()) == (1, 0)
    found = through_product(torch.ones(1, 1), torch.zeros(1, 2), torch.ones(1, 2))
    torch.testing.assert_close(found, torch.full((1, 1, 2), 0.5))


def test_attention_hands_relevance_to_weighted_values() -> None:
    weights = torch.tensor([[[0.25, 0.75]]])  # [H, T, S]
    values = torch.tensor([[[3.0], [1.0]]])  # contributions 0.75 and 0.75
    found = through_attention(torch.ones(1, 1, 1, 1), weights, values)
    torch.testing.assert_close(found, torch.full((1, 1, 2, 1), 0.5))


def test_a_weight_that_has_no_inverse_takes_no_relevance() -> None:
    """A softmax so sure that the smallest weight is subnormal: its inverse is infinite."""
    weights = torch.softmax(torch.tensor([[[90.0, 0.0]]]), -1)
    assert 0 < weights[0, 0, 1] < torch.finfo(torch.float32).tiny
    found = through_attention(torch.ones(1, 1, 1, 1), weights, torch.tensor([[[-1.0], [1.0]]]))
    torch.testing.assert_close(found, torch.tensor([1.0, 0.0]).view(1, 1, 2, 1))


def hand_built() -> Transformer:
    """One layer each, two heads of one dimension, d_model 2: layer norm gives ±1, so all can be computed by hand.

    The source is one EOS with state (1, -1). The decoder reads the start symbol with state (-1, 1); cross-attention
    adds (-1, 3); the final state is (-1, 1). Token 3 wins with the embedding (-2, 1).
    """
    arch = Architecture(
        vocab_size=4, d_model=2, ffn_dim=2, encoder_layers=1, decoder_layers=1, heads=2, head_dim=1,
        max_positions=8, scale_embedding=False, pad_id=2, eos_id=0, unk_id=1,
    )  # fmt: skip
    model = build_transformer(arch)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layer_norm.weight" not in name:
                parameter.zero_()
        model.shared.weight[0] = torch.tensor([5.0, 0.0])  # + position 0 = (0, 1) → (5, 1) → layer norm → (1, -1)
        model.shared.weight[3] = torch.tensor([-2.0, 1.0])
        cross = model.decoder_layers[0].encoder_attn
        cross.key_value.weight[2:] = torch.eye(2)  # values = source states
        cross.out_weight.copy_(torch.diag(torch.tensor([-1.0, -3.0])))
    return model.eval()


def test_relevance_of_a_model_done_by_hand() -> None:
    model = hand_built()
    [found] = sentence_relevance(model, [0], [2])
    # Logit: -2·-1 and 1·1, so 2/3 and 1/3. Cross-attention: -1 + -1 and 1 + 3, so heads have 1/2 and 3/4 of that.
    torch.testing.assert_close(found.heads["cross", 0], torch.tensor([[1 / 3, 1 / 4]]), atol=1e-4, rtol=0)
    assert found.heads["encoder_self", 0].tolist() == [[0.0, 0.0]]  # its W_O is 0
    scores = LrpScores(model)
    scores.add([0], [2])
    assert scores.relevance()["cross", 0] == pytest.approx([4 / 7, 3 / 7], abs=1e-4)
    assert scores.relevance()["decoder_self", 0].tolist() == [0.0, 0.0]
    assert scores.through_heads()["cross", 0] == pytest.approx(7 / 12, abs=1e-4)


def test_biases_get_no_relevance() -> None:
    model = hand_built()
    with torch.no_grad():
        # A bias in place of the second head: it pushes the same way, but all of the neuron stays on the residual.
        cross = model.decoder_layers[0].encoder_attn
        cross.out_weight[1, 1] = 0.0
        cross.out_bias.copy_(torch.tensor([0.0, 3.0]))
    [found] = sentence_relevance(model, [0], [2])
    torch.testing.assert_close(found.heads["cross", 0], torch.tensor([[1 / 3, 0.0]]), atol=1e-4, rtol=0)
    assert all(abs(float(total) - 1) < 1e-6 for total in found.totals.values())


def all_totals(parts: list[Relevance]) -> dict[str, torch.Tensor]:
    return {name: torch.cat([part.totals[name] for part in parts]) for name in parts[0].totals}


@pytest.mark.parametrize(
    ("activation", "dtype", "tolerance"),
    [("relu", torch.float32, 1e-4), ("relu", torch.float64, 1e-12), ("gelu", torch.float64, 1e-12)],
)
def test_relevance_is_conserved_at_every_layer(activation: str, dtype: torch.dtype, tolerance: float) -> None:
    model = make_model(activation).to(dtype)
    totals = all_totals(list(sentence_relevance(model, SOURCE, TARGET_IN)))
    places = [f"{kind}.{layer} {at}" for kind, layer, _ in model.attentions() for at in ("heads", "input")]
    assert set(totals) == {*places, "decoder input", "encoder input"}
    for name, total in totals.items():
        assert total.shape == (len(TARGET_IN),), name
        assert (total - 1).abs().max() <= tolerance, name


@pytest.mark.parametrize("form", ["norms first", "norms first and last", "m2m100"])
def test_relevance_is_conserved_where_norms_come_first(form: str) -> None:
    model = make_model("gelu", random_layout(tiny_architecture(), 2), form).double()
    parts = list(sentence_relevance(model, SOURCE, TARGET_IN))
    assert max(float((total - 1).abs().max()) for total in all_totals(parts).values()) < 1e-12
    assert all(values.sum() > 0 for values in parts[0].heads.values() if values.size(1))


def test_residuals_are_what_came_before_the_norm() -> None:
    """Each sub-layer's residual plus its update is the residual of the next one; the last is the final state."""
    model = make_model(form="norms first").double()
    with torch.no_grad():
        trace = trace_encoder(model, torch.tensor([SOURCE]))
        for step, following in pairwise([*trace.steps, None]):
            assert step is not None
            if isinstance(step, FeedForwardTrace):
                update = step.module(step.states)
            else:
                update = step.module(step.states, step.module.project(step.source), None)
            after = trace.states if following is None else following.residual
            torch.testing.assert_close(step.residual + update, after)
            assert not torch.equal(step.residual, step.states)


@pytest.mark.parametrize("seed", range(4))
def test_conservation_with_uneven_and_empty_layers(seed: int) -> None:
    layout = random_layout(tiny_architecture(), seed)
    model = make_model("swish", layout).double()
    parts = list(sentence_relevance(model, SOURCE, TARGET_IN))
    assert max(float((total - 1).abs().max()) for total in all_totals(parts).values()) < 1e-12
    assert {k: v.size(1) for k, v in parts[0].heads.items()} == {
        (kind, layer): len(layout[kind][layer]) for kind, layer, _ in model.attentions()
    }


def test_a_wrong_rule_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of conservation can fail: here the relevance of negative contributions is lost."""
    from hmc.training.analysis import relevance

    real = relevance.divide_by_sign

    def lossy(*arguments: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        positive, negative, left = real(*arguments)
        return positive, negative * 0, left

    monkeypatch.setattr(relevance, "divide_by_sign", lossy)
    totals = all_totals(list(sentence_relevance(make_model(), SOURCE, TARGET_IN)))
    assert max(float((total - 1).abs().max()) for total in totals.values()) > 0.1


def test_later_steps_do_not_depend_on_how_many_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    from hmc.training.analysis import relevance

    model = make_model().double()
    [whole] = sentence_relevance(model, SOURCE, TARGET_IN)
    monkeypatch.setattr(relevance, "STEPS_AT_ONCE", 2)
    parts = list(sentence_relevance(model, SOURCE, TARGET_IN))
    assert len(parts) == 3
    for place, heads in whole.heads.items():
        torch.testing.assert_close(torch.cat([part.heads[place] for part in parts]), heads)


def test_a_step_sees_only_its_prefix() -> None:
    model = make_model().double()
    [whole] = sentence_relevance(model, SOURCE, TARGET_IN)
    [prefix] = sentence_relevance(model, SOURCE, TARGET_IN[:3])
    for place, heads in whole.heads.items():
        torch.testing.assert_close(prefix.heads[place], heads[:3])


def test_masked_heads_have_no_relevance_and_layers_sum_to_one() -> None:
    model = make_model()
    model.encoder_layers[1].self_attn.gate = FixedMask(torch.tensor([1.0, 0.0, 1.0, 1.0]))
    model.decoder_layers[0].encoder_attn.gate = FixedMask(torch.zeros(4))
    scores = LrpScores(model)
    scores.add(SOURCE, TARGET_IN)
    scores.add(SOURCE[2:], TARGET_IN[:2])
    relevance = scores.relevance()
    assert scores.steps == 7
    assert relevance["encoder_self", 1][1] == 0
    assert (relevance["encoder_self", 1][[0, 2, 3]] > 0).all()
    assert relevance["cross", 0].tolist() == [0.0] * 4
    assert scores.worst < 1e-4
    for place, values in relevance.items():
        if place != ("cross", 0):
            assert values.sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("forced", [False, True])
def test_analysis_of_a_text(subject: Subject, text: Text, forced: bool) -> None:
    result = analyse(subject, text, forced=forced)
    heads = result.data.heads
    assert [(row.kind, row.layer, row.index) for row in heads] == [
        (head.kind, head.layer, head.index) for head in subject.layout.heads()
    ]
    for kind, layer in {(row.kind, row.layer) for row in heads}:
        layer_sum = sum(row.relevance for row in heads if (row.kind, row.layer) == (kind, layer))
        assert layer_sum == pytest.approx(1, abs=1e-5)
    assert result.data.conservation_error < 1e-4
    if forced:
        assert result.data.generation_steps == sum(
            len(subject.vocabulary.encode(side, target=True)) for side in text.references
        )
    assert len(summary(result).rows) == 10
