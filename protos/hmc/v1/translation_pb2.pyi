from buf.validate import validate_pb2 as _validate_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Segmentation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEGMENTATION_UNSPECIFIED: _ClassVar[Segmentation]
    SEGMENTATION_AUTO: _ClassVar[Segmentation]
    SEGMENTATION_SENTENCE: _ClassVar[Segmentation]
    SEGMENTATION_NONE: _ClassVar[Segmentation]

class HeadKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HEAD_KIND_UNSPECIFIED: _ClassVar[HeadKind]
    HEAD_KIND_ENCODER_SELF: _ClassVar[HeadKind]
    HEAD_KIND_DECODER_SELF: _ClassVar[HeadKind]
    HEAD_KIND_CROSS: _ClassVar[HeadKind]
SEGMENTATION_UNSPECIFIED: Segmentation
SEGMENTATION_AUTO: Segmentation
SEGMENTATION_SENTENCE: Segmentation
SEGMENTATION_NONE: Segmentation
HEAD_KIND_UNSPECIFIED: HeadKind
HEAD_KIND_ENCODER_SELF: HeadKind
HEAD_KIND_DECODER_SELF: HeadKind
HEAD_KIND_CROSS: HeadKind

class LevelSelector(_message.Message):
    __slots__ = ("name", "max_heads", "max_bleu_drop", "latency_budget_ms", "auto", "model", "source_language", "target_language")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MAX_HEADS_FIELD_NUMBER: _ClassVar[int]
    MAX_BLEU_DROP_FIELD_NUMBER: _ClassVar[int]
    LATENCY_BUDGET_MS_FIELD_NUMBER: _ClassVar[int]
    AUTO_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SOURCE_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    TARGET_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    name: str
    max_heads: int
    max_bleu_drop: float
    latency_budget_ms: int
    auto: bool
    model: str
    source_language: str
    target_language: str
    def __init__(self, name: _Optional[str] = ..., max_heads: _Optional[int] = ..., max_bleu_drop: _Optional[float] = ..., latency_budget_ms: _Optional[int] = ..., auto: _Optional[bool] = ..., model: _Optional[str] = ..., source_language: _Optional[str] = ..., target_language: _Optional[str] = ...) -> None: ...

class DecodingOptions(_message.Message):
    __slots__ = ("beam_size", "length_penalty", "max_length", "n_best", "min_length", "patience", "coverage_penalty", "repetition_penalty", "no_repeat_ngram_size", "suppress_unknown", "suppressed_tokens", "suppressed_phrases", "sampling", "token_scores", "alignment", "attention_heads")
    BEAM_SIZE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    MAX_LENGTH_FIELD_NUMBER: _ClassVar[int]
    N_BEST_FIELD_NUMBER: _ClassVar[int]
    MIN_LENGTH_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    NO_REPEAT_NGRAM_SIZE_FIELD_NUMBER: _ClassVar[int]
    SUPPRESS_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    SUPPRESSED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SUPPRESSED_PHRASES_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    TOKEN_SCORES_FIELD_NUMBER: _ClassVar[int]
    ALIGNMENT_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_HEADS_FIELD_NUMBER: _ClassVar[int]
    beam_size: int
    length_penalty: float
    max_length: int
    n_best: int
    min_length: int
    patience: float
    coverage_penalty: float
    repetition_penalty: float
    no_repeat_ngram_size: int
    suppress_unknown: bool
    suppressed_tokens: _containers.RepeatedScalarFieldContainer[str]
    suppressed_phrases: _containers.RepeatedScalarFieldContainer[str]
    sampling: Sampling
    token_scores: bool
    alignment: bool
    attention_heads: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, beam_size: _Optional[int] = ..., length_penalty: _Optional[float] = ..., max_length: _Optional[int] = ..., n_best: _Optional[int] = ..., min_length: _Optional[int] = ..., patience: _Optional[float] = ..., coverage_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., no_repeat_ngram_size: _Optional[int] = ..., suppress_unknown: _Optional[bool] = ..., suppressed_tokens: _Optional[_Iterable[str]] = ..., suppressed_phrases: _Optional[_Iterable[str]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., token_scores: _Optional[bool] = ..., alignment: _Optional[bool] = ..., attention_heads: _Optional[_Iterable[str]] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "seed")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    seed: int
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., seed: _Optional[int] = ...) -> None: ...

