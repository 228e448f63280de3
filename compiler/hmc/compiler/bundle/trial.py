"""A bundle of models that are only timed: cut from one checkpoint in memory, compiled quickly, checked by nothing."""

from __future__ import annotations

from collections.abc import Sequence

from hmc.artifact.bundle.manifest import Level
from hmc.artifact.checkpoint.checkpoint import Checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.precisions import Precision
from hmc.compiler.bundle.builder import PROBE_SENTENCES, BundleBuilder
from hmc.compiler.bundle.requests import check_level
from hmc.compiler.pipeline import Chosen, Sentences, Source, compile_trial


class TrialBuilder(BundleBuilder):
    """Adds models that exist in memory alone. Their translations mean nothing, unless the models were trained."""

    def add_trial(self, name: str, model: Checkpoint, precision: Precision, fp32_layers: Sequence[str] = ()) -> Level:
        """Compiles a model of the architecture and the tokenizer of the builder's checkpoint as the level `name`.

        fp32_layers: those that stay in fp32 in int8 and int4. Raises InvalidRequestError.
        """
        if model.architecture != self._first.architecture:
            raise InvalidRequestError(f"{name}: its architecture differs from the first checkpoint's")
        check_level(precision, self._sentences.calibration, with_shortlist=False, device_form=self._device_form)
        folder = next(iter(self._sources.values())).folder
        some = Sentences(self._sentences.probe, self._sentences.calibration[:PROBE_SENTENCES])
        self.progress(f"{name}: compile")
        chosen = Chosen(name, Source.given(model, folder), model.layout, precision, None)
        self.levels[name] = compile_trial(chosen, some, fp32_layers)
        return self.levels[name]
