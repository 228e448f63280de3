"""A peer: another engine in a process of its own, at its fastest setting for each size of request."""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from hmc.artifact.checkpoint.checkpoint import checkpoint_digest, load_checkpoint
from hmc.artifact.errors import FailedPreconditionError, HmcError, InvalidRequestError
from hmc.artifact.tokenizer.tokenizer import open_tokenizer
from hmc.benchmark.measure.latency import RequestSize, requests_of
from hmc.benchmark.peers.engines import ENGINES, PeerEngine, Translate
from hmc.serving import DecodeOptions, Translation, Translator

T = TypeVar("T")
PROBES = 4
PROBE_ROUNDS = 3
"""Requests, and how often each is made, on which the settings of an engine are compared. The fastest time counts."""
BLANK = Translation("", 0.0, 0, 0)


def fastest_settings(
    settings: Sequence[str],
    seconds: Callable[[str, Sequence[str], int], float],
    sentences: Sequence[str],
    sizes: Sequence[RequestSize],
) -> dict[RequestSize, str]:
    """The setting that is fastest for each size of request. seconds: times one request at a setting and a beam."""
    best = {}
    for size in sizes:
        requests = requests_of(sentences, size.batch)[:PROBES]
        times = {setting: [math.inf] * len(requests) for setting in settings}
        for _ in range(PROBE_ROUNDS):  # in turn, so that a short stall of the machine decides nothing
            for setting, fastest in times.items():
                seen = [seconds(setting, request, size.beam) for request in requests]
                fastest[:] = map(min, fastest, seen)
        best[size] = min(times, key=lambda setting: sum(times[setting]))
    return best


class TunedLevel:
    """A level at its fastest division of the cores for each size of request, as a peer is. It is a `TimesItself`."""

    def __init__(self, translators: Mapping[str, Translator]) -> None:
        """translators: the level at each division, by its name."""
        self._translators = translators
        self.best: dict[RequestSize, str] = {}
        """Division that was fastest, by the size of the request."""

    def probe(self, sentences: Sequence[str], sizes: Sequence[RequestSize]) -> None:
        """Finds the fastest division for each size."""

        def seconds(setting: str, request: Sequence[str], beam: int) -> float:
            return self._run(setting, request, DecodeOptions(beam_size=beam))[0]

        self.best = fastest_settings(list(self._translators), seconds, sentences, sizes)

    def at(self, size: RequestSize) -> Translator:
        """The translator that is fastest at a size that was probed."""
        return self._translators[self.best[size]]

    def timed(self, texts: Sequence[str], options: DecodeOptions) -> tuple[float, list[Translation]]:
        """As of a peer."""
        return self._run(self.best[RequestSize(len(texts), options.beam_size)], texts, options)

    def translate(
        self, texts: Sequence[str], options: DecodeOptions | None = None, *, segmentation: str = "none"
    ) -> list[Translation]:
        """As of a peer."""
        if segmentation != "none":
            raise ValueError("a measured level takes each text as one sentence")
        beam = (options or DecodeOptions()).beam_size
        size = max((size for size in self.best if size.beam == beam), key=lambda size: size.batch)
        return self.at(size).translate(texts, options, segmentation="none")

    def _run(self, setting: str, texts: Sequence[str], options: DecodeOptions) -> tuple[float, list[Translation]]:
        began = time.perf_counter()
        found = self._translators[setting].translate(texts, options, segmentation="none")
        return time.perf_counter() - began, found


