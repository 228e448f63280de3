"""The options of `hmc prune`, by the part of the command that they are about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from hmc.artifact.errors import InvalidRequestError, plain_problem
from hmc.cli.common.options import check_unused, dashed, opt, options_of

if TYPE_CHECKING:
    from hmc.artifact.model.heads import AttentionKind
    from hmc.training.pruning.settings import PruneSettings

DATA = "Data"
BUDGET = "What to remove"
SCHEDULE = "How long"
TRAINING = "Training"
OUTPUT = "Output"
NESTED = "One set of weights for all budgets"
TEACHER = "Teacher"
SETTINGS = {
    BUDGET: ("l0_lambda", "settle_gates"),
    TRAINING: (
        "freeze", "learning_rate", "optimizer", "warmup_steps", "batch_tokens", "max_length", "accumulate", "dropout",
        "bpe_dropout", "bpe_dropout_copies", "seed", "run.precision", "run.compile", "run.device",
    ),
    SCHEDULE: ("close_steps", "recover_steps", "run.save_every"),
    NESTED: (
        "run.eval_every", "nested.levels", "nested.between", "nested.teacher", "nested.shrink", "nested.heads",
    ),
    TEACHER: ("distill.weight", "distill.temperature", "distill.teacher", "distill.hidden", "distill.attention"),
    DATA: ("run.eval_sentences",),
}  # fmt: skip
"""Panel of `--help` → settings that are options."""
OPTIONS = {"distill.weight": "distill", "distill.temperature": "temperature", "distill.teacher": "teacher"}
"""Setting → its option, where that does not follow from its section and its name."""


@dataclass(frozen=True)
class BudgetOptions:
    """What to remove."""

    target_heads: Annotated[
        str | None,
        opt(
            BUDGET,
            "Number of heads in --scope that stay open: one budget or several, such as 72,36; shares of all "
            "heads: 50%,25%; or a number for each kind: enc=10,dec=20,cross=24 (separate several with ';'). A kind "
            "that is not named keeps all its heads.",
        ),
    ] = None
    target_ffn: Annotated[
        str | None,
        opt(
            BUDGET,
            "Number of feed-forward neurons of the whole model that stay: 1536; a share: 50%; or several budgets: "
            "50%,25%. With --target-heads: one number for all head budgets, or one for each.",
        ),
    ] = None
    scope: Annotated[
        str | None,
        opt(
            BUDGET,
            "Kinds of heads that may close: all; or some of encoder_self, decoder_self, cross, separated by commas.",
            show_default="all",
        ),
    ] = None


@dataclass(frozen=True)
class ScheduleOptions:
    """What else is trained."""

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


def setting_options() -> type:
    """The settings that are options."""
    from pydantic import Field

    from hmc.training.pruning.settings import PruneSettings

    fields = {}
    panels = {}
    for panel, paths in SETTINGS.items():
        for path in paths:
            section, _, name = path.rpartition(".")
            of: Any = PruneSettings.model_fields[section].annotation if section else PruneSettings
            fields[_option_of(path)] = of.model_fields[name]
            panels[_option_of(path)] = panel
    precision = "32-true or bf16-mixed. Default: as in the checkpoint's recipe; 32-true where the device has no bf16."
    fields["precision"] = Field(default=None, description=precision)
    return options_of(fields, panels, dict.fromkeys(map(_option_of, SETTINGS[NESTED]), "nested_steps"))


def latency_options() -> type:
    """The options about latency."""
    from hmc.cli.latency_pruning import LatencySettings

    targets = ("target_speedup", "target_latency_ms")
    others = LatencySettings.model_fields.keys() - set(targets)
    needs = dict.fromkeys(others, " ".join(targets))
    return options_of(LatencySettings.model_fields, {"target_speedup": "What to remove: by latency"}, needs)


def check_options(budget: BudgetOptions, latency: Any, schedule: ScheduleOptions, options: Any) -> None:
    """Raises InvalidRequestError for options that others leave without effect."""
    if latency.target_speedup or latency.target_latency_ms:
        reason = "is not for a latency, which decides on heads, neurons and layers together: leave one of them out"
        check_unused(
            reason, **vars(budget), l0_lambda=options.l0_lambda, settle_gates=options.settle_gates,
            nested_steps=schedule.nested_steps or None,
        )  # fmt: skip
    if options.nested_heads not in (None, "checkpoints"):
        reason = f"is for gates, and --nested-heads {options.nested_heads} closes none: leave it out"
        names = ("close_steps", "recover_steps", "settle_gates")
        check_unused(reason, **{name: getattr(options, name) for name in names})


def parse_settings(options: Any, kinds: Sequence[AttentionKind]) -> PruneSettings:
    """Raises InvalidRequestError, which names the options, if a value is none that its setting takes."""
    from pydantic import ValidationError

    from hmc.training.pruning.settings import PruneSettings

    values: dict[str, Any] = {"scope": kinds, "distill": {}, "nested": {}, "run": {}}
    for paths in SETTINGS.values():
        for path in paths:
            section, _, name = path.rpartition(".")
            value = getattr(options, _option_of(path))
            if value is not None:
                (values[section] if section else values)[name] = value
    try:
        return PruneSettings.model_validate(values)
    except ValidationError as error:
        problems = []
        for problem in error.errors():
            option = dashed(_option_of(".".join(map(str, problem["loc"]))))
            problems.append(f"{option} {problem['input']}: {plain_problem(problem)}")
        raise InvalidRequestError("; ".join(problems)) from error


def _option_of(setting: str) -> str:
    return OPTIONS.get(setting, setting.removeprefix("run.").replace(".", "_"))
