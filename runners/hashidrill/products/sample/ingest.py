"""A service that receives metrics: spikes of points at intervals, a pool of workers, a store behind them.

    python ingest.py http://10.73.0.2:41000 --every 2 --points 60 --workers 6

It is a client that runs all the time (`service: true`) and reports each point as an operation, due when its spike came.
A worker asks the store for the schema once in its life; each point then costs one request. The file needs only the
standard library of any Python 3, so a copy of it is a program that can be bisected.
"""

import argparse
import collections
import http.client
import json
import queue
import signal
import sys
import threading
import time
import urllib.parse

STORE_WITHIN_S = 10.0


class Worker:
    """Handles points one after the other, over its own connection, with the schema that it read at its start."""

    def __init__(self, store: str) -> None:
        place = urllib.parse.urlsplit(store)
        self._connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=STORE_WITHIN_S)
        self._known = False

    def handle(self, point: str) -> None:
        """Raises OSError, HTTPException."""
        if not self._known:
            self._ask("/schema")
            self._known = True
        self._ask(f"/points/{point}")

    def _ask(self, path: str) -> None:
        self._connection.request("GET", path)
        reply = self._connection.getresponse()
        reply.read()
        if reply.status != http.HTTPStatus.OK:
            raise OSError(f"the store answered {reply.status}")


class Pool:
    """Long-lived workers: a worker that has handled a point is idle, and handles the next one."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._idle: collections.deque[Worker] = collections.deque()

    def handle(self, point: str) -> None:
        """Raises OSError, HTTPException."""
        worker = self._idle.pop() if self._idle else Worker(self._store)
        worker.handle(point)
        self._idle.append(worker)


class Ingest:
    """Receives spikes: handles as many points at a time as it has threads; the other points wait in line."""

    def __init__(self, store: str, at_once: int) -> None:
        self._pool = Pool(store)
        self._line: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self._said = threading.Lock()
        for _ in range(at_once):
            threading.Thread(target=self._serve, daemon=True).start()

    def spike(self, number: int, points: int) -> None:
        """Receives `points` points, all due now."""
        due_ns = time.monotonic_ns()
        for point in range(points):
            self._line.put((due_ns, number * points + point))

    def _serve(self) -> None:
        while True:
            due_ns, point = self._line.get()
            error = ""
            try:
                self._pool.handle(f"{point}")
            except (OSError, http.client.HTTPException) as failure:
                error = f"{type(failure).__name__}: {failure}"
            self._report(due_ns, point, error)

    def _report(self, due_ns: int, point: int, error: str) -> None:
        report = {
            "intended_ns": due_ns,
            "start_ns": due_ns,
            "end_ns": time.monotonic_ns(),
            "ok": not error,
            "key": str(point),
            "error": error,
        }
        with self._said:
            sys.stdout.write(json.dumps(report) + "\n")
            sys.stdout.flush()


def main() -> None:
    """Runs until it is killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", help="where points are written")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between spikes")
    parser.add_argument("--points", type=int, default=60, help="points of a spike")
    parser.add_argument("--workers", type=int, default=6, help="points that are handled at a time")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ingest = Ingest(options.store, options.workers)
    began_s = time.monotonic()
    number = 0
    while True:
        ingest.spike(number, options.points)
        number += 1
        time.sleep(max(0.0, began_s + number * options.every - time.monotonic()))


if __name__ == "__main__":
    main()
