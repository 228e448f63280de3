"""What the service returns, as plain data: the hypotheses of a sentence, the translation of a text, the answer to a
call, and what is said of levels and models. The server converts it to messages, and the client back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self, overload

from hmc.artifact.bundle.manifest import Latency, Quality
from hmc.artifact.bundle.order import Standing
from hmc.artifact.errors import HmcError
from hmc.engine.requests.results import DeviceUse
from hmc.engine.requests.work import BatchLoad

SHORTEST = 10
"""Tokens of the shortest source whose translation can be much shorter."""


@dataclass(frozen=True)
class Token:
    """One target token of a translation."""

    piece: str
    """The vocabulary piece; a leading `▁` marks the start of a word."""
    score: float | None = None
    """Its log-probability given the source and the tokens before it. None if scores were not requested."""
    attention: tuple[float, ...] = ()
    """Its attention over the source tokens, EOS last; sums to 1. Empty if alignment was not requested."""


@dataclass(frozen=True)
class Alternative:
    """One hypothesis of an n-best answer."""

    text: str
    score: float
    """See `DecodedHypothesis.score`."""
    target_tokens: int = 0
    """Tokens of the hypothesis, EOS included."""
    hit_max_length: bool = False
    """Whether it reached max_length before EOS; it may be incomplete."""
    tokens: tuple[Token, ...] = ()
    """Its tokens, with EOS last if it ended. Empty if neither token scores nor alignment were requested."""

    @property
    def alignment(self) -> tuple[tuple[int, int], ...]:
        """Pairs (index of a source token, index of a target token): each target token and the source token to which it
        attends most. Empty if alignment was not requested."""
        return tuple((t.attention.index(max(t.attention)), n) for n, t in enumerate(self.tokens) if t.attention)


@dataclass(frozen=True)
class Segment:
    """A sentence of a text, or a part of one that was translated alone. Offsets count code points."""

    source_begin: int
    source_end: int
    """The offset after its last character."""
    target_begin: int
    target_end: int
    score: float
    """See `DecodedHypothesis.score`."""
    source_tokens: int
    """Tokens of its source, EOS included."""
    target_tokens: int
    """Tokens of its translation, EOS included."""
    hit_max_length: bool = False
    """Whether its translation reached max_length before EOS."""
    tokens: tuple[Token, ...] = ()
    """As in `Alternative`."""
    source_pieces: tuple[str, ...] = ()
    """As in `Translation`."""
    much_shorter: bool = False
    """As in `Translation`."""
    mostly_unknown: bool = False
    """As in `Translation`."""
    joined_lines: int = 0
    """As in `Translation`."""


@dataclass(frozen=True)
class Translation:
    """The translation of one text."""

    text: str
    score: float
    """See `DecodedHypothesis.score`."""
    source_tokens: int
    """Tokens of the source, EOS included, after any truncation; 0 for a text that is blank or copied as a whole."""
    target_tokens: int
    """Tokens of the translation, EOS included."""
    source_truncated: bool = False
    """Whether the text had more tokens than the model has positions, and its end was cut off."""
    hit_max_length: bool = False
    """Whether the translation reached max_length before EOS; it may be incomplete."""
    alternatives: tuple[Alternative, ...] = ()
    """The other hypotheses of an n-best request, best first."""
    tokens: tuple[Token, ...] = ()
    """Its tokens, with EOS last if it ended. Empty if neither token scores nor alignment were requested."""
    source_pieces: tuple[str, ...] = ()
    """The source tokens, EOS last. Empty if alignment was not requested."""
    queue_s: float = field(default=0.0, compare=False)
    """See `Decoded.queue_s`."""
    compute_s: float = field(default=0.0, compare=False)
    """See `Decoded.compute_s`."""
    segments: tuple[Segment, ...] = ()
    """The sentences of the text. Empty if they were not requested."""
    much_shorter: bool = False
    """Whether the translation of the text, or of a sentence of it, has less than half as many tokens as its source,
    which has SHORTEST tokens or more; something may be missing."""
    mostly_unknown: bool = False
    """Whether the vocabulary does not know most words of the text, or of a sentence of it: it is in another language or
    script than the model reads, and its translation is made up."""
    joined_lines: int = 0
    """Line ends of the text within sentences: running text was wrapped there, and the lines were read as one."""

    @property
    def blank(self) -> bool:
        """Whether the text was blank or copied as a whole. It was not computed, so its times say nothing about a
        level."""
        return not self.source_tokens

    def between(self, head: str, tail: str) -> Self:
        """The translation with text before and after it that was copied. Tokens are the tokens of the translated
        parts."""
        if not head and not tail:
            return self
        others = tuple(replace(other, text=f"{head}{other.text}{tail}") for other in self.alternatives)
        return replace(self, text=f"{head}{self.text}{tail}", alternatives=others)

    @property
    def hypotheses(self) -> tuple[Alternative, ...]:
        """All hypotheses, best first. The first one is this translation."""
        best = Alternative(self.text, self.score, self.target_tokens, self.hit_max_length, self.tokens)
        return (best, *self.alternatives)

    @property
    def alignment(self) -> tuple[tuple[int, int], ...]:
        """Pairs (index of a source token, index of a target token): each target token and the source token to which it
        attends most. Empty if alignment was not requested."""
        return self.hypotheses[0].alignment


@dataclass(frozen=True)
class DocumentPiece:
    """The next piece of a translated document. All pieces together are the translation."""

    text: str
    """A translated sentence and what is copied before it; or only what is copied."""
    segment: Segment | None = None
    """The sentence. None if the piece has none."""
    level: str = ""
    """Name of the level that serves the document."""
    bundle_version: str = ""


@dataclass(frozen=True)
class Partial:
    """A piece of a translation that is still being searched for."""

    text: str
    """The text that has become certain since the previous piece. Empty in the last piece."""
    translation: Translation | None = None
    """The finished translation in the last piece; None in all pieces before it."""


TextProgress = Callable[[str], None]
"""Gets the text that no later step can change, each time there is more of it."""


@dataclass(frozen=True)
class Answer(Sequence[Translation]):
    """The answer to one call. It is a sequence of the translations, in the order of the texts."""

    translations: tuple[Translation, ...]
    level: str
    """Name of the level that served the call."""
    bundle_version: str
    queue_ms: float
    """Milliseconds from the arrival of the call to the first computation for it."""
    compute_ms: float
    """Milliseconds from the first computation for the call to its last token."""

    @overload
    def __getitem__(self, index: int) -> Translation: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Translation]: ...

    def __getitem__(self, index: int | slice) -> Translation | Sequence[Translation]:
        return self.translations[index]

    def __len__(self) -> int:
        return len(self.translations)


@dataclass(frozen=True)
class StreamAnswer:
    """The answer to one text of a stream: exactly one of `translation` and `error` is set."""

    index: int
    """Position of the text in the stream, from 0."""
    translation: Translation | None = None
    error: HmcError | None = None
    level: str = ""
    """Name of the level that served the text. Empty if the text failed before a level was chosen."""
    bundle_version: str = ""

    def result(self) -> Translation:
        """Returns the translation. Raises `error` if the text has no translation."""
        if self.translation is None:
            raise self.error or HmcError(f"text {self.index} was answered with neither a translation nor an error")
        return self.translation


@dataclass(frozen=True)
class LatencySummary:
    """Percentiles of queueing and computing time together, in milliseconds."""

    p50_ms: float
    p95_ms: float
    p99_ms: float
    requests: int
    """Requests over which the percentiles are taken."""


@dataclass(frozen=True)
class LevelBytes:
    """Bytes of one level, split by whether another level holds the same files."""

    own: int
    """Bytes of files that no other level holds."""
    shared: int
    """Bytes of files that at least one other level holds too."""


@dataclass(frozen=True)
class LevelInfo:
    """One level, as a bundle describes it and as a server reports it."""

    name: str
    heads: int
    """Open heads over all kinds and layers."""
    heads_by_kind: dict[str, list[int]]
    """Kind (`encoder_self`, `decoder_self`, `cross`) → open heads in each layer, first layer first."""
    precision: str
    parameters: int
    """Weights in the level's graphs; those of closed heads are not counted."""
    bytes: int
    """Bytes of the level's graphs and weights on disk. Weights that levels share count for each of them."""
    loaded: bool = False
    is_default: bool = False
    quality: Quality | None = None
    """Scores on a test set from compile time; None if they were not measured."""
    latency: LatencySummary | None = None
    """Measured by the server since it loaded the level. None before the first measured request."""
    recorded_latency: Latency | None = None
    """Measured by a benchmark and recorded in the bundle. None if it was not measured."""
    disk: LevelBytes | None = None
    """`bytes`, split among the levels of the bundle. None if unknown."""
    memory: LevelBytes | None = None
    """Bytes of weights in the server's memory, split among the loaded levels. None if the level is not loaded."""
    shortlist: bool = False
    """Whether the level chooses each token from a vocabulary shortlist of the text."""
    failure: str = ""
    """Why the level failed. Empty if it did not, or if it has answered a text since."""
    device_memory: LevelBytes | None = None
    """Bytes of weights and caches in the memory of CUDA devices, split among the loaded levels. None if the level is
    not loaded or runs on a CPU."""
    device: str = ""
    """Where the level runs: `cpu`, `cuda:0`, or its replicas' devices such as `cuda:0,cuda:1`. Empty if it is not
    loaded."""

    beaten_by: str = ""
    """Name of a level that is at least as fast and at least as good, and one of the two more, so that only a request by
    name gets this one. Empty if there is none."""
    estimated: bool = False
    """Whether the time by which it has its place in the order of levels is that of a cost model, because no steady one
    was measured."""

    @classmethod
    def of(cls, standing: Standing, *, is_default: bool = False, disk: LevelBytes | None = None) -> Self:
        """Describes a level of a manifest that no server has loaded."""
        level = standing.level
        return cls(
            name=level.name,
            heads=level.heads,
            heads_by_kind=level.layout.counts(),
            precision=level.precision,
            parameters=level.parameters,
            bytes=level.bytes,
            is_default=is_default,
            quality=level.quality,
            recorded_latency=level.latency,
            disk=disk,
            shortlist=level.shortlist is not None,
            beaten_by=standing.beaten_by,
            estimated=not standing.timed,
        )


