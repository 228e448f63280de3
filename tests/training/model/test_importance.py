"""Head importance: equals finite differences sentence by sentence, and leaves the model as it was."""

import numpy as np
import pytest
import torch
from tests.tiny import SENTENCES, random_layout, random_tensors, tiny_architecture, tiny_tokenizer
from torch import Tensor

from hmc.artifact import HeadLayout, InvalidRequestError
from hmc.artifact.model.heads import KINDS, AttentionKind
from hmc.artifact.model.importance import Importance
from hmc.training import (
    Batch,
    FixedMask,
    Gate,
    Transformer,
    Vocabulary,
    build_transformer,
    corpus_importance,
    make_batch,
    sentence_importance,
)
from hmc.training.model.checkpoints import import_tensors
from hmc.training.model.cpu import Dropout
from hmc.training.model.importance import heads_of_attentions, importance_of, importance_sums
from hmc.training.model.loss import cross_entropy_sum


def tiny_model(dtype: torch.dtype, layout: HeadLayout | None = None) -> Transformer:
    """With gelu: finite differences step over the kinks of relu."""
    arch = tiny_architecture(head_dim=8, activation="gelu")
    layout = layout or arch.full_layout()
    model = build_transformer(arch, layout).to(dtype)
    import_tensors(model, random_tensors(arch, layout))
    return model


def real_batch(start: int, stop: int) -> Batch:
    """Sentences start … stop - 1, each to be translated into the next one."""
    vocabulary = Vocabulary(tiny_tokenizer())
    ids = [vocabulary.encode(s) for s in SENTENCES]
    return make_batch(ids[start:stop], ids[start + 1 : stop + 1], vocabulary.pad_id)


def set_masks(model: Transformer, xi: Tensor) -> None:
    """ξ `[total]`, of any real values, over the heads in the order of `model.attentions()`."""
    attentions = [attention for *_, attention in model.attentions() if attention.heads]
    for attention, values in zip(attentions, xi.split([a.heads for a in attentions]), strict=True):
        attention.gate = FixedMask(values)
        attention.gate.mask = values  # the constructor rounds to fp32


def loss_by_hand(model: Transformer, batch: Batch, smoothing: float) -> Tensor:
    """Summed cross-entropy in fp64: (1 - ε) of the reference token, ε spread over the vocabulary."""
    real = batch.target_out.ne(model.arch.pad_id)
    logs = model.logits(model(batch.source, batch.target_in)).log_softmax(-1)
    gold = logs.gather(-1, batch.target_out[..., None])[..., 0]
    return -((1 - smoothing) * gold + smoothing * logs.mean(-1))[real].sum()


@torch.no_grad()
def finite_differences(model: Transformer, batch: Batch, smoothing: float, step: float = 1e-4) -> Tensor:
    """|L(1 + h) - L(1 - h)| / 2h for every head `[total]`."""
    total, rows = sum(attention.heads for *_, attention in model.attentions()), []
    for head in range(total):
        values = []
        for sign in (1, -1):
            xi = torch.ones(total, dtype=torch.float64)
            xi[head] += sign * step
            set_masks(model, xi)
            values.append(loss_by_hand(model, batch, smoothing))
        rows.append((values[0] - values[1]).abs() / (2 * step))
    return torch.stack(rows)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("uneven", [False, True])
def test_importance_equals_central_finite_differences(uneven: bool, smoothing: float) -> None:
    """Each row of a padded batch equals the differences of that sentence alone, without padding."""
    layout = random_layout(tiny_architecture(), 3) if uneven else None
    model = tiny_model(torch.float64, layout)
    computed = sentence_importance(model, real_batch(0, 5), smoothing)
    assert computed.shape == (5, (layout or model.arch.full_layout()).total)
    expected = torch.stack([finite_differences(model, real_batch(i, i + 1), smoothing) for i in range(5)])
    torch.testing.assert_close(computed, expected, rtol=1e-3, atol=1e-6)
    single = sentence_importance(tiny_model(torch.float32, layout), real_batch(0, 5), smoothing)
    torch.testing.assert_close(single.double(), expected, rtol=1e-3, atol=1e-4)


def test_the_model_is_left_as_it_was() -> None:
    model, batch = tiny_model(torch.float32).train(), real_batch(0, 4)
    open_model = sentence_importance(model, batch)
    set_masks(model, torch.zeros(24))
    gates = [attention.gate for *_, attention in model.attentions()]
    with torch.no_grad():
        masked = sentence_importance(model, batch)
    assert torch.equal(masked, open_model), "importance is measured with every head open"
    assert all(attention.gate is gate for (*_, attention), gate in zip(model.attentions(), gates, strict=True))
    assert all(p.grad is None for p in model.parameters())
    assert model.training


