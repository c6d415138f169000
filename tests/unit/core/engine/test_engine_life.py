"""The whole life of a run on a fake datacenter, in virtual time, and what its errors come to."""

import errno

import anyio
import pytest

from engine_game import SLOW, Datacenter, Game, S, Writer, slow_observers
from hashidrill.core import errors
from hashidrill.core.engine.requirements import required_by
from hashidrill.core.engine.run import EXIT_CODES
from hashidrill.core.errors import (
    DatacenterError,
    FaultError,
    HashidrillError,
    RecordingError,
    RevertError,
    SelectorError,
    SteadyStateError,
    WaitTimeoutError,
)
from hashidrill.core.faults.disk import DiskLatency
from hashidrill.core.protocols import events
from hashidrill.core.protocols.abc import Evidence
from hashidrill.core.protocols.events import Audience, Began, Change, Intent, Marked, Note, Proof, Tick, decode, encode
from hashidrill.core.recording.journal import Journal


@pytest.fixture(autouse=True)
def _observing_takes_time(monkeypatch):
    slow_observers(monkeypatch)


# outcomes


GRAVEST_LAST = [
    (SteadyStateError("never steady"), "steady-state"),
    (FaultError("not proven"), "fault"),
    (RevertError("stuck"), "revert"),
]


def ended(tmp_path, error):
    """(outcome, error) of a run in which that was raised."""
    game = Game(tmp_path, [SLOW], world=Datacenter(ready_error=error))
    outcome = game.run()
    assert game.journal[-1].data["outcome"] == game.writer.run["outcome"] == outcome
    return outcome, game.error


@pytest.mark.parametrize(("error", "outcome"), [*GRAVEST_LAST, (SelectorError("no leader"), "fault")])
def test_each_error_has_its_outcome(tmp_path, error, outcome):
    assert ended(tmp_path, error) == (outcome, str(error))


@pytest.mark.parametrize("number", range(1, len(GRAVEST_LAST) + 1))
def test_the_gravest_of_several_errors_decides(tmp_path, number):
    errors = [error for error, _ in GRAVEST_LAST[:number]]
    group = ExceptionGroup("inner", [ExceptionGroup("outer", errors), DatacenterError("agent ended")])
    assert ended(tmp_path, group)[0] == GRAVEST_LAST[number - 1][1]


@pytest.mark.parametrize("error", [DatacenterError("consul ended"), WaitTimeoutError("waited 60s")])
def test_a_datacenter_that_fails_crashes_the_run_without_a_traceback(tmp_path, error, capsys):
    assert ended(tmp_path, error) == ("crashed", str(error))
    assert capsys.readouterr().err == ""


def test_a_bug_of_ours_crashes_the_run_and_leaves_its_traceback_in_the_log(tmp_path, capsys):
    assert ended(tmp_path, ZeroDivisionError("by nothing")) == ("crashed", "ZeroDivisionError: by nothing")
    assert "ZeroDivisionError: by nothing" in capsys.readouterr().err


OURS = sorted(
    (each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, HashidrillError)),
    key=lambda each: each.__name__,
)


@pytest.mark.lie
@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
def test_every_outcome_that_an_error_can_have_has_an_exit_code(tmp_path, kind):
    error = kind.__new__(kind)  # whatever it takes to make one
    error.args = ("as it was said",)
    assert ended(tmp_path, error)[0] in EXIT_CODES


# what a datacenter must be started with


def steps(*kinds):
    return [{"fault": kind, "on": "consul:leader", "with": params, "for": "1s"} for kind, params in kinds]


@pytest.mark.parametrize(
    ("method", "operations", "sized"),
    [
        ([("noop", {})], {"fsync"}, False),  # probes and reports want the canary's fsync in any case
        ([("disk.latency", {"op": "read", "delay": "1s"})], {"fsync", "read"}, False),
        ([("disk.latency", {"op": "all", "delay": "1s"})], {"fsync", "write", "read"}, False),
        ([("disk.full", {}), ("disk.error", {"op": "write"})], {"fsync", "write"}, True),
    ],
)
def test_needs_are_those_of_all_faults_together(method, operations, sized, tmp_path):
    found = required_by(Game(tmp_path, steps(*method)).experiment)
    assert (found.disk_operations, found.sized_disk) == (operations, sized)


