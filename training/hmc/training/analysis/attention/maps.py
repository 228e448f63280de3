"""Attention maps of one sentence: all weights of chosen heads, with tokens as labels (Voita et al. 2019, figure 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import torch

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.heads import AttentionKind, Head
from hmc.artifact.tokenizer.tokenizer import open_tokenizer
from hmc.training.analysis.common.records import AttentionMap, MapsData
from hmc.training.analysis.common.result import Result, corpus_source
from hmc.training.analysis.common.subject import Subject, Text
from hmc.training.analysis.common.summary import Summary, plain
from hmc.training.analysis.common.trace import trace_decoder, trace_encoder
from hmc.training.analysis.common.views import READS, TokenPair, tokenize

COMMAND = "attention"
START = "<s>"
END = "</s>"


def analyse(subject: Subject, sentence: str, heads: Sequence[Head] = (), reference: str = "") -> Result[MapsData]:
    """Maps of `heads` (none: every open head of encoder self-attention) on one sentence.

    reference: the translation that the decoder reads; empty: the model's own greedy translation. Raises
    InvalidRequestError for an empty sentence or no heads, InvalidArtifactError for NaN weights.
    """
    if not sentence.strip():
        raise InvalidRequestError("the sentence is empty; give a sentence in the source language")
    chosen = list(heads) or [head for head in subject.layout.heads() if head.kind == "encoder_self"]
    if not chosen:
        raise InvalidRequestError("encoder self-attention has no open heads in this checkpoint; name heads")
    text = Text(((sentence, reference),), corpus_source("sentence", [(sentence, reference)]))
    prepared = tokenize(subject, text, forced=bool(reference.strip()))
    return subject.result(
        COMMAND,
        text.source,
        settings={"sentence": sentence, "decoder_reads": READS[bool(reference.strip())]},
        data=MapsData(maps=attention_maps(subject, prepared.pairs[0], chosen), sentences_cut=prepared.cut),
    )


@torch.no_grad()
def attention_maps(subject: Subject, pair: TokenPair, heads: Sequence[Head]) -> list[AttentionMap]:
    """The map of each head: queries and keys as pieces, and weights `[T][S]`. Every row sums to 1.

    EOS and the start symbol are included. A query of decoder self-attention is the token that the decoder reads at this
    position. A query of cross-attention is the token that it predicts there.
    """
    model = subject.model
    device = model.shared.weight.device
    source = torch.tensor([pair.source], device=device)
    target_in = torch.tensor([[model.arch.decoder_start, *pair.target[:-1]]], device=device)
    encoder = trace_encoder(model, source)
    decoder = trace_decoder(model, source, encoder.states, target_in)
    steps = [*encoder.attentions(), *decoder.attentions()]
    weights = {(step.kind, step.layer): step.heads.weights[0] for step in steps if step.heads is not None}
    tokenizer = open_tokenizer(subject.checkpoint.tokenizer)
    source_pieces = list(map(tokenizer.source_piece, pair.source[:-1]))
    target_pieces = list(map(tokenizer.piece, pair.target[:-1]))
    labels: dict[AttentionKind, tuple[list[str], list[str]]] = {
        "encoder_self": ([*source_pieces, END], [*source_pieces, END]),
        "decoder_self": ([START, *target_pieces], [START, *target_pieces]),
        "cross": ([*target_pieces, END], [*source_pieces, END]),
    }
    maps = []
    for head in heads:
        row = subject.layout[head.kind][head.layer].index(head.index)
        queries, keys = labels[head.kind]
        matrix = weights[head.kind, head.layer][row].cpu().tolist()
        maps.append(AttentionMap(**asdict(head), queries=queries, keys=keys, weights=matrix))
    return maps


def summary(result: Result[MapsData]) -> Summary:
    """The largest weight of every head, with its query and key."""
    rows = []
    for one in result.data.maps:
        weights = np.array(one.weights)
        query, key = np.argwhere(weights == weights.max())[-1]  # the last of equal ones
        rows.append((str(one.head), f"{one.queries[query]} → {one.keys[key]}", plain(weights.max())))
    return Summary("Attention maps: the largest weight of each head", ("head", "query → key", "weight"), tuple(rows))
