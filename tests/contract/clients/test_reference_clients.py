"""What the manifest says of the reference clients is what they do: a server counts that shares nothing with the tap."""

import asyncio
import dataclasses
import os
import signal
from dataclasses import dataclass

import httpx2
import pytest

from clients import prepare
from clients.facts import NEVER
from clients.manifest import CLIENTS
from hashidrill.clients.retry.private_consul import private_consul
from hashidrill.core.util.wait import pause, wait_until
from scripted_server import ScriptedServer

pytestmark = pytest.mark.long

AT_A_TIME = 20
STARTING = min(len(os.sched_getaffinity(0)), 4)
"""Interpreters that start keep the machine busy, and the limits of clients that are under way are of one second."""
LONG_S = 2.5
"""Longer than the timeout of every client that has a short one."""
START_S = 20
ENDS_S = 30
"""Any client that ends at all has ended by then, on a busy machine too."""
RETRY_AFTER_S = 4
"""Longer than any client waits that does not heed it, on a busy machine too."""
LATE_S = 1.5
"""What a busy machine may add to a gap."""
JUDGED = [client for client in CLIENTS if not client.service]
BY_NAME = {client.name: client for client in CLIENTS}


@dataclass(frozen=True)
class Seen:
    """`status` is None for a client that had to be stopped."""

    attempts: int
    status: int | None
    gaps: list
    was_reset: bool

    @property
    def said(self):
        ended = "had to be stopped" if self.status is None else f"exit status {self.status}"
        return f"{self.attempts} attempts, {ended}, gaps {[round(gap, 2) for gap in self.gaps[:9]]}"


@pytest.fixture(scope="module")
def bin_folder():
    return prepare.go_binaries()


def test_without_a_fault_every_caller_gets_what_it_asked_for(bin_folder):
    """All that is concluded from a failure later on would be worthless otherwise."""

    def wrong(client, seen):
        return seen.status != 0

    check([client for client in JUDGED if not client.facts.retries_on], bin_folder, wrong)


def test_after_a_reset_on_a_fresh_connection_those_send_again_that_are_said_to(bin_folder):
    def wrong(client, seen):
        again = "reset-after-fresh" in client.facts.retries_on
        return (seen.attempts, seen.status == 0) != ((2, True) if again else (1, False))

    check([one for one in JUDGED if one.name != "put-cas"], bin_folder, wrong, fault="reset-after")


def test_after_a_reset_on_a_reused_connection_those_send_again_that_are_said_to(bin_folder):
    """Each is sent on to the same place first: that is how one that makes a single request is led to a second one."""

    def wrong(client, seen):
        if not client.facts.replays:
            return seen.was_reset
        again = client.facts.replays == "again"
        return not seen.was_reset or (seen.attempts, seen.status == 0) != ((3, True) if again else (2, False))

    check([one for one in JUDGED if one.facts.watches is None], bin_folder, wrong, fault="reset-reused", times=2)


def test_after_a_lasting_503_the_attempts_are_counted_right(bin_folder):
    """And the gaps between them are those of the manifest, as far as a busy machine lets one see."""
    check(JUDGED, bin_folder, wrong_when_503_lasts, fault="503", times=NEVER, limit_s=patience_s)


def test_retry_after_is_waited_for_by_those_that_are_said_to(bin_folder):
    def wrong(client, seen):
        waited = seen.gaps[0] > RETRY_AFTER_S - 0.1 if seen.gaps else None
        return seen.status != 0 or seen.attempts != 2 or waited != client.facts.obeys_retry_after

    retrying = [one for one in JUDGED if "503" in one.facts.retries_on or one.facts.retry_after_only]
    check(retrying, bin_folder, wrong, fault="503-retry-after")


def test_what_hangs_is_given_up_by_those_that_have_a_short_timeout(bin_folder):
    def wrong(client, seen):
        if client.facts.timeout > LONG_S:
            return seen.status is not None or seen.attempts != 1
        again = "hang" in client.facts.retries_on
        return (seen.attempts, seen.status == 0) != ((2, True) if again else (1, False)) or seen.status is None

    check(
        JUDGED,
        bin_folder,
        wrong,
        fault="hang",
        limit_s=lambda client: LONG_S if client.facts.timeout > LONG_S else ENDS_S,
    )


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("careful", {"attempts": 5}),
        ("careful", {"gaps": (1.0, 2.0, 4.0), "jitter": False}),
        ("requests-bare", {"retries_on": frozenset({"503"}), "attempts": 4}),
    ],
)
def test_a_wrong_fact_is_found(bin_folder, name, changed):
    client = BY_NAME[name]
    lying = dataclasses.replace(client, facts=dataclasses.replace(client.facts, **changed))

    with pytest.raises(AssertionError, match=name):
        check([lying], bin_folder, wrong_when_503_lasts, fault="503", times=NEVER, limit_s=patience_s)


def patience_s(client):
    """One that goes on for ever is stopped; any other one ends by itself, however late its attempts are."""
    return 9 if client.facts.attempts == NEVER else ENDS_S


