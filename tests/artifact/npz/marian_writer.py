"""Writes a model as Marian does: .npz with Marian's names, YAML vocabularies, SentencePiece models and decoder.yml."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from tests.artifact.marian.opus import CODES, GERMAN, pieces_model, pieces_of
from tests.tiny import SENTENCES, random_tensors, tiny_architecture

from hmc.artifact.checkpoint.weights import Tensors
from hmc.artifact.model.architecture import Architecture

OPTIONS = {
    "type": "transformer", "transformer-decoder-autoreg": "self-attention", "transformer-no-projection": "false",
    "transformer-ffn-activation": "swish", "transformer-preprocess": '""', "transformer-postprocess": "dan",
    "transformer-postprocess-top": '""', "transformer-postprocess-emb": "d", "transformer-ffn-depth": "2",
    "transformer-guided-alignment-layer": "last", "transformer-train-position-embeddings": "false",
    "transformer-tied-layers": "\n  []", "lemma-dim-emb": "0", "input-types": "\n  []", "version": "v1.10.6",
}  # fmt: skip


def plain_entries(source: bytes, target: bytes, codes: tuple[str, ...] = CODES) -> list[str]:
    """The pieces of a joint vocabulary: `</s>`, `<unk>`, those of both sides, and language codes. Marian has no pad."""
    return list(dict.fromkeys([*pieces_of(source)[:-6], *pieces_of(target)[2:], *codes]))


def yaml_vocabulary(pieces: list[str]) -> str:
    """A vocabulary as Marian writes it: every piece in double quotes, as in JSON."""
    return "".join(f"{json.dumps(piece, ensure_ascii=False)}: {number}\n" for number, piece in enumerate(pieces))


def architecture(sizes: tuple[int, int | None], **fields: object) -> Architecture:
    """The architecture after the import, with pad at the end (of the smaller vocabulary)."""
    source, target = sizes
    pad = source if target is None else min(source, target)
    return tiny_architecture(
        vocab_size=(source if target is None else target) + 1, source_vocab_size=None if target is None else source + 1,
        pad_id=pad, d_model=64, activation="swish", max_positions=512, **fields,
    )  # fmt: skip


def marian_arrays(tensors: Tensors, arch: Architecture) -> dict[str, np.ndarray]:
    """Tensors of a checkpoint under Marian's names. Pad's row is left out."""
    pre, arrays = "_pre" if arch.pre_norm else "", {}

    def norm(theirs: str, ours: str, suffix: str) -> None:
        arrays[f"{theirs}_ln_scale{suffix}"] = tensors[f"{ours}.weight"][None]
        arrays[f"{theirs}_ln_bias{suffix}"] = tensors[f"{ours}.bias"][None]

    for stack, modules in (("encoder", ("self",)), ("decoder", ("self", "context"))):
        for layer in range(arch.encoder_layers if stack == "encoder" else arch.decoder_layers):
            theirs, ours = f"{stack}_l{layer + 1}", f"{stack}.layers.{layer}"
            for module in modules:
                attention = f"{ours}.{'self_attn' if module == 'self' else 'encoder_attn'}"
                for letter, name in zip("qkvo", ("q_proj", "k_proj", "v_proj", "out_proj"), strict=True):
                    arrays[f"{theirs}_{module}_W{letter}"] = tensors[f"{attention}.{name}.weight"].T
                    arrays[f"{theirs}_{module}_b{letter}"] = tensors[f"{attention}.{name}.bias"][None]
                norm(f"{theirs}_{module}_Wo", f"{attention}_layer_norm", pre)
            for number in (1, 2):
                arrays[f"{theirs}_ffn_W{number}"] = tensors[f"{ours}.fc{number}.weight"].T
                arrays[f"{theirs}_ffn_b{number}"] = tensors[f"{ours}.fc{number}.bias"][None]
            norm(f"{theirs}_ffn_ffn", f"{ours}.final_layer_norm", pre)
        if arch.stack_norms:
            norm(f"{stack}_top", f"{stack}.layer_norm", "")
    rows = ("shared.weight", "encoder.embed_tokens.weight", "lm_head.weight", "final_logits_bias")
    without_pad = {name: np.delete(tensors[name], arch.pad_id, axis=0) for name in rows if name in tensors}
    if arch.source_vocab_size is None:
        arrays["Wemb"] = without_pad["shared.weight"]
    else:
        arrays["encoder_Wemb"] = without_pad["encoder.embed_tokens.weight"]
        arrays["decoder_Wemb"] = without_pad["shared.weight"]
    if arch.own_output:
        arrays["decoder_ff_logit_out_W"] = without_pad["lm_head.weight"].T
    arrays["decoder_ff_logit_out_b"] = without_pad["final_logits_bias"][None]
    return {name: np.ascontiguousarray(value, np.float32) for name, value in arrays.items()}


def options_text(arch: Architecture, **changes: str) -> str:
    """special:model.yml."""
    norms = {"transformer-preprocess": "n", "transformer-postprocess": "da"} if arch.pre_norm else {}
    top = {"transformer-postprocess-top": "n"} if arch.stack_norms else {}
    sizes = {
        "enc-depth": str(arch.encoder_layers), "dec-depth": str(arch.decoder_layers), "dim-emb": str(arch.d_model),
        "transformer-heads": str(arch.heads), "transformer-dim-ffn": str(arch.ffn_dim),
        "transformer-ffn-activation": arch.activation,
        "dim-vocabs": f"\n  - {arch.source_size - 1}\n  - {arch.vocab_size - 1}",
    }  # fmt: skip
    return "".join(f"{name}: {value}\n" for name, value in {**OPTIONS, **norms, **top, **sizes, **changes}.items())


def write_arrays(path: Path, arrays: dict[str, np.ndarray], options: str) -> None:
    """The .npz file; the options are bytes that end with a zero."""
    text = np.frombuffer(options.encode() + b"\0", np.int8)
    np.savez(path, **{**arrays, "special:model.yml": text})  # type: ignore[arg-type]  # its stub takes only bools


def write_release(
    folder: Path, *, two: bool = False, seed: int = 0, options: dict[str, str] | None = None, **fields: object
) -> tuple[Architecture, Tensors]:
    """Writes a folder as OPUS-MT releases it. Returns the architecture and tensors that its import must give.

    two: each side has its own vocabulary. fields: of the architecture.
    """
    folder.mkdir(parents=True)
    source, target = pieces_model(SENTENCES, 110), pieces_model(GERMAN, 100)
    if two:
        vocabularies = [[*pieces_of(source), *CODES], pieces_of(target)]
        arch = architecture((len(vocabularies[0]), len(vocabularies[1])), **fields)
    else:
        vocabularies = [plain_entries(source, target)]
        arch = architecture((len(vocabularies[0]), None), **fields)
    tensors = random_tensors(arch, arch.full_layout(), seed)
    tensors["final_logits_bias"][arch.pad_id] = -1e4  # Marian cannot choose pad, which it does not have
    if arch.own_output:
        tensors["lm_head.weight"][arch.pad_id] = 0
    write_arrays(folder / "opus.npz", marian_arrays(tensors, arch), options_text(arch, **(options or {})))
    names = ["opus.src.vocab.yml", "opus.trg.vocab.yml"] if two else ["opus.vocab.yml"]
    for name, pieces in zip(names, vocabularies, strict=True):
        (folder / name).write_text(yaml_vocabulary(pieces), encoding="utf-8")
    (folder / "source.spm").write_bytes(source)
    (folder / "target.spm").write_bytes(target)
    listed = "".join(f"  - {name}\n" for name in (names * 2)[:2])
    (folder / "decoder.yml").write_text(f"models:\n  - opus.npz\nvocabs:\n{listed}beam-size: 6\nnormalize: 0.6\n")
    readme = "# opus\n\n* source language(s): eng\n* target language(s): deu nld\n* model: transformer\n"
    (folder / "README.md").write_text(readme)
    return arch, tensors
