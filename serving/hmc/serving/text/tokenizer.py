"""Text to source ids and target ids to text, with the bundle's tokenizer."""

from __future__ import annotations

from pathlib import Path
from weakref import WeakValueDictionary

from hmc.artifact.bundle.manifest import FIX, Manifest
from hmc.artifact.errors import InvalidArtifactError, InvalidRequestError, TooLargeError
from hmc.artifact.tokenizer.files import from_contents
from hmc.artifact.tokenizer.tokenizer import LANGUAGE_CODE, open_tokenizer
from hmc.engine.runtime.graphs import check_unchanged
from hmc.serving.requests.options import MAX_TEXT_BYTES
from hmc.serving.requests.source_side import SourceSide


class BundleTokenizer:
    """One per bundle (`shared_tokenizer`). Thread-safe."""

    def __init__(self, bundle: Path, manifest: Manifest) -> None:
        """Reads the files that the manifest names. Raises InvalidArtifactError for a file that cannot be read,
        FailedPreconditionError for one that has changed since the bundle was checked."""
        self._arch = manifest.architecture
        for name in manifest.tokenizer_files:
            check_unchanged(bundle, name, manifest.tokenizer_files)
        try:
            contents = {name: (bundle / name).read_bytes() for name in manifest.tokenizer_files}
            self.tokenizer = open_tokenizer(from_contents(contents))
            """The tokenizer itself, which takes texts of any length."""
        except OSError as error:
            raise InvalidArtifactError(f"bundle {bundle}", [f"tokenizer: {error}"], FIX) from error
        except InvalidArtifactError as error:
            raise InvalidArtifactError(f"bundle {bundle}", error.problems, FIX) from error

    def check(self, text: str) -> None:
        """Raises InvalidRequestError for a text longer than MAX_TEXT_BYTES, and for one that UTF-8 cannot encode."""
        _check(text)

    def encode(self, text: str) -> tuple[list[int], bool]:
        """Source ids, EOS last, and whether the text was cut because it has more tokens than the model has positions.

        Raises InvalidRequestError for a text longer than MAX_TEXT_BYTES, for one that UTF-8 cannot encode, and for a
        target language that the model does not have.
        """
        _check(text)
        ids = self.tokenizer.encode(text)
        most = self._arch.max_positions - 1
        return [*ids[:most], self._arch.eos_id], len(ids) > most

    @property
    def room(self) -> int:
        """Most tokens of a source text, EOS not counted."""
        return self._arch.max_positions - 1

    def count(self, text: str) -> int:
        """Tokens of a source text, EOS not counted. Raises InvalidRequestError as `encode`."""
        _check(text)
        return len(self.tokenizer.encode(text))

    def code(self, text: str) -> str:
        """The code of the target language that a source text begins with, and the white space around it. Empty if the
        text begins with no such code, or if the model has no codes."""
        codes: list[str] = getattr(self.tokenizer, "codes", [])
        match = LANGUAGE_CODE.match(text) if codes else None
        return match[0] if match else ""

    def source_side(self, language: str, target_language: str) -> SourceSide:
        """What dividing texts needs to know. Languages are BCP 47 tags."""
        return SourceSide(language, target_language, self.room, self.count, self.code)

    def encode_target(self, text: str) -> list[int]:
        """Ids of a text in the target language, without EOS. Raises InvalidRequestError as `encode`."""
        _check(text)
        return self.tokenizer.encode(text, target=True)


_shared: WeakValueDictionary[str, BundleTokenizer] = WeakValueDictionary()


def shared_tokenizer(bundle: Path, manifest: Manifest) -> BundleTokenizer:
    """The tokenizer of a bundle. All loaded levels share one, which is freed with the last of them.

    Raises InvalidArtifactError and FailedPreconditionError as `BundleTokenizer`.
    """
    key = manifest.model_dump_json(include={"architecture", "tokenizer_sha256"})
    tokenizer = _shared.get(key) or BundleTokenizer(bundle, manifest)
    return _shared.setdefault(key, tokenizer)


def _check(text: str) -> None:
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"text is not valid Unicode ({error.reason} at {error.start}); decode it as UTF-8"
        ) from error
    if size > MAX_TEXT_BYTES:
        raise TooLargeError(
            f"text of {size:,} bytes is over the limit of {MAX_TEXT_BYTES:,}; divide it, or let segmentation do it"
        )
