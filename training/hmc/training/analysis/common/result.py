"""The result of an analysis: data (see `records`) as JSON, with the model, text, settings and versions it came from.

Numbers per head are stored as one row per open head. A pruned model numbers its open heads from 0 in every attention;
results name a head by its index in the unpruned model. Reading a result needs no PyTorch.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from platform import python_version
from typing import Any, Generic, TypeVar

import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hmc.artifact.checkpoint.checkpoint import Checkpoint
from hmc.artifact.distribution import versions_of
from hmc.artifact.errors import InvalidRequestError, field_problems
from hmc.artifact.git_lfs import why
from hmc.artifact.model.heads import KINDS, AttentionKind, Head, HeadLayout
from hmc.artifact.storage.files import write_whole
from hmc.training.analysis.common.records import DATA, ComparisonData, CurvePoint, OfHead, OfModel

SCHEMA_VERSION = 1
NUMBERS = frozenset({"importance", "mean", "variance", "least", "most", "value", "low", "high"})
"""Fields of results that must be finite numbers wherever they occur. A single sample has no standard error."""
Place = tuple[AttentionKind, int]
"""One attention of a model: kind and layer."""
HeadTable = dict[AttentionKind, list[list[float | None]]]
"""kind → layers → heads at their original indices; None for a closed head."""
Data = TypeVar("Data")
Row = TypeVar("Row", bound=OfHead)
WITHIN = 1.0
"""BLEU points that `masked_within` allows."""


class CheckpointSource(BaseModel):
    """A checkpoint that was analysed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """Its path as it was given."""
    digest: str
    """`checkpoint_digest`: sha256 over config and weights; in a result of `survivors`, over config alone."""
    heads: int
    """Open heads."""


class CorpusSource(BaseModel):
    """A text that was read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """The corpus as it was given."""
    sentences: int
    sha256: str
    """Over the sentences that were used, so that a limit on their number changes it."""
    left_out: list[str] = Field(default=[], exclude_if=lambda reasons: not reasons)
    """What of the corpus was not used, and why, for users."""


def corpus_source(name: str, sentences: Iterable[str | tuple[str, ...]], left_out: Sequence[str] = ()) -> CorpusSource:
    """Digest of sentences, or of tuples of aligned sentences (one line each, sides separated by TAB)."""
    digest = hashlib.sha256()
    count = 0
    for count, sentence in enumerate(sentences, 1):  # noqa: B007
        line = sentence if isinstance(sentence, str) else "\t".join(sentence)
        digest.update(f"{line}\n".encode())
    return CorpusSource(name=name, sentences=count, sha256=digest.hexdigest(), left_out=list(left_out))


def _versions() -> dict[str, str]:
    return {"python": python_version(), **versions_of("torch", "numpy", "sacrebleu", "sentencepiece")}


class Result(BaseModel, Generic[Data]):
    """Contents of `COMMAND.json`: no time and no machine, so the same inputs and versions give the same bytes."""

    model_config = ConfigDict(extra="forbid")

    schema_version: int = SCHEMA_VERSION
    command: str
    """The subcommand of `hmc analyze`."""
    checkpoints: list[CheckpointSource] = []
    corpora: list[CorpusSource] = []
    settings: dict[str, Any] = {}
    """Options that change the numbers, including the seed."""
    versions: dict[str, str] = Field(default_factory=_versions)
    """Of Python, HMC and the libraries that numbers depend on."""
    data: Data
    """What was found, one of `DATA`."""

    def to_json(self) -> str:
        """JSON text; NaN and infinity become null."""
        return json.dumps(_plain(self.model_dump(mode="json")), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_plain, value))
    return value


def write_result(result: Result[Any], folder: Path) -> Path:
    """Writes `folder / COMMAND.json` and returns its path. The file appears only when it is complete."""
    path = folder / f"{result.command}.json"
    write_whole(path, result.to_json(), several=True)
    return path


def read_result(path: Path, commands: Sequence[str] = ()) -> Result[Any]:
    """Reads what `write_result` wrote.

    commands: the analyses whose results the caller accepts; empty: all. Raises InvalidRequestError for a file that
    cannot be read, is no such result, or holds NaN, infinity or null where a number is needed.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"), parse_constant=_not_a_number)
        result = Result[Any].model_validate({"versions": {}} | raw if isinstance(raw, dict) else raw)
    except OSError as error:
        raise InvalidRequestError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise _unreadable(path, error) from error
    if result.schema_version != SCHEMA_VERSION:
        raise InvalidRequestError(
            f"{path}: schema version {result.schema_version}; this hmc reads {SCHEMA_VERSION}: run the analysis again"
        )
    if result.command not in (commands or DATA):
        raise InvalidRequestError(
            f"{path} is a result of {result.command}; needed is one of {', '.join(commands or DATA)}"
        )
    if missing := next(_missing_numbers(result.data), None):
        raise InvalidRequestError(
            f"{path}: {missing} is not a number: the analysis computed NaN or infinity; run it again with an earlier "
            "checkpoint"
        )
    try:
        result.data = DATA[result.command].model_validate(result.data)
        if isinstance(result.data, ComparisonData):
            kind = DATA[result.data.analysis]
            result.data.systems = {name: kind.model_validate(data) for name, data in result.data.systems.items()}
    except ValueError as error:
        raise _unreadable(path, error) from error
    return result


