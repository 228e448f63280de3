"""Text to source ids and target ids to text, with the bundle's tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from weakref import WeakValueDictionary

from hmc.artifact.bundle import FIX, Manifest
from hmc.artifact.errors import InvalidArtifactError, InvalidRequestError
from hmc.artifact.tokenizer import open_tokenizer
from hmc.artifact.tokenizer_files import from_contents
from hmc.serving.opening import check_unchanged
from hmc.serving.options import MAX_TEXT_BYTES


class Tokenizer:
    """One per bundle (`shared_tokenizer`); thread-safe."""

    def __init__(self, bundle: Path, manifest: Manifest) -> None:
        """Reads the files that the manifest names. Raises InvalidArtifactError when one cannot be read,
        FailedPreconditionError for one that is not what it was when the bundle was checked."""
        self._arch = manifest.architecture
        for name in manifest.tokenizer_files:
            check_unchanged(bundle, name, manifest.tokenizer_files)
        try:
            contents = {name: (bundle / name).read_bytes() for name in manifest.tokenizer_files}
            self._tokenizer = open_tokenizer(from_contents(contents))
        except OSError as error:
            raise InvalidArtifactError(f"bundle {bundle}", [f"tokenizer: {error}"], FIX) from error
        except InvalidArtifactError as error:
            raise InvalidArtifactError(f"bundle {bundle}", error.problems, FIX) from error

    def encode(self, text: str) -> tuple[list[int], bool]:
        """Ids with EOS last, and whether the text was cut to the model's positions.

        Raises InvalidRequestError when the text is longer than MAX_TEXT_BYTES, is not encodable as UTF-8, or asks for
        a target language that the model does not have.
        """
        _check(text)
        ids = self._tokenizer.encode(text)
        room = self._arch.max_positions - 1
        return [*ids[:room], self._arch.eos_id], len(ids) > room

    def encode_target(self, text: str) -> list[int]:
        """Ids of a text in the target language, without EOS. Raises InvalidRequestError as `encode`."""
        _check(text)
        return self._tokenizer.encode(text, target=True)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of target ids."""
        return self._tokenizer.decode(ids)

    def piece(self, token: int) -> str:
        """How the vocabulary writes a target token, `▁` for the start of a word."""
        return self._tokenizer.piece(token)

    def source_piece(self, token: int) -> str:
        """The same of a source token."""
        return self._tokenizer.source_piece(token)

    def find(self, piece: str) -> int | None:
        """The target token that the vocabulary writes so; None if there is none."""
        return self._tokenizer.find(piece)


_shared: WeakValueDictionary[str, Tokenizer] = WeakValueDictionary()


def shared_tokenizer(bundle: Path, manifest: Manifest) -> Tokenizer:
    """The tokenizer that every level of a bundle has in common: it is read once while any of them is loaded.

    Raises InvalidArtifactError as `Tokenizer`.
    """
    key = manifest.model_dump_json(include={"architecture", "tokenizer_sha256"})
    tokenizer = _shared.get(key) or Tokenizer(bundle, manifest)
    return _shared.setdefault(key, tokenizer)


def _check(text: str) -> None:
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"text is not valid Unicode ({error.reason} at {error.start}); decode it as UTF-8"
        ) from error
    if size > MAX_TEXT_BYTES:
        raise InvalidRequestError(
            f"text of {size:,} bytes is over the limit of {MAX_TEXT_BYTES:,}; split it into sentences and send those"
        )
