"""Loads levels into a bundle that serves, or is about to."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence

from hmc.artifact.bundle.manifest import Level
from hmc.artifact.errors import DeviceUnavailableError, UnavailableError
from hmc.serving.levels.freeing import Room
from hmc.serving.levels.slots import LoadedBundle, Slot, TranslatorFactory

log = logging.getLogger(__name__)

SHUTTING_DOWN = "the server is shutting down; try again at another one"


class Loader:
    """Loads levels one after the other. The host calls it under the lock of its changes."""

    def __init__(
        self,
        factory: TranslatorFactory,
        state: threading.Condition,
        room: Room,
        device: str,
        clock: Callable[[], float],
    ) -> None:
        """factory: loads a translator. state: guards what a bundle has loaded. room: where levels must find memory.
        device: where levels run, as in the settings. clock: returns the time in seconds."""
        self._factory = factory
        self._state = state
        self._room = room
        self._device = device
        self._clock = clock
        self._stopping = False

    def stop(self) -> None:
        """From now on no level begins to load; a call that needs one raises UnavailableError."""
        self._stopping = True

    def fill(
        self, bundle: LoadedBundle, levels: Sequence[Level], required: Collection[str], *, in_service: bool
    ) -> None:
        """Loads levels in the given order. If one fails, all of them are freed and its error is raised.

        A level whose device is missing is left out if its name is not `required`. in_service: requests may use the
        levels that are loaded already. If `stop` ended the loading, `ModelHost.close` frees these levels.
        """
        with self._state:
            bundle.loading = [level.name for level in levels]
        try:
            for level in levels:
                try:
                    self.add(bundle, level)
                except DeviceUnavailableError as error:
                    if level.name in required:
                        raise
                    log.warning("level %s is left out: %s", level.name, error)
                    with self._state:
                        bundle.loading.remove(level.name)
        except BaseException:
            if not (self._stopping and in_service):
                for slot in bundle.slots.values():
                    slot.translator.close(drain=False)
                bundle.slots.clear()
            raise

    def add(self, bundle: LoadedBundle, level: Level) -> None:
        """Loads a level and warms it up. Raises InvalidArtifactError, DeviceUnavailableError, UnavailableError after
        `stop`, and as `Room.make`."""
        try:
            slot = self._open(bundle, level)
        except DeviceUnavailableError:
            with self._state:
                bundle.unavailable.add(level.name)
            raise
        with self._state:
            bundle.unavailable.discard(level.name)
            bundle.slots[level.name] = slot
            bundle.loading = [name for name in bundle.loading if name != level.name]

    def _open(self, bundle: LoadedBundle, level: Level) -> Slot:
        if self._stopping:
            raise UnavailableError(SHUTTING_DOWN)
        self._room.make(bundle, level, self._device)
        translator = self._factory(bundle.path, bundle.manifest, level.name)
        try:
            translator.warm_up()
            self._room.settle(bundle, level, translator.weights)
        except BaseException:
            translator.close(drain=False)
            raise
        log.info("level %s: %d heads, %s, on %s", level.name, level.heads, level.precision, translator.device)
        return Slot(level, translator, last_used=self._clock())
