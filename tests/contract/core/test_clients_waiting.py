"""A client whose requests hang is seen to hang while nothing has ended: what its tap knows, guardrails count."""

import asyncio
import sys
import time

import pytest

from hashidrill.core.engine.monitor import Monitor
from hashidrill.core.experiment.conditions import Condition
from hashidrill.core.experiment.model import ClientSpec
from hashidrill.core.loads.base import LoadContext
from hashidrill.core.loads.clients import ClientLoad
from hashidrill.core.recording.journal import Clock
from hashidrill.core.util.wait import wait_until

ASKS = "import sys, time, urllib.request as u\nu.urlopen(sys.argv[1] + '/v1/kv/a').read()\ntime.sleep(60)"


def served(*, fault, until):
    """Run a service that asks once; returns what `until(monitor, now_ns)` returns, once that is not None."""
    monitor, began, over = Monitor(["mine", "mine.attempts"]), [], []

    def report(context):
        waits = context.attempts_waiting.take(context.clock.now_ns())
        monitor.waiting("mine.attempts", *waits)
        began.extend(waits[0])
        over.extend(waits[1])

    async def main():
        context = LoadContext([], clock=Clock())
        command = [sys.executable, "-c", ASKS, "{url}"]
        client = ClientLoad(
            "mine", ClientSpec.model_validate({"command": command, "service": True, "via": "script"}), context
        )
        if fault:
            client.faults.answer({"op": "fail", "id": "f", "fault": fault, "share": 1.0, "seed": 1})
        await client.prepare()
        running = asyncio.create_task(client.run(monitor.operation))

        async def look():
            now_ns = context.clock.now_ns()
            report(context)
            return until(monitor, now_ns), f"{now_ns}"

        try:
            return await wait_until("the monitor to see it", look, within_s=20)
        finally:
            running.cancel()
            await asyncio.wait([running])
            report(context)

    seen = asyncio.run(main())
    assert began == over, "what has ended waits no longer"
    return seen


@pytest.mark.long
@pytest.mark.lie
def test_an_attempt_that_hangs_counts_with_its_age_before_it_ends():
    p50 = Condition.parse("mine.attempts.latency.p50 > 1s")

    def trips(monitor, now_ns):
        reading = monitor.reading(p50, now_ns, 1.0)
        return reading.figure if reading.surely(p50) else None

    began = time.monotonic()
    assert 1 < served(fault="hang", until=trips) <= time.monotonic() - began


def test_an_attempt_that_was_answered_waits_no_longer():
    def answered(monitor, now_ns):
        value = monitor.reading(Condition.parse("mine.attempts.latency.max < 1s"), now_ns, 10.0).figure
        return value if value < 1 else None

    assert served(fault="", until=answered) < 1
