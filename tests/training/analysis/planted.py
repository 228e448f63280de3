"""A small artificial language with gold trees, and a model whose heads have known roles: their weights are set here."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tests.support.files import write_lines

from hmc.artifact import Checkpoint, Head, save_checkpoint
from hmc.artifact.checkpoint.checkpoint import CheckpointConfig
from hmc.artifact.model.architecture import Architecture
from hmc.training import Transformer, Vocabulary, build_transformer, export_tensors
from hmc.training.analysis.roles.rare_words import token_counts
from hmc.training.data.vocabulary import EOS, PAD, UNK
from hmc.training.model.layers import Attention

SUBJECTS, VERBS, OBJECTS = ["Anna", "Otto", "Ida"], ["sees", "eats", "buys"], ["apples", "boats", "lamps"]
ADVERBS, ADJECTIVES = ["often", "rarely", "gladly"], ["red", "small", "new"]
TIMES = [
    "today", "weekly", "now", "tomorrow", "yearly", "tonight", "soon", "again", "daily", "hourly", "later", "twice",
]  # fmt: skip
"""From frequent to rare."""
D_MODEL, HEAD_DIM = 64, 32
HALF = D_MODEL // 2
POSITION_COLUMNS = [*range(16), *range(HALF, HALF + 16)]
"""Columns in which embeddings are 0, so that they hold positions alone: sines and cosines of 16 frequencies."""
RARITY, SUBJECT, VERB = 20, 21, 22
"""Columns of the embedding that hold the rarity of a token, and whether it is a subject or a verb."""
PLANTED = {
    Head("encoder_self", 0, 0): [{"role": "positional", "offset": -1}],
    Head("encoder_self", 0, 2): [{"role": "positional", "offset": 1}],
    Head("encoder_self", 0, 3): [{"role": "rare words"}],
    Head("encoder_self", 0, 5): [{"role": "syntactic", "relation": "nsubj", "direction": "from_dependent"}],
    Head("decoder_self", 0, 1): [{"role": "positional", "offset": -1}],
}


@dataclass(frozen=True)
class Planted:
    """The files of the planted model and of its language."""

    checkpoint: Path
    text: str
    """'SRC TGT'."""
    trees: Path
    training: Path
    """Source side of the training text."""


def write_planted(folder: Path) -> Planted:
    """Writes everything into `folder`."""
    rng = random.Random(5)
    training = [_sentence(rng) for _ in range(400)]
    (folder / "train.en").write_text("".join(_text(words) + "\n" for words in training), encoding="utf-8")
    held_out = [_sentence(rng) for _ in range(60)]
    for side in ("en", "de"):
        lines = [_text(words) for words in held_out]
        write_lines(folder / f"dev.{side}", lines)
    (folder / "dev.conllu").write_text("\n".join(_conllu(words) for words in held_out), encoding="utf-8")
    # Every word occurs often enough to become one token.
    vocabulary = Vocabulary.train([*(_text(words) for words in training), *[" ".join(TIMES)] * 50], 160)
    for word in (*SUBJECTS, *VERBS, *TIMES):
        assert len(vocabulary.encode(word)) == 2, f"{word} is no token of its own"
    model = _model(vocabulary, token_counts(str(folder / "train.en"), vocabulary, ("en", "de")))
    checkpoint = Checkpoint(
        config=CheckpointConfig(
            architecture=model.arch,
            head_layout=model.arch.full_layout().to_json(),
            source_language="en",
            target_language="de",
        ),
        tensors=export_tensors(model),
        tokenizer=vocabulary.files,
    )
    save_checkpoint(checkpoint, folder / "checkpoint")
    return Planted(
        folder / "checkpoint", f"{folder}/dev.en {folder}/dev.de", folder / "dev.conllu", folder / "train.en"
    )


def _sentence(rng: random.Random) -> list[tuple[str, str, str]]:
    """Words as (form, relation, head's form); distances between the ends of a relation vary."""
    subject, verb, item = rng.choice(SUBJECTS), rng.choice(VERBS), rng.choice(OBJECTS)
    time = rng.choices(TIMES, [0.6**n for n in range(len(TIMES))])[0]
    before, between = rng.sample(ADVERBS, rng.randrange(2)), rng.sample(ADVERBS, rng.randrange(4))
    if before:
        between = [word for word in between if word not in before]
    return [
        ("then", "discourse", verb),
        *((word, "advmod", verb) for word in before),
        (subject, "nsubj", verb),
        *((word, "advmod", verb) for word in between),
        (verb, "root", ""),
        *((word, "amod", item) for word in rng.sample(ADJECTIVES, rng.randrange(3))),
        (item, "obj", verb),
        (time, "obl", verb),
    ]


def _text(words: list[tuple[str, str, str]]) -> str:
    return " ".join(form for form, _, _ in words)


def _conllu(words: list[tuple[str, str, str]]) -> str:
    place = {form: number for number, (form, _, _) in enumerate(words, 1)}
    lines = [
        "\t".join([str(number), form, "_", "_", "_", "_", str(place.get(head, 0)), relation, "_", "_"])
        for number, (form, relation, head) in enumerate(words, 1)
    ]
    return "\n".join([f"# text = {_text(words)}", *lines]) + "\n"


@torch.no_grad()
def _model(vocabulary: Vocabulary, counts: np.ndarray) -> Transformer:
    torch.manual_seed(0)
    arch = Architecture(
        vocab_size=len(vocabulary), d_model=D_MODEL, ffn_dim=32, encoder_layers=2, decoder_layers=1, heads=6,
        head_dim=HEAD_DIM, max_positions=64, pad_id=PAD, eos_id=EOS, unk_id=UNK,
    )  # fmt: skip
    model = build_transformer(arch)
    embedding = model.shared.weight
    embedding[:, POSITION_COLUMNS] = 0.0
    embedding[:, [RARITY, SUBJECT, VERB]] = 0.0
    # Equal counts have equal ranks; the rarest token has rarity 1.
    ranks = np.array([(counts > count).sum() for count in counts]) / len(counts)
    embedding[:, RARITY] = torch.from_numpy(ranks).float()
    for column, words in ((SUBJECT, SUBJECTS), (VERB, VERBS)):
        embedding[[vocabulary.encode(word)[0] for word in words], column] = 1.0
    embedding[PAD] = 0.0
    encoder, decoder = model.encoder_layers[0].self_attn, model.decoder_layers[0].self_attn
    # In such a small language a random head follows some relation by chance. So all other heads have uniform attention,
    # or attend to the start of the sentence.
    for attention in (encoder, model.encoder_layers[1].self_attn):
        attention.query.weight.zero_()
    _look_at_place(encoder, 1, 0)
    _look_at_offset(encoder, 0, -1)
    _look_at_offset(encoder, 2, 1)
    _look_at_offset(decoder, 1, -1)
    # Rare words: all queries are equal; the key of a token is its rarity.
    _look_by_feature(encoder, 3, bias=50.0, query=None, key=RARITY)
    # Subjects attend to verbs, all other tokens to anything but verbs. A feature is √d_model = 8 in the states.
    _look_by_feature(encoder, 5, bias=-40.0, query=SUBJECT, key=VERB)
    return model


def _rows(head: int) -> slice:
    return slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)


