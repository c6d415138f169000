"""A small HTTP client that retries well or badly, depending on its options: for experiments, and as an example.

    hashidrill retry -- python -m hashidrill.clients.retry.example --retries 3 --gap 0.2 --backoff 2 --jitter 1
    {url}/v1/kv/x

It does one operation, and its exit status says whether that succeeded. With --rate it is a service instead: it starts
that many operations per second, and reports each as a line of JSON (loads/clients.py). With --watch it follows
a Consul index by blocking queries. Without options it does what most programs do at first: one try, no timeout. It only
needs Python's standard library.
"""

import argparse
import email.utils
import http.client
import json
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_SERVED = range(200, 400)
_LONGEST_GAP_S = 30.0
_READ_BYTES = 65536
_LARGEST_BURST = 10.0
_WATCH_S = 5.0


class FailedError(Exception):
    """An attempt did not succeed; `wait_s` is the wait in the server's Retry-After."""

    def __init__(self, text: str, wait_s: float = 0.0) -> None:
        super().__init__(text)
        self.wait_s = wait_s


@dataclass
class Budget:
    """A bucket of retries: each operation adds the fraction `share` of a retry, and each retry takes one out.

    Google's SRE book (Handling Overload) gives each client a budget of 10 %; Finagle and Linkerd use such a bucket.
    """

    share: float
    left: float = _LARGEST_BURST / 2
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def earn(self) -> None:
        with self._lock:
            self.left = min(_LARGEST_BURST, self.left + self.share)

    def take(self) -> bool:
        with self._lock:
            if self.left < 1:
                return False
            self.left -= 1
            return True


@dataclass(frozen=True)
class Asked:
    """One request, with the options' parameters."""

    url: str
    method: str
    body: bytes
    timeout_s: float | None

    def once(self, path: str = "") -> tuple[bytes, dict[str, str]]:
        """Makes one attempt; returns a successful reply's body and headers (lower case). Raises FailedError."""
        split = urlsplit(self.url + path)
        target = split.path + (f"?{split.query}" if split.query else "")
        connection = http.client.HTTPConnection(split.hostname or "", split.port or 80, timeout=self.timeout_s)
        try:
            connection.request(self.method, target, body=self.body or None)
            reply = connection.getresponse()
            body = self._read(reply, time.monotonic())
        except (OSError, http.client.HTTPException) as error:
            raise FailedError(f"{type(error).__name__}: {error}") from None
        finally:
            connection.close()
        if reply.status not in _SERVED:
            raise FailedError(f"HTTP {reply.status}", _seconds(reply.getheader("Retry-After", "")))
        return body, {name.lower(): value for name, value in reply.getheaders()}

    def _read(self, reply: http.client.HTTPResponse, since_s: float) -> bytes:
        """The whole body, within the timeout; the socket's own timeout restarts with each byte that arrives."""
        parts = []
        while part := reply.read1(_READ_BYTES):
            parts.append(part)
            if self.timeout_s is not None and time.monotonic() - since_s > self.timeout_s:
                raise TimeoutError("the body takes too long")
        if reply.length:
            raise http.client.IncompleteRead(b"".join(parts), reply.length)
        return b"".join(parts)


def _seconds(retry_after: str) -> float:
    """Retry-After in seconds from now; the header is a number or a date (RFC 9110 section 10.2.3)."""
    if retry_after.isdecimal():
        return float(retry_after)
    with suppress(ValueError):
        return max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time())
    return 0.0


@dataclass(frozen=True)
class Retries:
    """Tries again `retries` times, after `gap_s`; each gap is `backoff` times the last, minus up to `jitter` of it."""

    retries: int
    gap_s: float
    backoff: float
    jitter: float
    heed_retry_after: bool
    budget: Budget | None

    def call(self, attempt: Callable[[], object]) -> None:
        """Raises the FailedError of the last attempt."""
        if self.budget is not None:
            self.budget.earn()
        for tried in range(self.retries + 1):
            try:
                attempt()
            except FailedError as failure:
                if tried == self.retries or (self.budget is not None and not self.budget.take()):
                    raise
                time.sleep(self._gap_s(tried, failure))
            else:
                return

    def _gap_s(self, tried: int, failure: FailedError) -> float:
        gap_s = min(_LONGEST_GAP_S, self.gap_s * self.backoff**tried)
        gap_s -= gap_s * self.jitter * random.random()
        return max(gap_s, failure.wait_s) if self.heed_retry_after else gap_s


def layered(retries: Retries, layers: int, attempt: Callable[[], object]) -> None:
    """Makes the call through `layers` layers that each retry, so that their attempts multiply."""
    if layers > 1:
        retries.call(lambda: layered(retries, layers - 1, attempt))
    else:
        retries.call(attempt)


