"""Checkpoints become MarianMT directories that compute the same function, slim ones with their closed heads masked."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from tests.artifact.marian.opus import opus_directory
from tests.slim_ffn import random_neurons, without_neurons
from tests.tiny import SENTENCES, random_layout, tiny_architecture, tiny_checkpoint_at

from hmc.artifact import Checkpoint, InvalidRequestError, save_checkpoint
from hmc.artifact.checkpoint.slimming import restored_tensors, slim_tensors
from hmc.artifact.marian.reader import import_marian
from hmc.artifact.marian.weights import NEVER, starts_from_zero
from hmc.artifact.marian.writer import export_marian
from hmc.artifact.model.architecture import sinusoidal_positions
from hmc.artifact.model.ffn import FfnWidths
from hmc.artifact.model.heads import KINDS
from hmc.artifact.tokenizer.tokenizer import open_tokenizer
from hmc.training import model_from_checkpoint

ARCH = tiny_architecture(d_model=64)
"""4 heads of 16: Transformers derives the head dimension from d_model."""


def log_probs(checkpoint: Checkpoint, texts: list[str]) -> dict[str, Any]:
    """Log-probabilities of every vocabulary piece at each step of a fixed target, by piece name."""
    arch, tokenizer = checkpoint.architecture, open_tokenizer(checkpoint.tokenizer)
    model = model_from_checkpoint(checkpoint).eval()
    rows = []
    with torch.no_grad():
        for text in texts:
            ids = tokenizer.encode(text)
            source, target = torch.tensor([[*ids, arch.eos_id]]), torch.tensor([[arch.pad_id, *ids[:6]]])
            rows.append(model.logits(model(source, target)).log_softmax(-1)[0].numpy())
    return {name: [row[:, i] for row in rows] for name, i in _names(checkpoint).items()}


def _names(checkpoint: Checkpoint) -> dict[str, int]:
    """Piece → id."""
    if not isinstance(checkpoint.tokenizer, bytes):
        return dict(json.loads(checkpoint.tokenizer.vocabulary))
    import sentencepiece

    pieces = sentencepiece.SentencePieceProcessor(model_proto=checkpoint.tokenizer)
    return {pieces.id_to_piece(i): i for i in range(pieces.vocab_size())}


def assert_same_function(one: Checkpoint, other: Checkpoint) -> None:
    """Both give every piece the same probability."""
    a, b = log_probs(one, SENTENCES[:4]), log_probs(other, SENTENCES[:4])
    assert a.keys() == b.keys()
    for name in a:
        for x, y in zip(a[name], b[name], strict=True):
            np.testing.assert_allclose(x, y, atol=2e-5)


def test_a_full_checkpoint_goes_out_and_comes_back(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint_at(tmp_path / "c", arch=ARCH)
    export_marian(checkpoint, tmp_path / "m")
    back = import_marian(tmp_path / "m")
    assert back.architecture == ARCH.model_copy(update={"pad_id": ARCH.vocab_size - 1})
    assert_same_function(checkpoint, back)
    assert (back.config.source_language, back.config.target_language) == ("en", "de")


def test_an_imported_model_goes_out_as_it_came(tmp_path: Path) -> None:
    opus_directory(tmp_path / "opus")
    first = import_marian(tmp_path / "opus")
    export_marian(first, tmp_path / "m")
    second = import_marian(tmp_path / "m")
    assert second.architecture == first.architecture
    assert all(np.array_equal(first.tensors[n], second.tensors[n]) for n in first.tensors)
    assert _names(first) == _names(second)
    for name in ("source.spm", "target.spm"):
        assert (tmp_path / "m" / name).read_bytes() == (tmp_path / "opus" / name).read_bytes()
    generation = json.loads((tmp_path / "m" / "generation_config.json").read_text())
    assert (generation["num_beams"], generation["max_length"], generation["no_repeat_ngram_size"]) == (5, 77, 3)
    pruned = first.config.model_copy(update={"provenance": {"command": "hmc prune", "from": first.config.provenance}})
    export_marian(Checkpoint(pruned, first.tensors, first.tokenizer), tmp_path / "p")
    assert json.loads((tmp_path / "p" / "generation_config.json").read_text()) == generation


@pytest.mark.parametrize("seed", range(4))
def test_a_slim_checkpoint_is_masked_and_computes_the_same(tmp_path: Path, seed: int) -> None:
    layout = random_layout(ARCH, seed)
    slim = tiny_checkpoint_at(tmp_path / "c", arch=ARCH, layout=layout, seed=seed)
    export_marian(slim, tmp_path / "m", masked=True)
    masked = import_marian(tmp_path / "m")
    assert masked.layout.total == 24
    assert_same_function(slim, masked)
    again = slim_tensors(masked.tensors, ARCH, ARCH.full_layout(), layout)
    attention = [name for name in slim.tensors if "attn" in name]
    assert all(np.array_equal(again[name], slim.tensors[name]) for name in attention)
    assert json.loads((tmp_path / "m" / "config.json").read_text())["hmc_head_layout"] == layout.to_json()


@pytest.mark.parametrize("seed", range(4))
def test_uneven_neurons_are_padded_and_compute_the_same(tmp_path: Path, seed: int) -> None:
    """Some heads are closed too. All layers of a MarianMT model have one width: that of the widest layer."""
    kept = random_neurons(ARCH, seed)
    heads = random_layout(ARCH, seed)
    slim = without_neurons(tiny_checkpoint_at(tmp_path / "c", arch=ARCH, layout=heads, seed=seed), kept)
    export_marian(slim, tmp_path / "m", masked=True)
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    widths = FfnWidths.from_neurons(kept)
    assert config["encoder_ffn_dim"] == config["decoder_ffn_dim"] == widths.widest
    assert config["hmc_ffn_widths"] == widths.model_dump(mode="json")
    back = import_marian(tmp_path / "m")
    assert back.architecture.ffn_dim == widths.widest
    assert_same_function(slim, back)


def test_a_model_without_neurons_is_exported_with_one_that_does_nothing(tmp_path: Path) -> None:
    slim = without_neurons(tiny_checkpoint_at(tmp_path / "c", arch=ARCH), {"encoder": [[], []], "decoder": [[], []]})
    export_marian(slim, tmp_path / "m")
    back = import_marian(tmp_path / "m")
    assert back.architecture.ffn_dim == 1
    assert_same_function(slim, back)


def test_restored_heads_are_zero_where_they_were_closed() -> None:
    from tests.tiny import random_tensors

    layout = random_layout(ARCH, 1)
    assert {len(row) for kind in KINDS for row in layout[kind]} != {4}
    full = restored_tensors(random_tensors(ARCH, layout), ARCH, layout)
    for layer, row in enumerate(layout.encoder_self):
        for head in set(range(4)) - set(row):
            span = slice(16 * head, 16 * head + 16)
            prefix = f"encoder.layers.{layer}.self_attn"
            assert not full[f"{prefix}.v_proj.weight"][span].any()
            assert not full[f"{prefix}.v_proj.bias"][span].any()
            assert not full[f"{prefix}.out_proj.weight"][:, span].any()


def test_a_slim_checkpoint_needs_the_flag(tmp_path: Path) -> None:
    slim = tiny_checkpoint_at(tmp_path / "c", arch=ARCH, layout=random_layout(ARCH, 1))
    with pytest.raises(InvalidRequestError, match=r"of 24 heads.*hmc export --masked"):
        export_marian(slim, tmp_path / "m")
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_a_head_dimension_of_its_own_is_refused(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint_at(tmp_path / "c")
    with pytest.raises(InvalidRequestError, match="4 heads of dimension 16 do not make d_model 32"):
        export_marian(checkpoint, tmp_path / "m")


def test_the_directory_is_what_other_programs_expect(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint_at(tmp_path / "c", arch=ARCH)
    export_marian(checkpoint, tmp_path / "m")
    folder, last = tmp_path / "m", ARCH.vocab_size - 1
    vocabulary = json.loads((folder / "vocab.json").read_text())
    assert [vocabulary[piece] for piece in ("</s>", "<unk>", "<pad>")] == [0, 1, last]
    assert sorted(vocabulary.values()) == list(range(ARCH.vocab_size))
    config = json.loads((folder / "config.json").read_text())
    assert (config["pad_token_id"], config["decoder_start_token_id"], config["eos_token_id"]) == (last, last, 0)
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation["bad_words_ids"] == [[last]]
    with safe_open(folder / "model.safetensors", framework="numpy") as weights:
        assert weights.metadata() == {"format": "pt"}
        assert weights.get_slice("final_logits_bias").get_shape() == [1, ARCH.vocab_size]
        names = set(weights.keys())
    assert {n for n in names if not n.startswith("model.")} == {"final_logits_bias"}
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o644}


def test_a_start_that_is_not_zero_is_known(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint_at(tmp_path / "c", arch=ARCH)
    assert starts_from_zero(checkpoint)
    checkpoint.tensors["shared.weight"][ARCH.pad_id, 3] = 0.1
    assert not starts_from_zero(checkpoint)


def test_a_learned_start_moves_to_the_first_position(tmp_path: Path) -> None:
    """Afterwards pad's row is zero, so that CTranslate2 loses nothing by removing it. An import restores it."""
    checkpoint = tiny_checkpoint_at(tmp_path / "c", arch=ARCH)
    embedding, pad = checkpoint.tensors["shared.weight"], ARCH.pad_id
    embedding[pad] = np.random.default_rng(0).normal(size=ARCH.d_model).astype(np.float32)
    before = {name: value.copy() for name, value in checkpoint.tensors.items()}
    export_marian(checkpoint, tmp_path / "m", zero_start=True)
    assert all(np.array_equal(before[name], value) for name, value in checkpoint.tensors.items())
    with safe_open(tmp_path / "m" / "model.safetensors", framework="numpy") as weights:
        shared, bias, positions = (
            weights.get_tensor(name)
            for name in ("model.shared.weight", "final_logits_bias", "model.decoder.embed_positions.weight")
        )
    assert not shared[-1].any()
    assert bias[0, -1] == NEVER
    usual = sinusoidal_positions(ARCH.max_positions, ARCH.d_model)
    assert np.array_equal(positions[1:], usual[1:])
    np.testing.assert_allclose(positions[0], embedding[pad] * 8 + usual[0], rtol=1e-6)  # 8: the square root of 64

    back = import_marian(tmp_path / "m", source_language="en", target_language="de")
    np.testing.assert_allclose(back.tensors["shared.weight"][-1], embedding[pad], atol=1e-6)
    checkpoint.tensors["final_logits_bias"][pad] = NEVER
    assert_same_function(checkpoint, back)


