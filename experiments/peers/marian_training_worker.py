"""Training steps of Transformers' MarianMTModel in a plain PyTorch loop, for `experiments.training_cost`.

Imports nothing of HMC.

    python -m experiments.peers.marian_training_worker '{"architecture", "train", "device"}'

AdamW (fused), cross-entropy with label smoothing over the padded batch, gradients clipped, learning rates as given.
With bf16-mixed the forward pass runs under bf16 autocast. Attention is `sdpa`, the library's default, or `eager`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor
from transformers import MarianConfig, MarianMTModel

from experiments.support.worker import serve


def build(arch: dict[str, Any], train: dict[str, Any]) -> Any:
    """The model of an HMC architecture, randomly initialised."""
    torch.manual_seed(train["seed"])
    own = arch.get("source_vocab_size")
    config = MarianConfig(
        vocab_size=own or arch["vocab_size"], decoder_vocab_size=arch["vocab_size"],
        share_encoder_decoder_embeddings=own is None, d_model=arch["d_model"], encoder_layers=arch["encoder_layers"],
        decoder_layers=arch["decoder_layers"], encoder_attention_heads=arch["heads"],
        decoder_attention_heads=arch["heads"], encoder_ffn_dim=arch["ffn_dim"], decoder_ffn_dim=arch["ffn_dim"],
        activation_function=arch["activation"], max_position_embeddings=arch["max_positions"],
        scale_embedding=arch["scale_embedding"], dropout=train["dropout"], attention_dropout=0.0,
        activation_dropout=0.0, pad_token_id=arch["pad_id"], eos_token_id=arch["eos_id"], bos_token_id=arch["eos_id"],
        decoder_start_token_id=arch["pad_id"], forced_eos_token_id=None, init_std=arch["d_model"] ** -0.5,
    )  # fmt: skip
    return MarianMTModel(config).train()


def pad(rows: list[list[int]], pad_id: int) -> Tensor:
    """Token lists → `[B, longest]`."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[pad_id] * (width - len(row))] for row in rows])


def load() -> tuple[Any, Callable[[Any], Any]]:
    """Request: `{"variant": attention, "precision", "rates", "batches"}`; answer: `{"seconds", "value": loss}`."""
    given = json.loads(sys.argv[1])
    arch, train = given["architecture"], given["train"]
    device = "cuda" if given["device"] != "cpu" and torch.cuda.is_available() else "cpu"
    model = build(arch, train).to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=tuple(train["adam_betas"]), eps=train["adam_epsilon"],
        weight_decay=train["weight_decay"], fused=True,
    )  # fmt: skip
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=train["label_smoothing"], ignore_index=arch["pad_id"])

    def step(batch: list[list[list[int]]], rate: float, bf16: bool) -> float:
        source, target = (pad(rows, arch["pad_id"]).to(device) for rows in batch)
        start = torch.full_like(target[:, :1], arch["pad_id"])
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=bf16):
            logits = model(
                input_ids=source, attention_mask=source.ne(arch["pad_id"]).long(),
                decoder_input_ids=torch.cat([start, target[:, :-1]], 1), use_cache=False,
            ).logits  # fmt: skip
            loss = criterion(logits.float().flatten(0, 1), target.flatten())
        loss.backward()
        if train["clip_norm"]:
            torch.nn.utils.clip_grad_norm_(model.parameters(), train["clip_norm"])
        optimizer.step()
        return float(loss.detach())

    def answer(request: Any) -> Any:
        model.set_attn_implementation(request["variant"])
        bf16, loss = request["precision"] == "bf16-mixed", 0.0
        began = time.perf_counter()
        for batch, rate in zip(request["batches"], request["rates"], strict=True):
            loss = step(batch, rate, bf16)
        if device == "cuda":
            torch.cuda.synchronize()
        return {"seconds": time.perf_counter() - began, "value": loss}

    return {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
    }, answer


if __name__ == "__main__":
    serve(load)
