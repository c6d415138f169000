"""Serves a war room for as long as runs go on: a thread of its own, on the loopback, on one port."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from hashidrill.core.errors import UsageError
from hashidrill.core.protocols.events import Audience
from hashidrill.gamedays.warroom.crowd import Crowd
from hashidrill.gamedays.warroom.guard import Guard
from hashidrill.gamedays.warroom.pages import Pages
from hashidrill.gamedays.warroom.room import Room

LOOPBACK = "127.0.0.1"
LAST_WORDS_S = 2.0
"""How long browsers get to take the last state, at most."""


@contextlib.contextmanager
def serve(port: int = 0, *, room: Room | None = None, lead_url_to: Path | None = None) -> Iterator[Room]:
    """A room with its page, until the block ends. Port 0: any that is free.

    The addresses are `room.lead_url` and `room.watch_url`; the lead's also goes to the new file `lead_url_to`, which
    its owner alone may read. Raises UsageError before anything starts.
    """
    room = room or Room()
    with _listen(port) as listening:
        guard = Guard(listening.getsockname()[1])
        room.lead_url, room.watch_url = guard.url(Audience.OPERATOR), guard.url(Audience.TRAINEE)
        if lead_url_to is not None:
            _keep(lead_url_to, room.lead_url)
        server = Server(room, guard, listening)
        server.start()
        try:
            yield room
        finally:
            room.over()
            server.end()


class Server:
    """A room on a socket that listens."""

    def __init__(self, room: Room, guard: Guard, listening: socket.socket) -> None:
        self._room, self._guard, self._listening = room, guard, listening
        self._thread = threading.Thread(target=self._serve, name="warroom", daemon=True)
        self._ready = threading.Event()
        self._uvicorn: uvicorn.Server | None = None

    def start(self) -> None:
        """Returns once it takes requests."""
        self._thread.start()
        self._ready.wait(10.0)

    def end(self) -> None:
        """Browsers have taken what is there, or are too slow for it."""
        if self._uvicorn is not None:
            self._uvicorn.should_exit = True
        self._thread.join(LAST_WORDS_S + 3.0)

    def _serve(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        loop = asyncio.get_running_loop()
        crowd = Crowd()
        pages = Pages(self._room, self._guard, crowd)

        def changed() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody listens any more
                loop.call_soon_threadsafe(pages.changed)

        self._room.on_change = changed
        config = uvicorn.Config(
            pages,
            http=crowd.protocol(),
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            backlog=64,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=int(LAST_WORDS_S),
        )
        self._uvicorn = uvicorn.Server(config)
        self._ready.set()
        await self._uvicorn.serve(sockets=[self._listening])


def _listen(port: int) -> socket.socket:
    """Raises UsageError."""
    if not 0 <= port <= 65535:
        raise UsageError(f"--port {port}: a port is a number from 1 to 65535, or 0 for any that is free")
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((LOOPBACK, port))
        listening.listen(64)
    except OSError as error:
        listening.close()
        raise UsageError(
            f"--port {port}: the page cannot be served there: {error.strerror or error}; choose another port, or leave"
            " --port out for any that is free"
        ) from None
    return listening


def _keep(path: Path, url: str) -> None:
    """Raises UsageError."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as out:
            out.write(url + "\n")
    except OSError as error:
        raise UsageError(f"{path}: the address of the lead's page cannot be kept here: {error.strerror}") from None
