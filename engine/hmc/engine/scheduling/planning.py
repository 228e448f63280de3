"""Checks a request against the level that is to serve it, and makes a job from it."""

from __future__ import annotations

from collections.abc import Sequence

from hmc.artifact.bundle.manifest import Variant
from hmc.artifact.errors import FailedPreconditionError, InvalidRequestError
from hmc.engine.decoding.attention_trace import chosen_heads
from hmc.engine.decoding.constraints import UNCONSTRAINED, Constraints
from hmc.engine.decoding.job import EncodedSentence, Job, Mode, Progress
from hmc.engine.decoding.sampling import uniforms
from hmc.engine.decoding.state import Rules
from hmc.engine.requests.caller import Priority
from hmc.engine.requests.options import DecodeOptions
from hmc.engine.runtime.programs import ProgramSessions
from hmc.engine.runtime.sessions import LevelSessions


def plan_job(
    sessions: LevelSessions,
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
    limit = _limit(options, len(source), len(constraints.prefix), sessions.arch.max_positions - 1)
    if constraints.prefix and not sessions.scores_wanted:
        raise FailedPreconditionError(
            f"level {sessions.level.name!r} was compiled before target prefixes and scoring: compile the bundle again"
        )
    if options.attention_heads and not options.needs_attention:
        raise InvalidRequestError("attention_heads serve alignment and coverage_penalty: ask for one of them")
    sampling = options.sampling
    return Job(
        source,
        options,
        constraints,
        Rules.of(options, limit, given=constraints.complete),
        Mode(options.rows, _variant(sessions, options, constraints, progress), priority.interactive),
        chosen_heads(sessions.level.layout, options.attention_heads) if options.needs_attention else None,
        None if sampling is None else uniforms(sampling, options.rows, limit),
        progress,
    )


class Planner:
    """Plans sentences that share all options: what `plan_job` finds once holds for all of the same length."""

    def __init__(self, sessions: LevelSessions, options: DecodeOptions, priority: Priority) -> None:
        self._sessions = sessions
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
            job = plan_job(self._sessions, source, self._options, constraints, priority=self._priority)
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
    sessions: LevelSessions, options: DecodeOptions, constraints: Constraints, progress: Progress | None
) -> Variant | None:
    """The decoder graph that the options need."""
    any_patience = isinstance(sessions, ProgramSessions)
    if sessions.searches_inside and why_on_host(options, constraints, progress, any_patience=any_patience) is None:
        return "search_greedy" if options.rows == 1 else "search_beam"
    needed: Variant | None = "attention" if options.needs_attention or options.repetition_penalty != 1.0 else None
    if options.sampling is not None:
        if options.needs_attention:
            raise InvalidRequestError(
                "alignment cannot be traced while sampling: score the sampled translation with alignment instead"
            )
        needed = "sampling"
    if needed is not None and not sessions.has(needed):
        raise FailedPreconditionError(
            f"level {sessions.level.name!r} was compiled without the {needed} decoder, which sampling, "
            "repetition and coverage penalties and alignment need: compile the bundle again with this version"
        )
    # Given translations are scored by the graph of beam search: the greedy one may differ in the last bits.
    greedy = options.rows == 1 and options.enough in (None, 1) and not constraints.complete
    return "greedy" if needed is None and greedy and sessions.has("greedy") else needed


def _limit(options: DecodeOptions, source: int, prefix: int, longest: int) -> int:
    """Most target tokens, EOS included. source, prefix: their tokens, counted. longest: most tokens of the model."""
    most = min(options.max_length or longest, longest)
    for name, value in (("min_length", options.min_length), ("target", prefix)):
        if value > most:
            raise InvalidRequestError(f"{name} of {value} tokens: at most {most} fit here")
    default = max(2 * source + 10, options.min_length, prefix + 10)
    return min(options.max_length or default, longest)
