"""As real_chaos_mesh.py, of runs that are killed: each at a moment that a seed chose. One JSON line a moment.

HASHIDRILL_KILLS and HASHIDRILL_ALONE: how many there are, and how many besides that nobody heals.
"""

import json
import os
import random
import signal
import time
from contextlib import suppress
from dataclasses import dataclass

import anyio

from drills import start
from hashidrill.core.util.wait import wait_until
from hashidrill.kubernetes.chaos_mesh import objects
from hashidrill.kubernetes.objects import ours
from real_chaos_mesh import main
from real_chaos_runs import Runs, of_journal

LAUNCHED = "launched"
OF_FAULT = ("fault.intent", "fault.applied", "fault.proven", "fault.still", "fault.reverted", "fault.gone")
LATER_S = 1.5
STARTS_WITHIN_S = 12.0
"""Python, the look at the datacenter, its interlocks and a steady state: a run is killed there as well."""
OWN_S = 120.0
"""An object ends by itself after the longest step of its run, and this much later (engine.in_attached)."""
SLACK_S = 30.0
LASTS_S = 4.0
LEFT = 3
"""The status of a member that was removed, as Serf counts."""


@dataclass(frozen=True)
class Moment:
    """Some time after an event of the journal, or after its start."""

    event: str
    later_s: float

    def __str__(self):
        return f"{self.later_s:.2f}s after {self.event}"


def moments(seed, number):
    """At the first of them, a fault is in force: one that hits nothing would prove nothing."""
    chance = random.Random(seed)
    sure = Moment("fault.proven", chance.uniform(0, LATER_S))
    anywhen = [chance.choice((LAUNCHED, *OF_FAULT)) for _ in range(number)]
    others = [Moment(event, chance.uniform(0, STARTS_WITHIN_S if event == LAUNCHED else LATER_S)) for event in anywhen]
    return [sure, *others[1:]][:number]


async def killed(world, name, moment):
    """(the run, what was found right after it) of a runner and its engine that are killed at that moment."""
    one = await Runs(world, name, lasts=f"{LASTS_S:g}s").armed()
    if moment.event == LAUNCHED:
        process = start("run", one.path, "--attach", one.file, "--plain", "--runs", one.runs, env=one.home)
    else:
        process = await one.begun(moment.event)
    await anyio.sleep(moment.later_s)
    ended = process.poll() is not None
    end(of_journal(one.runs))  # first: an engine whose runner is gone reverts what it can
    if not ended:
        os.killpg(process.pid, signal.SIGKILL)
    end(of_journal(one.runs))  # one that it started meanwhile
    await anyio.to_thread.run_sync(process.communicate)
    events = [entry.event for entry in one.journal()] if one.runs.exists() else []
    found = {
        "moment": str(moment),
        "had_ended": ended,
        "last": events[-1] if events else "",
        "proven": "fault.proven" in events,
        "found": await ours(world.admin, objects.OBJECTS, "theirs"),
        "process": await state(world),
    }
    return one, found


def end(pids):
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def state(world):
    process = await world.process()
    return "gone" if process is None else process.state


async def ended(one, world):
    """What `heal` says; what is left in the cluster then; what a second one finds; and whether the agent is well."""
    healed = await one.healed()
    again = await one.says("heal", "--attach", one.file, "--json")
    return {
        "healed": healed,
        "again": {"exit": again.returncode, "said": again.stderr[-600:]},
        "then": await state(world),
        "answers": await world.host.agent_answers("consul", 2.0),
    }


def healed_at(number, moment):
    async def case(world):
        one, found = await killed(world, f"moment-{number}", moment)
        return {**found, **await ended(one, world)}

    case.__name__ = f"moment:{number}"
    return case


def alone_at(number, moment):
    """Nobody heals it: the controller lets the agent go on when the object's own time is over, and it stays so."""

    async def case(world):
        one, found = await killed(world, f"alone-{number}", moment)
        began = time.monotonic()

        async def goes_on():
            now = await state(world)
            well = now not in {"T", "gone"} and await world.host.agent_answers("consul", 2.0)
            return (well or None), f"its process is in state {now}"

        await wait_until("the agent to go on by itself", goes_on, within_s=LASTS_S + OWN_S + SLACK_S, gap_s=0.5)
        return {**found, "alone_s": round(time.monotonic() - began, 1), **await ended(one, world)}

    case.__name__ = f"alone:{number}"
    return case


async def lost(world):
    """Healed once Consul's autopilot has removed the server that is frozen, and nobody lists it."""
    one, found = await killed(world, "lost", Moment("fault.proven", 0.2))
    assert found["process"] == "T", found
    other = next(host for name, host in world.datacenter.hosts.items() if name != world.host.name)

    async def removed():
        members = json.loads((await other.api("GET", "/v1/agent/members", agent="consul")).body)
        states = {each["Name"]: each["Status"] for each in members}
        return (states.get(world.host.name, LEFT) == LEFT or None), f"members: {states}"

    await wait_until("the frozen server to be removed", removed, within_s=OWN_S / 2, gap_s=0.5)
    return {**found, **await ended(one, world)}


def cases_of(seed, number, alone):
    return [
        lost,
        *(healed_at(n, one) for n, one in enumerate(moments(seed, number), start=1)),
        *(alone_at(n, Moment("fault.proven", 0.2)) for n in range(1, alone + 1)),
    ]


if __name__ == "__main__":
    numbers = [int(os.environ[f"HASHIDRILL_{name}"]) for name in ("KILLS", "ALONE")]
    anyio.run(main, cases_of(os.environ["HASHIDRILL_KILL_SEED"], *numbers))
