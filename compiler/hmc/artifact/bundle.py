"""The bundle directory: bundle.json, a tokenizer, one folder a level, shared content-addressed weights."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hmc.artifact.architecture import Architecture
from hmc.artifact.errors import InvalidArtifactError, LevelNotFoundError
from hmc.artifact.heads import HeadLayout
from hmc.artifact.tokenizer_files import TOKENIZER

SCHEMA_VERSION = 4
READABLE = (2, 3, 4)
"""Schema versions that are read; 2 knows no shortlists, 3 has no digest of the manifest."""
MANIFEST, WEIGHTS = "bundle.json", "weights"
TEMPORARY = f".{MANIFEST}.new"
LEVEL_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""What a level may be called."""
FIX = "Compile it again with `hmc compile`, or copy it again from where it was whole."
READ_FIX = "Let this user read it."
Precision = Literal["fp32", "int8", "int4", "fp16", "bf16"]
ON_CUDA: tuple[Precision, ...] = ("fp16", "bf16")
"""Precisions whose levels run on CUDA; the others run on a CPU."""
Variant = Literal["greedy", "attention", "sampling"]
"""A decoder graph beside `decoder.onnx`, for requests of one kind: "greedy" is faster for sentences of one row;
the others can do more. All share its weights."""
VARIANTS: tuple[Variant, ...] = get_args(Variant)


class Strict(BaseModel):
    """Unknown fields are errors: a typo in a manifest must not pass."""

    model_config = ConfigDict(extra="forbid")


class Quality(Strict):
    """Scores of one level on one test set, beside those of level `full` in fp32 or, without it, the first level."""

    test_set: str
    sentences: int
    beam: int
    bleu: float
    chrf: float
    bleu_delta: float
    """BLEU minus the reference level's BLEU."""
    ci_low: float
    """95 % confidence interval of bleu_delta (paired bootstrap resampling, Koehn 2004)."""
    ci_high: float
    p_value: float
    """Share of resamples in which the difference has the other sign, two-sided."""
    reference_level: str
    bleu_signature: str
    chrf_signature: str


class Latency(Strict):
    """Measured milliseconds of one translation request of `batch` sentences at `beam`."""

    p50_ms: float
    p95_ms: float
    p99_ms: float
    batch: int
    beam: int
    requests: int
    machine: str


class Level(Strict):
    """One head layout at one precision."""

    name: str = Field(pattern=LEVEL_NAME)
    precision: Precision
    head_layout: dict[str, list[list[int]]]
    parameters: int
    """Parameters of the slim model (positions not counted)."""
    bytes: int
    """Bytes of this level's graphs and of all weights they refer to, shared or not."""
    source_checkpoint: str
    """sha256 digest of the checkpoint (see `checkpoint_digest`)."""
    files: dict[str, str]
    """Path within the bundle → sha256, for the graphs and every weight file they refer to. A bundle may lack the
    decoder's variants."""
    shortlist: str | None = None
    """Path within the bundle of the lexicon that vocabulary shortlists are made with (see `Lexicon`); None: the level
    chooses among all tokens."""
    fp32_layers: tuple[str, ...] = Field(default=(), exclude_if=lambda layers: not layers)
    """Linears and attention layers of an int8 or int4 level that stay in fp32, as it would lose quality with them in
    8 bits."""
    quality: Quality | None = None
    latency: Latency | None = None

    @property
    def on_cuda(self) -> bool:
        """Whether it is for CUDA."""
        return self.precision in ON_CUDA

    @property
    def layout(self) -> HeadLayout:
        """The open heads."""
        return HeadLayout.from_json(self.head_layout)

    @property
    def heads(self) -> int:
        """Number of open heads."""
        return self.layout.total


