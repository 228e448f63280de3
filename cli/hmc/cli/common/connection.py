"""The connection to a server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hmc.serving.client import Client


@contextmanager
def connected(server: str, token: str | None, tls_ca: Path | None) -> Iterator[Client]:
    """Connects a client for the block. The error about a wrong token says what to do. Raises as `Client`."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # errors are raised; gRPC's own log would only clutter the terminal
    from hmc.artifact.errors import UnauthenticatedError
    from hmc.serving.client import Client

    with Client(server, token=token, tls_ca=tls_ca) as client:
        try:
            yield client
        except UnauthenticatedError as error:
            raise UnauthenticatedError(f"{error}; give this server's token in HMC_TOKEN or with --token") from error
