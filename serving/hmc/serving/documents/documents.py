"""Texts of any length in, translations out: what `Translate` and `TranslateDocument` do with a level."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from itertools import islice
from typing import ParamSpec, TypeVar

from hmc.artifact.errors import DeadlineExceededError, InvalidRequestError, OverloadedError
from hmc.engine.requests.options import DecodeOptions
from hmc.serving.documents.keeping import Keeper, Submit
from hmc.serving.documents.splitting import DocumentBuilder, Part, Splitter, SplitText, TextBuilder, with_field
from hmc.serving.requests.options import Segmentation, Target, TextOptions
from hmc.serving.requests.results import DocumentPiece, Translation
from hmc.serving.text.segmentation.pieces import Piece, worded

Item = TypeVar("Item")
Result = TypeVar("Result")
P = ParamSpec("P")


LONG = 4096
"""Characters of the shortest text that is divided in a thread."""
THREAD = ThreadPoolExecutor(1, thread_name_prefix="hmc-long-texts")
"""Works on long texts, some sentences at a time. It is one: several would only share Python's lock, and the event loop
would wait for each of them."""
AT_ONCE = 16
"""Items that a thread takes at once, and short texts that are divided before the event loop serves others."""


async def in_order(
    items: Iterator[Item], work: Callable[[Item], Awaitable[Result]], window: int, *, long: bool = False
) -> AsyncGenerator[tuple[Item, Result]]:
    """Yields each item with what `work` made of it, as soon as it and all before it are ready.

    At most `window` items are under way: taken from `items`, and not yet taken from this iterator. The event loop
    serves other calls after each. An error of `work` is raised when its turn comes. When the iteration ends early, all
    work under way is cancelled. long: items are taken from `items` in a thread, a few at once, because that may take
    long.
    """
    running: deque[tuple[Item, asyncio.Task[Result]]] = deque()
    ready: deque[Item] = deque()
    more = True
    try:
        while more or running:
            while more and len(running) < window and not (running and running[0][1].done()):
                if not ready:
                    ready += await in_thread(_take, items, AT_ONCE) if long else _take(items, 1)
                if not ready:
                    more = False
                else:
                    item = ready.popleft()
                    running.append((item, asyncio.ensure_future(_await(work(item)))))
                    await asyncio.sleep(0)
            if running:
                first, task = running[0]
                result = await task
                running.popleft()
                yield first, result
    finally:
        for _, task in running:
            task.cancel()
        await asyncio.gather(*(task for _, task in running), return_exceptions=True)


async def in_thread(function: Callable[P, Result], *arguments: P.args, **options: P.kwargs) -> Result:
    """Calls a function that works on a long text, on the thread for these."""
    call = functools.partial(function, *arguments, **options)
    return await asyncio.get_running_loop().run_in_executor(THREAD, call)


def _take(items: Iterator[Item], number: int) -> list[Item]:
    return list(islice(items, number))


async def _await(work: Awaitable[Result]) -> Result:
    return await work


DOCUMENT_WINDOW = 64
"""Sentences of one document under way."""
MAX_COPIED = 16384
"""Characters of the longest copied part that is sent together with the sentence after it."""


def check_document(options: DecodeOptions, texts: TextOptions) -> None:
    """Raises InvalidRequestError for options that a document cannot have."""
    if texts.segmentation is Segmentation.NONE:
        raise InvalidRequestError("a document is divided: choose segmentation auto or sentence, or use Translate")
    if options.n_best > 1:
        raise InvalidRequestError("a document has one translation: leave n_best out")
    check_keep(options, texts)


def check_keep(options: DecodeOptions, texts: TextOptions) -> None:
    """Raises InvalidRequestError for options that `keep` excludes."""
    if texts.keep and (options.n_best > 1 or options.token_scores or options.alignment):
        raise InvalidRequestError(
            "keep changes translations after the search: leave out n_best, token_scores and alignment"
        )


class DocumentTranslator:
    """Translates texts at one level, by their sentences."""

    def __init__(self, splitter: Splitter, submit: Submit) -> None:
        """submit: translates one sentence at the level."""
        self._splitter = splitter
        self._submit = submit
        self._keeper = Keeper(splitter.texts.keep)

    async def translate(
        self, texts: Sequence[SplitText], targets: Sequence[Target], window: int
    ) -> AsyncGenerator[Translation]:
        """Yields the translation of each text. window: sentences under way.

        A target prefix begins the first sentence. Raises InvalidRequestError and OverloadedError with the index of the
        text.
        """

        def items() -> Iterator[tuple[int, Part | None]]:
            for index, text in enumerate(texts):
                yield from ((index, part) for part in text.parts())
                yield index, None

        async def work(item: tuple[int, Part | None]) -> Translation | None:
            index, part = item
            if part is None or part.sent is None:
                return None
            begin = part.piece.begin
            target = targets[index] if first.setdefault(index, begin) == begin else Target()
            try:
                return await self._translated(part, target)
            except (InvalidRequestError, OverloadedError) as error:
                raise with_text_index(index, error) from error

        first: dict[int, int] = {}  # text → offset of its first sentence
        builder: TextBuilder | None = None
        async with aclosing(in_order(items(), work, window, long=_any_long(texts))) as results:
            async for (index, part), translation in results:
                builder = builder or TextBuilder(
                    texts[index], segments=self._splitter.texts.return_segments, keep=self._splitter.texts.keep
                )
                if part is None:
                    yield builder.translation()
                    builder = None
                else:
                    builder.add(part, translation)

    async def document(self, text: str, builder: DocumentBuilder) -> AsyncGenerator[DocumentPiece]:
        """Yields the pieces of a translated document, each as soon as it and all before it are ready. builder: empty;
        it then has the document's tokens and times, but no text."""
        split = await in_thread(self._splitter.split, text) if len(text) >= LONG else self._splitter.split(text)
        builder.write_in(split.target_language)
        items = _parts_around(split) if split.whole else split.parts()

        async def work(part: Part) -> Translation | None:
            return None if part.sent is None else await self._translated(part, Target())

        copied = ""
        async with aclosing(in_order(items, work, DOCUMENT_WINDOW, long=_any_long([split]))) as results:
            async for part, translation in results:
                if translation is None:
                    copied = builder.copy(part.piece.source)
                    if len(copied) > MAX_COPIED:
                        yield DocumentPiece(copied)
                        copied = ""
                else:
                    added, segment = builder.add(part.piece, translation)
                    yield DocumentPiece(copied + added, segment)
                    copied = ""
                builder.forget()
        if copied:
            yield DocumentPiece(copied)

    async def _translated(self, part: Part, target: Target) -> Translation:
        assert part.sent is not None
        assert part.piece.text is not None
        code = part.sent[: len(part.sent) - len(part.piece.text)]
        words = part.piece.text
        if not code:  # a text that is not divided may begin with its own token, which each of its parts needs
            code = self._splitter.source.code(words)
            words = words[len(code) :]
        begin, end = worded(words, self._splitter.source.language)  # as `submit` does, but around the phrases
        head = words[:begin].lstrip()
        tail = words[end:].rstrip()

        async def submit(text: str, options: DecodeOptions, target: Target) -> Translation:
            return await self._submit(code + text, options, target)

        if begin == end or not self._splitter.texts.keep:
            return await submit(words, self._splitter.options, target)
        done = await self._keeper.translate(submit, words[begin:end], self._splitter.options, target)
        return done.between(head, tail)


