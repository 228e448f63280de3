"""ONNX Runtime sessions of a level: opening them on the device asked for, and running the encoder."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from hmc.artifact.architecture import Architecture
from hmc.artifact.bundle import Level, Variant, decoder_path, encoder_path, shortlist_path
from hmc.artifact.errors import DeviceUnavailableError, InvalidRequestError
from hmc.artifact.shortlist import Lexicon
from hmc.serving.memory import return_free_memory
from hmc.serving.opening import Opener, check_unchanged
from hmc.serving.packed_weights import PackedWeights
from hmc.serving.threads import threads_here

Arrays = dict[str, npt.NDArray[Any]]
ENCODER_SPIN_US, DECODER_SPIN_US = 300, 1000
"""How long threads of a session look for work before they sleep: an encoder's within a run, a decoder's also between
two steps. No longer, as they take the core from the session that runs next; ONNX Runtime's default is about 16 000."""


@dataclass(frozen=True)
class Device:
    """Where a level runs."""

    kind: str
    index: int = 0

    def __str__(self) -> str:
        return "cpu" if self.kind == "cpu" else f"{self.kind}:{self.index}"


def resolve_device(name: str, level: Level) -> Device:
    """`auto`, `cpu`, `cuda` or `cuda:N` → a device that is there and can run the level.

    auto takes cuda for fp16 and bf16 levels. Raises DeviceUnavailableError, InvalidRequestError.
    """
    kind, _, index = name.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (index and not (kind == "cuda" and index.isdecimal())):
        raise InvalidRequestError(f"device {name!r}: choose auto, cpu, cuda or cuda:N")
    if kind == "cpu" or (kind == "auto" and not level.on_cuda):
        if level.on_cuda:
            raise DeviceUnavailableError(
                f"level {level.name!r} is {level.precision}, which is for cuda; on cpu choose an fp32, int8 or int4 "
                "level (`hmc levels BUNDLE` lists them)"
            )
        return Device("cpu")
    if not cuda_available():
        raise DeviceUnavailableError(
            f"level {level.name!r} on {name}: ONNX Runtime finds no CUDA device here; install the NVIDIA driver and "
            "the CUDA libraries (pip install 'onnxruntime-gpu[cuda,cudnn]'), or use --device cpu with an fp32, int8 or "
            "int4 level"
        )
    if not level.on_cuda:
        raise InvalidRequestError(
            f"level {level.name!r} is {level.precision}, which is for cpu; compile it with --precision fp16 or "
            "bf16 to serve it on cuda"
        )
    return Device("cuda", int(index or 0))


def cuda_available() -> bool:
    """Whether ONNX Runtime can really open a session on a CUDA device."""
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        return False
    try:
        with _loading_cuda:
            _load_cuda_libraries()
        onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32), "cuda", 0)
    except Exception:  # noqa: BLE001 - ONNX Runtime raises its own types; whatever they are, there is no CUDA
        return False
    return True


_loading_cuda = threading.Lock()


@cache
def _load_cuda_libraries() -> None:
    """ONNX Runtime prints which it does not find: to stderr, where it spoils no output. Raises OSError where there is
    no driver, and so nothing to load."""
    ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    with redirect_stdout(sys.stderr):
        onnxruntime.preload_dlls()


