"""`hmc analyze groups` and `hmc analyze cumulative`: groups of heads masked one at a time, or one after another."""

from __future__ import annotations

from collections.abc import Callable

from hmc.cli.analyze.options import (
    AsJson,
    BatchTokens,
    Beam,
    Bleu,
    Checkpoint,
    Data,
    Device,
    Groups,
    Out,
    RankData,
    Resamples,
    Scores,
    Seed,
    Sentences,
)


def _masking_command(name: str, description: str) -> Callable[..., None]:
    """The command of the analysis `name`. Both analyses have the same options and the same arguments."""

    def command(
        checkpoint: Checkpoint,
        data: Data,
        out: Out,
        groups: Groups = 8,
        scores: Scores = None,
        rank_data: RankData = None,
        sentences: Sentences = 0,
        bleu: Bleu = True,
        beam: Beam = 1,
        resamples: Resamples = 1000,
        seed: Seed = 12345,
        batch_tokens: BatchTokens = 8192,
        device: Device = "auto",
        as_json: AsJson = False,
    ) -> None:
        from hmc.cli.analyze.output import carry_out
        from hmc.training.analysis.common.measure import Settings
        from hmc.training.analysis.common.result import Result
        from hmc.training.analysis.common.subject import Progress, load_subject, read_text
        from hmc.training.analysis.figures.masking import draw_cumulative, draw_groups
        from hmc.training.analysis.masking import cumulative as cumulative_analysis
        from hmc.training.analysis.masking import groups as groups_analysis
        from hmc.training.analysis.masking.ranking import RankBy

        analysis, draw = {
            "groups": (groups_analysis, draw_groups),
            "cumulative": (cumulative_analysis, draw_cumulative),
        }[name]
        settings, rank_by = Settings(bleu, beam, resamples, seed, batch_tokens), RankBy(scores, rank_data, sentences)

        def analyse(progress: Progress) -> Result:
            subject = load_subject(checkpoint, device)
            groups_analysis.check_groups(groups, subject.layout.total)  # fails now, not after ranking the heads
            text = read_text(data, subject.languages, sentences)
            ranking = rank_by.rank(subject, text, progress)
            result: Result = analysis.analyse(subject, text, ranking, settings, groups, progress)
            return result

        carry_out(analyse, analysis.summary, draw, out, as_json)

    command.__doc__ = description
    return command


groups = _masking_command(
    "groups", "Divide the heads into groups by importance and mask one group at a time: loss and BLEU."
)
cumulative = _masking_command(
    "cumulative",
    "Mask group after group, most important first and least important first: two curves with 95 % bands.",
)