# the whole life


def live(game, **how):
    """(outcome, journal entries, writer, told) of a whole run."""
    outcome = game.run(**how)
    return outcome, game.journal, game.writer, game.told


def test_a_run_goes_through_all_of_its_phases(tmp_path):
    game = Game(tmp_path, [{**SLOW, "for": "3s"}], recovery={"for": "4s"})
    outcome, journal, writer, told = live(game, final_reads={"kv-writes": {"k": "v2"}})
    assert outcome == "complete"
    phases = {entry.data["phase"]: entry.t_ns / S for entry in journal if entry.event == "phase"}
    assert list(phases) == ["start", "ready", "load", "steady", "method", "recovery", "quiesce", "closed"]
    assert phases["quiesce"] - phases["recovery"] == pytest.approx(4)
    assert journal[0].event == "run"
    assert journal[-1].event == "end"
    assert (journal[-1].data["outcome"], journal[-1].data["error"]) == ("complete", "")
    assert game.world.life == ["started", "ready", "logs"]
    assert writer.run["outcome"] == "complete"
    assert [row["name"] for row in writer.run["hosts"]] == list(game.world.hosts)
    assert ("kv-writes", {"k": "v2"}) in writer.rows
    assert writer.rows[-1] == "closed"
    ticks = [event for event in told if isinstance(event, Tick)]
    assert {tick.leaders for tick in ticks[4:]} == {(("leader", "consul-1"),)}
    assert any(tick.faults for tick in ticks)
    assert {signal for tick in ticks for signal, _ in tick.probes} >= {"raft.leader"}
    assert [decode(encode(event)) for event in told] == told


def test_a_datacenter_that_never_gets_ready_has_no_fault_and_its_logs_are_kept(tmp_path):
    world = Datacenter(ready_error=WaitTimeoutError("waited 60s for the datacenter to be ready; last seen: no leader"))
    outcome, journal, writer, _ = live(Game(tmp_path, [SLOW], world=world))
    assert outcome == "crashed"
    assert "no leader" in writer.run["error"]
    assert not any(entry.event.startswith("fault.") for entry in journal)
    assert world.life == ["started", "logs"]


def test_an_interrupted_run_reverts_collects_and_closes(tmp_path):
    game = Game(tmp_path, [{**SLOW, "for": "60s"}])
    outcome, journal, writer, _ = live(game, cancel_after_s=10)
    assert not any(host.disk_rules for host in game.world.hosts.values())
    assert outcome is None  # the caller's cancellation went through
    events = [entry.event for entry in journal]
    assert events.index("fault.reverted") < events.index("fault.gone") < events.index("end")
    assert writer.run["outcome"] == journal[-1].data["outcome"] == "interrupted"
    assert writer.rows[-1] == "closed"
    assert "logs" in game.world.life


@pytest.mark.lie
def test_a_recording_that_can_no_longer_be_written_ends_the_run_and_reverts(tmp_path):
    began = []

    class Full(Writer):
        def raise_failure(self):
            began.append(anyio.current_time())
            if began[-1] - began[0] > 8:
                raise RecordingError("run-1: the recording could not be written: database or disk is full")

    outcome, journal, writer, _ = live(Game(tmp_path, [{**SLOW, "for": "60s"}]), writer=Full)
    assert outcome == journal[-1].data["outcome"] == "crashed"
    assert "database or disk is full" in writer.run["error"]
    assert journal[-1].t_ns < 20 * S
    events = [entry.event for entry in journal]
    assert events.index("fault.proven") < events.index("fault.gone") < events.index("end")


def test_a_recording_that_cannot_be_closed_is_not_complete(tmp_path):
    class Full(Writer):
        def close(self):
            raise RecordingError("run-1: the recording could not be written: database or disk is full")

    outcome, journal, _, _ = live(Game(tmp_path, [{**SLOW, "for": "3s"}]), writer=Full)
    assert outcome == journal[-1].data["outcome"] == "crashed"


def test_logs_that_cannot_be_had_are_a_note_and_no_more(tmp_path):
    world = Datacenter(logs_error=OSError(28, "No space left on device"))
    outcome, journal, _, _ = live(Game(tmp_path, [{**SLOW, "for": "3s"}], world=world))
    assert outcome == "complete"
    [note] = [entry for entry in journal if entry.event == "note"]
    assert "No space left on device" in note.data["text"]


