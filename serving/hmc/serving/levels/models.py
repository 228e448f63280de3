"""The models of a server: several bundles by name, as a command line gives them, and the one that a request chooses."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from hmc.artifact.bundle.manifest import read_manifest
from hmc.artifact.errors import HmcError, InvalidArtifactError, InvalidRequestError, ModelNotFoundError
from hmc.serving.levels.controller import AutoPolicy
from hmc.serving.levels.host import NAME, ModelHost, name_of
from hmc.serving.levels.memory import Capacity
from hmc.serving.levels.slots import HostStatus, TranslatorFactory
from hmc.serving.requests.selectors import MAX_NAME, Selector

NAME_RULE = f"letters, digits, `.`, `_` and `-`, first a letter or digit, at most {MAX_NAME} characters"


@dataclass(frozen=True)
class HostSettings:
    """The arguments for the hosts of all models; see `ModelHost`.

    A level is named `LEVEL`, which every model must have, or `MODEL/LEVEL`.
    """

    levels: tuple[str, ...] | None = None
    default_level: str | None = None
    """Several with commas, as `en-de/h36,fr-en/full`."""
    device: str = "auto"
    lazy: bool = False
    auto: AutoPolicy | None = None
    memory: int | None = None
    """Bytes of weights that the levels of all models may hold together. None: any number."""
    shared: bool = True
    """Whether levels share the weights of files that they have in common; not so without a cache of packed weights."""

    def for_model(self, model: str, names: Sequence[str]) -> tuple[tuple[str, ...] | None, str | None]:
        """The levels and the default level of one model. names: of all models. Raises InvalidRequestError for levels of
        a model that there is not, and for two default levels of one model."""
        levels = None if self.levels is None else _levels_of(self.levels, model, names, "levels")
        defaults = _levels_of((self.default_level or "").split(","), model, names, "default level")
        if len(defaults) > 1:
            raise InvalidRequestError(f"default level: {', '.join(defaults)} are several of model {model}; give one")
        return levels, defaults[0] if defaults else None


class Models:
    """Hosts by name, in the order in which they were given. The first one serves requests that choose none.

    Thread-safe as its hosts are. Changes of all models are made one after the other.
    """

    def __init__(self, hosts: Sequence[ModelHost]) -> None:
        """hosts: at least one; their names are unique."""
        self._hosts = {host.name: host for host in hosts}
        if len(self._hosts) < len(hosts) or not hosts:
            raise InvalidRequestError("give at least one model, and each name only once")

    @classmethod
    def open(
        cls,
        bundles: Mapping[str, Path],
        factory: TranslatorFactory,
        settings: HostSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> Models:
        """Makes a host of each bundle; none is started. With `lazy`, the first model and the models of named levels
        load their levels at the start. The others load when a request first chooses them.

        bundles: name → folder. The name of a single bundle may be empty; the model is then named by its languages.
        clock: in seconds. Raises the error of a bundle, or InvalidArtifactError with the errors of several bundles.
        """
        capacity = Capacity(settings.memory, shared=settings.shared)
        changing = threading.RLock()
        hosts = list[ModelHost]()
        errors = list[HmcError]()
        for name, bundle in bundles.items():
            try:
                levels, default = settings.for_model(name, list(bundles))
                on_demand = settings.lazy and bool(hosts or errors) and not levels
                hosts.append(
                    ModelHost(
                        bundle, factory, levels=levels, default_level=default, device=settings.device,
                        lazy=settings.lazy, auto=settings.auto, name=name, on_demand=on_demand, capacity=capacity,
                        changing=changing, clock=clock,
                    )
                )  # fmt: skip
            except HmcError as error:
                if len(bundles) == 1:
                    raise
                errors.append(error)
        if errors:
            problems = list(dict.fromkeys(str(error) for error in errors))
            raise InvalidArtifactError("the models to serve", problems, "No model is served until all can be.")
        return cls(hosts)

    # ---- finding one ----

    @property
    def hosts(self) -> list[ModelHost]:
        """All of them, in their order."""
        return list(self._hosts.values())

    @property
    def first(self) -> ModelHost:
        """The model for requests that choose none."""
        return next(iter(self._hosts.values()))

    def named(self, name: str | None) -> ModelHost:
        """The model of this name; the first for None and an empty name. Raises ModelNotFoundError."""
        if not name:
            return self.first
        if name not in self._hosts:
            raise ModelNotFoundError(f"unknown model {name!r}; this server has: {', '.join(self._hosts)}")
        return self._hosts[name]

    def find(self, selector: Selector) -> tuple[ModelHost, str]:
        """The model that a selector chooses, and the token of its target language for `ModelHost.lease`.

        Raises ModelNotFoundError if none fits, and InvalidRequestError for a malformed language tag.
        """
        candidates = [self.named(selector.model)] if selector.model else self.hosts
        for host in candidates:
            languages = host.languages
            if selector.source_language is not None and not languages.reads(selector.source_language):
                continue
            if selector.target_language is not None and not languages.writes(selector.target_language):
                continue
            return host, languages.code(selector.target_language)
        asked = f"{selector.source_language or 'any language'} to {selector.target_language or 'any language'}"
        known = "; ".join(f"{host.name}: {host.languages}" for host in candidates)
        raise ModelNotFoundError(f"no model here translates from {asked}; this server has {known}")

    # ---- all of them ----

    def start(self) -> None:
        """Loads the first levels of each model, one model after the other. Errors: see `ModelHost.start`."""
        for host in self.hosts:
            host.start()

    def stop_loading(self) -> None:
        """See `ModelHost.stop_loading`."""
        for host in self.hosts:
            host.stop_loading()

    def close(self, drain: bool = True) -> None:
        """See `ModelHost.close`."""
        self.stop_loading()
        for host in self.hosts:
            host.close(drain)

    def statuses(self) -> list[HostStatus]:
        """The status of each model."""
        return [host.status() for host in self.hosts]

    def unload_idle(self, unused_s: float) -> list[Future[None]]:
        """Takes levels out of service that no request has used for `unused_s` seconds, except levels that stay loaded.
        Returns futures that are done when they are free."""
        return [freed for host in self.hosts for freed in host.unload_idle(unused_s)]


def _levels_of(arguments: Sequence[str], model: str, names: Sequence[str], what: str) -> tuple[str, ...]:
    """The levels of one model among `LEVEL` and `MODEL/LEVEL`."""
    levels = []
    for argument in (name.strip() for name in arguments if name.strip()):
        owner, slash, level = argument.rpartition("/")
        if slash and owner not in names:
            known = ", ".join(names) or "one without a name: leave `MODEL/` out"
            raise InvalidRequestError(f"{what} {argument}: no model is called {owner!r}; this server has {known}")
        if not slash or owner == model:
            levels.append(level)
    return tuple(levels)


def parse_models(arguments: Sequence[str]) -> dict[str, Path]:
    """Reads `NAME=BUNDLE` or `BUNDLE`: the name of each model → the folder of its bundle, in their order.

    A folder with `=` in its name is written with a path, as in `./a=b`. Raises InvalidArtifactError with all problems:
    names that are not valid or not unique, and folders that are missing or hold no bundle. For one bundle alone without
    a name, the name is empty, and its folder is not read here; loading it reports what is wrong.
    """
    if len(arguments) == 1 and _split(arguments[0])[0] is None:
        return {"": Path(arguments[0])}
    problems = []
    named = list[tuple[str, Path]]()
    for argument in arguments:
        name, folder = _split(argument)
        if not folder:
            problems.append(f"{argument!r} names no bundle: write NAME=BUNDLE")
            continue
        if name is not None and (not NAME.fullmatch(name) or len(name) > MAX_NAME):
            problems.append(f"{argument!r}: a model's name has {NAME_RULE}")
        path = Path(folder)
        try:
            manifest = read_manifest(path)
        except HmcError as error:
            problems += [f"{path}: {problem}" for problem in getattr(error, "problems", [str(error)])]
            manifest = None
        if name or manifest:
            named.append((name or name_of(manifest), path) if manifest else (str(name), path))
    for name, uses in Counter(name for name, _ in named).items():
        if uses > 1:
            bundles = " and ".join(str(path) for other, path in named if other == name)
            problems.append(f"{name!r} is the name of {bundles}: give each another one, as in NAME=BUNDLE")
    if problems:
        raise InvalidArtifactError("the models to serve", problems, "Name each bundle once, by the folder it is in.")
    return dict(named)


def _split(argument: str) -> tuple[str | None, str]:
    name, equals, folder = argument.partition("=")
    return (name, folder) if equals and "/" not in name else (None, argument)
