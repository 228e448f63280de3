"""The bundle directory: bundle.json, a tokenizer, one folder a level, shared content-addressed weights."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from hmc.artifact.errors import InvalidArtifactError, InvalidRequestError, LevelNotFoundError, field_problems
from hmc.artifact.git_lfs import why
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.model.heads import HeadLayout
from hmc.artifact.precisions import PRECISIONS, Precision
from hmc.artifact.storage.files import replace_directory, unfinished, write_whole
from hmc.artifact.storage.formats import Format, check_replaceable, mistaken
from hmc.artifact.tokenizer.files import EVERY, TOKENIZER

SCHEMA_VERSION = 6
READABLE = (2, 3, 4, 5, 6)
"""Schema versions that are read. 3 added shortlists, 4 the manifest's digest, 5 `Quality.significance`, 6
`Latency.steady`. The graphs of 1 have other inputs."""
MANIFEST = "bundle.json"
WEIGHTS = "weights"
LEVEL_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
RESERVED = frozenset((MANIFEST, WEIGHTS, *EVERY))
"""Names in a bundle that no level can have."""
FIX = "Compile it again with `hmc compile`, or copy it again from where it was whole."
READ_FIX = "Let this user read it."
StepVariant = Literal["greedy", "attention", "sampling"]
"""A decoder step beside `decoder.onnx`, for a search on the host: "greedy" is faster for sentences of one row,
"attention" also returns attention weights, "sampling" also samples tokens."""
SearchVariant = Literal["search_greedy", "search_beam"]
"""A decoder step with the search inside, for levels in device form: greedy search, and beam search."""
Variant = StepVariant | SearchVariant
"""A decoder graph beside `decoder.onnx`, which shares its weights."""
VARIANTS: tuple[StepVariant, ...] = get_args(StepVariant)
"""Those that every level has."""
SEARCH_VARIANTS: tuple[SearchVariant, ...] = get_args(SearchVariant)
"""Those that only levels in device form have."""


def check_level_name(name: str) -> None:
    """Raises InvalidRequestError for a name that no level can have, because its folder has that name."""
    if problem := _name_problem(name):
        raise InvalidRequestError(problem)


def _name_problem(name: str) -> str | None:
    if not re.fullmatch(LEVEL_NAME, name):
        return (
            f"{name!r} is no name for a level: it has letters, digits, '.', '_' and '-', and begins with a letter or "
            "a digit"
        )
    if name in RESERVED:
        return f"a level cannot be called {name}: a bundle has a file or folder of that name"
    return None


class Strict(BaseModel):
    """Unknown fields are errors, so that a typo in a manifest is noticed."""

    model_config = ConfigDict(extra="forbid")


class Significance(Strict):
    """How the p-value and the interval of a quality were computed (see `hmc.artifact.significance`)."""

    test: str
    """Name of the test that gives the p-value."""
    trials: int
    """Random trials of that test."""
    resamples: int
    """Bootstrap resamples of the interval."""
    seed: int
    """Seed of both."""


class KindQuality(Strict):
    """Scores of one level on text of one kind."""

    sentences: int
    bleu: float
    bleu_delta: float
    """BLEU minus the reference level's BLEU."""
    ci_low: float
    """95 % confidence interval of bleu_delta."""
    ci_high: float


class Quality(Strict):
    """Scores of one level on one test set, compared with level `full` in fp32 or, without it, with the first level.

    If the test set has several kinds of text, BLEU, chrF and the difference are means over the kinds; all kinds count
    alike.
    """

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
    """Two-sided p-value of bleu_delta by the test that `significance` names."""
    reference_level: str
    bleu_signature: str
    chrf_signature: str
    significance: Significance | None = None
    """None in a server's answers, and in bundles scored before the test was recorded. The p-value of such a bundle is
    twice the share of bootstrap resamples in which the difference is zero or has the other sign. None too with `kinds`:
    interval and p-value of the mean follow from the intervals of the kinds, which are independent texts."""
    kinds: dict[str, KindQuality] = Field(default={}, exclude_if=lambda kinds: not kinds)
    """Kind of text → scores on it. Empty: not scored by kind."""
    command: str = Field(default="", exclude_if=lambda command: not command)
    """What repeats the scores. Empty: not noted."""


class Latency(Strict):
    """Measured milliseconds of one translation request of `batch` sentences at `beam`.

    Percentiles are over the requests, each as its fastest round was. Before schema version 6 every round counted.
    """

    p50_ms: float
    p95_ms: float
    p99_ms: float
    batch: int
    beam: int
    requests: int
    machine: str
    steady: bool | None = Field(default=None, exclude_if=lambda steady: steady is None)
    """Whether the rounds agreed. If not, a cost model ranks the level. None: not checked, for want of rounds."""


