"""An event loop whose clock jumps to the next timer: tests of schedules take no time and give exact figures."""

import asyncio
import selectors


class _Selector(selectors.DefaultSelector):
    """Polls, and lets the loop's time pass instead of waiting."""

    loop = None

    def select(self, timeout=None):
        events = super().select(0)
        if not events and timeout is None:
            raise RuntimeError("nothing will ever happen: every task waits and no timer is set")
        if not events and timeout:
            self.loop.advance(timeout)
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        self._virtual_s = 1000.0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

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
    """Run a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
