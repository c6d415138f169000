"""Connections to workers, by TCP and TLS."""

from __future__ import annotations

import asyncio
import ssl

from hashidrill.staging.generators.remote import Dial, Introduction, Streams
from hashidrill.staging.generators.secrecy import Identity

_LIMIT_BYTES = 1 << 20


def dialed_by(identity: Identity) -> Dial:
    """Connects as that runner. The connection raises OSError (ssl.SSLError is one)."""
    contexts: dict[str, ssl.SSLContext] = {}

    async def dial(worker: Introduction) -> Streams:
        if worker.name not in contexts:
            contexts[worker.name] = identity.runner_side(worker.certificate)
        return await asyncio.open_connection(
            worker.address, worker.port, ssl=contexts[worker.name], server_hostname="hashidrill", limit=_LIMIT_BYTES
        )

    return dial
