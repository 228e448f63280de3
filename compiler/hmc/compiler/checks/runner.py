"""Running a model's graphs for checks and calibration: encoding, steps along given targets, and a greedy loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hmc.artifact.bundle.manifest import Variant, decoder_path, encoder_path, shortlist_path
from hmc.artifact.checkpoint.weights import Tensors
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.model.heads import HeadLayout
from hmc.compiler.checks.session import Arrays, OpenGraph, own_slots
from hmc.compiler.graphs.decoder import author_decoder
from hmc.compiler.graphs.encoder import author_encoder
from hmc.compiler.precisions.linears import Linears

Ids = Sequence[Sequence[int]]
"""Token ids of several sentences."""
Tap = Callable[[str, npt.NDArray[np.float32]], None]
"""Receives the name and the value of each graph output `tap.NAME` after each run."""
SENTENCES_AT_ONCE = 16
TOKENS_AT_ONCE = 2048
"""The most sentences, and the most tokens of padded sources, that `batches` puts together."""
LISTED = ("listed", "listed_ids")


@dataclass
class GraphRunner:
    """Encoder and decoder of one head layout. Every row is a sentence of its own, and all rows are at one position."""

    arch: Architecture
    layout: HeadLayout
    encoder: OpenGraph | None
    """None for a layout without cross heads."""
    decoder: OpenGraph
    listed: Arrays = field(default_factory=dict)
    """For a decoder with shortlists: inputs that make every token a candidate, for one row."""

    @classmethod
    def author(
        cls,
        arch: Architecture,
        layout: HeadLayout,
        tensors: Tensors,
        linears: Linears,
        *,
        variant: Variant | None = None,
        device_form: bool = False,
    ) -> GraphRunner:
        """Writes both graphs."""
        encoder = None
        if any(layout.cross):
            encoder = OpenGraph.from_model(
                author_encoder(arch, layout, tensors, linears, device_form=device_form).model({})
            )
        decoder = author_decoder(arch, layout, tensors, linears, variant=variant, device_form=device_form)
        return cls(arch, layout, encoder, OpenGraph.from_model(decoder.model({})))

    @classmethod
    def for_level(
        cls, arch: Architecture, layout: HeadLayout, bundle: Path, level: str, variant: Variant | None = None
    ) -> GraphRunner:
        """The graphs of a level as they are on disk, with one of its decoders."""
        encoder = OpenGraph.read(bundle, encoder_path(level)) if any(layout.cross) else None
        runner = cls(arch, layout, encoder, OpenGraph.read(bundle, decoder_path(level, variant)))
        if LISTED[0] in runner.decoder.inputs:
            every_token = np.arange(arch.vocab_size)
            runner.listed = OpenGraph.read(bundle, shortlist_path(level)).run({"union": every_token})
            runner.listed |= dict.fromkeys(LISTED, every_token[None])
        return runner

    def close(self) -> None:
        """Frees the weights of both graphs."""
        if self.encoder:
            self.encoder.close()
        self.decoder.close()

    def encode(self, sources: Ids, tap: Tap | None = None) -> Arrays:
        """Sources (ids with EOS) → the decoder's cross inputs for them."""
        if self.encoder is None:
            return {}
        source, lengths = self.padded(sources)
        feeds = {"source": source, "source_lengths": lengths, **own_slots(self.encoder, *source.shape)}
        out = {name.removeprefix("next_"): value for name, value in self.encoder.run(feeds).items()}
        real = (np.arange(source.shape[1])[None] < lengths[:, None]).reshape(-1)
        for name in [n for n in out if n.startswith("tap.")]:
            value = out.pop(name)
            if tap:
                tap(name, value[real])
        return {**out, "source_lengths": lengths}

    def padded(self, sources: Ids) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Sources (ids with EOS) → `[B, S]`, padded, and their lengths `[B]`."""
        lengths = np.array([len(s) for s in sources], np.int32)
        source = np.full((len(sources), int(lengths.max())), self.arch.pad_id, np.int32)
        for row, ids in enumerate(sources):
            source[row, : len(ids)] = ids
        return source, lengths

    def _encode_once(self, sources: Ids) -> Arrays:
        """As `encode`; the encoder is closed afterwards, so that it takes no memory while the decoder runs."""
        cross = self.encode(sources)
        if self.encoder:
            self.encoder.close()
        return cross

    def empty_cache(self, rows: int, positions: int) -> Arrays:
        """Self-attention caches `[rows, H_l, positions, D]` of every layer that has them."""
        return self.decoder.empty("past_", R=rows, B=rows, T=positions, N=positions)

    def step(
        self,
        tokens: npt.NDArray[np.int32],
        position: int,
        cross: Arrays,
        cache: Arrays,
        inputs: Arrays,
        tap: Tap | None = None,
    ) -> Arrays:
        """One decoder step of all rows. Returns all outputs, and updates `cache`.

        inputs: those beside the tokens, the caches and what `encode` returned. All other inputs have neutral values:
        one candidate, no penalty, only padding banned, temperature 1.
        """
        rows = len(tokens)
        feeds: Arrays = {
            "tokens": tokens,
            "lengths": np.full(rows, position, np.int32),
            "candidates": np.array([1]),
            "wanted": np.zeros(rows, np.int64),
            "penalised": np.zeros((rows, 1), np.int64),
            "penalties": np.ones(rows, np.float32),
            "banned": np.full((rows, 1), self.arch.pad_id, np.int64),
            "temperatures": np.ones(rows, np.float32),
            "uniforms": np.zeros(rows, np.float32),
            **(self._places(position, cache) if cache else {}),
            **{name: v.repeat(rows, 0) if name in LISTED else v for name, v in self.listed.items()},
            **cross,
            **cache,
            **inputs,
        }
        out = self.decoder.run(feeds)
        for name, value in out.items():
            if (past := name.replace("present_", "past_")) in cache:
                cache[past] = value
            elif name.startswith("tap.") and tap:
                tap(name, value)
        return out

    def _places(self, position: int, cache: Arrays) -> Arrays:
        """Every row writes at `position`, and attends to that place and all before it."""
        rows, _, places, _ = next(iter(cache.values())).shape
        targets = np.zeros((rows, 1, max(map(len, self.layout.decoder_self)), 3), np.int64)
        targets[..., 0] = np.arange(rows)[:, None, None]
        targets[..., 1] = np.arange(targets.shape[2])
        targets[..., 2] = position
        bias = np.where(np.arange(places) <= position, 0, -np.inf).astype(np.float32)
        return {
            "node_places": targets,
            "node_bias": np.tile(bias, (rows, 1, 1, 1)),
            "total_length": np.array([position + 1], np.int32),
        }

    def log_probs(self, sources: Ids, targets: Ids) -> npt.NDArray[np.float32]:
        """Log-probabilities `[B, T, V]` of every next token along `targets`; after a target's end they mean nothing."""
        return np.stack(list(self.log_probs_by_step(sources, targets)), axis=1)

    def log_probs_by_step(self, sources: Ids, targets: Ids, *, once: bool = False) -> Iterator[npt.NDArray[np.float32]]:
        """As `log_probs`, `[B, V]` for each of the T positions. Only one of them is in memory at a time.

        once: the encoder is closed before the decoder is opened, and cannot be run again.
        """
        cross = self._encode_once(sources) if once else self.encode(sources)
        longest = max(map(len, targets))
        cache = self.empty_cache(len(sources), longest)
        everything = {"candidates": np.array([self.arch.vocab_size])}
        tokens = self.first_tokens(len(sources))
        for position in range(longest):
            yield by_token(self.step(tokens, position, cross, cache, everything))
            tokens = self.tokens_at(targets, position)

    def target_scores(self, sources: Ids, targets: Ids) -> npt.NDArray[np.float32]:
        """The log-probability of every token of `targets` (ids with EOS), all in one row `[N]`.

        They are scored in batches, so that memory does not grow with the number of sentences.
        """
        return np.concatenate([self._scores(sources[part], targets[part]) for part in batches(sources)])

    def _scores(self, sources: Ids, targets: Ids) -> npt.NDArray[np.float32]:
        cross = self.encode(sources)
        longest = max(map(len, targets))
        cache = self.empty_cache(len(sources), longest)
        steps = []
        tokens = self.first_tokens(len(sources))
        for position in range(longest):
            wanted = self.tokens_at(targets, position)
            out = self.step(tokens, position, cross, cache, {"wanted": wanted.astype(np.int64)})
            steps.append(out["wanted_scores"])
            tokens = wanted
        real = np.arange(longest)[None] < np.array([len(t) for t in targets])[:, None]
        scores: npt.NDArray[np.float32] = np.stack(steps, axis=1)[real]
        return scores

    def greedy(self, sources: Ids, max_length: int, tap: Tap | None = None) -> list[list[int]]:
        """Greedy translations, ids with EOS. `tap` receives the activations of rows that have not ended."""
        return self._greedy(self.encode(sources, tap), len(sources), max_length, 2, tap)[0]

    def greedy_log_probs(self, sources: Ids, max_length: int) -> tuple[list[list[int]], list[npt.NDArray[np.float32]]]:
        """Greedy translations, and the log-probabilities that `log_probs_by_step` gives along them.

        The encoder is closed before the decoder is opened, and cannot be run again.
        """
        return self._greedy(self._encode_once(sources), len(sources), max_length, self.arch.vocab_size)

    def first_tokens(self, rows: int) -> npt.NDArray[np.int32]:
        """The token that starts the decoder."""
        return np.full(rows, self.arch.decoder_start, np.int32)

    def tokens_at(self, targets: Ids, position: int) -> npt.NDArray[np.int32]:
        """Each target's token at a position; EOS beyond its end."""
        return np.array([t[position] if position < len(t) else self.arch.eos_id for t in targets], np.int32)

    def _greedy(
        self, cross: Arrays, rows: int, max_length: int, candidates: int, tap: Tap | None = None
    ) -> tuple[list[list[int]], list[npt.NDArray[np.float32]]]:
        """Translations; and the scores of each step, of all tokens by their ids where there are as many candidates."""
        arch = self.arch
        inputs = {"candidates": np.array([candidates])}
        steps = []
        cache = self.empty_cache(rows, max_length)
        tokens = self.first_tokens(rows)
        running = np.ones(rows, bool)
        outputs: list[list[int]] = [[] for _ in range(rows)]
        for position in range(max_length):
            alive = running.copy()
            step_tap = (lambda name, value, alive=alive: tap(name, value[alive])) if tap else None
            out = self.step(tokens, position, cross, cache, inputs, step_tap)
            steps.append(by_token(out) if candidates == arch.vocab_size else out["scores"])
            ids = out["ids"]
            tokens = np.where(ids[:, 0] == arch.pad_id, ids[:, 1], ids[:, 0]).astype(np.int32)
            for row in np.flatnonzero(running):
                outputs[row].append(int(tokens[row]))
            running &= tokens != arch.eos_id
            if not running.any():
                break
        return outputs, steps


def batches(sources: Ids) -> Iterator[slice]:
    """Ranges of neighbouring sentences that are run together. Sort the sentences by length: shorter ones are padded."""
    start = longest = 0
    for index, source in enumerate(sources):
        longest = max(longest, len(source))
        count = index - start + 1
        if count > 1 and (count > SENTENCES_AT_ONCE or count * longest > TOKENS_AT_ONCE):
            yield slice(start, index)
            start = index
            longest = len(source)
    if sources:
        yield slice(start, len(sources))


def by_token(out: Arrays) -> npt.NDArray[np.float32]:
    """A step's scores of all tokens, best first → log-probabilities `[R, V]` by token id."""
    dense = np.empty_like(out["scores"])
    np.put_along_axis(dense, out["ids"], out["scores"], axis=1)
    return dense
