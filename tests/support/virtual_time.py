"""An event loop whose clock jumps to the next timer: tests of schedules take no time and give exact figures."""

import asyncio
import functools
import selectors

from anyio import to_thread


class _Selector(selectors.DefaultSelector):
    """Polls, and lets the loop's time pass instead of waiting."""

    loop = None
    threads = None

    def select(self, timeout=None):
        events = super().select(0)
        while not events and timeout != 0 and self.threads is not None and self.threads.borrowed_tokens:
            events = super().select(1)  # a thread works: it takes no virtual time
        if not events and timeout is None:
            raise RuntimeError("nothing will ever happen: every task waits and no timer is set")
        if not events and timeout:
            self.loop.advance(timeout)
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        self._virtual_s = 1000.0
        self.selector = _Selector()
        self.selector.loop = self
        super().__init__(self.selector)

    def time(self):
        return self._virtual_s

    def advance(self, seconds):
        """Also what a test calls to make this process "stall": time passes while nothing runs."""
        self._virtual_s += seconds


class VirtualClock:
    """A hashidrill clock that shows the virtual loop's time since it was made."""

    def __init__(self):
        self._origin_s = asyncio.get_running_loop().time()

    def now_ns(self):
        return round((asyncio.get_running_loop().time() - self._origin_s) * 1e9)


def run(main):
    """Run a coroutine in virtual time. The work of threads (anyio.to_thread) takes none."""

    async def with_threads():
        asyncio.get_running_loop().selector.threads = to_thread.current_default_thread_limiter()
        return await main

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(with_threads())


def ran(function):
    """A function that runs that coroutine function in virtual time."""
    return functools.wraps(function)(lambda *args, **more: run(function(*args, **more)))
