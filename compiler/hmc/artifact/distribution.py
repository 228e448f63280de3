"""The installed distribution: its version, the versions of the packages that it uses, and how to install its extras."""

from __future__ import annotations

NAME = "headmask"
"""On the package index, where `hmc` is another project. The import name and the command are `hmc`."""
VERSION = "0.1.0"
"""The build reads it here, so that it is known also where the sources run without being installed."""


def versions_of(*packages: str) -> dict[str, str]:
    """Versions of HMC (`hmc`), and of the packages that are installed."""
    from contextlib import suppress
    from importlib.metadata import PackageNotFoundError, version

    versions = {"hmc": VERSION}
    for name in packages:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def how_to_install(extra: str) -> str:
    """The advice to install an optional part of HMC (`train`, `compile` …) from where HMC itself came."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution

    from_sources = f"in the folder of HMC's source, pip install '.[{extra}]'"
    try:
        origin = distribution(NAME).read_text("direct_url.json")
    except PackageNotFoundError:  # imported from a checkout that is not installed
        return from_sources
    if origin is None:  # from a package index
        return f"pip install '{NAME}[{extra}]'"
    known = json.loads(origin)
    return from_sources if "dir_info" in known else f"pip install '{NAME}[{extra}] @ {known['url']}'"
