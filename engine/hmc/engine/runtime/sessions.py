"""The ONNX Runtime sessions of a level: opens its graphs on a device, and runs the encoder."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import onnxruntime

from hmc.artifact.bundle.manifest import Level, Variant, collect_path, decoder_path, encoder_path, shortlist_path
from hmc.artifact.bundle.shortlist import Lexicon
from hmc.artifact.errors import InvalidArtifactError
from hmc.artifact.model.architecture import Architecture
from hmc.engine.arrays import Arrays
from hmc.engine.runtime import capture_lock
from hmc.engine.runtime.device import Device
from hmc.engine.runtime.encoder import DeviceEncoder
from hmc.engine.runtime.graphs import Opener, check_unchanged
from hmc.engine.runtime.memory.account import LevelMemory, memory_of
from hmc.engine.runtime.memory.weights import weights_on
from hmc.engine.runtime.packed_weights import PackedWeights
from hmc.engine.runtime.process_memory import return_free_memory
from hmc.engine.runtime.threads import threads_here
from hmc.engine.support import CudaAttention

log = logging.getLogger(__name__)

ENCODER_SPIN_US = 300
DECODER_SPIN_US = 1000
"""Microseconds for which threads of a session wait for work actively before they sleep: in an encoder within a run, in
a decoder also between two steps. Meanwhile they keep the core from the session that runs next, so ONNX Runtime's
default of about 16 000 is too long."""


def in_device_form(level: Level) -> bool:
    """Whether the level's graphs were written to search on the device and to keep their state in its memory."""
    return f"{level.name}/decoder_search_beam.onnx" in level.files


