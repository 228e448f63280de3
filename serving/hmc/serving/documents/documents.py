"""Texts of any length in, translations out: what `Translate` and `TranslateDocument` do with a level."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import islice
from typing import ParamSpec, TypeVar

from hmc.artifact.errors import DeadlineExceededError, InvalidRequestError, OverloadedError
from hmc.engine.requests.options import DecodeOptions
from hmc.serving.documents.dividing import Divided, Dividing, Joined, Part, PutTogether, named
from hmc.serving.documents.keeping import Keeper, Submit
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


@dataclass(frozen=True)
class Divider:
    """Translates texts at one level, by their sentences. submit: translates one text at the level."""

    dividing: Dividing
    submit: Submit
    keeper: Keeper = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "keeper", Keeper(self.dividing.texts.keep))

    async def translate(
        self, texts: Sequence[Divided], targets: Sequence[Target], window: int
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
                raise at(index, error) from error

        first: dict[int, int] = {}  # text → offset of its first sentence
        made: PutTogether | None = None
        async with aclosing(in_order(items(), work, window, long=_any_long(texts))) as results:
            async for (index, part), translation in results:
                made = made or PutTogether(
                    texts[index], segments=self.dividing.texts.return_segments, keep=self.dividing.texts.keep
                )
                if part is None:
                    yield made.translation()
                    made = None
                else:
                    made.add(part, translation)

    async def document(self, text: str, joined: Joined) -> AsyncGenerator[DocumentPiece]:
        """Yields the pieces of a translated document, each as soon as it and all before it are ready. joined: empty; it
        then has the document's tokens and times, but no text."""
        divided = await in_thread(self.dividing.divided, text) if len(text) >= LONG else self.dividing.divided(text)
        joined.write_in(divided.target_language)
        items = _around(divided) if divided.whole else divided.parts()

        async def work(part: Part) -> Translation | None:
            return None if part.sent is None else await self._translated(part, Target())

        copied = ""
        async with aclosing(in_order(items, work, DOCUMENT_WINDOW, long=_any_long([divided]))) as results:
            async for part, translation in results:
                if translation is None:
                    copied = joined.copy(part.piece.source)
                    if len(copied) > MAX_COPIED:
                        yield DocumentPiece(copied)
                        copied = ""
                else:
                    made, segment = joined.add(part.piece, translation)
                    yield DocumentPiece(copied + made, segment)
                    copied = ""
                joined.forget()
        if copied:
            yield DocumentPiece(copied)

    async def _translated(self, part: Part, target: Target) -> Translation:
        assert part.sent is not None
        assert part.piece.text is not None
        code = part.sent[: len(part.sent) - len(part.piece.text)]
        words = part.piece.text
        if not code:  # a text that is not divided may begin with its own token, which each of its parts needs
            code = self.dividing.source.code(words)
            words = words[len(code) :]
        begin, end = worded(words, self.dividing.source.language)  # as `submit` does, but around the phrases
        head = words[:begin].lstrip()
        tail = words[end:].rstrip()

        async def submit(text: str, options: DecodeOptions, target: Target) -> Translation:
            return await self.submit(code + text, options, target)

        if begin == end or not self.dividing.texts.keep:
            return await submit(words, self.dividing.options, target)
        done = await self.keeper.translate(submit, words[begin:end], self.dividing.options, target)
        return done.between(head, tail)


async def divided_texts(dividing: Dividing, texts: Sequence[str]) -> list[Divided]:
    """How each text is divided. The event loop serves other calls meanwhile.

    Raises InvalidRequestError with the index of a text that cannot be divided.
    """
    found: list[Divided] = []
    for index, text in enumerate(texts):
        if index % AT_ONCE == AT_ONCE - 1:
            await asyncio.sleep(0)
        try:
            divided = dividing.checked(text) if len(text) < LONG else await in_thread(dividing.checked, text)
        except InvalidRequestError as error:
            raise at(index, error) from error
        found.append(divided)
    return found


Numbered = InvalidRequestError | OverloadedError | DeadlineExceededError


def at(index: int, error: Numbered) -> Numbered:
    """The error of a text of a request, which it names."""
    text = f"texts[{index}]"
    if isinstance(error, InvalidRequestError):
        return named(text, error)
    return type(error)(f"{text}: {error}", error.retry_after_s)


def _any_long(texts: Sequence[Divided]) -> bool:
    return any(len(each.text) >= LONG for each in texts)


def _around(divided: Divided) -> Iterator[Part]:
    """A document that is translated as one, and what is copied around it."""
    text = divided.text
    begin, end = divided.worded()
    if divided.own and begin < end:
        begin = 0
    code = "" if divided.own else divided.code
    for first, last, words in ((0, begin, False), (begin, end, True), (end, len(text), False)):
        if first < last:
            part = text[first:last]
            yield Part(Piece(first, part, part), code + part) if words else Part(Piece(first, part), None)
