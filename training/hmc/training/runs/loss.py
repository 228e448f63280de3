"""Model and loss in one module, so that wrappers for several processes see every parameter."""

from __future__ import annotations

from torch import Tensor, nn

from hmc.training.data.batches import Batch
from hmc.training.distillation.objective import Lesson, lesson_of, observe, plain_loss, taught_loss
from hmc.training.distillation.settings import OFF, DistillSection
from hmc.training.model.loss import cross_entropy_sum
from hmc.training.model.transformer import Transformer


class SummedLoss(nn.Module):
    """The summed loss of a batch: the cross entropy, and what a teacher adds to it."""

    def __init__(self, model: Transformer, label_smoothing: float, distill: DistillSection = OFF) -> None:
        super().__init__()
        self.model, self.label_smoothing, self.distill = model, label_smoothing, distill

    def forward(
        self,
        source: Tensor,
        target_in: Tensor,
        target_out: Tensor,
        real: Tensor,
        source_padded: bool,
        lesson: Lesson | None = None,
        teaches: bool = False,
    ) -> Tensor | tuple[Tensor, Lesson]:
        """The fields of a `Batch`, which such wrappers would not pass on → summed loss (nats, scalar).

        lesson: what a teacher knows about the batch; None: the loss is the cross entropy. teaches: the model learns
        from no teacher, and returns its own lesson beside the loss.
        """
        batch = Batch(source, target_in, target_out, real, source_padded)
        if teaches:
            observed = observe(self.model, batch, self.distill)
            loss = plain_loss(self.model, observed, batch, self.label_smoothing)
            return loss, lesson_of(self.model, observed)
        if lesson is not None:
            observed = observe(self.model, batch, self.distill)
            return taught_loss(self.model, observed, batch, lesson, self.distill, self.label_smoothing)
        states = self.model(source, target_in, source_padded)
        return cross_entropy_sum(self.model, states, batch, self.label_smoothing)[0]