async def split_texts(splitter: Splitter, texts: Sequence[str]) -> list[SplitText]:
    """How each text is divided. The event loop serves other calls meanwhile.

    Raises InvalidRequestError with the index of a text that cannot be divided.
    """
    splits: list[SplitText] = []
    for index, text in enumerate(texts):
        if index % AT_ONCE == AT_ONCE - 1:
            await asyncio.sleep(0)
        try:
            split = splitter.split_checked(text) if len(text) < LONG else await in_thread(splitter.split_checked, text)
        except InvalidRequestError as error:
            raise with_text_index(index, error) from error
        splits.append(split)
    return splits


Numbered = InvalidRequestError | OverloadedError | DeadlineExceededError


def with_text_index(index: int, error: Numbered) -> Numbered:
    """The error of a text of a request, which it names."""
    text = f"texts[{index}]"
    if isinstance(error, InvalidRequestError):
        return with_field(text, error)
    return type(error)(f"{text}: {error}", error.retry_after_s)


def _any_long(texts: Sequence[SplitText]) -> bool:
    return any(len(each.text) >= LONG for each in texts)


def _parts_around(split: SplitText) -> Iterator[Part]:
    """A document that is translated as one, and what is copied around it."""
    text = split.text
    begin, end = split.worded()
    if split.own and begin < end:
        begin = 0
    code = "" if split.own else split.code
    for first, last, words in ((0, begin, False), (begin, end, True), (end, len(text), False)):
        if first < last:
            part = text[first:last]
            yield Part(Piece(first, part, part), code + part) if words else Part(Piece(first, part), None)
