"""Bundles that versions of HMC with each schema wrote: they are read, or refused, as documented.

`tests/data/bundle_schema_N.tar.gz` has a model of 1 + 1 layers with 2 heads each, in fp32 and int8. The HMC of that
time wrote it, so the bundle of schema 2 has no greedy decoder. `python -m tests.artifact.bundle.write_schema` writes
the one of the present version.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import pytest
from tests.tiny import SENTENCES

from hmc.artifact import InvalidArtifactError, bundle_problems, read_manifest, validate
from hmc.artifact.bundle.manifest import READABLE, SCHEMA_VERSION, write_manifest
from hmc.serving import DecodeOptions, Translator

DATA = Path(__file__).parents[2] / "data"
TRANSLATIONS = {
    1: ["enen cTTTTT", "enenenenenenenen", "eno cageTenenen"],
    2: ["oyoyenenenenenen", "enenenenenenenen", "oyaddTTTTTT"],
}
"""Beam size → what the versions that wrote the bundles translated SENTENCES to, in fp32, at most 8 tokens each."""


@pytest.fixture
def bundle(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The bundle of a schema version."""
    with tarfile.open(DATA / f"bundle_schema_{request.param}.tar.gz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # since Python 3.11.4
        archive.extractall(tmp_path)
    path = tmp_path / f"schema_{request.param}"
    assert json.loads((path / "bundle.json").read_text())["schema_version"] == request.param
    return path


def test_there_is_a_bundle_of_every_schema() -> None:
    assert READABLE[-1] == SCHEMA_VERSION
    assert all((DATA / f"bundle_schema_{n}.tar.gz").is_file() for n in range(1, SCHEMA_VERSION + 1))


@pytest.mark.parametrize("bundle", [1], indirect=True)
def test_schema_1_is_refused(bundle: Path) -> None:
    """Its graphs have no inputs for the caches of today's decoders."""
    message = rf"schema version 1; this hmc reads versions 2 to {SCHEMA_VERSION}\n.*compile the"
    with pytest.raises(InvalidArtifactError, match=message):
        validate(bundle)


@pytest.mark.parametrize("bundle", READABLE, indirect=True)
def test_readable_schemas_are_whole_and_translate_as_before(bundle: Path) -> None:
    manifest = validate(bundle)
    assert [level.name for level in manifest.levels] == ["full", "full-int8"]
    for beam, expected in TRANSLATIONS.items():
        options = DecodeOptions(beam_size=beam, max_length=8)
        with Translator(bundle, "full", device="cpu", threads=1, cache="none") as translator:
            assert [
                found.text for found in translator.translate(SENTENCES[:3], options, segmentation="none")
            ] == expected
        with Translator(bundle, "full-int8", device="cpu", threads=1, cache="none") as translator:
            assert all(found.text for found in translator.translate(SENTENCES[:3], options, segmentation="none"))


@pytest.mark.parametrize("bundle", [5], indirect=True)
def test_graphs_that_nothing_opens_any_more_change_nothing(bundle: Path) -> None:
    """Levels in device form once had `resize_rows.onnx` and `resize_tree.onnx`."""
    manifest = read_manifest(bundle)
    for name in ("full/resize_rows.onnx", "full/resize_tree.onnx"):
        shutil.copy(bundle / "full/decoder.onnx", bundle / name)
        manifest.level("full").files[name] = manifest.level("full").files["full/decoder.onnx"]
    write_manifest(manifest, bundle)
    assert validate(bundle) == read_manifest(bundle)
    with Translator(bundle, "full", device="cpu", threads=1, cache="none") as translator:
        found = translator.translate(SENTENCES[:3], DecodeOptions(beam_size=1, max_length=8), segmentation="none")
    assert [each.text for each in found] == TRANSLATIONS[1]


@pytest.mark.parametrize("bundle", [5], indirect=True)
def test_schema_5_says_how_significance_was_computed(bundle: Path) -> None:
    """An HMC that does not know the field refuses the bundle for its version, and so advises to upgrade."""
    raw = json.loads((bundle / "bundle.json").read_text())
    assert raw["levels"][1]["quality"]["significance"]["test"] == "sacrebleu paired-ar"
    quality = read_manifest(bundle).level("full-int8").quality
    assert quality is not None
    assert quality.significance is not None


@pytest.mark.parametrize("bundle", [2, 3], indirect=True)
def test_a_changed_manifest_without_a_digest_is_not_noticed(bundle: Path) -> None:
    """The digest came with schema 4."""
    raw = json.loads((bundle / "bundle.json").read_text())
    assert "digest" not in raw
    raw["architecture"]["pad_id"] = 3
    (bundle / "bundle.json").write_text(json.dumps(raw))
    assert read_manifest(bundle).architecture.pad_id == 3
    assert bundle_problems(bundle) == []


@pytest.mark.parametrize("bundle", [4, 5, 6], indirect=True)
def test_a_changed_manifest_with_a_digest_is_refused(bundle: Path) -> None:
    """A changed pad_id changes translations, and only the digest shows it."""
    raw = json.loads((bundle / "bundle.json").read_text())
    raw["architecture"]["pad_id"] = 3
    (bundle / "bundle.json").write_text(json.dumps(raw))
    assert bundle_problems(bundle) == ["bundle.json is not as it was written: its digest differs"]
