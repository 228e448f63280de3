"""What `hmc analyze groups` and `hmc analyze cumulative` share: all but the analysis itself."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

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


def masking_command(name: str, description: str) -> Callable[..., None]:
    """The command that runs `hmc.training.analysis.NAME` and draws it with the figure of the same name."""

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
        from hmc.training.analysis.figures import draw
        from hmc.training.analysis.groups import check_groups
        from hmc.training.analysis.measure import Settings
        from hmc.training.analysis.ranking import RankBy
        from hmc.training.analysis.result import Result
        from hmc.training.analysis.subject import Progress, load_subject, read_text

        analysis = import_module(f"hmc.training.analysis.{name}")
        settings, rank_by = Settings(bleu, beam, resamples, seed, batch_tokens), RankBy(scores, rank_data, sentences)

        def analyse(progress: Progress) -> Result:
            subject = load_subject(checkpoint, device)
            check_groups(groups, subject.layout.total)  # before the heads are ranked, which takes long
            text = read_text(data, subject.languages, sentences)
            ranking = rank_by.rank(subject, text, progress)
            result: Result = analysis.analyse(subject, text, ranking, settings, groups, progress)
            return result

        carry_out(analyse, analysis.summary, getattr(draw, name), out, as_json)

    command.__doc__ = description
    return command
