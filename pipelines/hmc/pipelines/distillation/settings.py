"""Settings of a distillation: how the teacher translates, and where; and the first file of its folder."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, NonNegativeInt, model_validator

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.precisions import Precision
from hmc.artifact.settings import SettingsModel
from hmc.engine.requests.options import DecodeOptions
from hmc.pipelines.folders import First

REQUEST = "distillation.json"
TEACHER = "teacher"
IMPORTED = "checkpoint"
"""The first file; the folder of the teacher's bundle; the folder of the checkpoint made of a MarianMT directory."""
FIRST = First(REQUEST, 1, "teacher, text or search", may_exist=(IMPORTED,))


class DistillSettings(SettingsModel):
    """How the teacher translates. Raises InvalidRequestError if a value is out of range."""

    max_length: int = Field(default=128, ge=4)
    """Longest source sentence, in tokens with its end; at most the positions of the teacher. Longer ones are dropped:
    training leaves them out too."""
    deduplicate: bool = True
    """Translate only the first of equal source lines. Takes about 100 bytes of memory for each different line."""
    beam: int = 4
    """Hypotheses of the teacher's search, from 1 to 16."""
    n_best: int = 1
    """Translations that are kept of each sentence, best first, with their scores; from 1 to `beam`. The training text
    gets the best one, or with --reference the one nearest to the reference."""
    length_penalty: float = 1.0
    """Hypotheses are ranked by log P / length ^ this."""
    precision: Literal["auto", Precision] = "auto"
    """Precision of the teacher. auto: int8, and fp16 on CUDA."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N. auto is CUDA where ONNX Runtime finds one."""
    workers: NonNegativeInt = 0
    """Batches that run at once on a CPU. 0: one for each physical core."""
    threads: NonNegativeInt = 0
    """Threads of each worker. 0: one."""
    shard_lines: int = Field(default=2000, ge=1)
    """Source lines in each file of translations. A killed run translates at most two files again."""

    @model_validator(mode="after")
    def _check(self) -> DistillSettings:
        self.options()
        if self.workers > 1 and self.device.startswith("cuda"):
            raise InvalidRequestError(f"workers {self.workers}: on {self.device} a level has one; leave it out")
        return self

    def options(self) -> DecodeOptions:
        """Returns the decoding options. Raises InvalidRequestError if one is out of range."""
        return DecodeOptions(beam_size=self.beam, n_best=self.n_best, length_penalty=self.length_penalty)

    def identity(self, precision: str) -> dict[str, Any]:
        """Returns the settings that the translations depend on, as JSON values. precision: what `auto` meant."""
        return self.model_dump(exclude={"device", "workers", "threads"}) | {"precision": precision}
