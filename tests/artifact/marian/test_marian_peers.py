"""Exported directories in Transformers and in CTranslate2, where those are installed."""

from pathlib import Path

import pytest
from tests.artifact.marian.opus import opus_directory
from tests.bundles import bundle_at, translated
from tests.tiny import SENTENCES, random_layout, tiny_architecture, tiny_checkpoint_at

from hmc.artifact import Checkpoint, load_checkpoint, save_checkpoint
from hmc.artifact.marian.reader import import_marian
from hmc.artifact.marian.writer import export_marian
from hmc.artifact.tokenizer.tokenizer import open_tokenizer

ARCH = tiny_architecture(d_model=64)
LIMIT = 24
pytestmark = pytest.mark.filterwarnings("ignore")  # what other libraries warn of is not ours to fix


@pytest.fixture(params=["full", "slim", "imported"])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Checkpoint:
    """Three checkpoints: a joint tokenizer with all heads, the same with closed heads, and a Marian tokenizer."""
    if request.param == "imported":
        opus_directory(tmp_path / "opus")
        save_checkpoint(import_marian(tmp_path / "opus"), tmp_path / "c")
        return load_checkpoint(tmp_path / "c")
    layout = random_layout(ARCH, 2) if request.param == "slim" else ARCH.full_layout()
    return tiny_checkpoint_at(tmp_path / "c", arch=ARCH, layout=layout)


def ours(tmp_path: Path, beam: int) -> list[str]:
    """Translations of the checkpoint by HMC's engine."""
    bundle_at(tmp_path / "b", tmp_path / "c")
    return translated(tmp_path / "b", SENTENCES, beam_size=beam, max_length=LIMIT)


def test_transformers_tokenizes_and_translates_alike(checkpoint: Checkpoint, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    export_marian(checkpoint, tmp_path / "m", masked=True)
    tokenizer = transformers.MarianTokenizer.from_pretrained(tmp_path / "m")
    model = transformers.MarianMTModel.from_pretrained(tmp_path / "m").eval()
    exported = open_tokenizer(import_marian(tmp_path / "m").tokenizer)
    assert [tokenizer(t)["input_ids"] for t in SENTENCES] == [[*exported.encode(t), exported.eos_id] for t in SENTENCES]
    batch = tokenizer(SENTENCES, return_tensors="pt", padding=True)
    options = {"no_repeat_ngram_size": 0, "forced_eos_token_id": None, "max_length": LIMIT + 1}
    for beam in (1, 4):
        generated = model.generate(**batch, num_beams=beam, **options)
        assert tokenizer.batch_decode(generated, skip_special_tokens=True) == ours(tmp_path, beam)


def test_ctranslate2_translates_alike(checkpoint: Checkpoint, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="CTranslate2's converter needs transformers, which is not installed")
    ctranslate2 = pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    export_marian(checkpoint, tmp_path / "m", masked=True)
    ctranslate2.converters.TransformersConverter(str(tmp_path / "m")).convert(str(tmp_path / "ct2"))
    translator = ctranslate2.Translator(str(tmp_path / "ct2"), device="cpu", inter_threads=1, intra_threads=1)
    exported = import_marian(tmp_path / "m")
    tokenizer = open_tokenizer(exported.tokenizer)
    import json

    assert not isinstance(exported.tokenizer, bytes)
    names = {i: piece for piece, i in json.loads(exported.tokenizer.vocabulary).items()}
    sources = [[*(names[i] for i in tokenizer.encode(t)), "</s>"] for t in SENTENCES]
    results = translator.translate_batch(sources, beam_size=1, max_decoding_length=LIMIT)
    numbers = {piece: i for i, piece in names.items()}
    texts = [tokenizer.decode([numbers[p] for p in result.hypotheses[0]]) for result in results]
    assert texts == ours(tmp_path, 1)
