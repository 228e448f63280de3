"""At which sizes the studies can be run: shape of the models, text, seeds, budgets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

MULTI30K = {
    "train": "{data}/multi30k/train.en.gz {data}/multi30k/train.de.gz",
    "dev": "{data}/multi30k/val.en.gz {data}/multi30k/val.de.gz",
    "test": "{data}/multi30k/test_2016_flickr.en.gz {data}/multi30k/test_2016_flickr.de.gz",
}


@dataclass(frozen=True)
class Size:
    """One size of all studies. `{data}` in a text is the folder of the corpora."""

    says: str
    """What it is for."""
    recipe: str
    settings: tuple[str, ...]
    """Settings of the recipe that are changed, as `--set` takes them."""
    train: str
    dev: str
    test: str
    kinds: tuple[str, str]
    """Two kinds of text, on which the effects of heads are correlated."""
    trees: str
    """Gold trees of source sentences."""
    seeds: tuple[int, ...]
    """The first baseline has the first of them."""
    layers: int
    """Of each stack."""
    heads: int
    """Of each attention."""
    updates: int
    warmup: int
    batch_tokens: int
    epoch_updates: int
    """Updates of the training whose every epoch is kept."""
    budgets: tuple[int, ...]
    """Heads of all kinds that stay, falling."""
    encoder_budgets: tuple[int, ...]
    """Heads of the encoder that stay, falling."""
    pruning: tuple[str, ...]
    """Options of `hmc prune`."""
    sentences: int
    """Sentences of the test set for measurements that mask heads; 0: all."""
    few: int
    """Sentences for relevance, which is the slowest."""
    least_bleu: float = 0.0
    """Dev BLEU of a baseline below which nothing is compared with it: such a model may not use its source."""
    minutes: dict[str, float] = field(default_factory=dict)
    """Guesses by kind of step, on one CPU core."""
    further: tuple[int, ...] = ()
    """More seeds, of Impt."""
    extra: tuple[str, ...] = ()
    """Options of every training, such as those of a GPU."""

    @property
    def total(self) -> int:
        """Heads of the model."""
        return 3 * self.layers * self.heads

    @property
    def controls(self) -> int:
        """Controls of pruning, one for each seed."""
        return len(self.seeds)

    @staticmethod
    def nearly_all(heads: int, budgets: tuple[int, ...]) -> tuple[int, ...]:
        """As many budgets, each of which closes one head: shows what the updates do by themselves."""
        return tuple(heads - 1 - place for place in range(len(budgets)))

    @property
    def masked(self) -> int:
        """Heads that HeadMask masks: an eighth, as 18 of 144, which is one of each attention if it has eight."""
        return self.total // 8


SMOKE = Size(
    says="tiny models on the dev set of Multi30k: shows that every step runs; its numbers mean nothing",
    recipe="recipes/small.toml",
    settings=(
        "model.d_model=64", "model.ffn_dim=64", "model.encoder_layers=2", "model.decoder_layers=2", "model.heads=8",
        "tokenizer.vocab_size=600", "train.cooldown_steps=10", "run.log_every=20", "run.eval_sentences=20",
        "run.precision=32-true",
    ),
    train=MULTI30K["dev"], dev=MULTI30K["test"], test=MULTI30K["test"],
    kinds=(MULTI30K["test"], MULTI30K["dev"]),
    trees="{data}/ud/en_pud-ud-test.conllu.gz", seeds=(1, 2), layers=2, heads=8, updates=40, warmup=20,
    batch_tokens=1024, epoch_updates=150, budgets=(24, 12), encoder_budgets=(8, 2),
    pruning=("--close-steps", "12", "--recover-steps", "4", "--batch-tokens", "1024", "--eval-sentences", "10"),
    sentences=20, few=3, minutes={"train": 0.3, "prune": 0.4},
)  # fmt: skip
PAPERS = Size(
    says="6 + 6 layers of 8 heads, width 128, on Multi30k: the shape of the papers at a size that CPUs train",
    recipe="recipes/papers.toml",
    settings=(),
    train=MULTI30K["train"], dev=MULTI30K["dev"], test=MULTI30K["test"],
    kinds=(MULTI30K["test"], "{data}/mixed/help.test.tsv.gz"),
    trees="{data}/ud/en_pud-ud-test.conllu.gz", seeds=(1, 2, 3), further=(4,), layers=6, heads=8,
    updates=5_000, warmup=200, batch_tokens=4096, epoch_updates=2_000,
    budgets=(75, 58, 36, 26), encoder_budgets=(30, 17, 10, 4),
    pruning=("--close-steps", "1000", "--recover-steps", "800", "--precision", "bf16-mixed"),
    sentences=300, few=100, least_bleu=25.0,
    minutes={"train": 45, "train two passes": 75, "prune": 150, "score": 6, "masks": 12, "importance": 1, "roles": 3},
)  # fmt: skip
H200 = replace(
    PAPERS, says="the same, trained on an H200", seeds=(1, 2, 3, 4, 5), further=(), extra=("run.device=cuda",)
)
GPU = Size(
    says="Transformer-base on text of your own, on a GPU: the size of the papers",
    recipe="recipes/transformer-base.toml",
    settings=(),
    train="{data}/train.en.gz {data}/train.de.gz", dev="{data}/dev.en.gz {data}/dev.de.gz",
    test="{data}/test.en.gz {data}/test.de.gz",
    kinds=("{data}/test.en.gz {data}/test.de.gz", "{data}/other.en.gz {data}/other.de.gz"),
    trees="{data}/ud/en_pud-ud-test.conllu.gz",
    seeds=(1, 2, 3), layers=6, heads=8, updates=100_000, warmup=4_000, batch_tokens=25_000, epoch_updates=20_000,
    budgets=(75, 58, 36, 26), encoder_budgets=(30, 17, 10, 4),
    pruning=("--close-steps", "10000", "--recover-steps", "10000", "--precision", "bf16-mixed"),
    sentences=1000, few=200, least_bleu=20.0,
    minutes={"train": 300, "train two passes": 480, "prune": 240, "score": 3, "masks": 10},
    extra=("run.device=cuda", "run.precision=bf16-mixed"),
)  # fmt: skip
SIZES = {"smoke": SMOKE, "papers": PAPERS, "papers-h200": H200, "gpu": GPU}
BESIDE = {"papers": {"papers-h200": "H200"}}
"""Size → other sizes whose trainings with masks stand in the same tables, and what their names there end in."""