@dataclass
class LevelSessions:
    """The sessions of a level. Variants of the decoder are opened when they are first needed (`decoder`), which can
    take seconds; other threads may use everything else meanwhile."""

    arch: Architecture
    level: Level
    device: Device
    opener: Opener | None
    """Opens graphs. None where no graph is ever opened."""
    encoder: onnxruntime.InferenceSession | None = None
    """None if the level has no open cross heads: its encoder would have no outputs."""
    decoders: dict[Variant | None, onnxruntime.InferenceSession] = field(default_factory=dict)
    """Variant (None: the one for beam search) → its session, for the variants that are open."""
    lexicon: Lexicon | None = None
    """Candidates of vocabulary shortlists. None if the level has no shortlists."""
    shortlist: onnxruntime.InferenceSession | None = None
    """The graph that gathers the output projection of a shortlist. None if the level has no shortlists."""
    weights: dict[str, int] = field(default_factory=dict)
    """Weight file → bytes of it that these sessions hold in this machine's memory. Levels that name the same file share
    them."""
    device_weights: dict[str, int] = field(default_factory=dict)
    """Weight → bytes of it in the memory of a device that is not the CPU. Levels that name the same one share them."""
    scores_wanted: bool = False
    """Whether the decoder returns the score of a given token. Decoders compiled by early versions do not."""
    warming_up: bool = False
    """Whether caches that are made now are for usual requests, and so do beforehand what their steps need."""
    _opening: threading.Lock = field(default_factory=threading.Lock)

    device_form: ClassVar[bool] = False
    """Whether the level's graphs keep their state in memory of the device, see `in_device_form`."""

    @property
    def searches_inside(self) -> bool:
        """Whether greedy and beam search run in what computes the level, many steps a call."""
        return self.device_form

    @property
    def any_patience(self) -> bool:
        """Whether such a search counts ended hypotheses."""
        return False

    @cached_property
    def memory(self) -> LevelMemory:
        """The part of the device's account for the caches of this level."""
        return LevelMemory(memory_of(self.device), self.level.name)

    @classmethod
    def open(
        cls, bundle: Path, arch: Architecture, level: Level, device: Device, threads: int, cache: Path | None = None,
        workers: int = 1, *, attention: CudaAttention = "plain",
    ) -> LevelSessions:  # fmt: skip
        """Opens the graphs of a level.

        workers: threads that run the graphs at the same time. threads: threads of each worker. 0: one for each physical
        core that this process may use (`threads_here`), or a single one if there are several workers. cache: folder of
        packed weights (see `cache_folder`); None: the level keeps its weights to itself. attention: how it is computed
        on CUDA.

        Raises InvalidArtifactError if ONNX Runtime cannot use a graph or the level is of an earlier version, and
        FailedPreconditionError if a file has changed since the bundle was validated, or if the weights do not fit into
        the device's memory.
        """
        on_device = in_device_form(level)
        if device.kind != "cpu" and not on_device:
            raise InvalidArtifactError(
                f"level {level.name}",
                ["its graphs for CUDA are those of an earlier version"],
                "Compile the bundle again with `hmc compile`.",
            )
        packed = PackedWeights(cache) if cache and not on_device else None
        if workers > 1:  # a worker is itself one of the threads of a run, and the rest of the threads are shared
            threads = workers * (max(threads, 1) - 1) + 1
        elif device.kind == "cpu":
            threads = threads_here(threads)
        store = weights_on(device) if on_device else None
        opener = Opener(bundle, level.files, device, threads, packed, attention, store)
        opener.load_weights(level.name)
        opened = (DeviceSessions if on_device else LevelSessions)(arch, level, device, opener)
        weights = {weight.name: weight.size for weight in opener.resident.values()}
        opened.weights, opened.device_weights = (weights, {}) if device.kind == "cpu" else ({}, weights)
        try:
            opened._open_first(bundle)
        except BaseException:
            opened.close()
            raise
        return_free_memory()  # kernels pack weights even if they then use packed ones from a file
        return opened

    def _open_first(self, bundle: Path) -> None:
        """Opens the graphs that every request needs."""
        level = self.level
        self.scores_wanted = any(i.name == "wanted" for i in self.decoder().get_inputs())
        if any(level.layout.cross):
            self.encoder = self._open(encoder_path(level.name), spin_us=ENCODER_SPIN_US)
        if level.shortlist:
            check_unchanged(bundle, level.shortlist, level.files)
            self.lexicon = Lexicon.load(bundle / level.shortlist, self.arch)
            self.shortlist = self._open(shortlist_path(level.name), spin_us=0)

    def decoder(self, variant: Variant | None = None) -> onnxruntime.InferenceSession:
        """The decoder of this variant. Opens it if it is not open, which can take seconds. Errors: see `open`."""
        with self._turn_to_open():
            if variant not in self.decoders:
                self.decoders[variant] = self._open_decoder(variant)
            return self.decoders[variant]

    def close(self) -> None:
        """Gives up what the level holds. Nothing may run or open graphs afterwards. Here the last reference does it."""

    def _open_decoder(self, variant: Variant | None) -> onnxruntime.InferenceSession:
        return self._open(decoder_path(self.level.name, variant), spin_us=DECODER_SPIN_US)

    @contextmanager
    def _turn_to_open(self) -> Iterator[None]:
        """Opens graphs one at a time. The turn on the device comes first: a thread that has one, as workers do, may
        wait here, and the thread for which it waits must not wait for a turn."""
        with capture_lock.shared(self.device), self._opening:
            yield

    def _open(self, name: str, *, spin_us: int, capture: bool = False) -> onnxruntime.InferenceSession:
        assert self.opener is not None
        with capture_lock.shared(self.device):
            opened = self.opener.open(name, spin_us=spin_us, capture=capture)
        self.weights = {**self.weights, **opened.weights}
        self.device_weights = {**self.device_weights, **opened.device_weights}
        return opened.session

    def release_memory(self) -> None:
        """Gives unused memory back to the system, such as the memory of large batches. The sessions may be in use."""
        if self.encoder is not None and not self.device_form:
            options = onnxruntime.RunOptions()
            # After this run of one token, the arena of all CPU sessions frees what it does not use.
            options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
            source = {"source": np.full((1, 1), self.arch.eos_id, np.int32), "source_lengths": np.ones(1, np.int32)}
            self.encoder.run(None, source, options)
        return_free_memory()

    def has(self, variant: Variant) -> bool:
        """Whether the bundle has this variant of the decoder. Bundles compiled by early versions lack some variants."""
        return variant in self.decoders or decoder_path(self.level.name, variant) in self.level.files

    def output_projection(self, tokens: npt.NDArray[np.int64]) -> Arrays:
        """Gathers the output projection of some tokens, for a level with vocabulary shortlists.

        tokens: ids `[U]`. Returns the decoder's inputs `output_…` for them.
        """
        assert self.shortlist is not None
        names = [o.name for o in self.shortlist.get_outputs()]
        return dict(zip(names, self.shortlist.run(names, {"union": tokens}), strict=True))

    def _matrix(
        self, sources: Sequence[Sequence[int]], width: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Sources as one padded matrix `[B, width]`, and their lengths `[B]`."""
        source = np.full((len(sources), width), self.arch.pad_id, np.int32)
        for row, ids in enumerate(sources):
            source[row, : len(ids)] = ids
        return source, np.array([len(s) for s in sources], np.int32)

    def encode(self, sources: Sequence[Sequence[int]]) -> tuple[Arrays, npt.NDArray[np.int32]]:
        """Runs the encoder on sources (token ids, EOS last).

        Returns cross-attention keys and values by name, each `[B, H_l, S, D]`, and the lengths of the sources `[B]`.
        """
        source, lengths = self._matrix(sources, max(map(len, sources)))
        if self.encoder is None:
            return {}, lengths
        names = [o.name for o in self.encoder.get_outputs()]
        values = self.encoder.run(names, {"source": source, "source_lengths": lengths})
        return dict(zip(names, values, strict=True)), lengths


@dataclass
class DeviceSessions(LevelSessions):
    """The sessions of a level in device form."""

    device_form: ClassVar[bool] = True
    _collector: onnxruntime.InferenceSession | None = None
    _closed: bool = False

    @cached_property
    def device_encoder(self) -> DeviceEncoder:
        """Runs the encoder of a level in device form."""
        return DeviceEncoder(self.encoder, self.device, self.arch.pad_id, self.arch.max_positions)

    def checkout_decoder(self, variant: Variant | None = None) -> onnxruntime.InferenceSession:
        """A session of this variant for one batch alone: graphs that are captured in it refer to the memory of that
        batch, and ONNX Runtime forgets them only with the session. The first call takes the session that `decoder`
        opened; each other call opens a session."""
        with self._turn_to_open():
            opened = self.decoders.pop(variant, None)
            return self._open_decoder(variant) if opened is None else opened

    def prefetch_decoder(self, variant: Variant | None) -> None:
        """Opens a session for the next `checkout_decoder`, on a thread of its own, unless there is one."""
        threading.Thread(target=self._prefetch, args=(variant,), name=f"hmc-open-{variant}").start()

    def _prefetch(self, variant: Variant | None) -> None:
        try:
            with self._turn_to_open():
                if variant not in self.decoders and not self._closed:
                    self.decoders[variant] = self._open_decoder(variant)
        except Exception:
            log.exception("a decoder of level %s could not be opened again; requests try it", self.level.name)

    def collector(self) -> onnxruntime.InferenceSession:
        """The graph that reads ended searches. Opens it if it is not open. Errors: see `open`."""
        with self._turn_to_open():
            if self._collector is None:
                self._collector = self._open(collect_path(self.level.name), spin_us=0)
            return self._collector

    def _open_decoder(self, variant: Variant | None) -> onnxruntime.InferenceSession:
        if self.device.kind == "cpu":
            return super()._open_decoder(variant)
        name = decoder_path(self.level.name, variant)
        try:
            return self._open(name, spin_us=DECODER_SPIN_US, capture=True)
        except InvalidArtifactError as error:
            log.warning("%s runs without captured graphs, which ONNX Runtime refused: %s", name, error)
            return self._open(name, spin_us=DECODER_SPIN_US)

    def close(self) -> None:
        """Closes the graphs and gives up their weights, in a turn on the device: if they went at any time, the memory
        that they free could end the capture of another level. Nothing may run or open graphs afterwards."""
        with self._turn_to_open():
            self._closed = True
            self.encoder = None
            self.shortlist = None
            self._collector = None
            self.__dict__.pop("device_encoder", None)
            self.decoders.clear()
            assert self.opener is not None
            self.opener.resident.clear()