@dataclass(frozen=True)
class LevelLoad:
    """The work of a loaded level at one moment."""

    model: str
    level: str
    queued: int
    """Sentences in its queue, which do not run yet."""
    queue_size: int
    """Most sentences in its queue."""
    workers: int
    """Each runs batches on threads of its own."""
    max_rows: int
    """Most hypotheses that all its workers decode together."""
    batches: tuple[BatchLoad, ...]
    memory: LevelBytes | None = None
    """Bytes of weights in the memory of the machine."""
    device_memory: LevelBytes | None = None
    """Bytes of weights and caches in the memory of CUDA devices. None on a CPU."""
    failure: str = ""
    """As in `LevelInfo`."""


@dataclass(frozen=True)
class ServerStatus:
    """The work of the loaded levels of a server at one moment."""

    levels: tuple[LevelLoad, ...]
    memory_bytes: int
    """Bytes of memory that the server's process uses for everything. 0 if unknown."""
    devices: tuple[DeviceUse, ...] = ()
    """The CUDA devices that loaded levels use."""


@dataclass(frozen=True)
class ModelInfo:
    """One model of a server: a bundle with a name."""

    name: str
    source_language: str
    """A BCP 47 tag such as `en`."""
    target_languages: tuple[str, ...]
    """Several, if the texts of the model begin with a target token."""
    bundle_version: str
    loaded_levels: int
    """Levels of it that are loaded."""


@dataclass(frozen=True)
class LevelList:
    """The levels of a bundle, in their order (`hmc.artifact.bundle.order`)."""

    levels: tuple[LevelInfo, ...]
    bundle_version: str
    source_language: str
    target_language: str
    """Languages are BCP 47 tags such as `en`."""
    device: str = ""
    """Where the levels run: `cpu` or `cuda:0`. Empty for a bundle that no server has loaded."""
    memory_bytes: int = 0
    """Bytes of memory that the server's process uses for everything. 0 if unknown."""
    devices: tuple[DeviceUse, ...] = ()
    """The CUDA devices that loaded levels use."""
