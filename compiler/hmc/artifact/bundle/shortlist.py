"""Vocabulary shortlists: the few target tokens that the translation of one source sentence may need.

With them the output projection computes a row for each candidate instead of one for each token of the vocabulary (Jean
et al. 2015, section 3.3; L'Hostis et al. 2016). Marian and CTranslate2 build their lists the same way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from hmc.artifact.errors import InvalidArtifactError
from hmc.artifact.git_lfs import why
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.storage.files import write_whole

SCHEMA_VERSION = 1
HEADER = "lexicon"
"""The only entry of the file's metadata, a JSON object. Several entries would be written in an arbitrary order."""
DTYPES = {"always": np.dtype(np.int32), "starts": np.dtype(np.int64), "targets": np.dtype(np.int32)}
FIX = "Learn it again with `hmc compile`, or copy it again from where it was whole."


@dataclass(frozen=True, eq=False)
class Lexicon:
    """Target tokens that every sentence may need, and translations of each source token.

    V is the size of the target vocabulary, and S the size of the source vocabulary. Most models share one.
    """

    always: npt.NDArray[np.int32]
    """`[F]`, ascending: candidates of every sentence, EOS and unk among them."""
    starts: npt.NDArray[np.int64]
    """`[S + 1]`: translations of source token v are `targets[starts[v]:starts[v + 1]]`."""
    targets: npt.NDArray[np.int32]
    """`[E]`: translations, best first for each source token."""
    pad_id: int
    """Never a candidate."""
    target_size: int | None = None
    """V, if sources have their own vocabulary. None: both share one, and V = S."""

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.source_size if self.target_size is None else self.target_size

    @property
    def source_size(self) -> int:
        """S."""
        return len(self.starts) - 1

    def candidates(self, source: Sequence[int], also: Sequence[int] = ()) -> npt.NDArray[np.int64]:
        """The candidates of a sentence `[C]`, ascending, each once: `always`, the translations of `source`, and `also`.

        source: token ids of one sentence, 0 to S - 1. If both sides share a vocabulary, these are candidates too, as
        names and numbers are copied. also: target tokens that must be candidates, such as the tokens of a prefix.
        """
        ids = np.asarray(source, np.int64)
        rows = zip(self.starts[ids].tolist(), self.starts[ids + 1].tolist(), strict=True)
        needed = np.zeros(self.vocab_size, np.bool_)  # faster than np.unique
        if self.target_size is None:
            needed[ids] = True
        needed[np.asarray(also, np.int64)] = True
        needed[np.concatenate([self.always, *(self.targets[start:end] for start, end in rows)])] = True
        needed[self.pad_id] = False
        return np.flatnonzero(needed)

    def problems(self, arch: Architecture) -> list[str]:
        """Every reason why this lexicon cannot be used with a model of `arch`; empty if it can."""
        return _array_problems(self._arrays()) or _value_problems(self, arch)

    def save(self, path: Path | str) -> None:
        """Writes a safetensors file; the same lexicon gives the same bytes."""
        header = {"pad_id": self.pad_id, "schema_version": SCHEMA_VERSION, "vocab_size": self.vocab_size}
        if self.target_size is not None:
            header["source_vocab_size"] = self.source_size
        arrays = {name: np.ascontiguousarray(array) for name, array in self._arrays().items()}
        write_whole(Path(path), save(arrays, {HEADER: json.dumps(header)}))

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {"always": self.always, "starts": self.starts, "targets": self.targets}

    @classmethod
    def load(cls, path: Path | str, arch: Architecture) -> Lexicon:
        """Reads what `save` wrote, for a model of `arch`. Raises InvalidArtifactError that lists every problem."""
        path = Path(path)
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            wrong = why(path, f"is not readable: {error}")
            raise InvalidArtifactError(f"lexicon {path}", [f"{path.name} {wrong}"], FIX) from error
        header, problems = _read_header(metadata)
        problems += _array_problems(arrays)
        if not problems:
            own = "source_vocab_size" in header
            target_size = header["vocab_size"] if own else None
            lexicon = cls(arrays["always"], arrays["starts"], arrays["targets"], header["pad_id"], target_size)
            named = header["source_vocab_size" if own else "vocab_size"]
            if named != lexicon.source_size:
                problems.append(f"its header names {named} tokens, it has {lexicon.source_size}")
            problems += lexicon.problems(arch)
            if not problems:
                return lexicon
        raise InvalidArtifactError(f"lexicon {path}", problems, FIX)


def _read_header(metadata: Mapping[str, str]) -> tuple[dict[str, int], list[str]]:
    """The header and its problems."""
    try:
        header = json.loads(metadata.get(HEADER, ""))
    except json.JSONDecodeError:
        return {}, [f"its metadata has no {HEADER!r} entry, or one that is not JSON"]
    if not isinstance(header, dict) or header.get("schema_version") != SCHEMA_VERSION:
        version = header.get("schema_version") if isinstance(header, dict) else None
        return {}, [f"schema version {version!r}; this hmc reads version {SCHEMA_VERSION}: upgrade hmc"]
    names = ("pad_id", "vocab_size", *(n for n in ("source_vocab_size",) if n in header))
    return header, [f"its header has no whole number {n!r}" for n in names if type(header.get(n)) is not int]


def _array_problems(arrays: Mapping[str, npt.NDArray[Any]]) -> list[str]:
    """Problems of form: names, types and ranks."""
    problems = [f"tensor {name} is missing" for name in DTYPES if name not in arrays]
    problems += [f"tensor {name} does not belong in a lexicon" for name in sorted(arrays) if name not in DTYPES]
    for name in (name for name in DTYPES if name in arrays):
        array = arrays[name]
        expected = DTYPES[name]
        if array.dtype != expected or array.ndim != 1:
            problems.append(f"tensor {name} is {array.dtype} {list(array.shape)}, expected a list of {expected}")
    if not problems and not len(arrays["starts"]):
        problems.append("tensor starts is empty")
    return problems


def _value_problems(lexicon: Lexicon, arch: Architecture) -> list[str]:
    """Problems of content, given that the form is right."""
    problems = []
    size = lexicon.vocab_size
    if size != arch.vocab_size:
        problems.append(f"it is for a vocabulary of {size} tokens, the model has {arch.vocab_size}")
    if lexicon.source_size != arch.source_size or (lexicon.target_size is None) != (arch.source_vocab_size is None):
        problems.append(f"it is for {lexicon.source_size} source tokens, the model has {arch.source_size}")
    if lexicon.pad_id != arch.pad_id:
        problems.append(f"its pad_id is {lexicon.pad_id}, the model's is {arch.pad_id}")
    starts = lexicon.starts
    total = len(lexicon.targets)
    if starts[0] != 0 or starts[-1] != total or (np.diff(starts) < 0).any():
        problems.append(f"tensor starts must rise from 0 to {total}, the number of translations")
    if (np.diff(lexicon.always) <= 0).any():
        problems.append("tensor always is not in ascending order, each token once")
    for name, ids in (("always", lexicon.always), ("targets", lexicon.targets)):
        if outside := np.count_nonzero((ids < 0) | (ids >= size)):
            problems.append(f"tensor {name} has {outside} token ids outside 0 to {size - 1}")
        if arch.pad_id in ids:
            problems.append(f"tensor {name} has the padding token {arch.pad_id}")
    problems += [
        f"tensor always lacks the {name} token {token}"
        for name, token in (("end-of-sentence", arch.eos_id), ("unknown", arch.unk_id))
        if token not in lexicon.always
    ]
    return problems
