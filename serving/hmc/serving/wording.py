"""Between words and token ids: what a request says of its target, and what the engine's hypotheses say."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from hmc.artifact.architecture import Architecture
from hmc.artifact.errors import InvalidRequestError
from hmc.serving.constraints import Constraints
from hmc.serving.options import DecodeOptions, Target
from hmc.serving.results import Alternative, Decoded, Hypothesis, Token, Translation
from hmc.serving.tokenizer import Tokenizer


class Wording:
    """Of one bundle; thread-safe."""

    def __init__(self, tokenizer: Tokenizer, arch: Architecture) -> None:
        self._tokenizer, self._arch = tokenizer, arch
        self._suppressed = lru_cache(maxsize=16)(self._read_suppressed)

    def constraints(self, options: DecodeOptions, target: Target) -> Constraints:
        """Raises InvalidRequestError for a piece that the vocabulary has not, and for what may not be suppressed."""
        prefix = tuple(self._tokenizer.encode_target(target.text))
        if target.complete:
            return Constraints((*prefix, self._arch.eos_id), complete=True)
        suppressed = self._suppressed(options.suppressed_tokens, options.suppressed_phrases)
        if options.suppress_unknown:
            suppressed = (*suppressed, (self._arch.unk_id,))
        return Constraints(prefix, False, suppressed, options.no_repeat_ngram_size)

    def translation(
        self, decoded: Decoded, options: DecodeOptions, source: Sequence[int], truncated: bool
    ) -> Translation:
        """What the engine found for a source (ids with EOS), in words."""
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
        )

    def _alternative(self, found: Hypothesis, options: DecodeOptions) -> Alternative:
        return Alternative(
            text=self._tokenizer.decode(found.ids),
            score=found.score,
            target_tokens=len(found.ids) + found.complete,
            hit_max_length=not found.complete,
            tokens=self._tokens(found, options) if options.token_scores or options.alignment else (),
        )

    def _tokens(self, found: Hypothesis, options: DecodeOptions) -> tuple[Token, ...]:
        ids = (*found.ids, self._arch.eos_id) if found.complete else found.ids
        scores = found.token_scores if options.token_scores else [None] * len(ids)
        traced = options.alignment and found.attention is not None
        attention = found.attention.tolist() if traced and found.attention is not None else [()] * len(ids)
        return tuple(
            Token(self._tokenizer.piece(i), score, tuple(weights))
            for i, score, weights in zip(ids, scores, attention, strict=True)
        )

    def _read_suppressed(self, pieces: tuple[str, ...], phrases: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        read: list[tuple[int, ...]] = []
        for piece in pieces:
            token = self._tokenizer.find(piece)
            if token is None:
                raise InvalidRequestError(
                    f"suppressed token {piece!r} is not in the vocabulary: name a piece of it, with ▁ for the start of "
                    "a word, or give the word as a suppressed phrase"
                )
            if token == self._arch.eos_id:
                raise InvalidRequestError(f"suppressed token {piece!r} ends every translation: use min_length")
            read.append((token,))
        for phrase in phrases:
            ids = tuple(self._tokenizer.encode_target(phrase))
            if not ids:
                raise InvalidRequestError("a suppressed phrase is blank: leave it out")
            if len(ids) > self._arch.max_positions:
                continue  # no translation is as long
            read.append(ids)
        return tuple(read)
