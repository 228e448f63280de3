"""A tiny MarianMT directory with a vocabulary and an embedding for each side, written without HMC's exporter."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from tests.artifact.marian.opus import CODES, GERMAN, edit, opus_directory, pieces_model, pieces_of
from tests.tiny import SENTENCES, random_tensors, tiny_architecture

from hmc.artifact.model.architecture import Architecture


def vocabulary_of(pieces: list[str], *, pad_last: bool, codes: tuple[str, ...] = ()) -> dict[str, int]:
    """`</s>` has id 0 and `<unk>` id 1. Pad has id 2, or the last one, as Transformers' converter writes it."""
    words = [*pieces[2:], *codes]
    names = ["</s>", "<unk>", *words, "<pad>"] if pad_last else ["</s>", "<unk>", "<pad>", *words]
    return {piece: number for number, piece in enumerate(names)}


def two_vocabularies(path: Path, *, seed: int = 0, pad_last: bool = False) -> Architecture:
    """Writes the directory. The vocabularies have 113 and 101 entries; with pad_last, both have 100."""
    opus_directory(path, seed=seed)
    source, target = pieces_model(SENTENCES, 97 if pad_last else 110), pieces_model(GERMAN, 99 if pad_last else 100)
    sides = (
        vocabulary_of(pieces_of(source), pad_last=pad_last, codes=CODES),
        vocabulary_of(pieces_of(target), pad_last=pad_last),
    )
    (path / "source.spm").write_bytes(source)
    (path / "target.spm").write_bytes(target)
    for name, vocabulary in zip(("vocab.json", "target_vocab.json"), sides, strict=True):
        (path / name).write_text(json.dumps(vocabulary), encoding="utf-8")
    pad = sides[0]["<pad>"]
    fields = {
        "vocab_size": len(sides[0]), "decoder_vocab_size": len(sides[1]), "share_encoder_decoder_embeddings": False,
        "pad_token_id": pad, "decoder_start_token_id": pad, "bad_words_ids": [[pad]],
    }  # fmt: skip
    edit(path / "config.json", **fields)
    edit(path / "generation_config.json", forced_eos_token_id=None, no_repeat_ngram_size=None)
    edit(path / "tokenizer_config.json", separate_vocabs=True)
    arch = tiny_architecture(vocab_size=len(sides[1]), source_vocab_size=len(sides[0]), pad_id=pad, d_model=64)
    write_two(path, random_tensors(arch, arch.full_layout(), seed))
    return arch


def write_two(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """model.safetensors under the names of MarianMTModel, from the checkpoint's tensors."""
    named = {f"model.{name}": value for name, value in tensors.items()}
    named["model.decoder.embed_tokens.weight"] = named.pop("model.shared.weight")
    named["final_logits_bias"] = named.pop("model.final_logits_bias")[None]
    save_file(named, path / "model.safetensors", metadata={"format": "pt"})


def separated(marian: Path, path: Path, seed: int = 0) -> None:
    """Writes the joint model of `marian` with two vocabularies. Target ids are shuffled, except special ones.

    It translates as before, because only the ids of target tokens have changed.
    """
    shutil.copytree(marian, path, copy_function=shutil.copyfile)
    path.chmod(0o755)  # the original may be read-only
    vocabulary = json.loads((path / "vocab.json").read_text(encoding="utf-8"))
    fixed = [vocabulary[piece] for piece in ("</s>", "<unk>", "<pad>")]
    order = np.arange(len(vocabulary))  # new id → old id
    loose = np.setdiff1d(order, fixed)
    order[loose] = np.random.default_rng(seed).permutation(loose)
    names = {number: piece for piece, number in vocabulary.items()}
    shuffled = {names[old]: new for new, old in enumerate(order.tolist())}
    (path / "target_vocab.json").write_text(json.dumps(shuffled), encoding="utf-8")
    tensors = load_file(path / "model.safetensors")
    shared = tensors.pop("model.shared.weight")
    tensors["model.encoder.embed_tokens.weight"] = shared
    tensors["model.decoder.embed_tokens.weight"] = np.ascontiguousarray(shared[order])
    tensors["final_logits_bias"] = np.ascontiguousarray(tensors["final_logits_bias"][:, order])
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    edit(path / "config.json", share_encoder_decoder_embeddings=False)
    edit(path / "tokenizer_config.json", separate_vocabs=True)
