"""Starts what is to break a host: programs that keep root's rights over it, and see its processes alone.

Capabilities are a thread's own (capabilities(7)): this one is made before hostd drops those of what it executes.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from typing import Any

_LOOK_EVERY_S = 0.2


class Armed:
    """`processes` is the folder that shows the processes of this host's network namespace, as links into /proc."""

    def __init__(self, processes: str) -> None:
        self._folder = processes
        self._asked: queue.SimpleQueue[tuple[tuple[Any, ...], queue.SimpleQueue[Any]]] = queue.SimpleQueue()
        os.makedirs(processes, exist_ok=True)  # noqa: PTH103 - no pathlib here
        threading.Thread(target=self._serve, name="armed", daemon=True).start()

    def spawn(self, argv: list[str], null: int, output: int, environment: dict[str, str]) -> int:
        """The pid of the program, a child of this process. Raises OSError."""
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._asked.put(((argv, null, output, environment), answer))
        came = answer.get()
        if isinstance(came, OSError):
            raise came
        return int(came)

    def _serve(self) -> None:
        own = os.readlink("/proc/thread-self/ns/net")  # noqa: PTH115 - a namespace is no path
        while True:
            try:
                (argv, null, output, environment), answer = self._asked.get(timeout=_LOOK_EVERY_S)
            except queue.Empty:
                pass
            else:
                answer.put(_spawned(argv, null, output, environment))
            self._show(own)

    def _show(self, namespace: str) -> None:
        """The folder as the processes are now: a new one is seen a moment later than it is in /proc."""
        shown = set(os.listdir(self._folder))  # noqa: PTH208 - no pathlib here
        there = {name for name in os.listdir("/proc") if name.isdigit() and _namespace(name) == namespace}  # noqa: PTH208 - as above
        for name in shown - there:
            with contextlib.suppress(OSError):
                os.unlink(f"{self._folder}/{name}")  # noqa: PTH108 - as above
        for name in there - shown:
            with contextlib.suppress(OSError):
                os.symlink(f"/proc/{name}", f"{self._folder}/{name}")  # noqa: PTH211 - as above


def _namespace(pid: str) -> str:
    """Its network namespace; "" for one that has just ended."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")  # noqa: PTH115 - a namespace is no path
    except OSError:
        return ""


def _spawned(argv: list[str], null: int, output: int, environment: dict[str, str]) -> int | OSError:
    actions = [(os.POSIX_SPAWN_DUP2, null, 0), *((os.POSIX_SPAWN_DUP2, output, fd) for fd in (1, 2))]
    try:
        return os.posix_spawn(argv[0], argv, environment, file_actions=actions, setsigmask=[])
    except OSError as error:
        return error
