"""A host that faults are carried to, in virtual time: leases, losses, lies, and what each failure says."""

import signal
from contextlib import asynccontextmanager

import anyio
import pytest

from carried_hosts import WHERE, FakeShell, argument
from hashidrill.core.errors import FaultError, OthersFaultError
from hashidrill.core.protocols.packets import Block
from hashidrill.staging.carriers.host import CarriedHost, cannot
from hashidrill.staging.carriers.lease import Terms
from hashidrill.staging.carriers.ssh import explained

pytestmark = pytest.mark.lie

RULES = [Block("input", ("10.73.0.12",))]
LATENCY = {"operations": ("fsync",), "delay_s": 0.5, "jitter_s": 0.0, "share": 1.0}


@asynccontextmanager
async def host(shell, told=None, waits_s=0.0, **more):
    async def answers(agent, timeout_s):
        return True

    async with anyio.create_task_group() as tasks:
        one = CarriedHost(
            "consul-1",
            shell,
            {"consul": ("consul", "agent")},
            answers,
            terms=Terms(15, waits_s=waits_s),
            tasks=tasks,
            tell=(told if told is not None else []).append,
            **more,
        )
        try:
            yield one
        finally:
            await one.close()


async def test_rules_are_in_force_for_as_long_as_they_are_renewed_and_are_taken_away():
    shell = FakeShell()
    async with host(shell) as one:
        await one.set_packet_rules("hashidrill_x", RULES)
        began = anyio.current_time()
        await anyio.sleep(60)
        assert "hashidrill_x" in shell.in_force
        gaps = [b - a for a, b in zip([began, *shell.renewals], shell.renewals, strict=False)]
        assert max(gaps) <= 5, "three renewals fit into a lease"
        await one.clear_packet_rules("hashidrill_x")
        assert not shell.in_force
        await one.clear_packet_rules("hashidrill_x")
    assert shell.sessions[0].told["args"]["script"].startswith("add table inet hashidrill_x")


async def test_rules_in_force_are_changed_by_the_agent_that_has_them():
    shell = FakeShell()
    async with host(shell) as one:
        await one.set_packet_rules("t", RULES)
        await one.suspend_packet_rules("t")
    assert "flush chain inet t input" in shell.changed[0]


async def test_what_the_host_refuses_is_said_and_nothing_is_in_force():
    shell = FakeShell(refuses="nft is not installed on this host")
    async with host(shell) as one:
        with pytest.raises(FaultError) as refused:
            await one.set_packet_rules("t", RULES)
        assert str(refused.value) == f"{WHERE}: nft is not installed on this host"
    assert not shell.in_force


async def test_a_connection_that_is_lost_is_said_and_a_later_one_finds_what_is_left():
    shell, told = FakeShell(), []
    async with host(shell, told) as one:
        await one.set_packet_rules("t", RULES)
        shell.cut_off()
        await anyio.sleep(30)
        assert told == [f"{WHERE}: t ended: the connection was lost"]
        with pytest.raises(FaultError, match="the connection was lost"):
            await one.clear_packet_rules("t")
        shell.cut = False
        await one.clear_packet_rules("t")
    assert "undo" in shell.sessions[-1].told


async def test_a_revert_connects_again_where_the_connection_was_lost():
    """Else one cut leaves the run with faults that are said to be stuck, and an operator with an alarm for nothing."""
    shell = FakeShell()
    shell.comes_back = True
    async with host(shell) as one:
        await one.set_packet_rules("t", RULES)
        shell.cut_off()
        await anyio.sleep(30)
        await one.clear_packet_rules("t")
        assert await one.packet_tables() == [], "what is left can be looked at again"
    assert [session.told["id"] for session in shell.sessions if "undo" in session.told] == ["t"]


async def test_what_another_run_has_in_force_by_the_same_name_is_not_taken_away():
    """The faults of two runs of one experiment have the same names: healing the first must not end the second's."""
    shell = FakeShell()
    async with host(shell) as one, host(shell) as healing:
        one.act_for("run-b")
        await one.set_packet_rules("t", RULES)
        healing.act_for("run-a")
        with pytest.raises(OthersFaultError, match="t: nothing of this run is left there: of the run run-b"):
            await healing.clear_packet_rules("t")
        assert "t" in shell.in_force
        healing.act_for("run-b")
        await healing.clear_packet_rules("t")
        assert not shell.in_force