class Service:
    """Begins `rate` operations per second, whatever their results, with at most `in_flight` of them under way."""

    def __init__(self, operation: Callable[[], None], rate: float, in_flight: int) -> None:
        self._operation, self._rate = operation, rate
        self._free = threading.Semaphore(in_flight)
        self._lock = threading.Lock()
        self._under_way: dict[int, tuple[int, int]] = {}

    def run(self) -> None:
        """Runs until SIGTERM. Reports requests that are in flight then as unknown."""
        signal.signal(signal.SIGTERM, lambda *_: self._stop())
        began_ns = time.monotonic_ns()
        number = 0
        while True:
            due_ns = began_ns + int(number * 1e9 / self._rate)
            time.sleep(max(0.0, (due_ns - time.monotonic_ns()) / 1e9))
            threading.Thread(target=self._one, args=(number, due_ns), daemon=True).start()
            number += 1

    def _one(self, number: int, due_ns: int) -> None:
        if not self._free.acquire(blocking=False):
            self._report(number, due_ns, time.monotonic_ns(), ok=False, error="too many under way")
            return
        start_ns = time.monotonic_ns()
        self._under_way[number] = due_ns, start_ns
        ok, error = True, ""
        try:
            self._operation()
        except FailedError as failure:
            ok, error = False, str(failure)
        finally:
            self._free.release()
        if self._under_way.pop(number, None) is not None:
            self._report(number, due_ns, start_ns, ok=ok, error=error)

    def _report(self, number: int, due_ns: int, start_ns: int, *, ok: bool | None, error: str) -> None:
        report = {
            "intended_ns": due_ns,
            "start_ns": start_ns,
            "end_ns": time.monotonic_ns(),
            "ok": ok,
            "key": str(number),
            "error": error,
        }
        line = json.dumps(report) + "\n"
        with self._lock:
            sys.stdout.write(line)
            sys.stdout.flush()

    def _stop(self) -> None:
        # a reporting thread may hold the lock: the main thread, which is in this handler, could wait for it for ever
        threading.Thread(target=self._end, daemon=True).start()

    def _end(self) -> None:
        for number in list(self._under_way):
            due = self._under_way.pop(number, None)
            if due is not None:
                self._report(number, *due, ok=None, error="still under way at the end")
        sys.stdout.flush()
        # the threads that wait for a reply would keep the process alive
        signal.raise_signal(signal.SIGKILL)


def watch(asked: Asked, *, resets: bool) -> None:
    """Follows the index of the watched key for ever. `resets`: if the index goes backwards, starts again at 0.

    Consul's documentation of blocking queries requires that: the state was restored, and the old index may not be
    reached for days. A client that keeps the stale index either waits out each query, or gets each answer at once and
    immediately queries again.
    """
    index = 0
    while True:
        try:
            _, headers = asked.once(f"{'&' if '?' in asked.url else '?'}index={index}&wait={_WATCH_S:g}s")
        except FailedError:
            time.sleep(1.0)
            continue
        got = int(headers.get("x-consul-index", "0"))
        index = (0 if got < index else got) if resets else max(index, got)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m hashidrill.clients.retry.example", description=__doc__.split("\n")[0]
    )
    add = parser.add_argument
    add("url")
    add("--method", default="GET")
    add("--body", default="")
    add("--timeout", type=float, help="seconds that one attempt may take (default: no limit)")
    add("--retries", type=int, default=0, help="number of retries after the first attempt")
    add("--gap", type=float, default=0.0, help="seconds between the first attempt and the second")
    add("--backoff", type=float, default=1.0, help="factor from one gap to the next")
    add("--jitter", type=float, default=0.0, help="at most this share of each gap is cut at random: 1 is full jitter")
    add("--budget", type=float, help="retries may be at most this share of the operations")
    add("--retry-after", action="store_true", help="wait as long as the server says")
    add("--layers", type=int, default=1, help="number of layers that each retry")
    add("--times", type=int, default=1, help="requests per operation, one after the other")
    add("--from-start", action="store_true", help="a retry starts again at the operation's first request")
    add("--rate", type=float, help="run as a service with this many operations per second")
    add("--in-flight", type=int, default=1000, help="for a service: the maximum number of operations in flight")
    add("--watch", choices=["resets", "keeps"], help="make blocking queries; what to do if the index goes backwards")
    return parser.parse_args()


def main() -> int:
    """Returns the exit status: 0 if the operation succeeded."""
    options = _options()
    asked = Asked(options.url, options.method, options.body.encode(), options.timeout)
    if options.watch:
        watch(asked, resets=options.watch == "resets")
    budget = None if options.budget is None else Budget(options.budget)
    retries = Retries(options.retries, options.gap, options.backoff, options.jitter, options.retry_after, budget)

    def all_times(attempt: Callable[[], object]) -> None:
        for _ in range(options.times):
            attempt()

    def operation() -> None:
        if options.from_start:
            layered(retries, options.layers, lambda: all_times(asked.once))
        else:
            all_times(lambda: layered(retries, options.layers, asked.once))

    if options.rate:
        Service(operation, options.rate, options.in_flight).run()
    try:
        operation()
    except FailedError as failure:
        sys.stderr.write(f"{failure}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