class TranslateRequest(_message.Message):
    __slots__ = ("texts", "level", "options", "target_prefixes", "segmentation", "return_segments", "keep")
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    TARGET_PREFIXES_FIELD_NUMBER: _ClassVar[int]
    SEGMENTATION_FIELD_NUMBER: _ClassVar[int]
    RETURN_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    level: LevelSelector
    options: DecodingOptions
    target_prefixes: _containers.RepeatedScalarFieldContainer[str]
    segmentation: Segmentation
    return_segments: bool
    keep: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, texts: _Optional[_Iterable[str]] = ..., level: _Optional[_Union[LevelSelector, _Mapping]] = ..., options: _Optional[_Union[DecodingOptions, _Mapping]] = ..., target_prefixes: _Optional[_Iterable[str]] = ..., segmentation: _Optional[_Union[Segmentation, str]] = ..., return_segments: _Optional[bool] = ..., keep: _Optional[_Iterable[str]] = ...) -> None: ...

class TranslateDocumentRequest(_message.Message):
    __slots__ = ("text", "level", "options", "segmentation", "keep")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTATION_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    text: str
    level: LevelSelector
    options: DecodingOptions
    segmentation: Segmentation
    keep: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, text: _Optional[str] = ..., level: _Optional[_Union[LevelSelector, _Mapping]] = ..., options: _Optional[_Union[DecodingOptions, _Mapping]] = ..., segmentation: _Optional[_Union[Segmentation, str]] = ..., keep: _Optional[_Iterable[str]] = ...) -> None: ...

