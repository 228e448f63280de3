"""Telling a caller what is certain of a translation while it is still being searched for."""

from __future__ import annotations

from itertools import takewhile

from hmc.serving.jobs import Job
from hmc.serving.state import NEVER, DecodeState


def certain_tokens(state: DecodeState, sentence: int) -> tuple[int, ...]:
    """The longest prefix that all hypotheses share, those that run and those that have ended: no later step of the
    search can change it."""
    length = state.lengths[sentence]
    running = state.tokens[sentence, state.scores[sentence] > NEVER, :length].tolist()
    every = [*running, *(h.ids for h in state.finished[sentence])]
    alike = takewhile(lambda column: len(set(column)) == 1, zip(*every, strict=False))
    return tuple(int(column[0]) for column in alike)


def tell(job: Job, state: DecodeState, sentence: int, *, ended: bool) -> None:
    """Tells the job's caller if more of its translation is certain than it was told last."""
    if job.progress is None or job.future.cancelled():
        return
    certain = state.finished[sentence][0].ids if ended else certain_tokens(state, sentence)
    if len(certain) > job.told:
        job.told = len(certain)
        job.progress(certain)
