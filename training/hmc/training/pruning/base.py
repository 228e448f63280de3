"""What pruning, nested fine-tuning and the control begin with: a checkpoint, the texts and the teacher of a request."""

from __future__ import annotations

from hmc.artifact.checkpoint.checkpoint import checkpoint_digest
from hmc.training.data.vocabulary import Vocabulary
from hmc.training.distillation.teacher import Distillation, load_teacher
from hmc.training.model.checkpoints import model_from_checkpoint
from hmc.training.model.regimes import freeze
from hmc.training.pruning.request import PrunePlan, prune_corpus
from hmc.training.runs.folder import REQUEST
from hmc.training.runs.run import Run
from hmc.training.runs.state import Inputs


class CheckpointRun(Run):
    """A run that begins with the weights of a checkpoint."""

    def __init__(self, plan: PrunePlan, *, taught: bool = True) -> None:
        """taught: load a teacher, where the settings name one. Raises InvalidRequestError, InvalidArtifactError or
        DeviceUnavailableError with what to do."""
        request = plan.request
        settings = plan.settings
        source = plan.source
        self.source = source
        self.settings = settings
        self.vocabulary = Vocabulary(source.tokenizer)
        teacher = None
        if taught:
            longest = plan.limit.tokens
            teacher = load_teacher(settings.distill, request.source, source.architecture, self.vocabulary, longest)
        self.distillation = Distillation(settings.distill, teacher)
        super().__init__(request.out, settings.run, plan.dev, plan.limit)
        with self.preparing(REQUEST, plan.text):
            corpus = prune_corpus(source, request.train, settings, request.out / "cache")
        self.model = self.seeded(settings.seed, lambda: model_from_checkpoint(source, dropout=settings.dropout))
        self.inputs = Inputs(corpus, plan.dev, checkpoint_digest(request.source), self.distillation.digest)
        self.weights = freeze(self.model, settings.freeze)
        """The parameters that are trained."""
