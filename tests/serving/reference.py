"""Decoding written plainly over the PyTorch model, one hypothesis at a time: what the engine is tested against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch
from tests.tiny import SENTENCES

from hmc.artifact import Checkpoint, HeadLayout
from hmc.artifact.bundle.shortlist import Lexicon
from hmc.serving import DecodeOptions, Translation
from hmc.training import mask_to_layout, model_from_checkpoint
from hmc.training.data.batches import pad_rows
from hmc.training.model.layers import Attention

TEXTS = SENTENCES[:8]
LIMIT = 12
NEVER = -np.inf
Pieces = sentencepiece.SentencePieceProcessor
Ids = tuple[int, ...]


@dataclass(frozen=True)
class Found:
    """A hypothesis: ids with EOS if it ended."""

    ids: Ids
    score: float
    token_scores: tuple[float, ...]


@dataclass(frozen=True)
class Running:
    ids: Ids = ()
    token_scores: tuple[float, ...] = ()
    total: float = 0.0

    def then(self, token: int, score: float) -> Running:
        return Running((*self.ids, token), (*self.token_scores, score), self.total + score)


@dataclass
class Reference:
    """A tiny model, some of its heads masked, with or without shortlists."""

    checkpoint: Checkpoint
    layout: HeadLayout
    lexicon: Lexicon | None = None
    """Of shortlists: other tokens have no probability."""
    attention_of: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model = model_from_checkpoint(self.checkpoint).eval()
        mask_to_layout(self.model, self.checkpoint.layout, self.layout)
        self.arch = self.checkpoint.architecture
        self.logits = cache(self._logits)
        for kind, layer, attention in self.model.attentions():
            if kind == "cross":
                attention.register_forward_pre_hook(self._spy(layer))

    def _spy(self, layer: int) -> Callable[[Any, tuple[Any, ...]], None]:
        def hook(module: Attention, args: tuple[Any, ...]) -> None:
            states, source = args[0], args[1]
            if source is not None:
                query = module.query(states).view(*states.shape[:2], module.heads, module.head_dim).transpose(1, 2)
                weights = (query @ source.keys.transpose(-1, -2) * module.head_dim**-0.5).softmax(-1)
                for head in range(module.heads):
                    self.attention_of[layer, head] = weights[0, head].numpy()

        return hook

    @torch.no_grad()
    def _forward(self, source: Ids, target: Ids) -> np.ndarray:
        shifted = torch.tensor([[self.arch.pad_id, *target]])
        states = self.model(pad_rows([list(source)], self.arch.pad_id), shifted)
        return np.asarray(self.model.logits(states)[0].double().numpy())

    def _logits(self, source: Ids, target: Ids) -> np.ndarray:
        return np.asarray(self._forward(source, target)[-1])

    def attention(self, source: Ids, target: Ids, heads: Sequence[tuple[int, int]]) -> np.ndarray:
        """`[T, S]`: mean attention of the heads (layer, index) while each target token is predicted."""
        self._forward(source, target[:-1])
        return np.asarray(np.mean([self.attention_of[head] for head in heads], axis=0))

    def log_probs(self, source: Ids, target: Ids, theta: float = 1.0, known: Ids = ()) -> np.ndarray:
        """`[V]` after `target`; theta penalises its tokens. known: tokens that are in the sentence's list anyway."""
        logits = self.logits(source, target).copy()
        if self.lexicon:
            outside = np.ones(len(logits), bool)
            outside[self.lexicon.candidates(source, known)] = False
            logits[outside] = NEVER
        for token in set(target):
            logits[token] = logits[token] / theta if logits[token] > 0 else logits[token] * theta
        logits -= logits.max()
        return np.asarray(logits - np.log(np.exp(logits).sum()))

    def allowed(self, target: Ids, options: DecodeOptions, phrases: Sequence[Ids] = ()) -> np.ndarray:
        """`[V]`: whether each token may follow `target`."""
        arch, n = self.arch, options.no_repeat_ngram_size
        written = {target[i : i + n] for i in range(len(target) - n + 1)} if n else set()
        may = np.ones(arch.vocab_size, bool)
        for token in range(arch.vocab_size):
            longer = (*target, token)
            may[token] = not (
                token == arch.pad_id
                or (token == arch.unk_id and options.suppress_unknown)
                or (token == arch.eos_id and len(longer) < options.min_length)
                or any(longer[-len(phrase) :] == phrase for phrase in phrases)
                or (n and longer[-n:] in written)
            )
        return may

    def coverage(self, source: Ids, target: Ids, heads: Sequence[tuple[int, int]]) -> float:
        attended = self.attention(source, target, heads).sum(axis=0)
        return float(sum(np.log(min(a, 1.0)) for a in attended))

    def beam_search(
        self,
        source: Ids,
        options: DecodeOptions,
        *,
        limit: int,
        phrases: Sequence[Ids] = (),
        prefix: Ids = (),
        heads: Sequence[tuple[int, int]] = (),
    ) -> list[Found]:
        """Every hypothesis that ended, best first."""
        beam, eos = options.beam_size, self.arch.eos_id
        running, ended = [Running()], []

        def end(h: Running) -> None:
            score = h.total / len(h.ids) ** options.length_penalty
            if options.coverage_penalty:
                score += options.coverage_penalty * self.coverage(source, h.ids, heads)
            ended.append(Found(h.ids, score, h.token_scores))
            ended.sort(key=lambda f: -f.score)

        for length in range(1, limit + 1):
            longer = []
            for h in running:
                scores = self.log_probs(source, h.ids, options.repetition_penalty, prefix)
                may = np.flatnonzero(self.allowed(h.ids, options, phrases) & (scores > NEVER)).tolist()
                next_tokens = may if length > len(prefix) else [prefix[length - 1]]
                longer += [h.then(token, float(scores[token])) for token in next_tokens]
            longer.sort(key=lambda h: -h.total)
            for h in longer[:beam]:
                if h.ids[-1] == eos:
                    end(h)
            running = [h for h in longer[: 2 * beam] if h.ids[-1] != eos][:beam]
            if not running or _stops(options, ended, running[0].total / length**options.length_penalty):
                return ended
        for h in running:
            end(h)
        return ended


def _stops(options: DecodeOptions, ended: list[Found], best_running: float) -> bool:
    beam = options.beam_size
    if options.patience is not None:
        return len(ended) >= int(options.patience * beam + 0.5)
    return len(ended) >= beam and best_running <= ended[beam - 1].score


def source_ids(pieces: Pieces, text: str) -> tuple[int, ...]:
    return (*pieces.encode(text), 0)


def assert_same(found: Translation, expected: list[Found], pieces: Pieces, n_best: int) -> None:
    """Tokens, token scores and scores of the n best."""
    best = found.hypotheses
    assert [[t.piece for t in h.tokens] for h in best] == [
        [pieces.id_to_piece(i) for i in f.ids] for f in expected[:n_best]
    ]
    for hypothesis, f in zip(best, expected, strict=False):
        assert hypothesis.score == pytest.approx(f.score, abs=2e-4)
        assert [t.score for t in hypothesis.tokens] == pytest.approx(list(f.token_scores), abs=2e-4)
        assert hypothesis.target_tokens == len(f.ids)
        assert hypothesis.hit_max_length == (f.ids[-1:] != (0,))
