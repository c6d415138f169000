"""The fixture `tap` of the pytest plugin: a tap in a separate thread, for tests of your own client.

def test_my_client_retries(tap):
tap.fail("503", times=2)
assert my_client(tap.url).read() == "value"
assert len(tap.attempts) == 3
"""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any, TypeVar

from hashidrill.core.tap.attempts import Attempt, Run
from hashidrill.core.tap.catalogue import RETRY_AFTER_S
from hashidrill.core.tap.plans import Always, First, ForSeconds, InTurn, Nothing, Plan, WithProbability
from hashidrill.core.tap.tap import Tap
from hashidrill.core.tap.upstream import HttpUpstream, Scripted
from hashidrill.core.tap.wire import Reply, Request

T = TypeVar("T")
_CALL_WITHIN_S = 30.0


class TapInThread:
    """A tap that blocking code can use. All methods may be called from the test's thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hashidrill-tap", daemon=True)
        self._thread.start()
        self._tap = Tap()
        self._taken = 0
        self._call(self._tap.__aenter__())

    @property
    def url(self) -> str:
        return self._tap.url

    @property
    def address(self) -> str:
        return self._tap.address

    @property
    def attempts(self) -> list[Attempt]:
        """The client's finished attempts, in order."""
        return self._call(self._attempts())

    def environment(self) -> dict[str, str]:
        """The variables that clients of Consul, Nomad and Vault read, with the tap's address."""
        return dict.fromkeys(("CONSUL_HTTP_ADDR", "NOMAD_ADDR", "VAULT_ADDR"), self.url)

    def upstream(self, url: str) -> None:
        """From now on, passes requests of new connections to that server instead of the built-in script."""
        self._tap.upstream = HttpUpstream(url)

    def reply(self, status: int = 200, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """From now on, answers passed requests of new connections like this."""
        pairs = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]

        def script(_request: Request) -> Reply:
            return Reply(status, pairs, body)

        self._tap.upstream = Scripted(script)

    def fail(
        self,
        *faults: str,
        times: float | None = None,
        seconds: float | None = None,
        probability: float | None = None,
        seed: int = 0,
        retry_after: int = RETRY_AFTER_S,
    ) -> None:
        """Fail attempts from now on.

        `fail("503", times=2)`: the next two; `fail("hang")`: all; `fail("503", seconds=2)`: for 2 s after the first
        attempt; `fail("503", probability=0.1, seed=7)`: by chance; `fail("503", "", "502")`: one after the other,
        where an empty name passes an attempt. `retry_after`: the Retry-After that such faults send, in seconds. Raises
        UsageError for a fault that does not exist.
        """
        self._tap.retry_after_s = retry_after
        self.give(_plan(faults, times, seconds, probability, seed))

    def heal(self) -> None:
        self.give(Nothing())

    def give(self, plan: Plan) -> None:
        self._call(self._tap.give(plan))

    def run(self, *, ok: bool) -> Run:
        """The attempts since the last call as one operation, for hashidrill.clients.retry.verdicts and .timing."""
        attempts = tuple(self.attempts[self._taken :])
        self._taken += len(attempts)
        ends = [attempt.end_ns for attempt in attempts] or [0]
        starts = [attempt.start_ns for attempt in attempts] or [0]
        return Run(attempts, ok, ended=True, start_ns=min(starts), end_ns=max(ends))

    def close(self) -> None:
        """Idempotent."""
        if self._loop.is_closed():
            return
        self._call(self._tap.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _attempts(self) -> list[Attempt]:
        # in the tap's thread, which records an attempt in the same step in which it replies
        return self._tap.attempts

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_CALL_WITHIN_S)


def _plan(
    faults: tuple[str, ...], times: float | None, seconds: float | None, probability: float | None, seed: int
) -> Plan:
    if len(faults) > 1:
        return InTurn(faults)
    fault = faults[0] if faults else ""
    if seconds is not None:
        return ForSeconds(fault, seconds)
    if probability is not None:
        return WithProbability(fault, probability, seed)
    return Always(fault) if times is None else First(fault, times)


@contextlib.contextmanager
def tap_in_thread() -> Iterator[TapInThread]:
    """The fixture's tap; closed afterwards."""
    made = TapInThread()
    try:
        yield made
    finally:
        made.close()
