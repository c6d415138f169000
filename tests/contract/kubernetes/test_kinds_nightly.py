"""Each kind of fault on pods that lasts ends by its own duration, as after the death of the runner."""

from __future__ import annotations

import time

import pytest

from hashidrill.core.engine.inject import planned
from hashidrill.core.util.wait import wait_until
from kubernetes import kinds
from sandboxed_cases import CONSUL
from told_cases import seen

pytestmark = [
    pytest.mark.live,
    pytest.mark.nightly,
    pytest.mark.needs("kubernetes-node", f"consul {CONSUL}", "toxiproxy-server", "toxiproxy-cli"),
]


@pytest.mark.parametrize("kind", kinds.LASTING, ids=lambda kind: kind.label)
def test_an_effect_is_over_by_itself_when_nobody_takes_it_back(pods, kind):
    lasts_s = 12.0

    async def case(fault, target):
        undo = await planned(fault, target, f"alone-{kind.label}")
        began = time.monotonic()
        await fault.apply(undo)
        try:
            await seen(fault, undo, within_s=fault.observed_within_s)

            async def over():
                evidence = await fault.effect("consul").look(fault.hosts, undo, present=False)
                return (True if evidence.ok else None), evidence.measured

            await wait_until("the effect to be over", over, within_s=120, gap_s=0.5)
            took_s = time.monotonic() - began
        finally:
            await fault.revert(undo)
        await seen(fault, undo, present=False, within_s=60.0)
        return took_s

    took_s = pods(kind, case, lasts_s=lasts_s)
    assert took_s > lasts_s / 2
