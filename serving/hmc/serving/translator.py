"""Texts in, translations out, at one level of a bundle: `Translator(bundle, level="h36").translate(texts)`."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from types import TracebackType

from hmc.artifact.bundle import Manifest
from hmc.artifact.bundle_checks import validate
from hmc.artifact.errors import InvalidRequestError, UnavailableError
from hmc.serving.engine import Engine
from hmc.serving.options import MAX_TOKENS, DecodeOptions, Target, scoring_options, targets_of
from hmc.serving.packed_weights import cache_folder
from hmc.serving.results import Decoded, Partial, Translation
from hmc.serving.sessions import LevelSessions, resolve_device
from hmc.serving.threads import check_threads
from hmc.serving.tokenizer import Tokenizer, shared_tokenizer
from hmc.serving.wording import Wording

log = logging.getLogger(__name__)

WARM_UP_TOKENS = (4, 24, 48)
"""Source lengths translated once before a level counts as ready."""


class Translator:
    """One level loaded on one device. Thread-safe: concurrent callers share one running batch."""

    def __init__(  # noqa: PLR0913 - settings of one engine, all by name
        self, bundle: str | Path, level: str | None = None, *, device: str = "auto", threads: int = 0,
        queue_size: int = 1024, max_rows: int = 128, max_tokens: int = MAX_TOKENS, manifest: Manifest | None = None,
        cache: str | Path = "auto", workers: int = 1,
    ) -> None:  # fmt: skip
        """level None: the bundle's default. threads 0: one per physical core. max_rows: rows decoded at once.
        max_tokens: such rows times the positions that the longest of their sentences may need, which bounds the memory
        of caches; a sentence that needs more runs alone.

        workers: batches run at the same time, each on `threads` threads (0 is then one), for throughput on a CPU: they
        do not wait for each other, but a sentence alone has one of them to itself.
        manifest: what `validate` returned for this bundle, from whoever opens several of its levels; None: every file
        is checked here. cache: the folder where weights are kept as this machine's kernels want them, so that levels
        and processes share them in memory; `auto`: what HMC_CACHE says, or the platform's; `none`: nothing is kept.
        Raises InvalidArtifactError (every problem of the bundle), LevelNotFoundError, DeviceUnavailableError.
        """
        check_threads(threads, workers)
        path = Path(bundle)
        self.manifest = manifest or validate(path)
        self.level = self.manifest.level(level or self.manifest.default_level)
        chosen = resolve_device(device, self.level)
        self.device = str(chosen)
        arch = self.manifest.architecture
        self._tokenizer = shared_tokenizer(path, self.manifest)
        self._wording = Wording(self._tokenizer, arch)
        sessions = LevelSessions.open(path, arch, self.level, chosen, threads, cache_folder(cache), workers)
        self._engine = Engine(
            sessions, queue_size=queue_size, max_rows=max_rows, max_tokens=max_tokens, workers=workers
        )

    @property
    def pending(self) -> int:
        """Texts queued or running."""
        return self._engine.pending

    @property
    def hurried(self) -> int:
        """Those of them that are not patient."""
        return self._engine.hurried

    @property
    def weights(self) -> dict[str, int]:
        """Weight file → bytes of it that the level holds in memory; levels that name the same file share them."""
        return self._engine.sessions.weights

    def submit(
        self,
        text: str,
        options: DecodeOptions | None = None,
        target: Target | None = None,
        progress: Callable[[str], None] | None = None,
        *,
        block: bool = False,
        patient: bool = False,
        bulk: bool = False,
    ) -> Future[Translation]:
        """Queues one text; cancelling the future takes it out of the queue, or frees its rows at the next step. A blank
        text is an empty translation.

        target: how the translation begins (not heeded for a blank text), or all of it, to be scored. progress: called
        with what has become certain of the translation, on the engine's thread, which it must not hold up.
        patient: lets others pass in the queue. bulk: that, and leaves half of it to others.
        Raises InvalidRequestError for a text that cannot be encoded or is too long, OverloadedError for a full queue
        (with block it waits instead), UnavailableError once closed.
        """
        options, target = options or DecodeOptions(), target or Target()
        ids, truncated = self._tokenizer.encode(text)
        constraints = self._wording.constraints(options, target)
        answer: Future[Translation] = Future()
        if len(ids) == 1 and not target.complete:
            answer.set_result(Translation("", 0.0, 0, 0))
            return answer
        hear = _Certain(self._tokenizer, progress).hear if progress else None
        decoded = self._engine.submit(ids, options, constraints, hear, block=block, patient=patient, bulk=bulk)
        # Cancelling the outer future cancels the inner one, which the engine looks at every step.
        answer.add_done_callback(lambda f: decoded.cancel() if f.cancelled() else None)
        decoded.add_done_callback(
            lambda f: _settle(answer, f, lambda d: self._wording.translation(d, options, ids, truncated))
        )
        return answer

    def call_when_room(self, call: Callable[[], None]) -> None:
        """Calls `call` once, as soon as a bulk text can be queued or the translator closes; see `Engine`."""
        self._engine.call_when_room(call)

    def stream(
        self, text: str, options: DecodeOptions | None = None, target: Target | None = None
    ) -> Iterator[Partial]:
        """Translates one text; yields what is certain of it as soon as it is, and at last the whole translation.

        What is certain is what all hypotheses of the beam agree on, so smaller beams are heard of sooner. Raises as
        `submit`; leaving early cancels.
        """
        heard: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        future = self.submit(text, options, target, heard.put, block=True)
        future.add_done_callback(lambda _: heard.put(None))
        try:
            while (piece := heard.get()) is not None:
                yield Partial(piece)
            yield Partial("", _result(future))
        finally:
            future.cancel()

    def translate(
        self,
        texts: Sequence[str],
        options: DecodeOptions | None = None,
        target_prefixes: Sequence[str] = (),
    ) -> list[Translation]:
        """Translates any number of texts, longest first inside, and returns them in the order given.

        target_prefixes: how each translation begins; none, or one for each text. Raises InvalidRequestError that names
        the first text that cannot be translated; then nothing is returned.
        """
        return self._submit_all(texts, options, targets_of(texts, target_prefixes, complete=False))

    def score(
        self, texts: Sequence[str], references: Sequence[str], options: DecodeOptions | None = None
    ) -> list[Translation]:
        """Scores given translations: each answer's text is the reference as the vocabulary can write it, its score what
        `translate` would give it.

        Of the options only the length, coverage and repetition penalties, token scores and alignment have meaning.
        Raises InvalidRequestError as `translate`.
        """
        return self._submit_all(texts, scoring_options(options), targets_of(texts, references, complete=True))

    def _submit_all(
        self, texts: Sequence[str], options: DecodeOptions | None, targets: Sequence[Target]
    ) -> list[Translation]:
        futures: list[Future[Translation] | None] = [None] * len(texts)
        try:
            for index in sorted(range(len(texts)), key=lambda i: -len(texts[i])):
                try:
                    futures[index] = self.submit(texts[index], options, targets[index], block=True)
                except InvalidRequestError as error:
                    raise InvalidRequestError(f"text {index}: {error}") from error
            return [_result(future) for future in futures if future is not None]
        except BaseException:
            for future in futures:
                if future is not None:
                    future.cancel()
            raise

    def warm_up(self) -> None:
        """Runs the graphs once on several shapes, so that the first request pays for no allocation or planning."""
        arch = self.manifest.architecture
        for beam in sorted({1, min(DecodeOptions().beam_size, self._engine.max_rows)}):
            for tokens in WARM_UP_TOKENS:
                source = [*[arch.unk_id] * min(tokens, arch.max_positions - 1), arch.eos_id]
                self._engine.submit(source, DecodeOptions(beam_size=beam, max_length=8), block=True).result()

    def rest(self) -> None:
        """Gives back to the system what large batches needed and nothing uses now; requests may go on meanwhile."""
        self._engine.sessions.rest()

    def close(self, drain: bool = True) -> None:
        """Stops the engine; with drain it first finishes what is queued."""
        self._engine.close(drain)

    def __enter__(self) -> Translator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(drain=error is None)


class _Certain:
    """Turns the tokens that are certain into the text that they add."""

    def __init__(self, tokenizer: Tokenizer, progress: Callable[[str], None]) -> None:
        self._tokenizer, self._progress, self._told = tokenizer, progress, ""

    def hear(self, ids: tuple[int, ...]) -> None:
        text = self._tokenizer.decode(ids)
        # The bytes of one character may be several tokens: until they are all there, it is not text.
        if text.startswith(self._told) and not text.endswith("\ufffd") and len(text) > len(self._told):
            piece, self._told = text[len(self._told) :], text
            try:
                self._progress(piece)
            except Exception:
                log.exception("whoever listens to a translation failed; the translation goes on")


def _result(future: Future[Translation]) -> Translation:
    try:
        return future.result()
    except CancelledError:
        raise UnavailableError("the translator was closed before this was finished") from None


def _settle(
    answer: Future[Translation], decoded: Future[Decoded], translation: Callable[[Decoded], Translation]
) -> None:
    if decoded.cancelled() or not answer.set_running_or_notify_cancel():
        answer.cancel()
        return
    if (error := decoded.exception()) is not None:
        answer.set_exception(error)
        return
    answer.set_result(translation(decoded.result()))
