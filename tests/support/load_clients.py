"""An HTTP client of loads that answers from memory, and what a load does in some seconds of virtual time."""

import asyncio
import contextlib
import json

from hashidrill.core.loads.answer import Answer


class Client:
    """In place of the HTTP client. Subclasses answer in `request`."""

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass


class Scripted(Client):
    """`answer(method, url, body, params)` makes a document, or an Answer. `asked` has (method, URL, body)."""

    def __init__(self, answer):
        self.asked, self._answer = [], answer

    async def request(self, method, url, *, body=None, params=None, timeout_s):
        self.asked.append((method, url, body))
        found = self._answer(method, url, body, params)
        return found if isinstance(found, Answer) else Answer(200, json.dumps(found).encode())


async def runs_for(it, seconds):
    """The operations of a load that is cancelled after that time."""
    operations = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await it.run(operations.append)
    return operations
