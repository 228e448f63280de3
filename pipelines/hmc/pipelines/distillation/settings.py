"""Settings of a distillation: how the teacher translates, and where; and the first file of its folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.precisions import PRECISIONS
from hmc.engine.requests.options import DecodeOptions
from hmc.pipelines.folders import First

REQUEST = "distillation.json"
TEACHER = "teacher"
IMPORTED = "checkpoint"
"""The first file; the folder of the teacher's bundle; the folder of the checkpoint made of a MarianMT directory."""
FIRST = First(REQUEST, 1, "teacher, text or search", may_exist=(IMPORTED,))


@dataclass(frozen=True)
class DistillSettings:
    """How the teacher translates. Raises InvalidRequestError if a value is out of range."""

    beam: int = 4
    """Hypotheses of the search, from 1 to 16."""
    n_best: int = 1
    """Hypotheses kept for each sentence, best first, from 1 to `beam`. Training reads one."""
    length_penalty: float = 1.0
    """Hypotheses are ranked by log P / length ^ length_penalty."""
    max_length: int = 128
    """Longest source sentence, in tokens with its end; at most the positions of the teacher. Longer ones are dropped:
    training leaves them out too."""
    deduplicate: bool = True
    """Translate only the first of equal source lines. Takes about 100 bytes of memory for each different line."""
    shard_lines: int = 2000
    """Source lines in each file of translations. A killed run translates at most two files again."""
    precision: str = "auto"
    """Precision of the teacher. `auto`: int8, and fp16 on CUDA."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N. `auto` is CUDA where ONNX Runtime finds one."""
    workers: int = 0
    """Batches that run at once on a CPU. 0: one for each physical core."""
    threads: int = 0
    """Threads of each worker. 0: one."""

    def __post_init__(self) -> None:
        self.options()
        if self.max_length < 4:
            raise InvalidRequestError(f"max_length {self.max_length}: choose 4 tokens or more")
        if self.shard_lines < 1:
            raise InvalidRequestError(f"shard_lines {self.shard_lines}: choose 1 or more")
        if self.workers < 0 or self.threads < 0:
            raise InvalidRequestError(f"workers {self.workers}, threads {self.threads}: choose 0 or more")
        if self.workers > 1 and self.device.startswith("cuda"):
            raise InvalidRequestError(f"workers {self.workers}: on {self.device} a level has one; leave it out")
        if self.precision != "auto" and self.precision not in PRECISIONS:
            raise InvalidRequestError(f"precision {self.precision!r}: choose auto, {', '.join(PRECISIONS)}")

    def options(self) -> DecodeOptions:
        """Returns the decoding options. Raises InvalidRequestError if one is out of range."""
        return DecodeOptions(beam_size=self.beam, n_best=self.n_best, length_penalty=self.length_penalty)

    def identity(self, precision: str) -> dict[str, Any]:
        """Returns the settings that the translations depend on, as JSON values. precision: what `auto` meant."""
        return {
            "beam": self.beam,
            "n_best": self.n_best,
            "length_penalty": self.length_penalty,
            "max_length": self.max_length,
            "deduplicate": self.deduplicate,
            "shard_lines": self.shard_lines,
            "precision": precision,
        }
