"""`hmc analyze cumulative`: groups of heads masked one after another."""

from __future__ import annotations

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
    """Mask group after group, most important first and least important first: two curves with 95 % bands."""
    from hmc.cli.analyze.output import carry_out
    from hmc.training.analysis import cumulative as analysis
    from hmc.training.analysis.figures import draw
    from hmc.training.analysis.measure import Settings
    from hmc.training.analysis.ranking import RankBy
    from hmc.training.analysis.result import Result
    from hmc.training.analysis.subject import Progress, load_subject, read_text

    settings, rank_by = Settings(bleu, beam, resamples, seed, batch_tokens), RankBy(scores, rank_data, sentences)

    def analyse(progress: Progress) -> Result:
        subject = load_subject(checkpoint, device)
        text = read_text(data, subject.languages, sentences)
        return analysis.analyse(subject, text, rank_by.rank(subject, text, progress), settings, groups, progress)

    carry_out(analyse, analysis.summary, draw.cumulative, out, as_json)
