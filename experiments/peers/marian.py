"""MarianMT directories in Transformers and in CTranslate2, as their own documentation uses them, at fp32."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.support.judge import Ids
from hmc.artifact.model.architecture import Architecture
from hmc.benchmark.peers.engines import exported_ids
from hmc.engine.requests.options import DecodeOptions

BATCH = 32


@dataclass(frozen=True)
class PeerOutput:
    """The translations of a peer, with the token ids of our checkpoint."""

    sources: list[list[int]]
    ids: list[Ids]
    """Without EOS."""
    texts: list[str]


def with_transformers(
    directory: Path, exported: Architecture | None, texts: Sequence[str], options: DecodeOptions
) -> PeerOutput:
    """`MarianMTModel.generate` with the directory's generation config, but for the number of beams.

    exported: the checkpoint's architecture if `hmc export` wrote the directory, which moves pad; None: from elsewhere.
    """
    import torch
    from transformers import MarianMTModel, MarianTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    tokenizer = MarianTokenizer.from_pretrained(directory)
    model: Any = MarianMTModel.from_pretrained(directory, dtype=torch.float32)
    model.train(False)
    config = model.generation_config
    sources = [tokenizer(text)["input_ids"] for text in texts]
    written: dict[int, list[int]] = {}
    order = sorted(range(len(texts)), key=lambda i: len(sources[i]))
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        batch = tokenizer([texts[i] for i in rows], return_tensors="pt", padding=True)
        with torch.inference_mode():
            found = model.generate(**batch, num_beams=options.beam_size)
        written |= dict(zip(rows, found[:, 1:].tolist(), strict=True))
    decoded = tokenizer.batch_decode([written[i] for i in range(len(texts))], skip_special_tokens=True)
    left_out = {config.eos_token_id, config.pad_token_id}
    back = {new: old for old, new in enumerate(exported_ids(exported))} if exported else {}
    ids = [tuple(back.get(i, i) for i in written[n] if i not in left_out) for n in range(len(texts))]
    return PeerOutput([[back.get(i, i) for i in row] for row in sources], ids, decoded)


def with_ctranslate2(
    directory: Path, converted: Path, arch: Architecture, sources: Sequence[Sequence[int]], options: DecodeOptions
) -> PeerOutput:
    """CTranslate2 on an exported directory, from source ids of the checkpoint.

    CTranslate2 counts EOS in the length of a hypothesis only when it returns EOS, so EOS is requested. It accepts an
    empty translation only with `min_decoding_length=0`.
    """
    import ctranslate2  # type: ignore[import-untyped]

    ctranslate2.converters.TransformersConverter(str(directory)).convert(str(converted))
    translator = ctranslate2.Translator(str(converted), device="cpu", compute_type="float32")
    numbers = json.loads((directory / "vocab.json").read_text(encoding="utf-8"))
    names = {number: piece for piece, number in numbers.items()}
    to_new = exported_ids(arch)
    to_old = {new: old for old, new in enumerate(to_new)}
    results = translator.translate_batch(
        [[names[to_new[i]] for i in ids] for ids in sources], beam_size=options.beam_size,
        length_penalty=options.length_penalty, max_decoding_length=options.max_length, max_batch_size=BATCH,
        min_decoding_length=0, return_end_token=True,
    )  # fmt: skip
    written = [[to_old[numbers[piece]] for piece in r.hypotheses[0]] for r in results]
    ids = [tuple(row[:-1] if row[-1:] == [arch.eos_id] else row) for row in written]
    return PeerOutput([list(s) for s in sources], ids, [])
