"""Running freshly authored graphs: encode, teacher-forced steps and a plain greedy loop, for checks and calibration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from hmc.artifact.architecture import Architecture
from hmc.artifact.bundle import Variant, decoder_path, encoder_path, shortlist_path
from hmc.artifact.checkpoint import Tensors
from hmc.artifact.heads import HeadLayout
from hmc.compiler.decoder_graph import author_decoder
from hmc.compiler.encoder_graph import author_encoder
from hmc.compiler.linears import Linears
from hmc.compiler.serialize import serialized

TYPES: dict[str, Any] = {
    "tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int8)": np.int8, "tensor(uint8)": np.uint8
}  # fmt: skip
Feeds = dict[str, npt.NDArray[Any]]
Tap = Callable[[str, npt.NDArray[np.float32]], None]


def open_session(model: bytes, weights: Path | None = None) -> onnxruntime.InferenceSession:
    """A CPU session. weights: the folder that the graph's external weights are relative to."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if weights is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(weights))
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@dataclass
class GraphRunner:
    """Both graphs of one layout in memory."""

    arch: Architecture
    layout: HeadLayout
    encoder: onnxruntime.InferenceSession | None
    decoder: onnxruntime.InferenceSession
    listed: Feeds = field(default_factory=dict)
    """Of a decoder with shortlists: the inputs that make every token a candidate, for one row."""

    @classmethod
    def author(
        cls,
        arch: Architecture,
        layout: HeadLayout,
        tensors: Tensors,
        linears: Linears,
        encoder_linears: Linears | None = None,
    ) -> GraphRunner:
        """Authors both graphs; a layout without cross heads needs no encoder."""
        encoder = None
        if any(layout.cross):
            encoder = open_session(
                serialized(author_encoder(arch, layout, tensors, encoder_linears or linears).model({}))
            )
        return cls(
            arch, layout, encoder, open_session(serialized(author_decoder(arch, layout, tensors, linears).model({})))
        )

    @classmethod
    def of_level(
        cls, arch: Architecture, layout: HeadLayout, bundle: Path, level: str, variant: Variant | None = None
    ) -> GraphRunner:
        """The graphs of a level as they are on disk, with the plain decoder or the one called "greedy"."""

        def opened(name: str) -> onnxruntime.InferenceSession:
            return open_session((bundle / name).read_bytes(), bundle.absolute())

        encoder = opened(encoder_path(level)) if any(layout.cross) else None
        runner = cls(arch, layout, encoder, opened(decoder_path(level, variant)))
        if any(i.name == "listed" for i in runner.decoder.get_inputs()):
            everything, graph = np.arange(arch.vocab_size), opened(shortlist_path(level))
            outputs = graph.run(None, {"union": everything})
            runner.listed = dict(zip([o.name for o in graph.get_outputs()], outputs, strict=True))
            runner.listed |= dict.fromkeys(("listed", "listed_ids"), everything[None])
        return runner

    def encode(self, sources: Sequence[Sequence[int]], tap: Tap | None = None) -> Feeds:
        """Sources (ids with EOS) → the decoder's cross inputs for them."""
        lengths = np.array([len(s) for s in sources], np.int32)
        if self.encoder is None:
            return {}
        source = np.full((len(sources), int(lengths.max())), self.arch.pad_id, np.int32)
        for row, ids in enumerate(sources):
            source[row, : len(ids)] = ids
        feeds = {"source": source, "source_lengths": lengths}
        names = [o.name for o in self.encoder.get_outputs()]
        out = dict(zip(names, self.encoder.run(names, feeds), strict=True))
        real = (np.arange(source.shape[1])[None] < lengths[:, None]).reshape(-1)
        for name in [n for n in out if n.startswith("tap.")]:
            value = out.pop(name)
            if tap:
                tap(name, value[real])
        return {**out, "source_lengths": lengths}

    def empty_cache(self, rows: int, room: int) -> Feeds:
        """Self-attention caches `[rows, H_l, room, D]` of every layer that has them; position t is kept at place t."""
        return {
            i.name: np.zeros((rows, i.shape[1], room, i.shape[3]), TYPES[i.type])
            for i in self.decoder.get_inputs()
            if i.name.startswith("past_")
        }

    def step(
        self,
        tokens: npt.NDArray[np.int32],
        position: int,
        cross: Feeds,
        cache: Feeds,
        candidates: int,
        tap: Tap | None = None,
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """One step of all rows at the same position; `cache` is updated. Returns scores and ids `[R, candidates]`."""
        out = self._run(tokens, position, cross, cache, {"candidates": np.array([candidates])}, tap)
        return out["scores"], out["ids"]

    def _run(
        self, tokens: npt.NDArray[np.int32], position: int, cross: Feeds, cache: Feeds, asked: Feeds,
        tap: Tap | None = None,
    ) -> Feeds:  # fmt: skip
        feeds: Feeds = {
            "tokens": tokens,
            "lengths": np.full(len(tokens), position, np.int32),
            "candidates": np.array([1]),
            "wanted": np.zeros(len(tokens), np.int64),
            **cache,
            **asked,
        }
        if cache:
            feeds |= self._places(position, cache)
        feeds |= {i.name: cross[i.name] for i in self.decoder.get_inputs() if i.name in cross}
        feeds |= {n: v.repeat(len(tokens), 0) if n in ("listed", "listed_ids") else v for n, v in self.listed.items()}
        names = [o.name for o in self.decoder.get_outputs()]
        out = dict(zip(names, self.decoder.run(names, feeds), strict=True))
        for name, value in out.items():
            if (past := name.replace("present_", "past_")) in cache:
                cache[past] = value
            elif name.startswith("tap.") and tap:
                tap(name, value)
        return out

    def _places(self, position: int, cache: Feeds) -> Feeds:
        """Every row is a sentence of its own: it writes at `position` and attends to that and all before."""
        if any(i.name == "total_length" for i in self.decoder.get_inputs()):
            return {"total_length": np.array([position + 1], np.int32)}
        rows, _, room, _ = next(iter(cache.values())).shape
        places = np.zeros((rows, 1, max(map(len, self.layout.decoder_self)), 3), np.int64)
        places[..., 0] = np.arange(rows)[:, None, None]
        places[..., 1] = np.arange(places.shape[2])
        places[..., 2] = position
        bias = np.where(np.arange(room) <= position, 0, -np.inf).astype(np.float32)
        return {"node_places": places, "node_bias": np.tile(bias, (rows, 1, 1, 1))}

    def log_probs(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        """Teacher forcing: log-probabilities `[B, T, V]` of every next token (rows beyond a target's end are noise)."""
        cross, longest = self.encode(sources), max(map(len, targets))
        cache, vocab = self.empty_cache(len(sources), longest), self.arch.vocab_size
        tokens, steps = np.full(len(sources), self.arch.pad_id, np.int32), []
        for position in range(longest):
            scores, ids = self.step(tokens, position, cross, cache, vocab)
            dense = np.empty_like(scores)
            np.put_along_axis(dense, ids, scores, axis=1)
            steps.append(dense)
            tokens = np.array([t[position] if position < len(t) else self.arch.eos_id for t in targets], np.int32)
        return np.stack(steps, axis=1)

    def target_scores(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> npt.NDArray[np.float32]:
        """Teacher forcing: the log-probability of every token of the targets (ids with EOS), all in one row `[N]`."""
        cross, longest = self.encode(sources), max(map(len, targets))
        cache, steps = self.empty_cache(len(sources), longest), []
        tokens = np.full(len(sources), self.arch.pad_id, np.int32)
        for position in range(longest):
            wanted = np.array([t[position] if position < len(t) else self.arch.eos_id for t in targets], np.int64)
            steps.append(self._run(tokens, position, cross, cache, {"wanted": wanted})["wanted_scores"])
            tokens = wanted.astype(np.int32)
        real = np.arange(longest)[None] < np.array([len(t) for t in targets])[:, None]
        scores: npt.NDArray[np.float32] = np.stack(steps, axis=1)[real]
        return scores

    def greedy(self, sources: Sequence[Sequence[int]], max_length: int, tap: Tap | None = None) -> list[list[int]]:
        """Greedy translations, ids with EOS; `tap` sees the activations of rows that still run."""
        arch = self.arch
        cross, cache = self.encode(sources, tap), self.empty_cache(len(sources), max_length)
        tokens, running = np.full(len(sources), arch.pad_id, np.int32), np.ones(len(sources), bool)
        outputs: list[list[int]] = [[] for _ in sources]
        for position in range(max_length):
            alive = running.copy()
            step_tap = (lambda name, value, alive=alive: tap(name, value[alive])) if tap else None
            _, ids = self.step(tokens, position, cross, cache, 2, step_tap)
            tokens = np.where(ids[:, 0] == arch.pad_id, ids[:, 1], ids[:, 0]).astype(np.int32)
            for row in np.flatnonzero(running):
                outputs[row].append(int(tokens[row]))
            running &= tokens != arch.eos_id
            if not running.any():
                break
        return outputs
