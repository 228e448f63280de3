"""Checks a request against the level that is to serve it, and makes a job from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hmc.artifact.bundle.manifest import Level, Variant
from hmc.artifact.errors import FailedPreconditionError, InvalidRequestError
from hmc.artifact.model.architecture import Architecture
from hmc.engine.decoding.attention_trace import chosen_heads
from hmc.engine.decoding.constraints import UNCONSTRAINED, Constraints
from hmc.engine.decoding.job import EncodedSentence, Job, Mode, Progress
from hmc.engine.decoding.sampling import uniforms
from hmc.engine.decoding.state import Rules
from hmc.engine.requests.caller import Priority
from hmc.engine.requests.options import DecodeOptions


class LevelTraits(Protocol):
    """What the plan of a sentence needs to know of its level."""

    @property
    def arch(self) -> Architecture: ...

    @property
    def level(self) -> Level: ...

    @property
    def scores_wanted(self) -> bool:
        """Whether it gives the score of a given token."""

    @property
    def searches_inside(self) -> bool:
        """Whether greedy and beam search run in what computes the level, many steps a call."""

    @property
    def any_patience(self) -> bool:
        """Whether such a search counts ended hypotheses."""

    def has(self, variant: Variant) -> bool:
        """Whether it has this variant of the decoder."""


def plan_job(
    traits: LevelTraits,
    source: Sequence[int],
    options: DecodeOptions,
    constraints: Constraints,
    progress: Progress | None = None,
    *,
    priority: Priority = Priority.INTERACTIVE,
) -> Job:
    """The job of one sentence; source: token ids, EOS last.

    Raises InvalidRequestError for options that exclude each other or exceed the model, FailedPreconditionError for a
    level that was compiled without what the options need. Opens no graph, so it returns at once.
    """
    limit = _limit(options, len(source), len(constraints.prefix), traits.arch.max_positions - 1)
    if constraints.prefix and not traits.scores_wanted:
        raise FailedPreconditionError(
            f"level {traits.level.name!r} was compiled before target prefixes and scoring: compile the bundle again"
        )
    if options.attention_heads and not options.needs_attention:
        raise InvalidRequestError("attention_heads serve alignment and coverage_penalty: ask for one of them")
    sampling = options.sampling
    return Job(
        source,
        options,
        constraints,
        Rules.from_options(options, limit, only_scored=constraints.complete),
        Mode(options.rows, _variant(traits, options, constraints, progress), priority.interactive),
        chosen_heads(traits.level.layout, options.attention_heads) if options.needs_attention else None,
        None if sampling is None else uniforms(sampling, options.rows, limit),
        progress,
    )


class Planner:
    """Plans sentences that share all options: what `plan_job` finds once holds for all of the same length."""

    def __init__(self, traits: LevelTraits, options: DecodeOptions, priority: Priority) -> None:
        self._traits = traits
        self._options = options
        self._priority = priority
        self._alike = not (options.needs_attention or options.attention_heads or options.sampling)
        self._planned: dict[int, tuple[Rules, Mode]] = {}
        """Source tokens → rules and mode of unconstrained sentences of so many."""

    def job(self, sentence: EncodedSentence) -> Job:
        """The job of one sentence. Raises as `plan_job`."""
        source, constraints, finish = sentence
        plain = self._alike and constraints is UNCONSTRAINED
        if plain and (planned := self._planned.get(len(source))):
            job = Job(source, self._options, constraints, *planned)
        else:
            job = plan_job(self._traits, source, self._options, constraints, priority=self._priority)
            if plain:
                self._planned[len(source)] = job.rules, job.mode
        job.finish = finish
        return job


def why_on_host(
    options: DecodeOptions, constraints: Constraints, progress: Progress | None = None, *, any_patience: bool = False
) -> str | None:
    """Why the search of a request has to run on the host, step by step, also where a level's executor can search.
    None: nothing that the request asks for needs that, so it is greedy or beam search with at most a length
    penalty, limits of length and several answers. any_patience: whether the executor counts ended hypotheses."""
    reasons = (
        (options.sampling is not None, "sampling draws by numbers that the host gives"),
        (constraints.complete, "a given translation is only scored"),
        (bool(constraints.prefix), "a target prefix forces tokens"),
        (constraints.bans, "suppressed tokens and repeated n-grams are found in the tokens of every row"),
        (progress is not None, "the caller is told the certain tokens of every step"),
        (options.alignment, "alignment records the attention of every step"),
        (options.coverage_penalty > 0, "a coverage penalty reads the attention of every step"),
        (options.repetition_penalty != 1.0, "a repetition penalty lowers the tokens that a row has"),
        (
            options.enough is not None and not any_patience,
            "patience counts ended hypotheses, which may be more than the beam",
        ),
    )
    return next((reason for asked, reason in reasons if asked), None)


def _variant(
    traits: LevelTraits, options: DecodeOptions, constraints: Constraints, progress: Progress | None
) -> Variant | None:
    """The decoder graph that the options need."""
    on_host = why_on_host(options, constraints, progress, any_patience=traits.any_patience)
    if traits.searches_inside and on_host is None:
        return "search_greedy" if options.rows == 1 else "search_beam"
    needed: Variant | None = "attention" if options.needs_attention or options.repetition_penalty != 1.0 else None
    if options.sampling is not None:
        if options.needs_attention:
            raise InvalidRequestError(
                "alignment cannot be traced while sampling: score the sampled translation with alignment instead"
            )
        needed = "sampling"
    if needed is not None and not traits.has(needed):
        raise FailedPreconditionError(
            f"level {traits.level.name!r} was compiled without the {needed} decoder, which sampling, "
            "repetition and coverage penalties and alignment need: compile the bundle again with this version"
        )
    # Given translations are scored by the graph of beam search: the greedy one may differ in the last bits.
    greedy = options.rows == 1 and options.enough in (None, 1) and not constraints.complete
    return "greedy" if needed is None and greedy and traits.has("greedy") else needed


def _limit(options: DecodeOptions, source: int, prefix: int, longest: int) -> int:
    """Most target tokens, EOS included. source, prefix: their tokens, counted. longest: most tokens of the model."""
    most = min(options.max_length or longest, longest)
    for name, value in (("min_length", options.min_length), ("target", prefix)):
        if value > most:
            raise InvalidRequestError(f"{name} of {value} tokens: at most {most} fit here")
    default = max(2 * source + 10, options.min_length, prefix + 10)
    return min(options.max_length or default, longest)
