"""The connection to a server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hmc.cli.common.options import Tls

if TYPE_CHECKING:
    from hmc.serving.client import Client


@contextmanager
def connected(server: str, token: str | None, tls: Tls) -> Iterator[Client]:
    """Connects a client for the block. The error about a wrong token says what to do. Raises as `Client`, and
    InvalidRequestError for a certificate without its key."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # errors are raised; gRPC's own log would only clutter the terminal
    from hmc.artifact.errors import InvalidRequestError, UnauthenticatedError
    from hmc.serving.client import Client

    if (tls.cert is None) != (tls.key is None):
        raise InvalidRequestError("a client certificate needs both --tls-cert and --tls-key")
    pair = None if tls.cert is None or tls.key is None else (tls.cert, tls.key)
    with Client(server, token=token, tls_ca=tls.ca, tls_pair=pair) as client:
        try:
            yield client
        except UnauthenticatedError as error:
            raise UnauthenticatedError(f"{error}; give this server's token in HMC_TOKEN or with --token") from error
