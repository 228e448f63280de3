"""Jobs that chain rooms: the engine of serving makes text that training reads.

`distill` writes a teacher's translations of plain source text. `translate_for_pruning` makes of them the training and
dev text of a pruning run. Public names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hmc.artifact.lazy import lazy_names

if TYPE_CHECKING:
    from hmc.pipelines.distillation.filters import Filters as Filters
    from hmc.pipelines.distillation.results import Distilled as Distilled
    from hmc.pipelines.distillation.run import distill as distill
    from hmc.pipelines.distillation.settings import DistillSettings as DistillSettings
    from hmc.pipelines.progress import Progress as Progress
    from hmc.pipelines.pruning.text import translate_for_pruning as translate_for_pruning

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "hmc.pipelines.distillation.filters": ("Filters",),
        "hmc.pipelines.progress": ("Progress",),
        "hmc.pipelines.distillation.results": ("Distilled",),
        "hmc.pipelines.distillation.run": ("distill",),
        "hmc.pipelines.distillation.settings": ("DistillSettings",),
        "hmc.pipelines.pruning.text": ("translate_for_pruning",),
    },
)
