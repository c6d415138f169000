"""Somebody acts while the faults of the method last: they stay in force until it is done, and everything reverts."""

import anyio
import pytest

from engine_game import SLOW, Game, slow_observers
from tasks import raising

LATER = {"fault": "disk.latency", "on": "host:consul-2", "with": {"delay": "500ms"}, "at": "20s", "for": "5s"}


class Attendant:
    """Takes its time; `act` is what it does, with the state of the run."""

    def __init__(self, at_s, takes_s=60, act=None):
        self.at_s, self._takes_s, self._act = at_s, takes_s, act
        self.came_s = self.saw = None

    async def attend(self, running):
        self.came_s = running.method.now_s
        self.saw = sorted(each.host for each in running.in_force.values())
        await anyio.sleep(self._takes_s)
        if self._act is not None:
            await self._act(running)


def test_a_fault_lasts_until_the_attendant_is_done_however_long_it_takes(tmp_path):
    game, somebody = Game(tmp_path, [SLOW]), Attendant(5, takes_s=300)
    assert game.run(attendant=somebody) == "complete"
    assert somebody.saw == ["consul-1"]
    [reverted] = game.times_s("fault.reverted").values()
    assert reverted == 305
    assert not game.world.host("consul-1").disk_rules


def test_what_was_over_before_is_gone_and_what_comes_later_never_comes(tmp_path):
    first = {**SLOW, "on": "host:consul-3", "for": "3s"}
    game, somebody = Game(tmp_path, [first, SLOW, LATER]), Attendant(5)
    assert game.run(attendant=somebody) == "complete"
    assert somebody.saw == ["consul-1"]
    assert {entry.data["target"]["host"] for entry in game.journal if entry.event == "fault.intent"} == {
        "consul-3",
        "consul-1",
    }


class Newcomer(Attendant):
    """Looks around first, for as long as they like."""

    def __init__(self, game):
        super().__init__(0)
        self._game = game

    async def look_around(self):
        await anyio.sleep(90)
        self.saw_then = list(self._game.events), sorted(self._game.world.host("consul-1").disk_rules)


def test_who_looks_around_sees_a_steady_state_and_no_fault_and_it_is_required_again_after_that(tmp_path):
    game = Game(tmp_path, [SLOW])
    somebody = Newcomer(game)
    assert game.run(attendant=somebody) == "complete"
    events, rules = somebody.saw_then
    assert ("steady" in events, "fault.intent" in events, rules) == (True, False, [])
    before, after = [entry for entry in game.journal if entry.event == "steady"]
    assert before.data["held"]
    assert after.t_ns > before.t_ns + 90e9


def test_it_comes_once_the_faults_are_proven(tmp_path, monkeypatch):
    slow_observers(monkeypatch)
    game = Game(tmp_path, [SLOW])
    game.run(attendant=Attendant(0))
    events = game.events
    assert events.index("fault.proven") < events.index("attended.begins") < events.index("attended.ends")
    assert events.index("attended.ends") < events.index("fault.reverted")


def test_the_clock_of_the_method_stands_still_meanwhile(tmp_path):
    game, somebody = Game(tmp_path, [SLOW]), Attendant(5)
    game.run(attendant=somebody)
    assert somebody.came_s == 5
    [went] = [entry for entry in game.journal if entry.event == "clock.goes"]
    assert went.data["stood_ns"] == 60_000_000_000
    assert went.data["at_s"] == 5


def test_it_can_ask_whether_a_fault_is_still_there(tmp_path):
    """A fault that ended by itself is seen before anything is repaired."""

    async def look(running):
        [held] = running.held.values()
        assert await held.prove_again()
        running.datacenter.host("consul-1").disk_rules.clear()
        assert await held.prove_again() is False

    game = Game(tmp_path, [SLOW])
    assert game.run(attendant=Attendant(5, act=look)) == "complete"
    assert [event for event in game.events if event in {"fault.still", "fault.faded"}] == ["fault.still", "fault.faded"]


@pytest.mark.lie
def test_an_observer_that_never_answers_says_neither(tmp_path):
    """A disk of 8 MB/s may keep it silent: that is no proof that the fault has gone."""
    answers = []

    async def look(running):
        [held] = running.held.values()

        async def silent(undo, *, present):
            await anyio.sleep_forever()

        seen, held.fault.verify = held.fault.verify, silent
        answers.append(await held.prove_again())
        held.fault.verify = seen

    game = Game(tmp_path, [SLOW])
    assert game.run(attendant=Attendant(5, act=look)) == "complete"
    assert answers == [None]


def test_one_that_crashes_ends_the_run_and_everything_reverts(tmp_path, capsys):
    game = Game(tmp_path, [SLOW])
    assert game.run(attendant=Attendant(5, act=raising(ZeroDivisionError))) == "crashed"
    assert game.events.count("fault.gone") == 1
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_fault_that_cannot_be_applied_ends_the_run_before_anybody_comes(tmp_path):
    game, somebody = Game(tmp_path, [SLOW]), Attendant(5)
    host = game.world.host("consul-1")

    async def refuses(rule_id, rule):
        """The rule does not arrive: nothing is slow."""

    host.set_disk_rule = refuses
    assert game.run(attendant=somebody) == "fault"
    assert somebody.came_s is None


def test_ctrl_c_while_it_acts_reverts_everything(tmp_path):
    game = Game(tmp_path, [SLOW])
    assert game.run(attendant=Attendant(5, takes_s=300), cancel_after_s=100) is None
    assert game.events.count("fault.gone") == 1
    assert "attended.ends" not in game.events


@pytest.mark.lie
def test_what_is_done_by_hand_is_theirs_while_they_are_there(tmp_path):
    """Else a server that a runbook starts again would be unsealed before the runbook comes to it."""
    game, kept = Game(tmp_path, [SLOW]), []

    async def keep(tell):
        began_s = anyio.current_time()
        try:
            await anyio.sleep_forever()
        finally:
            kept.append((began_s, anyio.current_time()))

    game.world.keep = keep
    assert game.run(attendant=Attendant(5, takes_s=60)) == "complete"
    (first_s, until_s), (again_s, end_s) = kept
    assert again_s - until_s == 60
    assert until_s > first_s
    assert end_s > again_s