async def test_the_rules_of_two_runs_can_be_told_apart_on_the_host():
    """Whose a table is, an operator sees by its name; and no run takes another one's for its own."""
    shell = FakeShell()
    async with host(shell) as one, host(shell) as other:
        one.act_for("20261123-0101-short-aaaa")
        other.act_for("20261123-0202-short-bbbb")
        await one.set_packet_rules("hashidrill_0_cut", RULES)
        [name] = [told["args"]["table"] for told in shell.in_force.values()]
        assert name == "hashidrill_0_cut_20261123_0101_short_aaaa"
        assert f"add table inet {name}\n" in shell.sessions[0].told["args"]["script"]
        assert await one.packet_tables() == ["hashidrill_0_cut"]
        assert await other.packet_tables() == [name], "it is another's, and stays so"
        await one.suspend_packet_rules("hashidrill_0_cut")
        assert f"flush chain inet {name} input" in shell.changed[0]
        await one.clear_packet_rules("hashidrill_0_cut")
        assert await one.packet_tables() == []
        await other.set_packet_rules("hashidrill_0_cut", RULES)
        assert await one.packet_tables() == ["hashidrill_0_cut_20261123_0202_short_bbbb"]


async def test_a_host_that_does_not_answer_is_waited_for_where_a_revert_may_wait_and_once_in_all():
    """It has just restarted, or its network came back: seconds later it answers, and nobody need be woken."""
    shell, told = FakeShell(), []
    async with host(shell, told, waits_s=60) as one:
        shell.notes["t"] = shell.in_force["t"] = {"run": ""}
        shell.cut, began = True, anyio.current_time()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.clear_packet_rules, "t")
            await anyio.sleep(25)
            assert "t" in shell.in_force
            shell.cut = False
        assert anyio.current_time() - began < 28
        assert "t" not in shell.in_force
        assert told[0] == (f"waiting for up to 60s: {WHERE}: no program could be started: the connection was lost")
        assert len(told) == 4, "and says so every ten seconds"
        assert told[-1] == f"{WHERE} answers again, after 26s"
        shell.cut = True
        began = anyio.current_time()
        for _ in range(3):
            with pytest.raises(FaultError, match="t could not be reverted: no program could be started"):
                await one.clear_packet_rules("t")
        assert 60 <= anyio.current_time() - began < 70, "its faults are not waited for one by one"


async def test_a_host_that_answers_that_it_cannot_is_not_waited_for():
    shell, told = FakeShell(), []
    async with host(shell, told, waits_s=60) as one:
        one.act_for("run-a")
        shell.notes["t"], began = {"run": "run-b"}, anyio.current_time()
        with pytest.raises(OthersFaultError, match="t: nothing of this run is left there: of the run run-b"):
            await one.clear_packet_rules("t")
        assert anyio.current_time() - began < 1
    assert told == []


@pytest.mark.parametrize(("theirs", "told_apart"), [("disk", True), ("packets", False)])
async def test_a_fault_of_the_same_kind_by_another_run_is_told_from_ours_whatever_its_name(theirs, told_apart):
    """Observers see a slow disk, and not whose strace it is."""
    shell = FakeShell()
    async with host(shell) as one:
        one.act_for("run-a")
        shell.notes["1-theirs"] = shell.in_force["1-theirs"] = {"run": "run-b", "kind": theirs, "args": {}}
        if told_apart:
            with pytest.raises(OthersFaultError, match="0-slow: nothing of this run is left there: of the run run"):
                await one.clear_disk_rule("0-slow")
        else:
            await one.clear_disk_rule("0-slow")
    assert "1-theirs" in shell.in_force


async def test_a_host_that_was_waited_for_is_back_when_its_observers_answer():
    """Else the proof that the fault is gone begins too early, and its time is over before anybody can look."""
    shell, told = FakeShell(), []
    start, began = shell.start, []

    async def slow_to_observe(program):
        if not shell.cut:
            began.append(anyio.current_time())
            if "listens" in argument(program) and anyio.current_time() < began[0] + 15:
                raise FaultError(f"{shell.where}: no program could be started: its client is initializing")
        return await start(program)

    shell.start = slow_to_observe
    async with host(shell, told, waits_s=60) as one:
        shell.notes["t"] = shell.in_force["t"] = {"run": "", "kind": "packets"}
        shell.cut = True
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.clear_packet_rules, "t")
            await anyio.sleep(25)
            shell.cut = False
        assert anyio.current_time() - began[0] >= 15
        assert await one.packet_tables() == []
    assert told[-2:] == [
        f"waiting for up to 24s: {WHERE}: no program could be started: its client is initializing",
        f"{WHERE} answers again, after 42s",
    ]


