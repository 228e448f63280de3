"""A trained model under Marian's names translates real text as it does in Transformers.

`HMC_NPZ_SENTENCES=1000 python -m pytest -s tests/artifact/npz/test_npz_trained.py` compares more sentences.
"""

from __future__ import annotations

import json
import os
import shutil
from itertools import islice
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file
from tests.artifact.npz.marian_writer import marian_arrays, options_text, write_arrays, yaml_vocabulary
from tests.bundles import bundle_at, translated

from hmc.artifact import save_checkpoint
from hmc.artifact.marian.reader import import_marian
from hmc.artifact.npz.reader import import_release
from hmc.artifact.storage.rows import text_lines

SENTENCES = int(os.environ.get("HMC_NPZ_SENTENCES", "40"))
NEAR_TIES = 0.002
"""Share of the sentences that may differ: where two hypotheses score alike, rounding decides."""
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # what other libraries warn of is not ours


@pytest.fixture(scope="module")
def both(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same weights as a directory of Transformers and as a release of OPUS-MT. Marian starts from a zero embedding
    and cannot write pad, so pad's row is made zero, and its bias -10 000."""
    if not (data / "marian-en-de").is_dir() or not (data / "multi30k").is_dir():
        pytest.skip("HMC_DATA does not hold marian-en-de and multi30k")
    folder = tmp_path_factory.mktemp("npz")
    theirs, release = folder / "hf", folder / "opus"
    shutil.copytree(data / "marian-en-de", theirs, copy_function=shutil.copyfile)
    theirs.chmod(0o755)  # the original may be read-only
    tensors = load_file(theirs / "model.safetensors")
    pad = import_marian(theirs).architecture.pad_id
    for name, value in tensors.items():
        if name.endswith(("shared.weight", "embed_tokens.weight", "lm_head.weight")):
            value[pad] = 0
    tensors["final_logits_bias"][..., pad] = -1e4
    save_file(tensors, theirs / "model.safetensors", metadata={"format": "pt"})
    checkpoint = import_marian(theirs)
    arch = checkpoint.architecture
    release.mkdir()
    write_arrays(release / "opus.npz", marian_arrays(dict(checkpoint.tensors), arch), options_text(arch))
    pieces = json.loads((theirs / "vocab.json").read_text(encoding="utf-8"))
    ordered = sorted((piece for piece in pieces if pieces[piece] != pad), key=lambda piece: pieces[piece])
    (release / "opus.vocab.yml").write_text(yaml_vocabulary(ordered), encoding="utf-8")
    for name in ("source.spm", "target.spm"):
        shutil.copy(theirs / name, release / name)
    (release / "decoder.yml").write_text("models:\n  - opus.npz\nvocabs:\n  - opus.vocab.yml\n  - opus.vocab.yml\n")
    (release / "README.md").write_text("* source language(s): eng\n* target language(s): deu\n")
    return theirs, release


def test_a_trained_model_translates_as_in_transformers(both: tuple[Path, Path], data: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    theirs, release = both
    texts = list(islice(text_lines(data / "multi30k" / "test_2016_flickr.en.gz"), SENTENCES))
    save_checkpoint(import_release(release), tmp_path / "c")
    bundle_at(tmp_path / "b", tmp_path / "c")
    tokenizer = transformers.MarianTokenizer.from_pretrained(theirs)
    model = transformers.MarianMTModel.from_pretrained(theirs).eval()
    for beam in (1, 4):
        expected = []
        for start in range(0, len(texts), 20):
            batch = tokenizer(texts[start : start + 20], return_tensors="pt", padding=True)
            found = model.generate(**batch, num_beams=beam, max_length=129)
            expected += tokenizer.batch_decode(found, skip_special_tokens=True)
        ours = translated(tmp_path / "b", texts, beam_size=beam, max_length=128)
        equal = sum(a == b for a, b in zip(expected, ours, strict=True))
        print(f"beam {beam}: {equal} of {len(texts)} equal")
        assert equal >= len(texts) * (1 - NEAR_TIES)
