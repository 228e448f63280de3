"""The encoder of a level in device form: it writes each sentence's keys and values into the sentence's slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
from onnxruntime import InferenceSession

from hmc.serving.runtime.device import Device
from hmc.serving.runtime.encoder_groups import SHORTEST, device_groups, most_sentences
from hmc.serving.runtime.memory.views import View


class DeviceEncoder:
    """Runs the encoder on new sentences, in few calls of few different shapes."""

    def __init__(self, session: InferenceSession | None, device: Device, pad_id: int, positions: int) -> None:
        """session: None if no cross head is open, so that there is nothing to encode for. positions: of the model; the
        rooms of caches are rounded up, so they may be more."""
        self.session, self.device, self._pad, self._positions = session, device, pad_id, positions
        self._binding = None if session is None else session.io_binding()
        """Of all runs, one after the other: each binds everything anew."""
        self._warm: set[tuple[int, int, int]] = set()
        """(sentences, width, room) of calls that `warm_up` has made."""

    def encode(
        self, sources: Sequence[Sequence[int]], slots: Sequence[int], caches: Mapping[str, View], room: int
    ) -> None:
        """Encodes sentences (token ids with EOS) into their slots.

        caches: all slots of all caches, of which those named `cross_…` are written. room: their source positions.
        """
        if self.session is None:
            return
        for group in device_groups([len(source) for source in sources], room):
            chosen = [*group.sentences, *[group.sentences[-1]] * (group.count - len(group.sentences))]
            source = np.full((group.count, min(group.width, self._positions)), self._pad, np.int32)
            for row, sentence in enumerate(chosen):
                source[row, : len(sources[sentence])] = sources[sentence]
            lengths = np.array([len(sources[sentence]) for sentence in chosen], np.int32)
            self._run(source, lengths, np.array([[slots[sentence]] for sentence in chosen], np.int64), caches)

    def _run(self, source: object, lengths: object, slots: object, caches: Mapping[str, View]) -> None:
        assert self.session is not None
        binding = self._binding
        assert binding is not None
        for name, value in (("source", source), ("source_lengths", lengths), ("slots", slots)):
            binding.bind_cpu_input(name, value)
        for name, view in caches.items():
            if name.startswith("cross_"):
                view.bind_input(binding, name)
                view.bind_output(binding, f"next_{name}")
        self.session.run_with_iobinding(binding)

    def warm_up(self, caches: Mapping[str, View], slots: int, room: int) -> None:
        """Runs every shape of a call that `slots` slots of `room` source positions can need, unless it has before."""
        widths, counts = [room], [most_sentences(room)]
        while widths[-1] > SHORTEST:
            widths.append(max(widths[-1] // 2, SHORTEST))
        while counts[-1] > 1:
            counts.append(counts[-1] // 2)
        for width, calls in product(widths, counts):
            count = min(calls, slots)
            if calls < 2 * count and (calls, width, room) not in self._warm:
                self._warm.add((calls, width, room))
                self.encode([[self._pad] * min(width, self._positions)] * count, range(count), caches, room)