async def test_a_fault_that_the_host_took_away_by_itself_is_said_with_the_reason():
    shell, told = FakeShell(), []
    async with host(shell, told) as one:
        await one.set_packet_rules("t", RULES)
        await shell.sessions[0].ends("deadline")
        await anyio.sleep(1)
        await one.clear_packet_rules("t")
    assert told == [f"{WHERE}: t ended: deadline; reverted by its agent"]


async def test_the_revert_of_what_was_left_over_is_not_taken_for_that_of_the_fault_that_follows():
    """It is renewed and changed, and its own revert is waited for, however the agent began."""
    shell, told = FakeShell(), []
    shell.left_over = True
    async with host(shell, told) as one:
        await one.set_packet_rules("t", RULES)
        fault = one._faults["t"]
        await anyio.sleep(30)
        assert fault.holds
        assert len(shell.renewals) >= 6
        await one.suspend_packet_rules("t")
        assert len(shell.changed) == 1
        assert "t" in shell.in_force
        shell.forgets = True
        with pytest.raises(FaultError, match="t could not be reverted: still there"):
            await fault.revert()
    assert [line for line in told if "left over" in line] == []


async def test_an_agent_that_does_not_revert_is_an_error_that_names_its_note():
    shell = FakeShell(forgets=True)
    async with host(shell) as one:
        await one.set_packet_rules("t", RULES)
        fault = one._faults["t"]
        with pytest.raises(FaultError, match=r"t could not be reverted: still there; see /run/x\.json"):
            await fault.revert()


async def test_a_run_that_is_cancelled_still_hears_that_its_fault_was_reverted():
    shell, heard = FakeShell(), []
    with anyio.CancelScope() as scope:
        async with host(shell) as one:
            await one.set_packet_rules("t", RULES)
            try:
                scope.cancel()
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await one.clear_packet_rules("t")
                    heard.append(dict(shell.in_force))
    assert heard == [{}]


async def test_what_is_in_force_when_it_is_left_is_reverted_by_the_host():
    shell = FakeShell()
    async with host(shell) as one:
        await one.set_packet_rules("t", RULES)
    assert not shell.in_force


async def test_a_process_is_stopped_and_goes_on_under_a_lease():
    shell = FakeShell()
    async with host(shell) as one:
        process = await one.agent_process("consul")
        assert await one.signal(process.reference, signal.SIGSTOP)
        assert (await one.agent_process("consul")).state == "T"
        assert await one.signal(process.reference, signal.SIGCONT)
        assert (await one.agent_process("consul")).state == "S"
        assert not await one.signal("", signal.SIGSTOP)
        assert not await one.signal("9999@1", signal.SIGSTOP)


async def test_a_process_is_ended_by_an_agent_that_starts_it_again():
    shell = FakeShell()
    async with host(shell) as one:
        process = await one.agent_process("consul")
        await one.signal(process.reference, signal.SIGTERM)
        assert shell.in_force["kill-consul-consul-1"]["args"]["signal"] == signal.SIGTERM
        await one.signal(process.reference, signal.SIGKILL)
        assert shell.changed == [signal.SIGKILL]
        await one.start_agent("consul")
        assert not shell.in_force
        with pytest.raises(FaultError, match="signal 1 cannot be undone"):
            await one.signal(process.reference, signal.SIGHUP)


async def test_a_slow_disk_is_put_on_the_agent_and_on_the_canary_and_says_what_it_costs():
    shell, told = FakeShell(), []
    async with host(shell, told) as one:
        await one.set_disk_rule("f", LATENCY)
        shell.traced = {41, 99}
        assert [timing.seconds for timing in await one.canary_disk("fsync", 4096, 3, 5.0)] == [0.5, 0.5, 0.5]
    args = next(one.told for one in shell.sessions if one.told.get("kind") == "disk")["args"]
    assert args == {"references": ["41@7", "99@1"], "calls": "fsync,fdatasync", "inject": "delay_enter=500000"}
    assert "makes each system call take 80 us instead of 0.3 us" in told[0]


