"""Texts in, translations out, at one level of a bundle: `Translator(bundle, level="h36").translate(texts)`."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, wait
from functools import partial
from pathlib import Path
from types import TracebackType

from hmc.artifact.bundle.checks import validate
from hmc.artifact.bundle.manifest import Level, Manifest
from hmc.artifact.errors import InvalidRequestError, UnavailableError, Violation
from hmc.engine.decoding.job import EncodedSentence, Job, Progress
from hmc.engine.opening import EngineSettings, open_engine
from hmc.engine.requests.caller import ANYONE, Caller, Priority
from hmc.engine.requests.options import MAX_TOKENS, DecodeOptions
from hmc.engine.requests.results import Decoded, DeviceUse
from hmc.engine.requests.work import LevelWork
from hmc.engine.scheduling.level_engine import LevelEngine
from hmc.engine.support import AnyExecutor, CudaAttention
from hmc.serving.documents.in_turn import InTurn
from hmc.serving.documents.local import translate_texts
from hmc.serving.documents.splitting import SplitText
from hmc.serving.requests.options import Segmentation, Target, scoring_options, targets_of
from hmc.serving.requests.results import Partial, TextProgress, Translation
from hmc.serving.text.codec import CertainText, Codec
from hmc.serving.text.segmentation.lines import LINE_END, stripped
from hmc.serving.text.segmentation.pieces import worded
from hmc.serving.text.tokenizer import shared_tokenizer

OpensEngine = Callable[[Path, Manifest, Level, EngineSettings], LevelEngine]
"""Opens a level; arguments and errors: see `hmc.engine.opening.open_engine`."""
TOGETHER = 256
"""Texts of one call that are queued together."""


class Translator:
    """One level loaded on one device, or on several. Thread-safe: concurrent callers share the running batches."""

    def __init__(
        self, bundle: str | Path, level: str | None = None, *, device: str = "auto", threads: int = 0,
        queue_size: int = 1024, max_rows: int = 128, max_tokens: int = MAX_TOKENS, manifest: Manifest | None = None,
        cache: str | Path = "auto", workers: int = 0, gpu_memory: str | None = None,
        gpu_attention: CudaAttention = "plain", executor: AnyExecutor = "auto", opens: OpensEngine = open_engine,
    ) -> None:  # fmt: skip
        """Loads a level. level: its name; None is the bundle's default. queue_size: texts that may wait. manifest: what
        `validate` returned for this bundle, if the caller has it already; None checks every file here. opens: what
        opens the level. All others: see `EngineSettings`.

        Raises InvalidArtifactError (every problem of the bundle), LevelNotFoundError, DeviceUnavailableError,
        FailedPreconditionError if the level does not fit into a device's memory, and InvalidRequestError for settings
        out of range: among them more workers than `max_rows` has default beams for, and an executor that cannot run the
        level.
        """
        settings = EngineSettings(
            device=device, threads=threads, workers=workers, queue_size=queue_size, max_rows=max_rows,
            max_tokens=max_tokens, cache=str(cache), gpu_memory=gpu_memory, gpu_attention=gpu_attention,
            executor=executor,
        )  # fmt: skip
        path = Path(bundle)
        self.manifest = manifest or validate(path)
        self.level = self.manifest.level(level or self.manifest.default_level)
        self._tokenizer = shared_tokenizer(path, self.manifest)
        self._codec = Codec(self._tokenizer, self.manifest.architecture)
        language = self.manifest.source_language
        if len(language) > 2:  # such as deu or deu_Latn
            from hmc.serving.text.languages import standard_tag  # its tables take 36 ms to read

            language = standard_tag(language)
        self.source = self._tokenizer.source_side(language, self.manifest.target_language)
        """What dividing texts needs to know about the model."""
        self._engine = opens(path, self.manifest, self.level, settings)
        self._in_turn: set[Future[Translation]] = set()
        """Texts of several parts that are not translated yet."""

    @property
    def device(self) -> str:
        """Where the level runs: `cpu`, or CUDA devices with commas between them."""
        return self._engine.device

    @property
    def pending(self) -> int:
        """Texts that wait or run."""
        return self._engine.pending

    @property
    def pending_interactive(self) -> int:
        """Interactive texts that wait or run."""
        return self._engine.pending_interactive

    def expected_s(self, *, interactive: bool) -> float | None:
        """Seconds that a new text of usual length would take now, interactive or not, queue included; None if too
        little was measured lately."""
        return self._engine.queue.expected_s(interactive=interactive)

    @property
    def failure(self) -> str | None:
        """Why the level failed; None if it did not, or if it has answered a text since."""
        return self._engine.failure

    @property
    def weights(self) -> dict[str, int]:
        """Weight file → bytes of it that the level holds in this machine's memory; levels that name the same file share
        them."""
        return self._engine.weights

    @property
    def device_bytes(self) -> dict[str, int]:
        """What the level holds in the memory of its CUDA devices → its bytes: weights, which levels that name the same
        one share, and caches. Empty on a CPU."""
        return self._engine.device_bytes

    @property
    def device_use(self) -> tuple[DeviceUse, ...]:
        """What all levels of this process have reserved on the CUDA devices of this one. Empty on a CPU."""
        return self._engine.device_use

    @property
    def work(self) -> LevelWork:
        """What the level has computed since it was loaded, and its limits."""
        return self._engine.work

    def submit(
        self,
        text: str,
        options: DecodeOptions | None = None,
        target: Target | None = None,
        progress: TextProgress | None = None,
        *,
        block: bool = False,
        priority: Priority = Priority.INTERACTIVE,
        caller: Caller = ANYONE,
        within_s: float | None = None,
        line: bool = False,
    ) -> Future[Translation]:
        """Queues one text. Cancelling the future takes the text out of the queue, or frees its rows at the next step.

        The text is one sentence for the model. What stands before its first sentence and after its last one is copied,
        such as a bullet or an emoji, and so is a text without a letter, as `worded` decides.

        target: the beginning of the translation, or the whole translation, which is then only scored. The translation
        of a blank text is empty, whatever its beginning should be. progress: called with each piece of text that no
        later step can change. priority: which texts start first. block: wait while the queue is full. caller: callers
        take turns. within_s: seconds that the caller waits for the translation. line: what is copied divides the text,
        such as tabs and line ends, see `runs`; its parts are then translated one after the other. Several hypotheses,
        scores of tokens, alignment and scoring exclude that.

        `progress`, and the callbacks of futures, run one after the other in one thread of this translator. A slow one
        delays other answers, but no decoding. One that waits for another answer of this translator waits for ever.

        Raises InvalidRequestError for a text that cannot be encoded or is too long and for options that the level does
        not have, OverloadedError for a full queue unless `block`, UnavailableError once closed, and
        DeadlineExceededError if `within_s` is too short, as far as is known from what the level did of late. The
        future's error is InternalServiceError where the model's scores are not finite.
        """
        options = options or DecodeOptions()
        target = target or Target()
        self._tokenizer.check(text)
        queue = partial(self._queue, options=options, block=block, priority=priority, caller=caller, within_s=within_s)
        plain = options.n_best == 1 and not (options.token_scores or options.alignment or target.complete)
        if line and plain:
            code = self._tokenizer.code(text)
            split = SplitText(text, False, code, code, self.source)
            parts = split.runs()
            translated = sum(part.sent is not None for part in parts)
            has_lines = LINE_END.search(text, *stripped(text, 0, len(text))) is not None
            if translated > 1 or (translated and has_lines):
                return self._add_in_turn(InTurn(split, parts, queue, target, progress).future)
        return queue(text, target, progress, False)

    def _queue(
        self, text: str, target: Target, progress: TextProgress | None, follows: bool, *, options: DecodeOptions,
        block: bool, priority: Priority, caller: Caller, within_s: float | None,
    ) -> Future[Translation]:  # fmt: skip
        """Queues a text that is one sentence for the model, see `submit`. follows: see `Engine.submit`."""
        sentence = self._sentence(text, options, target, progress)
        if isinstance(sentence, Translation):
            copied: Future[Translation] = Future()
            copied.set_result(sentence)
            return copied
        certain, (ids, constraints, finish) = sentence
        return self._engine.submit(
            ids, options, constraints, certain, finish, block=block, priority=priority, caller=caller,
            within_s=None if follows else within_s, follows=follows,
        )  # fmt: skip

    def _sentence(
        self, text: str, options: DecodeOptions, target: Target, progress: TextProgress | None = None
    ) -> Translation | tuple[Progress | None, EncodedSentence]:
        """A text that is one sentence for the model, in token ids, and what is told of its certain tokens. Where there
        is nothing to translate: what `submit` answers. Raises InvalidRequestError as `submit`."""
        code = self._tokenizer.code(text)
        words = text[len(code) :]
        begin, end = worded(words, self.source.language)
        if begin == end:
            if not target.complete or target.text.strip() == words.strip() != "":
                self._codec.constraints(options, Target(), self._tokenizer.tokenizer.opening(text))  # raises
                return Translation(words if words.strip() else "", 0.0, 0, 0)
            end = len(words)
        head = words[:begin].lstrip()
        tail = words[end:].rstrip()
        if target.complete and target.text.startswith(head) and target.text[len(head) :].endswith(tail):
            target = Target(target.text[len(head) : len(target.text) - len(tail)], complete=True)
        elif target.complete:
            head = tail = ""
        ids, truncated = self._tokenizer.encode(code + words[begin:end])
        constraints = self._codec.constraints(options, target, self._tokenizer.tokenizer.opening(text))
        certain = CertainText(self._tokenizer.tokenizer, progress, head).update if progress else None

        def finish(decoded: Decoded) -> Translation:
            return self._codec.translation(decoded, options, ids, truncated).between(head, tail)

        return certain, EncodedSentence(ids, constraints, finish)

    def _add_in_turn(self, future: Future[Translation]) -> Future[Translation]:
        self._in_turn.add(future)
        future.add_done_callback(self._in_turn.discard)
        return future

    def check_space(self, priority: Priority, caller: Caller = ANYONE) -> None:
        """Raises OverloadedError if the queue is full for this caller, as `submit` would; it costs little."""
        self._engine.queue.check_space(priority, caller)

    def call_when_space(self, call: Callable[[], None]) -> None:
        """Calls `call` once, as soon as a text of `Priority.BULK` can be queued or the translator closes; see
        `Engine`."""
        self._engine.queue.call_when_space(call)

    def stream(
        self, text: str, options: DecodeOptions | None = None, target: Target | None = None
    ) -> Iterator[Partial]:
        """Translates one text. Yields each piece as soon as no later step can change it, and then the translation.

        A piece is what all hypotheses of the beam agree on, so smaller beams give pieces sooner. Raises as `submit`,
        but waits for a full queue. Closing the iterator early cancels.
        """
        pieces: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        future = self.submit(text, options, target, pieces.put, block=True, line=True)
        future.add_done_callback(lambda _: pieces.put(None))
        try:
            while (piece := pieces.get()) is not None:
                yield Partial(piece)
            yield Partial("", _result(future))
        finally:
            future.cancel()

    def translate(
        self,
        texts: Sequence[str],
        options: DecodeOptions | None = None,
        target_prefixes: Sequence[str] = (),
        segmentation: Segmentation | str = Segmentation.AUTO,
    ) -> list[Translation]:
        """Translates any number of texts and returns the translations in their order. The longest start first.

        target_prefixes: how each translation begins; none, or one for each text. segmentation: whether texts are
        divided into sentences, as in the service: "auto", "sentence" or "none". With "none" each text is one sentence
        for the model, and one that it has no room for is cut (`source_truncated`), as by `submit`.

        Raises InvalidRequestError for the first text that cannot be translated, with its index; then nothing is
        returned.
        """
        targets = targets_of(texts, target_prefixes, complete=False)
        chosen = Segmentation.of(segmentation)
        options = options or DecodeOptions()
        if chosen is Segmentation.NONE:
            return self._submit_all(texts, options, targets)

        def submit(parts: Sequence[str], targets: Sequence[Target], of: Sequence[int]) -> list[Translation]:
            return self._submit_all(parts, options, targets, of)

        return translate_texts(self.source, submit, texts, options, targets, chosen)

    def score(
        self, texts: Sequence[str], references: Sequence[str], options: DecodeOptions | None = None
    ) -> list[Translation]:
        """Scores given translations. Each answer has the reference as the vocabulary can write it, and the score that
        `translate` would give it.

        Of the options only the length, coverage and repetition penalties, token scores and alignment are used. Raises
        InvalidRequestError as `translate`.
        """
        return self._submit_all(texts, scoring_options(options), targets_of(texts, references, complete=True))

    def _submit_all(
        self,
        texts: Sequence[str],
        options: DecodeOptions | None,
        targets: Sequence[Target],
        indices: Sequence[int] | None = None,
    ) -> list[Translation]:
        """indices: of each text, for errors; None: they count from 0."""
        options = options or DecodeOptions()
        done: dict[int, Translation] = {}
        """Index → the answer to a text of which nothing is translated."""
        futures: dict[int, Future[Translation]] = {}
        planner = self._engine.planner(options)
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        try:
            for first in range(0, len(order), TOGETHER):
                jobs: dict[int, Job] = {}
                for index in order[first : first + TOGETHER]:
                    try:
                        self._tokenizer.check(texts[index])
                        sentence = self._sentence(texts[index], options, targets[index])
                        if isinstance(sentence, Translation):
                            done[index] = sentence
                        else:
                            jobs[index] = planner.job(sentence[1])
                    except InvalidRequestError as error:
                        number = index if indices is None else indices[index]
                        message = f"text {number}: {error}"
                        raise InvalidRequestError(message, [Violation(f"text {number}", message)]) from error
                queued = self._engine.submit_all(list(jobs.values()), block=True)
                futures.update(zip(jobs, queued, strict=True))
            return [done[index] if index in done else _result(futures[index]) for index in range(len(texts))]
        except BaseException:
            for future in futures.values():
                future.cancel()
            raise

    def warm_up(self) -> None:
        """Translates a few sentences on every device, see `hmc.engine.scheduling.warm_up`."""
        self._engine.warm_up()

    def release_memory(self) -> None:
        """Gives memory back to the system that large batches needed and nothing uses now. Requests may go on."""
        self._engine.release_memory()

    def close(self, drain: bool = True) -> None:
        """Stops the engine after every text is answered. Without `drain`, cancels all texts that are left.

        Returns when the callbacks of all futures have run. If it is called from a callback, it returns when nothing is
        decoded any more; texts of which further parts are to come then fail.
        """
        if drain and not self._engine.calls_back:
            wait(self._in_turn.copy())
        self._engine.close(drain)

    def __enter__(self) -> Translator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(drain=error is None)


def _result(future: Future[Translation]) -> Translation:
    try:
        return future.result()
    except CancelledError:
        raise UnavailableError("the translator was closed before this was finished") from None
