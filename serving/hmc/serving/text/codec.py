"""Turns the constraints of a request into token ids, and the hypotheses of the engine into text: whole, or the part of
one under way that no later step can change."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.tokenizer.tokenizer import Tokenizer
from hmc.engine.decoding.constraints import UNCONSTRAINED, Constraints
from hmc.engine.requests.options import DecodeOptions
from hmc.engine.requests.results import Decoded, DecodedHypothesis
from hmc.serving.requests.options import Target
from hmc.serving.requests.results import SHORTEST, Alternative, TextProgress, Token, Translation
from hmc.serving.text.tokenizer import BundleTokenizer


class Codec:
    """Encodes constraints and decodes hypotheses with the tokenizer of one bundle. Thread-safe."""

    def __init__(self, tokenizer: BundleTokenizer, arch: Architecture) -> None:
        self._encode_target = tokenizer.encode_target
        self._tokenizer = tokenizer.tokenizer
        self._arch = arch
        self._suppressed = lru_cache(maxsize=16)(self._read_suppressed)

    def constraints(self, options: DecodeOptions, target: Target, opening: Sequence[int] = ()) -> Constraints:
        """The constraints of one sentence, in token ids. opening: tokens before its prefix, which do not count in the
        score.

        Raises InvalidRequestError for a suppressed token that the vocabulary does not have, and for one that may not be
        suppressed.
        """
        free = len(opening)
        prefix = (*opening, *self._encode_target(target.text)) if target.text else tuple(opening)
        if target.complete:
            return Constraints((*prefix, self._arch.eos_id), complete=True, free=free)
        suppressed = self._suppressed(options.suppressed_tokens, options.suppressed_phrases)
        if options.suppress_unknown:
            suppressed = (*suppressed, (self._arch.unk_id,))
        if not (prefix or suppressed or options.no_repeat_ngram_size):
            return UNCONSTRAINED
        return Constraints(prefix, False, suppressed, options.no_repeat_ngram_size, free)

    def translation(
        self, decoded: Decoded, options: DecodeOptions, source: Sequence[int], truncated: bool
    ) -> Translation:
        """The translation of one sentence. source: its token ids, EOS last; truncated: whether its text was cut."""
        best, *others = (self._alternative(h, options) for h in decoded.hypotheses)
        return Translation(
            text=best.text,
            score=best.score,
            source_tokens=len(source),
            target_tokens=best.target_tokens,
            source_truncated=truncated,
            hit_max_length=best.hit_max_length,
            alternatives=tuple(others),
            tokens=best.tokens,
            source_pieces=tuple(self._tokenizer.source_piece(i) for i in source) if options.alignment else (),
            queue_s=decoded.queue_s,
            compute_s=decoded.compute_s,
            much_shorter=len(source) >= SHORTEST and 2 * best.target_tokens < len(source),
            mostly_unknown=self._mostly_unknown(source),
        )

    def _mostly_unknown(self, source: Sequence[int]) -> bool:
        """Whether more source tokens are unknown than are known and have a letter or digit."""
        unknown = source.count(self._arch.unk_id)
        if not unknown:
            return False
        known = 0
        for token in source[:-1]:
            if token != self._arch.unk_id and not self._tokenizer.names_language(token):
                known += any(map(str.isalnum, self._tokenizer.source_piece(token)))
        return unknown > known

    def _alternative(self, hypothesis: DecodedHypothesis, options: DecodeOptions) -> Alternative:
        return Alternative(
            text=self._tokenizer.decode(hypothesis.ids),
            score=hypothesis.score,
            target_tokens=len(hypothesis.ids) + hypothesis.complete,
            hit_max_length=not hypothesis.complete,
            tokens=self._tokens(hypothesis, options) if options.token_scores or options.alignment else (),
        )

    def _tokens(self, hypothesis: DecodedHypothesis, options: DecodeOptions) -> tuple[Token, ...]:
        ids = (*hypothesis.ids, self._arch.eos_id) if hypothesis.complete else hypothesis.ids
        scores = hypothesis.token_scores if options.token_scores else [None] * len(ids)
        traced = options.alignment and hypothesis.attention is not None
        attention = hypothesis.attention.tolist() if traced and hypothesis.attention is not None else [()] * len(ids)
        return tuple(
            Token(self._tokenizer.piece(i), score, tuple(weights))
            for i, score, weights in zip(ids, scores, attention, strict=True)
        )

    def _read_suppressed(self, pieces: tuple[str, ...], phrases: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Token sequences that must not occur: one of each piece, and those of the phrases."""
        read: list[tuple[int, ...]] = []
        for piece in pieces:
            token = self._tokenizer.find(piece)
            if token is None:
                raise InvalidRequestError(
                    f"suppressed token {piece!r} is not in the vocabulary: name one of its pieces, with ▁ for the "
                    "start of a word, or give the word as a suppressed phrase"
                )
            if token == self._arch.eos_id:
                raise InvalidRequestError(f"suppressed token {piece!r} ends every translation: use min_length")
            read.append((token,))
        for phrase in phrases:
            ids = tuple(self._encode_target(phrase))
            if not ids:
                raise InvalidRequestError("a suppressed phrase is blank: leave it out")
            if len(ids) > self._arch.max_positions:
                continue  # longer than any translation
            read.append(ids)
        return tuple(read)


log = logging.getLogger(__name__)


class CertainText:
    """Gives the text of the certain tokens to `progress`, piece by piece."""

    def __init__(self, tokenizer: Tokenizer, progress: TextProgress, head: str = "") -> None:
        """head: text that goes before the first piece."""
        self._tokenizer = tokenizer
        self._progress = progress
        self._head = head
        self._given = ""

    def update(self, ids: tuple[int, ...]) -> None:
        """ids: all certain tokens so far."""
        text = self._tokenizer.decode(ids)
        # The bytes of one character may be several tokens: until all are there, they decode to U+FFFD.
        if text.startswith(self._given) and not text.endswith("\ufffd") and len(text) > len(self._given):
            piece = self._head + text[len(self._given) :]
            self._head = ""
            self._given = text
            try:
                self._progress(piece)
            except Exception:
                log.exception("the progress callback of a translation raised; the translation continues")
