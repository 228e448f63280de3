"""Settings of distillation: what the student learns from its teacher, and how much of it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hmc.training.section import Section


class DistillSection(Section):
    """Distillation at the level of words (Hinton et al. 2015; Kim & Rush 2016, section 3.1). Off by default.

    The loss of a target token is (1 - w) · cross entropy + w · T² · KL(teacher ‖ student) + h · hidden + a · attention.
    """

    weight: float = Field(default=0.0, ge=0, le=1)
    """Weight w of the difference from a teacher's distributions in the loss, such as 0.9; the rest is the cross
    entropy. 0: the cross entropy alone."""
    temperature: float = Field(default=1.0, gt=0)
    """The logits of teacher and student are divided by this T. The factor T² keeps the size of the gradient (Hinton et
    al. 2015)."""
    hidden: float = Field(default=0.0, ge=0)
    """Weight h of the mean squared difference from the teacher's layer outputs, the mean over all layers (Romero et al.
    2015)."""
    attention: float = Field(default=0.0, ge=0)
    """Weight a of the mean squared difference from the teacher's attention outputs after W_O, the mean over all
    attentions."""
    teacher: Annotated[str | None, "CKPT"] = None
    """Checkpoint of the teacher, with the same vocabulary. Default: the checkpoint that the student starts from."""

    @property
    def compares_layers(self) -> bool:
        """Whether outputs of layers or attentions are compared. Teacher and student must then have the same layers and
        attentions."""
        return bool(self.hidden or self.attention)

    @property
    def active(self) -> bool:
        """Whether anything is learned from a teacher. If not, no teacher is loaded."""
        return bool(self.weight) or self.compares_layers


OFF = DistillSection()
"""No distillation."""