def wrong_when_503_lasts(client, seen):
    facts = client.facts
    if "503" not in facts.retries_on:
        return seen.attempts != 1 or seen.status in {0, None}
    if facts.attempts == NEVER:
        return seen.attempts < 10 or seen.status is not None
    if seen.attempts != facts.attempts or seen.status in {0, None}:
        return True
    spread = 1.0 if facts.jitter else 0.02
    return not all(
        meant * (1 - spread) <= gap <= meant * (1 + spread) + LATE_S
        for gap, meant in zip(seen.gaps, facts.gaps, strict=True)
    )


async def test_services_send_as_much_as_they_are_said_to_while_a_503_lasts(bin_folder):
    """Of 60 operations in 3 s: `breaker` makes three until it opens, and then one every half second."""
    meant = {"breaker": (4, 12), "no-breaker": (180, 180), "storm": (540, 540), "retry-budget": (63, 66)}
    seconds = 3

    async def attempts(name, starting):
        async with ScriptedServer("503", NEVER).running() as server:
            assert await _run(_service(name, server.url, bin_folder, seconds), server, 10 * seconds, starting) == 0
            return len(server.seen)

    starting = asyncio.Semaphore(STARTING)
    seen = dict(zip(meant, await asyncio.gather(*(attempts(name, starting) for name in meant)), strict=True))
    assert {name for name, (fewest, most) in meant.items() if not fewest <= seen[name] <= most} == set(), seen


@pytest.mark.parametrize(("name", "comes_back"), [("lock-reacquires", True), ("lock-forgets", False)])
def test_a_lock_that_was_lost_is_taken_again_or_not(consul, bin_folder, name, comes_back):
    """Its session is destroyed on a real Consul, which is how a lock is lost to an expired TTL too."""

    async def holder_after_the_loss():
        async with private_consul(consul.path) as url, httpx2.AsyncClient(base_url=url, trust_env=False) as api:
            # one that comes back is not waited for any longer
            command = _service(name, url, bin_folder, 20 if comes_back else 4)
            process = await asyncio.create_subprocess_exec(*command, start_new_session=True)
            try:
                first = await wait_until("the lock to be held", lambda: _holder(api), within_s=15)
                (await api.put(f"/v1/session/destroy/{first}")).raise_for_status()
                ended = asyncio.create_task(process.wait())
                while not ended.done():
                    second, _ = await _holder(api, first)
                    if second is not None:
                        return second
                    await pause(0.05)
                return None
            finally:
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()

    assert (asyncio.run(holder_after_the_loss()) is not None) == comes_back


async def _holder(api, other_than=""):
    """The session that has the lock, unless it is that one."""
    reply = await api.get("/v1/kv/hashidrill/lock")
    holder = reply.json()[0].get("Session") if reply.status_code == 200 else None
    return (holder if holder != other_than else None), f"held by {holder}"


def _service(name, url, bin_folder, seconds):
    return prepare.command(BY_NAME[name].argv, url=url, bin_folder=bin_folder, seconds=seconds)


def check(clients, bin_folder, wrong, *, fault="", times=1, limit_s=ENDS_S):
    """Runs each client once against a server of its own; fails with a line for each that did not do as it should."""
    clients = sorted(clients, key=lambda client: -sum(client.facts.gaps))  # the slowest are not to be the last to start
    seen = asyncio.run(_run_all(clients, bin_folder, fault, times, limit_s))
    lines = [
        f"{client.name}: {one.said}; the manifest says {client.facts}"
        for client, one in zip(clients, seen, strict=True)
        if wrong(client, one)
    ]
    assert not lines, "\n".join(lines)


async def _run_all(clients, bin_folder, fault, times, limit_s):
    room, starting = asyncio.Semaphore(AT_A_TIME), asyncio.Semaphore(STARTING)

    async def one(client):
        async with room, ScriptedServer(fault, times, RETRY_AFTER_S).running() as server:
            command = prepare.command(client.argv, url=server.url, bin_folder=bin_folder)
            status = await _run(command, server, limit_s(client) if callable(limit_s) else limit_s, starting)
            return Seen(len(server.seen), status, server.gaps, server.was_reset)

    return await asyncio.gather(*(one(client) for client in clients))


async def _run(command, server, limit_s, starting):
    """The exit status; None for a client that is still at it so long after its first attempt, and is stopped."""
    nothing, ours = asyncio.subprocess.DEVNULL, prepare.environment(server.url)
    async with starting:
        process = await asyncio.create_subprocess_exec(
            *command, env=ours, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True
        )
        ended, came = asyncio.create_task(process.wait()), asyncio.create_task(server.came.wait())
        await asyncio.wait({ended, came}, timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
    try:
        await asyncio.wait({ended}, timeout=limit_s)
        return ended.result() if ended.done() else None
    finally:
        came.cancel()
        if not ended.done():
            os.killpg(process.pid, signal.SIGKILL)
        await ended
