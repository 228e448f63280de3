"""Texts in, translations out, at one level of a bundle: `Translator(bundle, level="h36").translate(texts)`."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType

from hmc.artifact.bundle import TOKENIZER, validate
from hmc.artifact.errors import InvalidRequestError
from hmc.serving.engine import Engine
from hmc.serving.options import Decoded, DecodeOptions, Translation
from hmc.serving.sessions import LevelSessions, resolve_device
from hmc.serving.tokenizer import Tokenizer

WARM_UP_TOKENS = (4, 24, 48)
"""Source lengths translated once before a level counts as ready."""


class Translator:
    """One level loaded on one device. Thread-safe: concurrent callers share one running batch."""

    def __init__(
        self, bundle: str | Path, level: str | None = None, *, device: str = "auto", threads: int = 0,
        queue_size: int = 1024, max_rows: int = 128,
    ) -> None:  # fmt: skip
        """level None: the bundle's default. threads 0: one per physical core. max_rows: rows decoded at once.

        Raises InvalidArtifactError (every problem of the bundle), LevelNotFoundError, DeviceUnavailableError.
        """
        path = Path(bundle)
        self.manifest = validate(path)
        self.level = self.manifest.level(level or self.manifest.default_level)
        chosen = resolve_device(device, self.level)
        self.device = str(chosen)
        arch = self.manifest.architecture
        self._tokenizer = Tokenizer(path / TOKENIZER, arch)
        sessions = LevelSessions.open(path, arch, self.level, chosen, threads)
        self._engine = Engine(sessions, queue_size=queue_size, max_rows=max_rows)

    @property
    def pending(self) -> int:
        """Texts queued or running."""
        return self._engine.pending

    def submit(self, text: str, options: DecodeOptions | None = None, *, block: bool = False) -> Future[Translation]:
        """Queues one text; cancelling the future frees its rows at the next step. A blank text is an empty translation.

        Raises InvalidRequestError for a text that cannot be encoded or is too long, OverloadedError for a full queue
        (with block it waits instead).
        """
        options = options or DecodeOptions()
        ids, truncated = self._tokenizer.encode(text)
        answer: Future[Translation] = Future()
        if len(ids) == 1:
            answer.set_result(Translation("", 0.0, 0, 0))
            return answer
        decoded = self._engine.submit(ids, options, block=block)
        # Cancelling the outer future cancels the inner one, which the engine looks at every step.
        answer.add_done_callback(lambda f: decoded.cancel() if f.cancelled() else None)
        decoded.add_done_callback(lambda f: self._answer(f, answer, len(ids), truncated))
        return answer

    def translate(self, texts: Sequence[str], options: DecodeOptions | None = None) -> list[Translation]:
        """Translates any number of texts, longest first inside, and returns them in the order given.

        Raises InvalidRequestError that names the first text that cannot be translated; then nothing is returned.
        """
        if isinstance(texts, str):
            raise InvalidRequestError("translate takes a list of texts; put a single text in a list")
        futures: list[Future[Translation] | None] = [None] * len(texts)
        try:
            for index in sorted(range(len(texts)), key=lambda i: -len(texts[i])):
                try:
                    futures[index] = self.submit(texts[index], options, block=True)
                except InvalidRequestError as error:
                    raise InvalidRequestError(f"text {index}: {error}") from error
            return [future.result() for future in futures if future is not None]
        except BaseException:
            for future in futures:
                if future is not None:
                    future.cancel()
            raise

    def warm_up(self) -> None:
        """Runs the graphs once on several shapes, so that the first request pays for no allocation or planning."""
        arch = self.manifest.architecture
        for beam in (1, DecodeOptions().beam_size):
            for tokens in WARM_UP_TOKENS:
                source = [*[arch.unk_id] * min(tokens, arch.max_positions - 1), arch.eos_id]
                self._engine.submit(source, DecodeOptions(beam_size=beam, max_length=8), block=True).result()

    def close(self, drain: bool = True) -> None:
        """Stops the engine; with drain it first finishes what is queued."""
        self._engine.close(drain)

    def __enter__(self) -> Translator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(drain=error is None)

    def _answer(
        self, decoded: Future[Decoded], answer: Future[Translation], source_tokens: int, truncated: bool
    ) -> None:
        if decoded.cancelled() or not answer.set_running_or_notify_cancel():
            answer.cancel()
            return
        if (error := decoded.exception()) is not None:
            answer.set_exception(error)
            return
        result = decoded.result()
        best, *others = result.hypotheses
        answer.set_result(
            Translation(
                text=self._tokenizer.decode(best.ids),
                score=best.score,
                source_tokens=source_tokens,
                target_tokens=len(best.ids) + best.complete,
                source_truncated=truncated,
                hit_max_length=not best.complete,
                alternatives=tuple(self._tokenizer.decode(h.ids) for h in others),
                queue_s=result.queue_s,
                compute_s=result.compute_s,
            )
        )