class Manifest(Strict):
    """Contents of `bundle.json`."""

    schema_version: int = SCHEMA_VERSION
    digest: str = ""
    """sha256 of the rest (see `manifest_digest`), from schema version 4 on; `write_manifest` sees to it."""
    version: str
    """Bundle version: first 16 hex digits of a digest over every level's files."""
    created_by: str
    source_language: str
    target_language: str
    architecture: Architecture
    tokenizer_sha256: str | dict[str, str]
    """sha256 of `tokenizer.model`; or, for a Marian tokenizer, name → sha256 of its files."""
    levels: list[Level] = Field(min_length=1)
    default_level: str
    provenance: dict[str, Any] = {}

    @property
    def tokenizer_files(self) -> dict[str, str]:
        """Name → sha256 of every tokenizer file."""
        digests = self.tokenizer_sha256
        return {TOKENIZER: digests} if isinstance(digests, str) else dict(digests)

    def level(self, name: str) -> Level:
        """The level called `name`. Raises LevelNotFoundError that lists the names there are."""
        for level in self.levels:
            if level.name == name:
                return level
        raise LevelNotFoundError(f"unknown level {name!r}; this bundle has: {', '.join(x.name for x in self.levels)}")

    def level_with_at_most(self, heads: int) -> Level:
        """The level with most heads among those with at most `heads` open ones (ties: first in the manifest)."""
        fitting = [level for level in self.levels if level.heads <= heads]
        if not fitting:
            smallest = min(self.levels, key=lambda x: x.heads)
            raise LevelNotFoundError(
                f"no level has at most {heads} heads; the smallest is {smallest.name!r} with {smallest.heads}"
            )
        return max(fitting, key=lambda x: x.heads)


def encoder_path(level: str) -> str:
    """Path of a level's encoder graph within the bundle."""
    return f"{level}/encoder.onnx"


def decoder_path(level: str, variant: Variant | None = None) -> str:
    """Path of a level's decoder-step graph within the bundle."""
    return f"{level}/decoder_{variant}.onnx" if variant else f"{level}/decoder.onnx"


def shortlist_path(level: str) -> str:
    """Path within the bundle of the graph that a level with vocabulary shortlists has besides."""
    return f"{level}/shortlist.onnx"


def lexicon_path(digest: str) -> str:
    """Path within the bundle of a lexicon with this sha256."""
    return f"{WEIGHTS}/{digest[:16]}.safetensors"


def read_manifest(path: Path | str) -> Manifest:
    """Parses bundle.json alone. Raises InvalidArtifactError; files are checked by `bundle_checks.validate`."""
    path = Path(path)
    raw = _read_json(path)
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version not in READABLE:
        problem = f"schema version {version!r}; this hmc reads versions {READABLE[0]} to {READABLE[-1]}"
        raise InvalidArtifactError(
            f"bundle {path}", [problem], "Upgrade hmc, or compile the bundle again with this version."
        )
    if ("digest" in raw or version > 3) and raw.get("digest") != manifest_digest(raw):
        raise InvalidArtifactError(f"bundle {path}", [f"{MANIFEST} is not as it was written: its digest differs"], FIX)
    try:
        return Manifest.model_validate(raw)
    except ValidationError as error:
        problems = [f"{MANIFEST}: {'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise InvalidArtifactError(f"bundle {path}", problems, FIX) from error


def _read_json(path: Path) -> Any:
    """What `path / MANIFEST` says. Raises InvalidArtifactError."""
    file = path / MANIFEST
    try:
        if not file.is_file():
            fix = "Give the directory `hmc compile -o` wrote."
            raise InvalidArtifactError(f"bundle {path}", [f"{MANIFEST} is missing"], fix)
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArtifactError(
            f"bundle {path}", [f"{MANIFEST} cannot be read: {error.strerror}"], READ_FIX
        ) from error
    except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, a number without end, too many brackets
        raise InvalidArtifactError(f"bundle {path}", [f"{MANIFEST} is not JSON: {error}"], FIX) from error


def manifest_digest(raw: dict[str, Any]) -> str:
    """Of the manifest as JSON with sorted keys and without spaces, but for the digest itself."""
    described = {key: value for key, value in raw.items() if key != "digest"}
    return hashlib.sha256(json.dumps(described, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write_manifest(manifest: Manifest, path: Path | str) -> None:
    """Writes bundle.json into the bundle directory, replacing it atomically."""
    target = Path(path) / MANIFEST
    temporary = target.with_name(TEMPORARY)
    described = manifest.model_dump(mode="json") | {"schema_version": SCHEMA_VERSION}
    described["digest"] = manifest_digest(described)
    temporary.write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
    temporary.replace(target)
