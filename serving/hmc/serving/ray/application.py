"""The application that Ray runs: its arguments are the settings of `hmc serve`, and how many replicas there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ray import serve

from hmc.artifact.bundle.manifest import read_manifest
from hmc.artifact.errors import InvalidRequestError
from hmc.engine.runtime.device import parse_devices
from hmc.serving.levels.models import parse_models
from hmc.serving.ray.replica import QueuedTexts, Replica
from hmc.serving.server.configuration import load
from hmc.serving.server.settings import ServerSettings

NOT_HERE = {
    "host": "Ray's proxy listens", "port": "it is Ray's, `grpc_options.port`", "tls_cert": "Ray's port has no TLS",
    "tls_client_ca": "Ray's port has no TLS", "admin_address": "an admin would change one replica of several",
    "watch": "deploy again, and Ray rolls the update", "metrics_port": "each replica would need it",
    "http_port": "each replica would need it", "trace_to": "trace Ray itself",
    "idle_unload": "replicas keep the levels that they have loaded", "fronts": "`replicas` says how many there are",
    **dict.fromkeys(
        (
            "max_connections", "max_streams", "max_message_mib", "max_metadata_kib", "connection_age_seconds",
            "connection_grace_seconds", "connection_idle_seconds",
        ),
        "connections end at Ray's proxy",
    ),
}  # fmt: skip
"""Settings that do not apply behind Ray, and why."""
MOST_CALLS = 100_000
"""Calls that Ray gives to one replica. The queue of HMC refuses what is too much, with its own words."""


@dataclass(frozen=True)
class Replicas:
    """How many replicas there are, and when there are more. Raises InvalidRequestError for numbers out of range."""

    fewest: int = 1
    most: int = 1
    target: float = 64.0
    """Texts that wait or run at each, where their number may change."""
    upscale_s: float = 5.0
    """Seconds of more texts before there are more replicas."""
    downscale_s: float = 120.0
    """Seconds of fewer texts before there are fewer."""
    cpus: float = 0.0
    """Processors of Ray that each reserves. 0: its threads times its workers."""

    def __post_init__(self) -> None:
        if not 1 <= self.fewest <= self.most:
            raise InvalidRequestError(f"replicas {self.fewest}:{self.most}: choose 1 or more, and the larger one last")
        if self.cpus < 0:
            raise InvalidRequestError(f"cpus {self.cpus:g}: choose 0 or more")
        if self.target <= 0:
            raise InvalidRequestError(f"replica_texts {self.target}: choose more than 0")

    @classmethod
    def parse(cls, text: str | int, **more: float) -> Replicas:
        """`2`, or `1:3` for a number that follows the load."""
        fewest, colon, most = str(text).partition(":")
        try:
            return cls(int(fewest), int(most if colon else fewest), **more)
        except ValueError as error:
            raise InvalidRequestError(f"replicas {text!r}: give a number, or two as in 1:3") from error

    def options(self) -> dict[str, Any]:
        """Options of a deployment of Ray."""
        if self.fewest == self.most:
            return {"num_replicas": self.fewest}
        policy = {"policy_function": QueuedTexts, "policy_kwargs": {"target": self.target}}
        return {
            "autoscaling_config": {
                "min_replicas": self.fewest, "max_replicas": self.most, "policy": policy,
                "upscale_delay_s": self.upscale_s, "downscale_delay_s": self.downscale_s,
                "look_back_period_s": 15.0,
            }
        }  # fmt: skip


def build(arguments: Mapping[str, Any]) -> serve.Application:
    """The application of a configuration file. arguments: `bundles`, settings of `hmc serve` by their keys, and
    `replicas`, `replica_texts`, `upscale_s`, `downscale_s`, `cpus`.

    Raises InvalidRequestError for an unknown or wrong one, and what `read_manifest` raises.
    """
    given = dict(arguments)
    names = {"replica_texts": "target", "upscale_s": "upscale_s", "downscale_s": "downscale_s", "cpus": "cpus"}
    more = {field: float(given.pop(name)) for name, field in names.items() if name in given}
    replicas = Replicas.parse(given.pop("replicas", 1), **more)
    if isinstance(given.get("bundles"), str):
        given["bundles"] = [given["bundles"]]
    settings = load(given, {}).settings
    if not settings.bundles:
        raise InvalidRequestError("no bundle to serve: give `bundles` in the arguments of the application")
    return application(settings.bundles, settings, replicas)


def application(
    bundles: tuple[str, ...], settings: ServerSettings, replicas: Replicas, replica: type[Replica] = Replica
) -> serve.Application:
    """The application of bundles, `[NAME=]BUNDLE`. Raises InvalidRequestError for settings that Ray cannot keep."""
    check(settings)
    models = {name: path.resolve() for name, path in parse_models(bundles).items()}
    versions = [read_manifest(path).version for path in models.values()]
    deployment = serve.deployment(replica).options(
        name="hmc",
        max_ongoing_requests=MOST_CALLS,
        graceful_shutdown_timeout_s=settings.drain_seconds,
        health_check_period_s=2.0,
        ray_actor_options={"num_cpus": replicas.cpus or max(1, settings.threads) * max(1, settings.workers)},
        **replicas.options(),
    )
    named = [f"{name}={path}" if name else str(path) for name, path in models.items()]
    return deployment.bind(named, settings, versions)


def check(settings: ServerSettings) -> None:
    """Raises InvalidRequestError for settings that do not apply behind Ray."""
    default = ServerSettings()
    for name, why in NOT_HERE.items():
        if name not in ("host", "port") and getattr(settings, name) != getattr(default, name):
            raise InvalidRequestError(f"{name}: does not work with Ray, because {why}; leave it out")
    if any(device not in ("auto", "cpu") for device in parse_devices(settings.device)):
        raise InvalidRequestError(f"device {settings.device}: replicas of Ray run on CPUs; leave it out")