def test_corpus_importance_is_the_mean_over_sentences_without_dropout() -> None:
    layout = random_layout(tiny_architecture(), 3)
    model = tiny_model(torch.float32, layout).train()
    for module in model.modules():
        if isinstance(module, Dropout):
            module.p = 0.5
    batches = [real_batch(0, 2), real_batch(2, 9)]
    scores = corpus_importance(model, batches, layout)
    assert model.training
    expected = torch.cat([sentence_importance(model.eval(), b) for b in batches]).mean(0)
    for head, value in zip(layout.heads(), expected.tolist(), strict=True):
        assert scores[head.kind][head.layer, head.index] == pytest.approx(value, rel=1e-4)
    absent = set(model.arch.full_layout().heads()) - set(layout.heads())
    assert absent
    assert all(scores[head.kind][head.layer, head.index] == 0 for head in absent)


def test_nothing_to_measure_is_an_error() -> None:
    with pytest.raises(InvalidRequestError, match="at least one sentence"):
        corpus_importance(tiny_model(torch.float32), [])
    arch = tiny_architecture()
    empty = HeadLayout.from_heads([], arch.encoder_layers, arch.decoder_layers)
    with pytest.raises(InvalidRequestError, match="no attention heads left"):
        sentence_importance(build_transformer(arch, empty), real_batch(0, 2))


def token_importance(model: Transformer, batch: Batch) -> dict[AttentionKind, Tensor]:
    """kind → |Σ_i o_i ∂L/∂o_i| summed over the tokens of every sentence `[B, heads of the kind]`, from the outputs of
    heads themselves (Sun et al. 2021, eq. 2) and not from a gate."""
    outputs: list[tuple[AttentionKind, Tensor]] = []

    class Keep(Gate):
        def __init__(self, kind: AttentionKind) -> None:
            super().__init__()
            self.kind = kind

        def forward(self, heads: Tensor) -> Tensor:
            heads.retain_grad()
            outputs.append((self.kind, heads))
            return heads

    for kind, _, attention in model.attentions():
        attention.gate = Keep(kind)
    states = model(batch.source, batch.target_in, batch.source_padded)
    cross_entropy_sum(model, states, batch, 0.0)[0].backward()
    found: dict[AttentionKind, list[Tensor]] = {kind: [] for kind in KINDS}
    for kind, heads in outputs:
        assert heads.grad is not None
        found[kind].append((heads * heads.grad).sum(-1).abs().sum(-1))
    return {kind: torch.cat(rows, 1).detach() for kind, rows in found.items()}


def test_importance_of_tokens_is_that_of_the_outputs_of_heads() -> None:
    model, batch = tiny_model(torch.float64), real_batch(0, 5)
    computed = sentence_importance(model, batch, how=Importance("token"))
    expected = token_importance(model, batch)
    torch.testing.assert_close(computed, torch.cat([expected[kind] for kind in KINDS], 1))
    model = tiny_model(torch.float64)
    scores = corpus_importance(model, [batch], how=Importance("token"))
    source, target = int(batch.source.ne(2).sum()), batch.tokens
    tokens: dict[AttentionKind, int] = {"encoder_self": source, "decoder_self": target, "cross": target}
    for kind in KINDS:
        np.testing.assert_allclose(scores[kind].ravel(), expected[kind].sum(0) / tokens[kind], rtol=1e-5)


def test_signs_batches_and_layers() -> None:
    """-∂L/∂ξ by central differences of the loss; |·| of a batch; the ℓ2 norm of each attention."""
    model, parts = tiny_model(torch.float64), [real_batch(0, 2), real_batch(2, 5)]
    signed = torch.cat([sentence_importance(model, batch, how=Importance(sign="signed")) for batch in parts])
    plain = torch.cat([sentence_importance(model, batch) for batch in parts])
    torch.testing.assert_close(signed.abs(), plain)
    assert (signed < 0).any()
    assert (signed > 0).any()
    head = int(signed.sum(0).argmax())
    xi = torch.ones(signed.size(1), dtype=torch.float64)
    losses = []
    for value in (1.0, 1 - 1e-4):
        xi[head] = value
        set_masks(model, xi)
        with torch.no_grad():
            losses.append(sum(float(loss_by_hand(model, batch, 0.0)) for batch in parts))
    assert losses[1] - losses[0] == pytest.approx(float(signed.sum(0)[head]) * 1e-4, rel=1e-2), "masking adds loss"
    widths = heads_of_attentions(model)
    both = importance_sums(model, parts, Importance("batch"))
    torch.testing.assert_close(importance_of(both, Importance("batch"), widths), signed.mean(0).abs())
    by_layer = importance_of(both, Importance("batch", "layer"), widths)
    for part in by_layer.split(widths):
        assert float(part.norm()) == pytest.approx(1)
    apart = corpus_importance(model, parts, how=Importance("batch"))
    expected = sum(importance_sums(model, [batch], Importance("batch"))[0].abs() for batch in parts)
    assert isinstance(expected, Tensor)
    np.testing.assert_allclose(np.concatenate([apart[kind].ravel() for kind in KINDS]), expected / 5, rtol=1e-5)


def test_words_name_an_importance() -> None:
    for how in (Importance(), Importance("token", "layer", "signed"), Importance("batch")):
        assert Importance.parse(str(how).split(","), "") == how
    with pytest.raises(InvalidRequestError, match="here: 'tokens' names no importance"):
        Importance.parse(["tokens"], "here:")
