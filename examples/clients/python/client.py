"""Translates texts as they are read from the command line, one answer a line.

    python client.py HOST:PORT[,HOST:PORT...] TEXT [TEXT ...]

HMC_TOKEN: the server's token. HMC_CA: PEM file of the authorities that signed its certificate; without it, no TLS.
"""

import asyncio
import os
import sys

from hmc.artifact.errors import HmcError
from hmc.serving.client import AsyncClient, Retry

DEADLINE_S = 30.0


async def main(addresses: list[str], texts: list[str]) -> int:
    """Prints the translations. Returns the exit code."""
    async with AsyncClient(
        addresses,
        token=os.environ.get("HMC_TOKEN"),
        tls_ca=os.environ.get("HMC_CA"),
        retry=Retry(attempts=5),
    ) as client:
        try:
            answer = await client.translate(texts[:1], timeout=DEADLINE_S)
            print(f"call\t{answer[0].text}")
            async for one in client.translate_stream(texts, timeout=DEADLINE_S):
                print(f"stream\t{one.result().text}")
        except HmcError as error:
            print(f"{type(error).__name__}: {error} (request {error.request_id})", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(asyncio.run(main(sys.argv[1].split(","), sys.argv[2:])))
