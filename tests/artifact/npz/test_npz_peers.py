"""An imported Marian model translates as Transformers does with the same weights, and as CTranslate2 does with the
same .npz file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.artifact.npz.marian_writer import plain_entries, write_release
from tests.bundles import bundle_at, translated
from tests.tiny import SENTENCES

from hmc.artifact import save_checkpoint
from hmc.artifact.checkpoint.weights import Tensors
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.npz.reader import import_release
from hmc.artifact.tokenizer.tokenizer import open_tokenizer

LIMIT = 24
TEXTS = [*SENTENCES, f">>deu<< {SENTENCES[0]}", f">>nld<< {SENTENCES[1]}"]
pytestmark = pytest.mark.filterwarnings("ignore")  # what other libraries warn of is not ours to fix


def ours(release: Path, folder: Path, beam: int) -> list[str]:
    """Translations of the imported model by HMC's engine."""
    if not folder.exists():
        save_checkpoint(import_release(release), folder / "c")
        bundle_at(folder / "b", folder / "c")
    return translated(folder / "b", TEXTS, beam_size=beam, max_length=LIMIT)


def write_transformers(folder: Path, release: Path, arch: Architecture, tensors: Tensors) -> None:
    """The directory of the same weights that Transformers reads, written without HMC's exporter."""
    folder.mkdir()
    source, target = ((release / name).read_bytes() for name in ("source.spm", "target.spm"))
    pieces = [*plain_entries(source, target), "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}), encoding="utf-8")
    for name, content in (("source.spm", source), ("target.spm", target)):
        (folder / name).write_bytes(content)
    config = {
        "model_type": "marian", "architectures": ["MarianMTModel"], "vocab_size": len(pieces), "d_model": 64,
        "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "activation_function": "swish", "max_position_embeddings": 512,
        "scale_embedding": True, "static_position_embeddings": True, "eos_token_id": 0, "pad_token_id": arch.pad_id,
        "decoder_start_token_id": arch.pad_id, "bad_words_ids": [[arch.pad_id]],
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"source_lang": "eng", "target_lang": "deu"}))
    named = {f"model.{name}": value for name, value in tensors.items() if name != "final_logits_bias"}
    named["final_logits_bias"] = tensors["final_logits_bias"][None]
    save_file(named, folder / "model.safetensors", metadata={"format": "pt"})


def test_transformers_translates_alike(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    arch, tensors = write_release(tmp_path / "opus", seed=5)
    write_transformers(tmp_path / "hf", tmp_path / "opus", arch, tensors)
    tokenizer = transformers.MarianTokenizer.from_pretrained(tmp_path / "hf")
    model = transformers.MarianMTModel.from_pretrained(tmp_path / "hf").eval()
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True)
    for beam in (1, 4):
        generated = model.generate(**batch, num_beams=beam, max_length=LIMIT + 1)
        expected = tokenizer.batch_decode(generated, skip_special_tokens=True)
        assert expected == ours(tmp_path / "opus", tmp_path / "ours", beam)
        assert len(set(expected)) > len(SENTENCES) // 2


@pytest.mark.parametrize(
    "fields",
    [{}, {"pre_norm": True, "stack_norms": True, "own_output": True}, {"two": True}],
    ids=["opus", "norms first, own output", "two vocabularies"],
)
def test_ctranslate2_reads_the_same_file_alike(tmp_path: Path, fields: dict[str, bool]) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    release = tmp_path / "opus"
    write_release(release, seed=5, **fields)  # type: ignore[arg-type]
    vocabularies = sorted(map(str, release.glob("*.yml")))[-2 if fields.get("two") else -1 :]
    converter = ctranslate2.converters.MarianConverter(str(release / "opus.npz"), vocabularies)
    converter.convert(str(tmp_path / "ct2"))
    translator = ctranslate2.Translator(str(tmp_path / "ct2"), device="cpu", inter_threads=1, intra_threads=1)
    tokenizer = open_tokenizer(import_release(release).tokenizer)
    sources = [[tokenizer.source_piece(i) for i in tokenizer.encode(text)] for text in TEXTS]
    results = translator.translate_batch(sources, beam_size=1, max_decoding_length=LIMIT)
    numbers = {tokenizer.piece(i): i for i in range(tokenizer.size)}
    texts = [tokenizer.decode([numbers[piece] for piece in result.hypotheses[0]]) for result in results]
    assert texts == ours(release, tmp_path / "ours", 1)
    assert len(set(texts)) > len(SENTENCES) // 2


def test_another_weight_is_noticed(tmp_path: Path) -> None:
    """The comparison is strict enough to see one matrix that is not turned."""
    write_release(tmp_path / "opus", seed=5)
    before = ours(tmp_path / "opus", tmp_path / "before", 1)
    with np.load(tmp_path / "opus" / "opus.npz") as stored:
        arrays = dict(stored)
    arrays["decoder_l1_context_Wq"] = arrays["decoder_l1_context_Wq"].T
    np.savez(tmp_path / "opus" / "opus.npz", **arrays)
    assert ours(tmp_path / "opus", tmp_path / "after", 1) != before
