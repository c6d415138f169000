"""What scripts share that play cases inside of a sandbox: each case is told as one line of JSON."""

import json
import os
import time
import traceback

import anyio

from hashidrill.core.engine.inject import PROVEN_WITHIN_S, planned
from hashidrill.core.errors import FaultError
from hashidrill.core.protocols import registry
from hashidrill.core.util.wait import wait_until
from hashidrill.testing.faults import check_fault


def say(**line):
    print(json.dumps(line), flush=True)


async def told(line, doing, *, under="result"):
    """The line, with what `doing` came to: below that key, or beside the others where there is none."""
    began = time.monotonic()
    try:
        found = await doing
        line |= {under: found} if under else found
    except Exception as error:
        traceback.print_exc()
        line["error"] = f"{type(error).__name__}: {error}"
    say(**line, seconds=round(time.monotonic() - began, 2))


async def play(world, cases):
    """Each case on the world, which is tidied afterwards however that ended. HASHIDRILL_CASES names some of them."""
    only = os.environ.get("HASHIDRILL_CASES", "").split()
    for case in cases:
        if only and case.__name__ not in only:
            continue
        line = {"case": case.__name__}

        async def played(case=case, line=line):
            try:
                return await case(world)
            finally:
                try:
                    await world.tidy()
                except Exception as error:
                    traceback.print_exc()
                    line["untidy"] = f"{type(error).__name__}: {error}"

        await told(line, played(), under="")


def fault_of(datacenter, kind, params=None):
    cls = registry.fault(kind)
    return cls(cls.Params.model_validate(params or {}), datacenter)


async def seen(fault, undo, *, ok=True, present=True, within_s=30.0):
    """Its evidence once it says so. Raises WaitTimeoutError."""

    async def look():
        evidence = await fault.verify(undo, present=present)
        return (evidence if evidence.ok is ok else None), f"asked {evidence.asked}, measured {evidence.measured}"

    return await wait_until(f"{fault.kind}: verify(present={present}) to say {ok}", look, within_s=within_s, gap_s=0.2)


async def looked(fault, undo, *, ok, within_s=PROVEN_WITHIN_S):
    """Its evidence once it says so, or what it says when the time is over: copies of the state arrive later."""
    evidence = await fault.verify(undo, present=True)
    with anyio.move_on_after(within_s):
        while evidence.ok is not ok:
            await anyio.sleep(0.1)
            evidence = await fault.verify(undo, present=True)
    return evidence


async def disarmed(fault, target, disarm, *, within_s=PROVEN_WITHIN_S, noticed_within_s=None):
    """Put it in force, take it away behind its back by `disarm(undo)`, and ask its observer."""
    noticed_within_s = within_s if noticed_within_s is None else noticed_within_s
    undo = await planned(fault, target, "disarmed")
    await fault.apply(undo)
    try:
        armed = await looked(fault, undo, ok=True, within_s=within_s)
        await disarm(undo)
        after = await looked(fault, undo, ok=False, within_s=noticed_within_s)
    finally:
        await fault.revert(undo)
    return {"armed": armed.ok, "disarmed": after.ok, "measured": after.measured}


async def refused_without_each(rights, fault, target, grant, tidy, **nature):
    """Each rule of the role of `staging acl kubernetes` is needed: without it, the fault is refused and says so."""
    said = {}
    for right in rights:
        await grant([one for one in rights if one != right])
        await anyio.sleep(0.5)
        try:
            await check_fault(fault, target, **nature)
            said[str(right)] = ""
        except (FaultError, AssertionError) as error:
            said[str(right)] = str(error)[-300:]
        await grant(rights)
        await anyio.sleep(0.5)
        await tidy()
    return said
