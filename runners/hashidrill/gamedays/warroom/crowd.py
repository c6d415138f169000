"""Who may be connected to the page: the lead always, those who watch and strangers up to a number.

Every program of this machine can connect. A connection is a stranger's until a request on it has a token of this
server. Strangers have a few seconds for that, and leave first when there are too many: a new connection gets in, and it
may be the one of a lead who wants to stop. No connection of the lead is ever ended for others.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from hashidrill.core.protocols.events import Audience

MOST = 128
"""Connections without the lead's token."""
INTRODUCES_WITHIN_S = 5.0


class Crowd:
    """The connections of one server, the oldest first. All of it is called in the loop's thread."""

    def __init__(self) -> None:
        self._strangers: dict[Any, asyncio.Transport] = {}
        """By the address of the other end, as a request names it."""
        self._watching: dict[Any, asyncio.Transport] = {}

    def enters(self, who: Any, transport: asyncio.Transport) -> None:
        self._strangers[who] = transport
        if len(self._strangers) + len(self._watching) > MOST:
            leaves = self._strangers if len(self._strangers) > 1 else self._watching
            leaves.pop(next(iter(leaves))).abort()

    def introduces(self, who: Any, audience: Audience | None) -> None:
        """What the token of a request on that connection shows: None for no token of this server."""
        if audience is None:
            return
        transport = self._strangers.pop(who, None) or self._watching.pop(who, None)
        if transport is not None and audience is not Audience.OPERATOR:
            self._watching[who] = transport

    def waited(self, who: Any, transport: asyncio.Transport) -> None:
        """Its time to introduce itself is over."""
        if self._strangers.get(who) is transport:
            transport.abort()

    def leaves(self, who: Any, transport: asyncio.Transport) -> None:
        for some in (self._strangers, self._watching):
            if some.get(who) is transport:
                del some[who]

    def protocol(self) -> type[H11Protocol]:
        """For uvicorn: its own, which tells of each connection."""
        crowd = self

        class Visited(H11Protocol):
            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
                super().connection_made(transport)
                crowd.enters(self.client, transport)
                self.loop.call_later(INTRODUCES_WITHIN_S, crowd.waited, self.client, transport)

            def connection_lost(self, exc: Exception | None) -> None:
                crowd.leaves(self.client, self.transport)
                super().connection_lost(exc)

        return Visited