class Peer:
    """Another engine, loaded. Use it in a `with` block. It is a `Translates`, and a `TimesItself`."""

    def __init__(self, engine: PeerEngine, model: Path, checkpoint: Path) -> None:
        """model: the folder that `engine.prepare` wrote for the checkpoint."""
        self.name = engine.title
        self.version = version(engine.package)
        self.best: dict[RequestSize, str] = {}
        """Setting that was fastest, by the size of the request."""
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, context, partial(_begin, engine.load, model, checkpoint))

    def probe(self, sentences: Sequence[str], sizes: Sequence[RequestSize]) -> None:
        """Finds the fastest setting for each size. Raises HmcError if the engine cannot be loaded."""

        def seconds(setting: str, request: Sequence[str], beam: int) -> float:
            return self._ask(_run, setting, request, beam)[0]

        self.best = fastest_settings(self._ask(_settings), seconds, sentences, sizes)

    def timed(self, texts: Sequence[str], options: DecodeOptions) -> tuple[float, list[Translation]]:
        """Translates one request of a size that was probed. Seconds are measured in the engine's process."""
        setting = self.best[RequestSize(len(texts), options.beam_size)]
        seconds, translations = self._ask(_run, setting, list(texts), options.beam_size)
        return seconds, translations

    def translate(
        self, texts: Sequence[str], options: DecodeOptions | None = None, *, segmentation: str = "none"
    ) -> list[Translation]:
        """Translates any number of texts, each as one sentence, in requests of the largest batch that was probed.

        Blank texts are not given to the engine.
        """
        if segmentation != "none":
            raise ValueError("a peer takes each text as one sentence")
        beam = (options or DecodeOptions()).beam_size
        size = max((size for size in self.best if size.beam == beam), key=lambda size: size.batch)
        filled = [number for number, text in enumerate(texts) if text.strip()]
        translations = [BLANK] * len(texts)
        for start in range(0, len(filled), size.batch):
            part = filled[start : start + size.batch]
            for number, translation in zip(
                part, self._ask(_run, self.best[size], [texts[n] for n in part], beam)[1], strict=True
            ):
                translations[number] = translation
        return translations

    def _ask(self, function: Callable[..., T], *arguments: object) -> T:
        try:
            return self._pool.submit(function, *arguments).result()
        except BrokenProcessPool as error:
            raise HmcError(
                f"the process of the peer {self.name} has ended; its message is above. Without one it was killed, "
                "often because memory ran out"
            ) from error

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()


def check_peers(names: Sequence[str], checkpoint: Path | None, digest: str) -> None:
    """Raises InvalidRequestError for an unknown peer, without a checkpoint, and for one of other weights;
    FailedPreconditionError for a peer that is not installed. digest: of the reference level's checkpoint."""
    for name in names:
        if name not in ENGINES:
            raise InvalidRequestError(f"peer {name!r}: choose {', '.join(ENGINES)}, or several with commas")
    if len(set(names)) < len(names):
        raise InvalidRequestError(f"peers {','.join(names)}: give each peer once")
    for name in names:
        if missing := [module for module in ENGINES[name].modules if find_spec(module) is None]:
            raise FailedPreconditionError(
                f"the peer {name} needs {', '.join(missing)}, which is not installed: pip install "
                f"{ENGINES[name].install}, or leave {name} out of the peers"
            )
    if checkpoint is None:
        raise InvalidRequestError(
            "checkpoint: peers need the weights that the bundle was compiled from; name their folder"
        )
    if checkpoint_digest(checkpoint) != digest:
        raise InvalidRequestError(
            f"{checkpoint} has other weights than the reference level: give the checkpoint that this "
            "bundle was compiled from"
        )
    loaded = load_checkpoint(checkpoint)
    arch = loaded.architecture
    if open_tokenizer(loaded.tokenizer).opening():
        raise InvalidRequestError("peers are for models of one language pair, and this model has several targets")
    if arch.pre_norm or arch.stack_norms or arch.own_output or arch.decoder_start != arch.pad_id:
        raise InvalidRequestError(
            "peers are for models of Marian's form (norms last, the target embedding as output, the decoder started by "
            "pad), and this model has another form"
        )


@contextmanager
def opened_peers(names: Sequence[str], checkpoint: Path, progress: Callable[[str], None]) -> Iterator[list[Peer]]:
    """The peers of these names, each in a process of its own, with the weights of the checkpoint."""
    loaded = load_checkpoint(checkpoint)
    with ExitStack() as stack:
        peers = []
        for name in names:
            progress(f"{ENGINES[name].title}: writing its model")
            model = Path(stack.enter_context(TemporaryDirectory())) / "model"
            ENGINES[name].prepare(loaded, model)
            peers.append(stack.enter_context(Peer(ENGINES[name], model, checkpoint)))
        yield peers


_loaded: dict[str, Translate] = {}
"""The settings of the engine of this process."""


def _begin(load: Callable[[Path, Path], dict[str, Translate]], model: Path, checkpoint: Path) -> None:
    _loaded.update(load(model, checkpoint))


def _settings() -> list[str]:
    return list(_loaded)


def _run(setting: str, texts: Sequence[str], beam: int) -> tuple[float, list[Translation]]:
    began = time.perf_counter()
    translations = _loaded[setting](texts, beam)
    return time.perf_counter() - began, translations