def test_a_start_from_zero_has_nothing_to_move(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint_at(tmp_path / "c", arch=ARCH)
    for folder, moved in (("m", False), ("z", True)):
        export_marian(checkpoint, tmp_path / folder, zero_start=moved)
    one, other = ((tmp_path / folder / "model.safetensors").read_bytes() for folder in ("m", "z"))
    assert one == other


def test_an_export_from_outside_is_the_directory_again(data: Path, tmp_path: Path) -> None:
    outside = data / "marian-en-de"
    if not outside.is_dir():
        pytest.skip("HMC_DATA holds no marian-en-de")
    checkpoint = import_marian(outside)
    save_checkpoint(checkpoint, tmp_path / "c")
    export_marian(checkpoint, tmp_path / "m")
    for name in ("source.spm", "target.spm", "vocab.json"):
        assert (tmp_path / "m" / name).read_bytes() == (outside / name).read_bytes()
    with (
        safe_open(outside / "model.safetensors", framework="numpy") as one,
        safe_open(tmp_path / "m" / "model.safetensors", framework="numpy") as other,
    ):
        assert set(one.keys()) == set(other.keys())
        for name in one.keys():  # noqa: SIM118
            assert np.array_equal(one.get_tensor(name), other.get_tensor(name))
    ours, theirs = (json.loads((folder / "config.json").read_text()) for folder in (tmp_path / "m", outside))
    both = ours.keys() & theirs.keys()
    assert {k: ours[k] for k in both} == {k: theirs[k] for k in both}
