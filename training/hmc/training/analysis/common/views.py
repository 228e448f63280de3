"""Attention weights over a corpus, batch by batch and attention by attention, between real tokens only.

As in Voita et al. (2019, footnote 2) the end of a sentence does not count as a token; neither do padding, the start
symbol of the decoder, and tokens that name a language. Weights on such keys are set to 0, and the other weights are not
scaled up. Queries are

* encoder_self: the tokens of the source;
* decoder_self: the tokens of the target that the decoder reads;
* cross: the positions at which the decoder predicts a token of the target.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hmc.artifact.model.heads import AttentionKind
from hmc.training.analysis.common.decoding import best_ids
from hmc.training.analysis.common.masks import sentence_groups
from hmc.training.analysis.common.subject import Progress, Subject, Text, overflow, silent
from hmc.training.analysis.common.trace import trace_decoder, trace_encoder
from hmc.training.data.batches import Batch, make_batch
from hmc.training.model.beam_search import beam_search, length_limit
from hmc.training.model.transformer import Transformer

READS = {False: "the model's own greedy translations", True: "the references"}
"""`forced` → the text that the decoder reads, as results record it."""


@dataclass(frozen=True)
class View:
    """One attention over one batch. The i-th query and the i-th key are the i-th token of their sentence."""

    kind: AttentionKind
    layer: int
    weights: Tensor
    """`[B, H, T, S]`; 0 at what `visible` leaves out."""
    visible: Tensor
    """`[B, T, S]`: query and key are tokens, and the query may look at the key."""
    rows: Sequence[int]
    """Number of the sentence of the corpus that each row of the batch holds."""


@dataclass(frozen=True)
class TokenPair:
    """Ids of a sentence and of a translation, EOS last in both."""

    source: list[int]
    target: list[int]
    languages: tuple[int, int] = (0, 0)
    """Number of tokens with which source and target begin that name a language."""


@dataclass(frozen=True)
class Prepared:
    """A text as the model reads it."""

    pairs: list[TokenPair]
    cut: int
    """Number of sentences that were cut because the model has too few positions. EOS is kept."""


def tokenize(subject: Subject, text: Text, *, forced: bool, progress: Progress = silent) -> Prepared:
    """Source sentences and the texts that the decoder reads: the references (forced), else the model's own greedy
    translations.

    Raises InvalidArtifactError for NaN weights, InvalidRequestError where the model's scores are NaN.
    """
    subject.check_weights()
    limit = subject.model.arch.max_positions
    vocabulary = subject.vocabulary
    pairs = []
    openings = []
    cut = 0
    for text_pair in text.pairs:
        source, target = vocabulary.encode_pair(*text_pair)
        cut += (len(source) > limit) + (forced and len(target) > limit)
        source = vocabulary.cut(source, limit)
        opening = vocabulary.opening(text_pair[0])
        openings.append(opening)
        languages = (len(vocabulary.source_opening(source)), len(opening))
        pairs.append(TokenPair(source, vocabulary.cut(target, limit), languages))
    if not forced:
        targets = _greedy(subject.model, [pair.source for pair in pairs], openings, progress)
        pairs = [replace(pair, target=target) for pair, target in zip(pairs, targets, strict=True)]
    return Prepared(pairs, cut)


def _greedy(
    model: Transformer, sources: list[list[int]], openings: list[list[int]], progress: Progress
) -> list[list[int]]:
    """Greedy translations, EOS last. `length_limit` bounds each by its own source."""
    targets: list[list[int]] = [[] for _ in sources]
    done = 0
    for rows in sentence_groups(list(map(len, sources))):
        limits = [length_limit(model, len(sources[row])) for row in rows]
        searched = beam_search(
            model,
            [sources[row] for row in rows],
            openings=[openings[row] for row in rows],
            beam=1,
            max_length=limits,
        )
        for row, hypotheses in zip(rows, searched, strict=True):
            # EOS is added also where the search ended at its limit.
            targets[row] = [*best_ids(hypotheses), model.arch.eos_id]
        done += len(rows)
        progress(f"translation: {done} of {len(sources)} sentences")
    return targets


def corpus_views(model: Transformer, pairs: Sequence[TokenPair], progress: Progress = silent) -> Iterator[View]:
    """Every attention that has heads, for every batch of the corpus. Layers without heads give no view."""
    done = 0
    for rows in sentence_groups([max(len(pair.source), len(pair.target)) for pair in pairs]):
        batch = make_batch(
            [pairs[r].source for r in rows],
            [pairs[r].target for r in rows],
            model.arch.pad_id,
            model.arch.decoder_start,
        )
        languages = [pairs[r].languages for r in rows]
        yield from batch_views(model, batch.to(model.shared.weight.device), rows, languages)
        done += len(rows)
        progress(f"attention: {done} of {len(pairs)} sentences")


def batch_views(
    model: Transformer, batch: Batch, rows: Sequence[int], languages: Sequence[tuple[int, int]] = ()
) -> Iterator[View]:
    """The views of one batch, first of the encoder, then of the decoder. languages: see `TokenPair`. Empty: no row has
    a language token. Raises InvalidRequestError for NaN states."""
    arch = model.arch
    encoder = trace_encoder(model, batch.source)
    decoder = trace_decoder(model, batch.source, encoder.states, batch.target_in)
    if not (torch.isfinite(encoder.states).all() and torch.isfinite(decoder.states).all()):
        raise overflow("hidden states of the model")
    tokens = batch.source.ne(arch.pad_id) & batch.source.ne(arch.eos_id)  # [B, S]
    read = batch.target_in.ne(arch.pad_id)  # [B, T]
    read[:, 0] = False  # the start token
    predicted = batch.target_out.ne(arch.pad_id) & batch.target_out.ne(arch.eos_id)  # [B, T]
    for row, (of_source, of_target) in enumerate(languages):
        tokens[row, :of_source] = False
        read[row, 1 : 1 + of_target] = False
        predicted[row, :of_target] = False
    visible: dict[AttentionKind, Tensor] = {
        "encoder_self": tokens[:, :, None] & tokens[:, None, :],
        "decoder_self": (read[:, :, None] & read[:, None, :]).tril(),
        "cross": predicted[:, :, None] & tokens[:, None, :],
    }
    for step in [*encoder.attentions(), *decoder.attentions()]:
        if step.heads is not None:
            seen = visible[step.kind]
            yield View(step.kind, step.layer, step.heads.weights * seen[:, None], seen, rows)


def peaks(view: View, at_least: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Largest weight of every query and its key, `[B, H, T]` each, and whether each query counts, `[B, T]`.

    A query counts if it sees at least `at_least` keys.
    """
    best = view.weights.masked_fill(~view.visible[:, None], -1.0).max(-1)
    return best.values, best.indices, view.visible.sum(-1) >= at_least


def visible_keys(view: View, offset: int) -> Tensor:
    """`[B, T]`: the query sees the key `offset` places to its right."""
    batch, queries, keys = view.visible.shape
    at = torch.arange(queries, device=view.visible.device) + offset
    inside = (at >= 0) & (at < keys)
    seen = view.visible.gather(2, at.clamp(0, keys - 1)[None, :, None].expand(batch, queries, 1)).squeeze(-1)
    return seen & inside