def _unreadable(path: Path, error: ValueError) -> InvalidRequestError:
    detail = "; ".join(field_problems(error)) if isinstance(error, ValidationError) else str(error)
    return InvalidRequestError(f"{path} {why(path, f'is not a result of `hmc analyze`: {detail}')}")


def _not_a_number(constant: str) -> float:
    raise ValueError(f"it holds {constant}, which is not a number")


def _missing_numbers(value: Any, place: str = "data") -> Iterator[str]:
    """Places in a result's data where a field of NUMBERS is null, a string or a boolean."""
    if isinstance(value, dict):
        for key, inner in value.items():
            within = f"{place}.{key}"
            if key in NUMBERS and (isinstance(inner, str | bool) or inner is None):
                yield within
            yield from _missing_numbers(inner, within)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _missing_numbers(inner, f"{place}.{number}")


def add_to(sums: dict[Place, npt.NDArray[Any]], place: Place, values: npt.NDArray[Any]) -> None:
    """Adds values to the sums of an attention, which begin with 0."""
    sums[place] = sums.get(place, 0) + values


def in_order(values: Mapping[Place, Any], layout: HeadLayout) -> list[Any]:
    """Values of the open heads of each attention → one list in the order of `layout.heads()`."""
    return [values[head.kind, head.layer][layout[head.kind][head.layer].index(head.index)] for head in layout.heads()]


def model_shape(checkpoint: Checkpoint) -> dict[str, Any]:
    """Fields of `OfModel`."""
    return {"layout": checkpoint.layout.to_json(), "heads_per_layer": checkpoint.architecture.heads}


def table_of(shape: OfModel, rows: Iterable[Row], value: Callable[[Row], float]) -> HeadTable:
    """Values of heads as kind → layers → heads at original indices.

    shape: of the model. rows: of some of its open heads. None is a closed head, NaN an open head without a row.
    """
    table: HeadTable = {}
    for kind in KINDS:
        table[kind] = [[None] * shape.heads_per_layer for _ in shape.layout[kind]]
        for layer, indices in enumerate(shape.layout[kind]):
            for index in indices:
                table[kind][layer][index] = math.nan
    for row in rows:
        table[row.kind][row.layer][row.index] = value(row)
    return table


def parse_heads(names: Sequence[str], layout: HeadLayout) -> list[Head]:
    """Names such as `cross.0.3` → heads. Raises InvalidRequestError for a name that is no open head of `layout`."""
    known = {str(head): head for head in layout.heads()}
    heads = []
    for name in names:
        kind, _, rest = name.partition(".")
        layer, _, index = rest.partition(".")
        if kind not in KINDS or not (layer.isdecimal() and index.isdecimal()):
            raise InvalidRequestError(
                f"head {name!r}: write KIND.LAYER.INDEX, e.g. cross.0.3; kinds: {', '.join(KINDS)}"
            )
        if name not in known:
            raise InvalidRequestError(
                f"head {name} is not open in this checkpoint; open heads of that layer: "
                f"{', '.join(h for h in known if h.startswith(f'{kind}.{layer}.')) or 'none'}"
            )
        heads.append(known[name])
    return heads


def masked_within(curve: Sequence[CurvePoint]) -> int:
    """Largest number of heads masked, group by group, with BLEU at most WITHIN points below the BLEU of all heads."""
    whole = curve[0].metric("bleu").value
    most = 0
    for point in curve:
        if whole - point.metric("bleu").value > WITHIN:
            break
        most = point.masked
    return most