# who looks on


def raises_from(number):
    """A subscriber that takes some events well, and then none any more."""
    taken = []

    def broken(event):
        taken.append(event)
        if len(taken) >= number:
            raise RuntimeError("the page is gone")

    return broken, taken


@pytest.mark.lie
def test_a_subscriber_that_raises_at_any_event_neither_ends_the_run_nor_leaves_a_fault_in_force(tmp_path):
    """Also in the middle of a fault: between its intent, its proof and its revert."""
    method = [{**SLOW, "for": "3s"}]
    _, whole, _, told = live(Game(tmp_path, method))
    seen = {event.event for event in told}
    assert {"fault.intent", "fault.applied", "fault.proven", "fault.reverted", "fault.gone", "end"} <= seen
    for number in range(1, len(told) + 1):
        (tmp_path / "journal.jsonl").unlink()
        broken, taken = raises_from(number)
        game = Game(tmp_path, method)
        outcome, journal, _, told = live(game, subscribers=[broken])
        assert outcome == "complete", f"it raised at {taken[-1]}"
        assert [entry.event for entry in journal if entry.event != "note"] == [entry.event for entry in whole]
        assert not any(host.disk_rules for host in game.world.hosts.values())
        assert len(taken) == number, "it is asked no more"
        [note] = {event.text for event in told if isinstance(event, Note)}
        assert "gets no more events: it failed with RuntimeError: the page is gone" in note
        assert number > 3 or [entry.data["text"] for entry in journal if entry.event == "note"] == [note]


HINTS = (
    "disk.latency",
    "slow-disk",
    "consul-1",
    "consul-2",
    "consul-3",
    "500ms",
    "proven",
    "fault.",
    "run-1",
)
"""Kind, name of the step, hosts, parameters, proofs, and the run, which is named after what it breaks."""


def leaked(events):
    text = "\n".join(encode(event) for event in events)
    return [word for word in HINTS if word in text]


def watched_by_a_trainee(tmp_path, **more):
    seen = []
    named = {**SLOW, "name": "slow-disk", "for": "5s"}
    world = Datacenter(logs_error=OSError("consul-1: no logs"))
    outcome, _, _, told = live(Game(tmp_path, more.pop("method", [named]), world=world, **more), trainee=seen.append)
    return outcome, seen, told


@pytest.mark.parametrize(
    ("more", "outcome"),
    [
        ({}, "complete"),
        ({"method": [{**SLOW, "name": "slow-disk", "on": "consul:servers", "for": "5s"}]}, "complete"),
        ({"method": [{**SLOW, "name": "slow-disk", "follow": True, "for": "5s"}]}, "complete"),
        ({"guardrails": ["raft.leader >= 1 for 2s"]}, "guardrail"),
    ],
)
def test_a_trainee_is_told_how_it_goes_but_not_what_is_broken(tmp_path, more, outcome):
    ended, seen, told = watched_by_a_trainee(tmp_path, **more)
    assert ended == outcome
    assert leaked(seen) == []
    assert {"phase", "steady", "tick", "end"} <= {event.event for event in seen}
    assert ("guardrail" in {event.event for event in seen}) is (outcome == "guardrail")
    assert any(event.loads for event in seen if isinstance(event, Tick))
    assert {"disk.latency", "consul-1", "proven", "run-1"} <= set(leaked(told)), "an operator is"


def test_the_name_of_a_mark_is_no_hint_to_a_trainee(tmp_path):
    """It says what is about to happen, like streaming-off."""
    mark = {"mark": "slow-disk", "at": "1s", "for": "3s"}
    _, seen, told = watched_by_a_trainee(tmp_path, method=[mark])
    assert leaked(seen) == []
    assert "slow-disk" in leaked(told)
    assert any(event.marks for event in told if isinstance(event, Tick))


def test_a_guardrail_ends_a_mark(tmp_path):
    game = Game(tmp_path, [{"mark": "load-grows", "for": "60s"}], guardrails=["raft.leader >= 1 for 2s"])
    outcome, journal, _, _ = live(game)
    assert outcome == "guardrail"
    begun, ended = [entry for entry in journal if entry.event.startswith("mark.")]
    assert ended.event == "mark.end"
    assert ended.t_ns - begun.t_ns < 10 * S


