"""The protocol of hostd, the canary and diskd: one JSON object per line over a Unix socket."""

from __future__ import annotations

import json
import os
import socketserver
from collections.abc import Callable
from typing import Any

Handler = Callable[[dict[str, Any]], dict[str, Any]]


class _Lines(socketserver.StreamRequestHandler):
    server: Server

    def handle(self) -> None:
        for line in self.rfile:
            try:
                answer = self.server.answer(json.loads(line))
            except OSError as error:
                answer = {"error": str(error), "errno": error.errno}
            except Exception as error:  # noqa: BLE001 - the caller gets it, and this server goes on
                answer = {"error": f"{type(error).__name__}: {error}"}
            try:
                self.wfile.write(json.dumps(answer).encode() + b"\n")
            except OSError:
                return


class Server(socketserver.ThreadingUnixStreamServer):
    """Answers each line with `answer(request)`; a request that blocks holds up only its own connection."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, path: str, answer: Handler) -> None:
        self.answer = answer
        temporary = path + ".new"
        super().__init__(temporary, _Lines)
        os.replace(temporary, path)  # noqa: PTH105 - the socket exists once it answers