class Level(Strict):
    """One head layout at one precision."""

    name: str
    precision: Precision
    head_layout: dict[str, list[list[int]]]
    parameters: int
    """Parameters of the slim model (positions not counted)."""
    bytes: int
    """Bytes of this level's graphs and of all weights they refer to, shared or not."""
    source_checkpoint: str
    """sha256 digest of the checkpoint (see `checkpoint_digest`)."""
    files: dict[str, str]
    """Path within the bundle → sha256, of the graphs, the step program and every weight file that they read. Decoder
    variants may be missing. A program may also read weights of wider levels, which those list."""
    shortlist: str | None = None
    """Path within the bundle of the `Lexicon` for vocabulary shortlists; None: the level has none."""
    fp32_layers: tuple[str, ...] = Field(default=(), exclude_if=lambda layers: not layers)
    """Layers of an int8 or int4 level that stay in fp32, because they would cost quality in 8 bits."""
    quality: Quality | None = None
    latency: Latency | None = None

    @field_validator("name")
    @classmethod
    def _can_be_a_folder(cls, name: str) -> str:
        if problem := _name_problem(name):
            raise ValueError(problem)
        return name

    @property
    def on_cuda(self) -> bool:
        """Whether the level runs on CUDA; otherwise it runs on a CPU."""
        return PRECISIONS[self.precision].device == "cuda"

    @cached_property
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
    """sha256 of all other fields (see `manifest_digest`), from schema version 4 on. `write_manifest` computes it."""
    version: str
    """Bundle version: 16 hex digits of a digest over the levels' names and files, and the tokenizer."""
    created_by: str
    source_language: str
    target_language: str
    architecture: Architecture
    tokenizer_sha256: str | dict[str, str]
    """sha256 of `tokenizer.model`; or, for a Marian tokenizer, name → sha256 of its files."""
    levels: list[Level] = Field(min_length=1)
    default_level: str
    """The recommended level (`hmc.artifact.bundle.order`), which serves where no other one is asked for."""
    provenance: dict[str, Any] = {}

    @property
    def tokenizer_files(self) -> dict[str, str]:
        """Name → sha256 of every tokenizer file."""
        digests = self.tokenizer_sha256
        return {TOKENIZER: digests} if isinstance(digests, str) else dict(digests)

    @property
    def digests(self) -> dict[str, str]:
        """Path within the bundle → sha256, of the files of all levels."""
        digests: dict[str, str] = {}
        for level in self.levels:
            digests |= level.files
        return digests

    def level(self, name: str) -> Level:
        """The level called `name`. Raises LevelNotFoundError that lists the names of the levels."""
        for level in self.levels:
            if level.name == name:
                return level
        raise LevelNotFoundError(f"unknown level {name!r}; this bundle has: {', '.join(x.name for x in self.levels)}")


def encoder_path(level: str) -> str:
    """Path of a level's encoder graph within the bundle."""
    return f"{level}/encoder.onnx"


def decoder_path(level: str, variant: Variant | None = None) -> str:
    """Path of a level's decoder-step graph within the bundle."""
    return f"{level}/decoder_{variant}.onnx" if variant else f"{level}/decoder.onnx"


def collect_path(level: str) -> str:
    """Path within the bundle of the graph that reads ended searches, for a level in device form."""
    return f"{level}/collect.onnx"


def shortlist_path(level: str) -> str:
    """Path within the bundle of the additional graph of a level with vocabulary shortlists."""
    return f"{level}/shortlist.onnx"


def lexicon_path(digest: str) -> str:
    """Path within the bundle of a lexicon with this sha256."""
    return f"{WEIGHTS}/{digest[:16]}.safetensors"


def read_manifest(path: Path | str) -> Manifest:
    """Parses bundle.json alone; `hmc.artifact.bundle.checks.validate` checks the files. Raises InvalidArtifactError."""
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
        problems = [f"{MANIFEST}: {problem}" for problem in field_problems(error)]
        raise InvalidArtifactError(f"bundle {path}", problems, FIX) from error


def _read_json(path: Path) -> Any:
    """The content of `path / MANIFEST`. Raises InvalidArtifactError."""
    file = path / MANIFEST
    try:
        if not file.is_file():
            missing = f"{MANIFEST} is missing", "Give the directory `hmc compile -o` wrote."
            problem, fix = mistaken(path, "bundle") or missing
            raise InvalidArtifactError(f"bundle {path}", [problem], fix)
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArtifactError(
            f"bundle {path}", [f"{MANIFEST} cannot be read: {error.strerror}"], READ_FIX
        ) from error
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, a number too long, brackets nested too deep
        problem = f"{MANIFEST} {why(file, f'is not JSON: {error}')}"
        raise InvalidArtifactError(f"bundle {path}", [problem], FIX) from error


def manifest_digest(raw: dict[str, Any]) -> str:
    """sha256 of the manifest without its digest, as JSON with sorted keys and without spaces."""
    described = {key: value for key, value in raw.items() if key != "digest"}
    return hashlib.sha256(json.dumps(described, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write_manifest(manifest: Manifest, path: Path | str) -> None:
    """Writes bundle.json into the bundle directory, replacing it atomically."""
    described = manifest.model_dump(mode="json") | {"schema_version": SCHEMA_VERSION}
    described["digest"] = manifest_digest(described)
    write_whole(Path(path) / MANIFEST, json.dumps(described, indent=1) + "\n")


def _files(manifest: dict[str, Any]) -> Iterable[str]:
    """Files that a manifest lists. It may be of any version, and invalid."""
    listed = {unfinished(MANIFEST), *EVERY}
    for level in manifest["levels"]:
        if isinstance(level, dict) and isinstance(level.get("files"), dict):
            listed.update(level["files"])
    return listed


FORMAT = Format("a bundle", MANIFEST, lambda content: isinstance(content.get("levels"), list), _files)


@contextmanager
def replace_bundle(out: Path, inputs: Iterable[Path]) -> Iterator[Path]:
    """Yields an empty directory that takes `out`'s place when the block ends; on an error, `out` stays as it was.

    inputs: checkpoints and files that are read. Raises InvalidRequestError where `out` holds one of them, or files that
    do not belong to a bundle.
    """
    check_replaceable(out, FORMAT, inputs)
    with replace_directory(out, FORMAT) as folder:
        yield folder
