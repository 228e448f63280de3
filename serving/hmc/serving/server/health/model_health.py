"""The health of models and levels, by the names under which the standard health service reports it."""

from __future__ import annotations

from hmc.serving.levels.models import Models

TRANSLATION, ADMIN = "hmc.v1.TranslationService", "hmc.v1.AdminService"


def model_health(models: Models) -> dict[str, bool]:
    """Service name → whether it serves.

    A level (`hmc.v1.TranslationService/MODEL/LEVEL`) serves if it is loaded and has not failed, a model
    (`hmc.v1.TranslationService/MODEL`) if its default level does. The server (the empty name and
    `hmc.v1.TranslationService`) serves if each model does that was loaded at the start. `hmc.v1.AdminService` serves
    even then: a reload may be what repairs a level.
    """
    health, server = dict[str, bool](), True
    for host in models.hosts:
        default, levels = host.serving()
        health[f"{TRANSLATION}/{host.name}"] = levels[default]
        health |= {f"{TRANSLATION}/{host.name}/{level}": serves for level, serves in levels.items()}
        server = server and (levels[default] or not host.eager)
    return {"": server, TRANSLATION: server, ADMIN: True, **health}
