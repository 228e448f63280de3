"""The options of `hmc prune`, by the part of the command that they are about."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from hmc.cli.common.options import opt

LATENCY = "What to remove: by latency"
DATA = "Data"
BUDGET = "What to remove"
SCHEDULE = "How long"
TRAINING = "Training"
OUTPUT = "Output"
NESTED = "One set of weights for all budgets"
TEACHER = "Teacher"
QUARTER = "a quarter of CHECKPOINT's updates, 50 to 1,500"


@dataclass(frozen=True)
class BudgetOptions:
    """What to remove."""

    target_heads: Annotated[
        str,
        opt(
            BUDGET,
            "Number of heads in --scope that stay open: one budget or several, such as 72,36; shares of all "
            "heads: 50%,25%; or a number for each kind: enc=10,dec=20,cross=24 (separate several with ';'). A kind "
            "that is not named keeps all its heads.",
        ),
    ] = ""
    target_ffn: Annotated[
        str,
        opt(
            BUDGET,
            "Number of feed-forward neurons of the whole model that stay: 1536; a share: 50%; or several budgets: "
            "50%,25%. With --target-heads: one number for all head budgets, or one for each.",
        ),
    ] = ""
    l0_lambda: Annotated[
        float | None,
        opt(
            BUDGET,
            "Instead of budgets: the λ of Voita et al. 2019, in nats per token and open head. The loss is the "
            "paper's, L_xent + λ·Σ(1-P(g=0)), with nothing added; some gates may stay undecided.",
        ),
    ] = None
    settle_gates: Annotated[
        bool,
        opt(
            BUDGET,
            "With --l0-lambda: also press every gate to decide, and fix the decisions at the end, as budgets do.",
            "--settle-gates",
        ),
    ] = False
    scope: Annotated[
        str,
        opt(
            BUDGET,
            "Kinds of heads that may close: all; or some of encoder_self, decoder_self, cross, separated by commas.",
        ),
    ] = "all"


@dataclass(frozen=True)
class LatencyOptions:
    """What to remove, by latency."""

    target_speedup: Annotated[
        str,
        opt(
            LATENCY,
            "Instead of budgets: how much faster the model shall be, such as 2x, or several: 1.5x,2x. Heads, neurons, "
            "whole attentions and whole layers close together, each weighed by what it costs.",
            metavar="FACTOR",
        ),
    ] = ""
    target_latency_ms: Annotated[
        str, opt(LATENCY, "The same as milliseconds of one request, such as 12.5, or several: 20,12.5.", metavar="MS")
    ] = ""
    serve: Annotated[
        str,
        opt(
            LATENCY,
            "Where the model will be served. here: models are timed on this machine's CPU. cpu or cuda: nothing is "
            "timed; the latency is calculated from the operations, bytes and products of step programs, at rough "
            "speeds of such a device.",
            metavar="here|cpu|cuda",
        ),
    ] = "here"
    serve_precision: Annotated[
        str | None,
        opt(
            LATENCY,
            "Precision that the model is served at: fp32, int8 or int4; fp16 or bf16 on CUDA.",
            show_default="int8, and fp16 with --serve cuda",
        ),
    ] = None
    serve_batch: Annotated[int, opt(LATENCY, "Sentences of a request.", metavar="N")] = 1
    serve_beam: Annotated[int, opt(LATENCY, "Beam of the search.", metavar="N")] = 4
    serve_threads: Annotated[int, opt(LATENCY, "Threads that serve it; 0 is one per physical core.", metavar="N")] = 0
    latency_table: Annotated[
        Path | None,
        opt(
            LATENCY,
            "Latency table that an earlier run on this machine wrote (DIR/latency.json). Without this option the "
            "table is measured first.",
            metavar="FILE",
        ),
    ] = None


@dataclass(frozen=True)
class TrainingOptions:
    """How weights are trained meanwhile."""

    freeze: Annotated[
        str | None,
        opt(
            TRAINING,
            "Do not train the weights of this stack, nor the embeddings. matrices: train only layer norms and biases.",
            metavar="encoder|decoder|matrices",
        ),
    ] = None
    learning_rate: Annotated[float, opt(TRAINING, "Learning rate of the weights.")] = 3e-4
    optimizer: Annotated[
        str,
        opt(TRAINING, "adam, or muon: Muon for the matrices of the layers, Adam for all else.", metavar="adam|muon"),
    ] = "adam"
    warmup_steps: Annotated[
        int, opt(TRAINING, "First updates of the run, over which the learning rate rises linearly.")
    ] = 1
    batch_tokens: Annotated[int, opt(TRAINING, "Source and target tokens of a batch, padding included.")] = 4096
    max_length: Annotated[
        int,
        opt(
            TRAINING,
            "Longest sentence that is trained on, in tokens; longer pairs are left out, and counted.",
            metavar="TOKENS",
        ),
    ] = 128
    accumulate: Annotated[int, opt(TRAINING, "Batches in one update; their gradients are summed.")] = 1
    dropout: Annotated[float, opt(TRAINING, "Share of activations dropped while training.")] = 0.1
    bpe_dropout: Annotated[
        float | None,
        opt(TRAINING, "Probability of skipping a BPE merge in training text. Default: as in the checkpoint's recipe."),
    ] = None
    bpe_dropout_copies: Annotated[
        int | None,
        opt(TRAINING, "Segmentations that BPE-dropout draws of each pair. Default: as in the checkpoint's recipe."),
    ] = None
    seed: Annotated[int, opt(TRAINING, "Seed of gates, batches and dropout.")] = 1
    precision: Annotated[
        str | None,
        opt(
            TRAINING,
            "32-true or bf16-mixed. Default: as in the checkpoint's recipe; 32-true where the device has no "
            "products of bf16.",
        ),
    ] = None
    compile_loss: Annotated[
        bool,
        opt(
            TRAINING,
            "On CUDA: let torch.compile write the kernels of an update. The first updates are slow.",
            "--compile",
        ),
    ] = False
    device: Annotated[str, opt(TRAINING, "auto, cpu or cuda.")] = "auto"


@dataclass(frozen=True)
class ScheduleOptions:
    """How long it takes, in updates."""

    close_steps: Annotated[
        int | None, opt(SCHEDULE, "Updates for each budget in which gates close.", show_default=QUARTER)
    ] = None
    recover_steps: Annotated[
        int | None,
        opt(
            SCHEDULE,
            "Updates for each budget after the gates have closed; the heads no longer change.",
            show_default=QUARTER,
        ),
    ] = None
    control: Annotated[
        bool,
        opt(
            SCHEDULE,
            "Also train the model with all heads for as many further updates, as a control for the levels. You can "
            "add the control after the run has ended.",
            "--control",
        ),
    ] = False
    nested_steps: Annotated[
        int,
        opt(
            SCHEDULE,
            "Updates of a last training of the full model. One set of weights then serves all head budgets. 0: no "
            "such training.",
        ),
    ] = 0
    save_every: Annotated[int, opt(SCHEDULE, "Updates between saved states, from which a run resumes.")] = 500


@dataclass(frozen=True)
class NestedOptions:
    """How one set of weights learns all budgets."""

    eval_every: Annotated[
        str,
        opt(
            NESTED,
            "Updates of --nested-steps between dev scores of all levels, or epoch: after each pass over the text. "
            "The best checkpoints are averaged.",
            metavar="N|epoch",
        ),
    ] = "500"
    nested_levels: Annotated[
        str,
        opt(
            NESTED,
            "Levels that an update of --nested-steps trains: sandwich (the largest, the smallest and one "
            "between), one (drawn at random, a third of the time) or smallest (that one alone).",
            metavar="sandwich|one|smallest",
        ),
    ] = "sandwich"
    nested_between: Annotated[
        str,
        opt(
            NESTED,
            "The level between: one of the budgets, or any number of heads from the smallest to the largest.",
            metavar="budgets|any",
        ),
    ] = "budgets"
    nested_teacher: Annotated[
        str,
        opt(
            NESTED,
            "With --distill: levels learn from the frozen teacher, or from the largest level itself.",
            metavar="frozen|in-place",
        ),
    ] = "frozen"
    nested_shrink: Annotated[
        float,
        opt(
            NESTED,
            "Share of the updates, from the first on, in which the levels shrink from all heads to their budgets.",
            metavar="SHARE",
        ),
    ] = 0.0
    nested_heads: Annotated[
        str,
        opt(
            NESTED,
            "The ranking of the heads: by the checkpoints of each budget; or, without closing any gates first, the "
            "log α "
            "of CHECKPOINT (gates), its importance, or both.",
            metavar="checkpoints|gates|importance|both",
        ),
    ] = "checkpoints"


@dataclass(frozen=True)
class TeacherOptions:
    """What is learned from a teacher."""

    distill: Annotated[
        float,
        opt(
            TEACHER,
            "Weight of the difference from a teacher's distributions in the loss, from 0 (off) to 1, such as 0.9. "
            "The rest is the cross entropy.",
            metavar="WEIGHT",
        ),
    ] = 0.0
    temperature: Annotated[float, opt(TEACHER, "With --distill: divides the logits of teacher and student.")] = 1.0
    teacher: Annotated[
        Path | None,
        opt(
            TEACHER,
            "With --distill: the teacher, with the same vocabulary. Default: CHECKPOINT itself.",
            metavar="CKPT",
        ),
    ] = None
    distill_hidden: Annotated[
        float, opt(TEACHER, "Weight of the mean squared difference from the teacher's layer outputs.", metavar="WEIGHT")
    ] = 0.0
    distill_attention: Annotated[
        float,
        opt(TEACHER, "Weight of the mean squared difference from the teacher's attention outputs.", metavar="WEIGHT"),
    ] = 0.0