@pytest.mark.parametrize("traced", [{99}, {41}])
async def test_a_canary_that_is_slowed_alone_says_nothing_about_the_agent(traced):
    shell = FakeShell()
    shell.traced = traced
    async with host(shell) as one:
        with pytest.raises(FaultError, match="the canary's disk says nothing about consul's"):
            await one.canary_disk("fsync", 4096, 1, 5.0)


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (LATENCY, ""),
        ({"operations": ("fsync",), "errno": 5, "share": 1.0}, ""),
        (LATENCY | {"operations": ("fsync", "write", "read")}, "only fsync: read and write"),
        (LATENCY | {"jitter_s": 0.1}, "neither jitter nor percent"),
        (LATENCY | {"share": 0.5}, "neither jitter"),
        ({"operations": ("fsync",), "bytes_per_s": 5.0}, "bandwidth"),
    ],
)
async def test_what_strace_cannot_do_to_a_disk_is_said_beforehand(rule, why):
    assert (why in cannot(rule)) if why else cannot(rule) == ""
    async with host(FakeShell()) as one:
        if why:
            with pytest.raises(FaultError, match=why):
                await one.set_disk_rule("f", rule)


async def test_an_agent_that_is_not_there_is_said():
    async with host(FakeShell(agents={})) as one:
        assert await one.agent_process("consul") is None
        with pytest.raises(FaultError, match="consul-1: no process `consul agent` was found there"):
            await one.set_disk_rule("f", LATENCY)


@pytest.mark.parametrize(
    ("status", "said", "why"),
    [
        (1, "sudo: a password is required", "allow this user `sudo -n`, or log in as root"),
        (127, "sh: 1: python3: not found", "python3 is missing there"),
        (None, "", "the connection was lost"),
        (1, "Traceback\nOSError: full", "it ended with exit code 1: OSError: full"),
    ],
)
def test_why_a_program_ended_is_said_in_words_of_what_to_do(status, said, why):
    assert why in explained(status, said)


async def test_the_canaries_of_all_hosts_listen_before_one_of_them_connects():
    here, there = FakeShell(), FakeShell()
    async with host(here) as one, host(there) as other:
        one.peers = [other]
        assert (await one.connect("10.73.0.12", 7007, 0.3)).errno == 0
        assert [session.told["listens"] for session in there.sessions] == [True]


async def test_no_rule_cuts_a_host_off_from_the_runner_that_has_to_take_it_away():
    shell = FakeShell()
    shell.client = "10.73.0.12"
    async with host(shell) as one:
        with pytest.raises(FaultError, match="it would be cut off from this machine"):
            await one.set_packet_rules("t", RULES)
        await one.set_packet_rules("t", [Block("input", ("10.73.0.12",), port=8300)])


async def test_settings_are_added_for_as_long_as_they_are_renewed_and_are_taken_away():
    shell = FakeShell()
    streaming = {"use_streaming_backend": False}
    async with host(shell) as one:
        assert await one.agent_settings("consul") == {}
        await one.set_agent_settings("consul", streaming, restart=True, check=["validate"])
        await anyio.sleep(60)
        assert await one.agent_settings("consul") == streaming
        await one.set_agent_settings("consul", {"log_level": "DEBUG"}, restart=True, check=["validate"])
        await one.clear_agent_settings("consul")
        assert await one.agent_settings("consul") == {}
        await one.clear_agent_settings("consul")
    [args] = [one.told["args"] for one in shell.sessions if one.told.get("kind") == "settings"]
    assert args == {
        "agent": "consul",
        "reference": "41@7",
        "settings": streaming,
        "by": "restart",
        "check": ["validate"],
    }
    assert shell.changed == [{"log_level": "DEBUG"}]
    assert not shell.in_force


async def test_an_agent_that_reads_no_folder_of_settings_is_said():
    shell = FakeShell()
    shell.reads_no_folder = "process 41 reads no folder of configuration files (-config-dir)"
    async with host(shell) as one:
        assert (await one.facts())["lacks"] == {"settings": shell.reads_no_folder}
        with pytest.raises(FaultError, match="consul-1: process 41 reads no folder"):
            await one.agent_settings("consul")