def _look_at_offset(attention: Attention, head: int, offset: int) -> None:
    """Keys are positions, queries are positions rotated by the offset: sin(wt + wo), cos(wt + wo)."""
    attention.query.weight[_rows(head)] = 0.0
    attention.key_value.weight[_rows(head)] = 0.0
    frequency = 10000.0 ** (-2 * torch.arange(16) / D_MODEL)
    for n, turn in enumerate(frequency * offset):
        sine, cosine = head * HEAD_DIM + n, head * HEAD_DIM + 16 + n
        attention.query.weight[sine, n] = attention.query.weight[cosine, HALF + n] = 20 * turn.cos()
        attention.query.weight[sine, HALF + n] = 20 * turn.sin()
        attention.query.weight[cosine, n] = -20 * turn.sin()
        attention.key_value.weight[sine, n] = attention.key_value.weight[cosine, HALF + n] = 1.0


def _look_at_place(attention: Attention, head: int, place: int) -> None:
    """Keys are positions, every query is the position `place`."""
    _look_at_offset(attention, head, 0)
    attention.query.weight[_rows(head)] = 0.0
    angle = place * 10000.0 ** (-2 * torch.arange(16) / D_MODEL)
    attention.query.bias[_rows(head)] = 20 * torch.cat([angle.sin(), angle.cos()])


def _look_by_feature(attention: Attention, head: int, *, bias: float, query: int | None, key: int) -> None:
    """score = (bias + 10 · query feature) · key feature."""
    attention.query.weight[_rows(head)] = 0.0
    attention.key_value.weight[_rows(head)] = 0.0
    first = head * HEAD_DIM
    attention.query.bias[first] = bias
    if query is not None:
        attention.query.weight[first, query] = 10.0
    attention.key_value.weight[first, key] = 1.0