class TranslateDocumentResponse(_message.Message):
    __slots__ = ("text", "segment", "level", "bundle_version")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_VERSION_FIELD_NUMBER: _ClassVar[int]
    text: str
    segment: Segment
    level: str
    bundle_version: str
    def __init__(self, text: _Optional[str] = ..., segment: _Optional[_Union[Segment, _Mapping]] = ..., level: _Optional[str] = ..., bundle_version: _Optional[str] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("source_begin", "source_end", "target_begin", "target_end", "score", "source_tokens", "target_tokens", "hit_max_length", "tokens", "source_pieces", "much_shorter", "mostly_unknown", "joined_lines")
    SOURCE_BEGIN_FIELD_NUMBER: _ClassVar[int]
    SOURCE_END_FIELD_NUMBER: _ClassVar[int]
    TARGET_BEGIN_FIELD_NUMBER: _ClassVar[int]
    TARGET_END_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TARGET_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HIT_MAX_LENGTH_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_PIECES_FIELD_NUMBER: _ClassVar[int]
    MUCH_SHORTER_FIELD_NUMBER: _ClassVar[int]
    MOSTLY_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    JOINED_LINES_FIELD_NUMBER: _ClassVar[int]
    source_begin: int
    source_end: int
    target_begin: int
    target_end: int
    score: float
    source_tokens: int
    target_tokens: int
    hit_max_length: bool
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    source_pieces: _containers.RepeatedScalarFieldContainer[str]
    much_shorter: bool
    mostly_unknown: bool
    joined_lines: int
    def __init__(self, source_begin: _Optional[int] = ..., source_end: _Optional[int] = ..., target_begin: _Optional[int] = ..., target_end: _Optional[int] = ..., score: _Optional[float] = ..., source_tokens: _Optional[int] = ..., target_tokens: _Optional[int] = ..., hit_max_length: _Optional[bool] = ..., tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ..., source_pieces: _Optional[_Iterable[str]] = ..., much_shorter: _Optional[bool] = ..., mostly_unknown: _Optional[bool] = ..., joined_lines: _Optional[int] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("texts", "references", "level", "options")
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    references: _containers.RepeatedScalarFieldContainer[str]
    level: LevelSelector
    options: DecodingOptions
    def __init__(self, texts: _Optional[_Iterable[str]] = ..., references: _Optional[_Iterable[str]] = ..., level: _Optional[_Union[LevelSelector, _Mapping]] = ..., options: _Optional[_Union[DecodingOptions, _Mapping]] = ...) -> None: ...

class TranslateTokensRequest(_message.Message):
    __slots__ = ("text", "level", "options", "target_prefix")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    TARGET_PREFIX_FIELD_NUMBER: _ClassVar[int]
    text: str
    level: LevelSelector
    options: DecodingOptions
    target_prefix: str
    def __init__(self, text: _Optional[str] = ..., level: _Optional[_Union[LevelSelector, _Mapping]] = ..., options: _Optional[_Union[DecodingOptions, _Mapping]] = ..., target_prefix: _Optional[str] = ...) -> None: ...

class TranslateTokensResponse(_message.Message):
    __slots__ = ("text", "done")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    text: str
    done: TranslateResponse
    def __init__(self, text: _Optional[str] = ..., done: _Optional[_Union[TranslateResponse, _Mapping]] = ...) -> None: ...

class TranslateResponse(_message.Message):
    __slots__ = ("translations", "level", "bundle_version", "queue_ms", "compute_ms")
    TRANSLATIONS_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_VERSION_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_MS_FIELD_NUMBER: _ClassVar[int]
    translations: _containers.RepeatedCompositeFieldContainer[Translation]
    level: str
    bundle_version: str
    queue_ms: float
    compute_ms: float
    def __init__(self, translations: _Optional[_Iterable[_Union[Translation, _Mapping]]] = ..., level: _Optional[str] = ..., bundle_version: _Optional[str] = ..., queue_ms: _Optional[float] = ..., compute_ms: _Optional[float] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("translations", "level", "bundle_version", "queue_ms", "compute_ms")
    TRANSLATIONS_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_VERSION_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_MS_FIELD_NUMBER: _ClassVar[int]
    translations: _containers.RepeatedCompositeFieldContainer[Translation]
    level: str
    bundle_version: str
    queue_ms: float
    compute_ms: float
    def __init__(self, translations: _Optional[_Iterable[_Union[Translation, _Mapping]]] = ..., level: _Optional[str] = ..., bundle_version: _Optional[str] = ..., queue_ms: _Optional[float] = ..., compute_ms: _Optional[float] = ...) -> None: ...

class TranslateStreamRequest(_message.Message):
    __slots__ = ("id", "text", "level", "options", "target_prefix", "timeout_ms")
    ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    TARGET_PREFIX_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    id: str
    text: str
    level: LevelSelector
    options: DecodingOptions
    target_prefix: str
    timeout_ms: int
    def __init__(self, id: _Optional[str] = ..., text: _Optional[str] = ..., level: _Optional[_Union[LevelSelector, _Mapping]] = ..., options: _Optional[_Union[DecodingOptions, _Mapping]] = ..., target_prefix: _Optional[str] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class TranslateStreamResponse(_message.Message):
    __slots__ = ("id", "translation", "error", "level", "bundle_version", "queue_ms", "compute_ms")
    ID_FIELD_NUMBER: _ClassVar[int]
    TRANSLATION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_VERSION_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_MS_FIELD_NUMBER: _ClassVar[int]
    id: str
    translation: Translation
    error: Error
    level: str
    bundle_version: str
    queue_ms: float
    compute_ms: float
    def __init__(self, id: _Optional[str] = ..., translation: _Optional[_Union[Translation, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., level: _Optional[str] = ..., bundle_version: _Optional[str] = ..., queue_ms: _Optional[float] = ..., compute_ms: _Optional[float] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "message", "violations")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    VIOLATIONS_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    violations: _containers.RepeatedCompositeFieldContainer[FieldViolation]
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., violations: _Optional[_Iterable[_Union[FieldViolation, _Mapping]]] = ...) -> None: ...

class FieldViolation(_message.Message):
    __slots__ = ("field", "description")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    field: str
    description: str
    def __init__(self, field: _Optional[str] = ..., description: _Optional[str] = ...) -> None: ...

class Translation(_message.Message):
    __slots__ = ("text", "score", "source_tokens", "target_tokens", "source_truncated", "hit_max_length", "alternatives", "tokens", "source_pieces", "segments", "much_shorter", "mostly_unknown", "joined_lines")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TARGET_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    HIT_MAX_LENGTH_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_PIECES_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    MUCH_SHORTER_FIELD_NUMBER: _ClassVar[int]
    MOSTLY_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    JOINED_LINES_FIELD_NUMBER: _ClassVar[int]
    text: str
    score: float
    source_tokens: int
    target_tokens: int
    source_truncated: bool
    hit_max_length: bool
    alternatives: _containers.RepeatedCompositeFieldContainer[Alternative]
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    source_pieces: _containers.RepeatedScalarFieldContainer[str]
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    much_shorter: bool
    mostly_unknown: bool
    joined_lines: int
    def __init__(self, text: _Optional[str] = ..., score: _Optional[float] = ..., source_tokens: _Optional[int] = ..., target_tokens: _Optional[int] = ..., source_truncated: _Optional[bool] = ..., hit_max_length: _Optional[bool] = ..., alternatives: _Optional[_Iterable[_Union[Alternative, _Mapping]]] = ..., tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ..., source_pieces: _Optional[_Iterable[str]] = ..., segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ..., much_shorter: _Optional[bool] = ..., mostly_unknown: _Optional[bool] = ..., joined_lines: _Optional[int] = ...) -> None: ...

class Alternative(_message.Message):
    __slots__ = ("text", "score", "target_tokens", "hit_max_length", "tokens")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    TARGET_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HIT_MAX_LENGTH_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    text: str
    score: float
    target_tokens: int
    hit_max_length: bool
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    def __init__(self, text: _Optional[str] = ..., score: _Optional[float] = ..., target_tokens: _Optional[int] = ..., hit_max_length: _Optional[bool] = ..., tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ...) -> None: ...

class Token(_message.Message):
    __slots__ = ("piece", "score", "attention")
    PIECE_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    piece: str
    score: float
    attention: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, piece: _Optional[str] = ..., score: _Optional[float] = ..., attention: _Optional[_Iterable[float]] = ...) -> None: ...

class ListLevelsRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "source_language", "target_languages", "bundle_version", "loaded_levels")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    TARGET_LANGUAGES_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_VERSION_FIELD_NUMBER: _ClassVar[int]
    LOADED_LEVELS_FIELD_NUMBER: _ClassVar[int]
    name: str
    source_language: str
    target_languages: _containers.RepeatedScalarFieldContainer[str]
    bundle_version: str
    loaded_levels: int
    def __init__(self, name: _Optional[str] = ..., source_language: _Optional[str] = ..., target_languages: _Optional[_Iterable[str]] = ..., bundle_version: _Optional[str] = ..., loaded_levels: _Optional[int] = ...) -> None: ...

class ListLevelsResponse(_message.Message):
    __slots__ = ("levels", "bundle_version", "source_language", "target_language", "device", "memory_bytes", "devices")
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_VERSION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    TARGET_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    levels: _containers.RepeatedCompositeFieldContainer[Level]
    bundle_version: str
    source_language: str
    target_language: str
    device: str
    memory_bytes: int
    devices: _containers.RepeatedCompositeFieldContainer[DeviceUse]
    def __init__(self, levels: _Optional[_Iterable[_Union[Level, _Mapping]]] = ..., bundle_version: _Optional[str] = ..., source_language: _Optional[str] = ..., target_language: _Optional[str] = ..., device: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., devices: _Optional[_Iterable[_Union[DeviceUse, _Mapping]]] = ...) -> None: ...

class DeviceUse(_message.Message):
    __slots__ = ("device", "reserved", "budget", "free")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    RESERVED_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    device: str
    reserved: int
    budget: int
    free: int
    def __init__(self, device: _Optional[str] = ..., reserved: _Optional[int] = ..., budget: _Optional[int] = ..., free: _Optional[int] = ...) -> None: ...

class Level(_message.Message):
    __slots__ = ("name", "heads", "heads_by_kind", "precision", "parameters", "bytes", "loaded", "is_default", "quality", "latency", "recorded_latency", "disk", "memory", "shortlist", "failure", "device_memory", "device", "beaten_by", "estimated")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    HEADS_BY_KIND_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    LOADED_FIELD_NUMBER: _ClassVar[int]
    IS_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    QUALITY_FIELD_NUMBER: _ClassVar[int]
    LATENCY_FIELD_NUMBER: _ClassVar[int]
    RECORDED_LATENCY_FIELD_NUMBER: _ClassVar[int]
    DISK_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    SHORTLIST_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_MEMORY_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    BEATEN_BY_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_FIELD_NUMBER: _ClassVar[int]
    name: str
    heads: int
    heads_by_kind: _containers.RepeatedCompositeFieldContainer[KindHeads]
    precision: str
    parameters: int
    bytes: int
    loaded: bool
    is_default: bool
    quality: Quality
    latency: Latency
    recorded_latency: RecordedLatency
    disk: LevelBytes
    memory: LevelBytes
    shortlist: bool
    failure: str
    device_memory: LevelBytes
    device: str
    beaten_by: str
    estimated: bool
    def __init__(self, name: _Optional[str] = ..., heads: _Optional[int] = ..., heads_by_kind: _Optional[_Iterable[_Union[KindHeads, _Mapping]]] = ..., precision: _Optional[str] = ..., parameters: _Optional[int] = ..., bytes: _Optional[int] = ..., loaded: _Optional[bool] = ..., is_default: _Optional[bool] = ..., quality: _Optional[_Union[Quality, _Mapping]] = ..., latency: _Optional[_Union[Latency, _Mapping]] = ..., recorded_latency: _Optional[_Union[RecordedLatency, _Mapping]] = ..., disk: _Optional[_Union[LevelBytes, _Mapping]] = ..., memory: _Optional[_Union[LevelBytes, _Mapping]] = ..., shortlist: _Optional[bool] = ..., failure: _Optional[str] = ..., device_memory: _Optional[_Union[LevelBytes, _Mapping]] = ..., device: _Optional[str] = ..., beaten_by: _Optional[str] = ..., estimated: _Optional[bool] = ...) -> None: ...

class LevelBytes(_message.Message):
    __slots__ = ("own", "shared")
    OWN_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    own: int
    shared: int
    def __init__(self, own: _Optional[int] = ..., shared: _Optional[int] = ...) -> None: ...

class KindHeads(_message.Message):
    __slots__ = ("kind", "heads_per_layer")
    KIND_FIELD_NUMBER: _ClassVar[int]
    HEADS_PER_LAYER_FIELD_NUMBER: _ClassVar[int]
    kind: HeadKind
    heads_per_layer: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, kind: _Optional[_Union[HeadKind, str]] = ..., heads_per_layer: _Optional[_Iterable[int]] = ...) -> None: ...

class Quality(_message.Message):
    __slots__ = ("bleu", "chrf", "bleu_delta", "ci_low", "ci_high", "p_value", "test_set", "bleu_signature", "chrf_signature", "reference_level", "sentences", "beam")
    BLEU_FIELD_NUMBER: _ClassVar[int]
    CHRF_FIELD_NUMBER: _ClassVar[int]
    BLEU_DELTA_FIELD_NUMBER: _ClassVar[int]
    CI_LOW_FIELD_NUMBER: _ClassVar[int]
    CI_HIGH_FIELD_NUMBER: _ClassVar[int]
    P_VALUE_FIELD_NUMBER: _ClassVar[int]
    TEST_SET_FIELD_NUMBER: _ClassVar[int]
    BLEU_SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    CHRF_SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    SENTENCES_FIELD_NUMBER: _ClassVar[int]
    BEAM_FIELD_NUMBER: _ClassVar[int]
    bleu: float
    chrf: float
    bleu_delta: float
    ci_low: float
    ci_high: float
    p_value: float
    test_set: str
    bleu_signature: str
    chrf_signature: str
    reference_level: str
    sentences: int
    beam: int
    def __init__(self, bleu: _Optional[float] = ..., chrf: _Optional[float] = ..., bleu_delta: _Optional[float] = ..., ci_low: _Optional[float] = ..., ci_high: _Optional[float] = ..., p_value: _Optional[float] = ..., test_set: _Optional[str] = ..., bleu_signature: _Optional[str] = ..., chrf_signature: _Optional[str] = ..., reference_level: _Optional[str] = ..., sentences: _Optional[int] = ..., beam: _Optional[int] = ...) -> None: ...

class Latency(_message.Message):
    __slots__ = ("p50_ms", "p95_ms", "p99_ms", "requests")
    P50_MS_FIELD_NUMBER: _ClassVar[int]
    P95_MS_FIELD_NUMBER: _ClassVar[int]
    P99_MS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    p50_ms: float
    p95_ms: float
    p99_ms: float
    requests: int
    def __init__(self, p50_ms: _Optional[float] = ..., p95_ms: _Optional[float] = ..., p99_ms: _Optional[float] = ..., requests: _Optional[int] = ...) -> None: ...

class RecordedLatency(_message.Message):
    __slots__ = ("p50_ms", "p95_ms", "p99_ms", "batch", "beam", "requests", "machine", "steady")
    P50_MS_FIELD_NUMBER: _ClassVar[int]
    P95_MS_FIELD_NUMBER: _ClassVar[int]
    P99_MS_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    BEAM_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    STEADY_FIELD_NUMBER: _ClassVar[int]
    p50_ms: float
    p95_ms: float
    p99_ms: float
    batch: int
    beam: int
    requests: int
    machine: str
    steady: bool
    def __init__(self, p50_ms: _Optional[float] = ..., p95_ms: _Optional[float] = ..., p99_ms: _Optional[float] = ..., batch: _Optional[int] = ..., beam: _Optional[int] = ..., requests: _Optional[int] = ..., machine: _Optional[str] = ..., steady: _Optional[bool] = ...) -> None: ...

class LoadLevelRequest(_message.Message):
    __slots__ = ("name", "model")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    name: str
    model: str
    def __init__(self, name: _Optional[str] = ..., model: _Optional[str] = ...) -> None: ...

class LoadLevelResponse(_message.Message):
    __slots__ = ("level",)
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    level: Level
    def __init__(self, level: _Optional[_Union[Level, _Mapping]] = ...) -> None: ...

class UnloadLevelRequest(_message.Message):
    __slots__ = ("name", "model")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    name: str
    model: str
    def __init__(self, name: _Optional[str] = ..., model: _Optional[str] = ...) -> None: ...

class UnloadLevelResponse(_message.Message):
    __slots__ = ("level",)
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    level: Level
    def __init__(self, level: _Optional[_Union[Level, _Mapping]] = ...) -> None: ...

class ReloadRequest(_message.Message):
    __slots__ = ("bundle_path", "model")
    BUNDLE_PATH_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    bundle_path: str
    model: str
    def __init__(self, bundle_path: _Optional[str] = ..., model: _Optional[str] = ...) -> None: ...

class ReloadResponse(_message.Message):
    __slots__ = ("bundle_version", "levels")
    BUNDLE_VERSION_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    bundle_version: str
    levels: _containers.RepeatedCompositeFieldContainer[Level]
    def __init__(self, bundle_version: _Optional[str] = ..., levels: _Optional[_Iterable[_Union[Level, _Mapping]]] = ...) -> None: ...

class SetDefaultLevelRequest(_message.Message):
    __slots__ = ("name", "model")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    name: str
    model: str
    def __init__(self, name: _Optional[str] = ..., model: _Optional[str] = ...) -> None: ...

class SetDefaultLevelResponse(_message.Message):
    __slots__ = ("level",)
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    level: Level
    def __init__(self, level: _Optional[_Union[Level, _Mapping]] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("levels", "memory_bytes", "devices")
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    levels: _containers.RepeatedCompositeFieldContainer[LevelLoad]
    memory_bytes: int
    devices: _containers.RepeatedCompositeFieldContainer[DeviceUse]
    def __init__(self, levels: _Optional[_Iterable[_Union[LevelLoad, _Mapping]]] = ..., memory_bytes: _Optional[int] = ..., devices: _Optional[_Iterable[_Union[DeviceUse, _Mapping]]] = ...) -> None: ...

class LevelLoad(_message.Message):
    __slots__ = ("model", "level", "queued", "queue_size", "workers", "max_rows", "batches", "memory", "device_memory", "failure")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SIZE_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    MAX_ROWS_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    DEVICE_MEMORY_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    model: str
    level: str
    queued: int
    queue_size: int
    workers: int
    max_rows: int
    batches: _containers.RepeatedCompositeFieldContainer[RunningBatch]
    memory: LevelBytes
    device_memory: LevelBytes
    failure: str
    def __init__(self, model: _Optional[str] = ..., level: _Optional[str] = ..., queued: _Optional[int] = ..., queue_size: _Optional[int] = ..., workers: _Optional[int] = ..., max_rows: _Optional[int] = ..., batches: _Optional[_Iterable[_Union[RunningBatch, _Mapping]]] = ..., memory: _Optional[_Union[LevelBytes, _Mapping]] = ..., device_memory: _Optional[_Union[LevelBytes, _Mapping]] = ..., failure: _Optional[str] = ...) -> None: ...

class RunningBatch(_message.Message):
    __slots__ = ("worker", "sentences", "rows", "interactive")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    SENTENCES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    INTERACTIVE_FIELD_NUMBER: _ClassVar[int]
    worker: int
    sentences: int
    rows: int
    interactive: bool
    def __init__(self, worker: _Optional[int] = ..., sentences: _Optional[int] = ..., rows: _Optional[int] = ..., interactive: _Optional[bool] = ...) -> None: ...