@dataclass
class LevelSessions:
    """The sessions of a level. A level without open cross heads has an encoder with no outputs: it is not opened.

    The decoder's variants are opened when they are first needed.
    """

    arch: Architecture
    level: Level
    device: Device
    opener: Opener
    encoder: onnxruntime.InferenceSession | None = None
    decoders: dict[Variant | None, onnxruntime.InferenceSession] = field(default_factory=dict)
    lexicon: Lexicon | None = None
    """Of vocabulary shortlists, where the level has them."""
    shortlist: onnxruntime.InferenceSession | None = None
    """Their graph."""
    weights: dict[str, int] = field(default_factory=dict)
    """Weight file → bytes of it that these sessions hold in memory; levels that name the same file share them."""
    _opening: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def open(
        cls, bundle: Path, arch: Architecture, level: Level, device: Device, threads: int, cache: Path | None = None,
        workers: int = 1,
    ) -> LevelSessions:  # fmt: skip
        """Loads a level's graphs; weights are found in the bundle. threads: of each of `workers` that run them at the
        same time; 0: one per physical core that this process may use, and one each for several workers.

        cache: where weights are kept as this machine's kernels want them, to be shared between levels (see
        `cache_folder`); None: every level has its own. Raises InvalidArtifactError.
        """
        packed = PackedWeights(cache) if cache and device.kind == "cpu" else None
        cuda = device.index if device.kind == "cuda" else None
        if workers > 1:  # who runs a graph is one of its threads; the others are in common
            threads = workers * (max(threads, 1) - 1) + 1
        elif cuda is None:
            threads = threads_here(threads)
        opened = cls(arch, level, device, Opener(bundle, level.files, cuda, threads, packed))
        opened.decoder()
        if any(level.layout.cross):
            opened.encoder = opened._open(encoder_path(level.name), spin_us=ENCODER_SPIN_US)
        if level.shortlist:
            check_unchanged(bundle, level.shortlist, level.files)
            opened.lexicon = Lexicon.load(bundle / level.shortlist, arch)
            opened.shortlist = opened._open(shortlist_path(level.name), spin_us=0)
        return_free_memory()  # kernels pack weights even when they then take the packed ones from a file
        return opened

    def decoder(self, variant: Variant | None = None) -> onnxruntime.InferenceSession:
        """The decoder of this variant, opened if it was not. Raises InvalidArtifactError, and FailedPreconditionError
        where another bundle is in its place by now."""
        with self._opening:
            if variant not in self.decoders:
                self.decoders[variant] = self._open(decoder_path(self.level.name, variant), spin_us=DECODER_SPIN_US)
            return self.decoders[variant]

    def _open(self, name: str, *, spin_us: int) -> onnxruntime.InferenceSession:
        opened = self.opener.open(name, spin_us=spin_us)
        self.weights = {**self.weights, **opened.weights}
        return opened.session

    def rest(self) -> None:
        """Gives back to the system what large batches needed and nothing uses now. The sessions may be in use."""
        if self.encoder is not None and self.device.kind == "cpu":
            options = onnxruntime.RunOptions()
            # After this run, of one token, the arena that CPU sessions share lets go of what it does not use.
            options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
            source = {"source": np.full((1, 1), self.arch.eos_id, np.int32), "source_lengths": np.ones(1, np.int32)}
            self.encoder.run(None, source, options)
        return_free_memory()

    def has(self, variant: Variant) -> bool:
        """Whether the bundle holds this variant of the level's decoder; those compiled before it existed do not."""
        return variant in self.decoders or decoder_path(self.level.name, variant) in self.level.files

    @property
    def scores_wanted(self) -> bool:
        """Whether the decoder tells the score of a wanted token; those compiled before it did do not."""
        return any(i.name == "wanted" for i in self.decoder().get_inputs())

    def output_projection(self, tokens: npt.NDArray[np.int64]) -> Arrays:
        """Token ids `[U]` → the decoder's `output_…` inputs for them; for a level with vocabulary shortlists."""
        assert self.shortlist is not None
        names = [o.name for o in self.shortlist.get_outputs()]
        return dict(zip(names, self.shortlist.run(names, {"union": tokens}), strict=True))

    def encode_into(
        self, sources: Sequence[Sequence[int]], room: int, bind: Callable[[onnxruntime.IOBinding], None]
    ) -> None:
        """As `encode`, with sources of `room` positions, and what comes out where `bind` binds the outputs."""
        assert self.encoder is not None
        source, lengths = self._matrix(sources, room)
        binding = self.encoder.io_binding()
        binding.bind_cpu_input("source", source)
        binding.bind_cpu_input("source_lengths", lengths)
        bind(binding)
        self.encoder.run_with_iobinding(binding)

    def _matrix(
        self, sources: Sequence[Sequence[int]], width: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Sources as `[B, width]`, padded, and their lengths."""
        source = np.full((len(sources), width), self.arch.pad_id, np.int32)
        for row, ids in enumerate(sources):
            source[row, : len(ids)] = ids
        return source, np.array([len(s) for s in sources], np.int32)

    def encode(self, sources: Sequence[Sequence[int]]) -> tuple[Arrays, npt.NDArray[np.int32]]:
        """Sources (ids with EOS) → cross keys and values by name, each `[B, H_l, S, D]`, and lengths `[B]`."""
        source, lengths = self._matrix(sources, max(map(len, sources)))
        if self.encoder is None:
            return {}, lengths
        names = [o.name for o in self.encoder.get_outputs()]
        values = self.encoder.run(names, {"source": source, "source_lengths": lengths})
        return dict(zip(names, values, strict=True)), lengths
