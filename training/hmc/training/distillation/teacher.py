"""A frozen teacher: a checkpoint that shares the student's vocabulary."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hmc.artifact.checkpoint.checkpoint import checkpoint_digest, load_checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.architecture import Architecture
from hmc.training.data.batches import Batch
from hmc.training.data.vocabulary import Vocabulary
from hmc.training.distillation.objective import Lesson, lesson_of, observe
from hmc.training.distillation.settings import OFF, DistillSection
from hmc.training.model.checkpoints import model_from_checkpoint
from hmc.training.model.transformer import Transformer


class Teacher:
    """A frozen model without dropout, with all the heads of its checkpoint open."""

    def __init__(
        self, model: Transformer, settings: DistillSection, digest: str = "", start_id: int | None = None
    ) -> None:
        """digest: that of its checkpoint, by which a resumed run knows it again. start_id: the token that its decoder
        starts from where the student's starts from another."""
        self.model = model.eval().requires_grad_(False)
        self.settings = settings
        self.digest = digest
        self._start_id = start_id

    def lesson(self, batch: Batch) -> Lesson:
        """Returns the teacher's lesson for a batch on its device. Nothing here makes a GPU wait.

        Without trained weights there is no graph. Grad mode stays on, because on a CPU it chooses the faster products.
        """
        if self._start_id is not None:
            target_in = batch.target_in.clone()
            target_in[:, 0] = self._start_id
            batch = replace(batch, target_in=target_in)
        return lesson_of(self.model, observe(self.model, batch, self.settings))


@dataclass(frozen=True)
class Distillation:
    """What is learned, and from whom."""

    settings: DistillSection = OFF
    teacher: Teacher | None = None
    """None, with active settings: the first of the forward passes of an update teaches the others."""

    @property
    def digest(self) -> str:
        """That of the teacher's checkpoint; empty without a teacher."""
        return self.teacher.digest if self.teacher else ""


NOTHING = Distillation()
"""The loss is the cross entropy alone."""


def teacher_path(settings: DistillSection, default: Path | None) -> Path | None:
    """The checkpoint of the teacher. None: the settings use no teacher. Raises InvalidRequestError when the settings
    contradict each other."""
    if not settings.active and settings.teacher is not None:
        raise InvalidRequestError(
            f"a teacher is given ({settings.teacher}), but nothing is learned from it: set distill.weight above 0"
        )
    if settings.temperature != OFF.temperature and not settings.weight:
        raise InvalidRequestError(
            f"a temperature is given ({settings.temperature:g}), but no distribution is learned from a teacher: set "
            "distill.weight above 0, or leave the temperature out"
        )
    if not settings.active:
        return None
    path = Path(settings.teacher) if settings.teacher else default
    if path is None:
        raise InvalidRequestError("distillation needs a teacher: set distill.teacher or model.start_from")
    return path


def load_teacher(
    settings: DistillSection, default: Path | None, student: Architecture, vocabulary: Vocabulary, longest: int
) -> Teacher | None:
    """Loads the teacher that the settings name, else `default`. None: the settings use no teacher.

    vocabulary: the student's. longest: tokens in the longest sentence. Raises InvalidArtifactError for a checkpoint
    that cannot be used, and InvalidRequestError if no teacher is set, or if it cannot teach this student.
    """
    path = teacher_path(settings, default)
    if path is None:
        return None
    checkpoint = load_checkpoint(path)
    if problems := _problems(checkpoint.architecture, Vocabulary(checkpoint.tokenizer), student, vocabulary):
        raise InvalidRequestError(f"teacher {path}: {'; '.join(problems)}")
    if checkpoint.architecture.max_positions < longest:
        raise InvalidRequestError(
            f"teacher {path} has {checkpoint.architecture.max_positions} positions, and sentences have up to {longest} "
            "tokens: set the longest sentence (max_length) to the teacher's positions or less"
        )
    if settings.compares_layers and (problems := _layer_problems(checkpoint.architecture, student)):
        raise InvalidRequestError(f"teacher {path}: outputs of layers cannot be compared: {'; '.join(problems)}")
    start = checkpoint.architecture.decoder_start
    own = None if start == student.decoder_start else start
    return Teacher(model_from_checkpoint(checkpoint), settings, checkpoint_digest(path), own)


def _problems(
    teacher: Architecture, of_teacher: Vocabulary, student: Architecture, of_student: Vocabulary
) -> list[str]:
    sizes = (teacher.vocab_size, teacher.source_vocab_size), (student.vocab_size, student.source_vocab_size)
    if of_teacher.digest != of_student.digest or sizes[0] != sizes[1]:
        return [
            f"its vocabulary ({teacher.vocab_size} tokens) is not the student's ({student.vocab_size} tokens); "
            "word-level distillation needs the same one. Train on the teacher's translations instead"
        ]
    return []


def _layer_problems(teacher: Architecture, student: Architecture) -> list[str]:
    names = ("d_model", "encoder_layers", "decoder_layers")
    return [
        f"{name} is {getattr(teacher, name)}, the student's {getattr(student, name)}"
        for name in names
        if getattr(teacher, name) != getattr(student, name)
    ]


def check_same_teacher(former: str, present: str, state: Path) -> None:
    """Raises InvalidRequestError when the digests differ. former: fingerprint of the teacher with which the saved
    `state` began."""
    if former != present:
        raise InvalidRequestError(
            f"the teacher is not the one that {state} began with; restore that checkpoint, or choose another folder"
        )