def test_a_fault_that_is_not_proven_is_no_hint_to_a_trainee(tmp_path, monkeypatch):
    async def never(self, undo, *, present):
        return Evidence(ok=not present, asked="slow", measured="as ever")

    monkeypatch.setattr(DiskLatency, "verify", never)
    outcome, seen, _ = watched_by_a_trainee(tmp_path)
    assert outcome == "fault"
    assert leaked(seen) == []


@pytest.mark.lie
@pytest.mark.parametrize("kind", [Intent, Proof, Change, Note, Began, Marked])
def test_an_event_that_a_trainee_got_by_mistake_is_seen_to_leak(tmp_path, monkeypatch, kind):
    """The planted leak: the tests above would fail."""
    monkeypatch.setattr(kind, "audience", Audience.TRAINEE)
    method = [{**SLOW, "for": "5s"}, {"mark": "slow-disk", "for": "1s"}]
    _, seen, _ = watched_by_a_trainee(tmp_path, method=method)
    assert leaked(seen)


def test_a_field_that_a_trainee_got_by_mistake_is_seen_to_leak(tmp_path, monkeypatch):
    monkeypatch.setitem(events._FOR_OPERATORS, "audience", Audience.TRAINEE)
    _, seen, _ = watched_by_a_trainee(tmp_path)
    assert {"disk.latency", "consul-1"} <= set(leaked(seen))


def test_a_slow_link_needs_toxiproxy_and_nothing_else_does(tmp_path):
    slow = ("network.latency", {"port": 8300, "delay": "1s"})
    assert required_by(Game(tmp_path, steps(("noop", {}), slow)).experiment).tools
    assert not required_by(Game(tmp_path, steps(("noop", {}))).experiment).tools


# reverts that fail while the loads run


def _refusing(monkeypatch, refuses):
    """Makes the revert on consul-2 fail while `refuses()`."""
    revert = DiskLatency.revert

    async def refused(self, undo):
        if undo["host"] == "consul-2" and refuses():
            raise FaultError("planted: no answer within 10s")
        await revert(self, undo)

    monkeypatch.setattr(DiskLatency, "revert", refused)


@pytest.mark.lie
def test_what_the_load_keeps_from_being_reverted_is_reverted_without_it(tmp_path, monkeypatch):
    game = Game(tmp_path, [{**SLOW, "on": "consul:servers"}])
    _refusing(monkeypatch, lambda: not game.traffic.ended)
    assert game.run() == "fault"
    assert "disk.latency on consul-2: could not be reverted: FaultError: planted: no answer within 10s; " in game.error
    assert game.error.endswith("without load it was reverted, and proven gone")
    assert not any(host.disk_rules for host in game.world.hosts.values())
    assert game.events.index("fault.stuck") < game.events.index("note") < len(game.events) - 1
    assert len(game.times_s("fault.gone")) == 3
    assert game.world.life[-1] == "logs"


def test_what_cannot_be_reverted_without_load_either_may_still_be_in_force(tmp_path, monkeypatch):
    game = Game(tmp_path, [{**SLOW, "on": "consul:servers"}])
    _refusing(monkeypatch, lambda: True)
    assert game.run() == "revert"
    assert game.events.count("fault.stuck") == 2
    assert "without load" not in game.error
    assert game.world.hosts["consul-2"].disk_rules
    assert len(game.times_s("fault.gone")) == 2


@pytest.mark.parametrize(("full_for", "outcome"), [("note", "fault"), ("fault.gone", "revert")])
def test_a_journal_that_is_full_during_the_second_revert_does_not_keep_the_run_from_being_closed(
    tmp_path, monkeypatch, full_for, outcome
):
    """What it could not call gone counts as in force; the revert is made all the same."""
    game = Game(tmp_path, [{**SLOW, "on": "host:consul-2"}])
    _refusing(monkeypatch, lambda: not game.traffic.ended)
    write = Journal.write

    def full(self, event, **data):
        if event == full_for:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, event, **data)

    monkeypatch.setattr(Journal, "write", full)
    assert game.run() == outcome
    assert game.events[-1] == "end"
    assert game.writer.run["outcome"] == outcome
    assert not game.world.hosts["consul-2"].disk_rules
