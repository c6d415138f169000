"""`when`: a step begins at an event, and the clock stands still until then. If it does not come, the run says so."""

import anyio
import pytest

from engine_game import Game, S
from hashidrill.core.protocols.abc import Operation, Sample
from hashidrill.core.protocols.service import (
    BEHIND,
    LEADER_ELECTED,
    LEADS,
    SNAPSHOT_BEGINS,
)

SLOW = {"name": "slow-one", "fault": "disk.latency", "on": "host:consul-2", "with": {"delay": "500ms"}, "for": "4s"}
MARK = {"mark": "then", "at": "1s", "for": "1s"}


class Said:
    """A product whose servers say what the script has: {seconds of the method: {(host, signal): (value, text)}}; a
    value of None is a failed look.
    """

    name = "raft"
    signals = ("term", "index", "snapshots")
    moments = {LEADER_ELECTED: "term", BEHIND: "index", SNAPSHOT_BEGINS: "snapshots"}  # noqa: RUF012 - never written to
    interval_s = 30.0

    def __init__(self, script):
        self.script = sorted(script.items())
        self.game = None
        self.closed = 0

    def moment_probes(self, hosts):
        return [self]

    async def sample(self):
        now = self.game.since_method_s(self.game.traffic.clock.now_ns())
        said = {}
        for at_s, more in self.script:
            if at_s <= now:
                said |= more
        return [
            Sample(signal, value, text, host, ok=value is not None) for (host, signal), (value, text) in said.items()
        ]

    async def aclose(self):
        self.closed += 1


def servers(**terms):
    """{host: (term, leads, index)} as samples."""
    said = {}
    for host, (term, leads, index) in terms.items():
        said[host, "term"] = (term, LEADS if leads else "")
        said[host, "index"] = (index, "")
    return said


def silent(*hosts):
    return {(host, signal): (None, "no answer") for host in hosts for signal in ("term", "index")}


def played(tmp_path, method, script=None, **more):
    said = Said(script or {})
    game = Game(tmp_path, method)
    game.world.services = [said]
    said.game = game
    game.outcome = game.run(**more)
    game.said = said
    return game


def moment(game):
    [entry] = [entry for entry in game.journal if entry.event == "moment"]
    return entry.data


ELECTED = {
    "another server": ({2: servers(a=(3, False, 9), b=(3, True, 9)), 4: servers(a=(4, True, 9), b=(4, False, 9))}, 4),
    "the same server again": ({0: servers(a=(3, True, 9)), 5: silent("a"), 6: servers(a=(5, True, 9))}, 6),
    "a candidate wins": ({0: servers(a=(4, False, 9), b=(3, False, 9)), 3: servers(a=(4, True, 9))}, 3),
}


@pytest.mark.parametrize("script", ELECTED.values(), ids=ELECTED)
def test_a_step_begins_once_a_leader_is_elected(tmp_path, script):
    said, at_s = script
    game = played(tmp_path, [{**MARK, "when": "leader elected"}], said)
    assert game.outcome == "complete"
    assert game.at_s("mark.begin") == pytest.approx(at_s, abs=0.1)
    assert moment(game)["came"] is True
    assert game.said.closed


NOT_ELECTED = {
    "a leader that was silent leads on": {0: servers(a=(3, True, 9)), 3: silent("a"), 5: servers(a=(3, True, 9))},
    "a leader that is seen late": {0: servers(b=(3, False, 9)) | silent("a"), 4: servers(a=(3, True, 9))},
    "a leader that was elected before": {0: servers(a=(2, True, 9)), 0.5: servers(a=(3, True, 9))},
    "a candidate": {0: servers(a=(2, False, 9)), 2: servers(a=(7, False, 9))},
}


@pytest.mark.lie
@pytest.mark.parametrize("script", NOT_ELECTED.values(), ids=NOT_ELECTED)
def test_what_is_no_election_is_no_moment_and_the_run_says_that_it_never_came(tmp_path, script):
    game = played(tmp_path, [{**SLOW, "at": "1s", "when": "leader elected", "within": "9s"}], script)
    assert game.outcome == "fault"
    assert "the moment never came: method[0] waited 9s for `leader elected`; last seen: term: " in game.error
    assert moment(game)["came"] is False
    assert "fault.intent" not in game.events
    assert game.at_s("moment") == pytest.approx(10, abs=0.1)


def test_a_server_is_behind_once_it_lacks_that_many_entries_of_the_leader(tmp_path):
    said = {
        0: servers(a=(3, True, 10), b=(3, False, 10)),
        2: servers(a=(3, True, 110), b=(3, False, 11)),
        3: servers(a=(3, True, 111), b=(3, False, 11)),
    }
    game = played(tmp_path, [{**MARK, "when": "a server is 100 entries behind"}], said)
    assert game.at_s("mark.begin") == pytest.approx(3, abs=0.1)
    assert moment(game)["evidence"] == "b is 100 entries behind"


@pytest.mark.lie
@pytest.mark.parametrize(
    "said",
    [
        {0: servers(a=(3, True, 10), b=(3, False, 10)), 2: silent("b"), 4: servers(a=(3, True, 900))},
        {0: servers(a=(3, False, 900), b=(3, False, 10))},
        {0: servers(a=(2, True, 10), b=(3, True, 900), c=(3, False, 850))},
    ],
    ids=["a silent server may have them", "nobody leads", "an old leader still says that it leads"],
)
def test_a_server_whose_lag_is_not_known_is_not_behind(tmp_path, said):
    if "c" in str(said):  # the old leader is behind, by the new one's index; nobody else is
        said = {at_s: {key: each for key, each in now.items() if key != ("a", "index")} for at_s, now in said.items()}
    game = played(tmp_path, [{**MARK, "when": "a server is 100 entries behind", "within": "6s"}], said)
    assert game.outcome == "fault"
    assert "the moment never came" in game.error


def test_a_snapshot_that_begins_after_the_step_waits_is_the_moment_and_an_earlier_one_is_not(tmp_path):
    said = {0: {("a", "snapshots"): (4.0, "")}, 3: {("a", "snapshots"): (5.0, "snapshot up to 80")}}
    game = played(tmp_path, [{**MARK, "when": "snapshot begins in raft"}], said)
    assert game.at_s("mark.begin") == pytest.approx(3, abs=0.1)
    assert moment(game)["evidence"] == "a: snapshot up to 80"


@pytest.mark.parametrize(("state", "at"), [("proven", "0s"), ("gone", "4s")])
def test_a_step_begins_when_a_fault_is_proven_or_gone(tmp_path, state, at):
    game = played(tmp_path, [SLOW, {**MARK, "at": at, "when": f"fault slow-one {state}"}])
    assert game.outcome == "complete"
    [at_s] = game.times_s(f"fault.{state}").values()
    assert at_s <= game.at_s("mark.begin") <= at_s + 0.1


def test_a_step_begins_at_the_first_operation_that_fails_after_it_waits(tmp_path):
    async def during(traffic):
        for outcome, wait_s in (("fail", 2.0), ("ok", 2.0), ("unknown", 2.0), ("fail", 9.0)):
            now = traffic.clock.now_ns()
            traffic.emit(Operation("kv-writes", now, now, now, outcome))
            await anyio.sleep(wait_s)

    game = played(tmp_path, [{**MARK, "when": "load kv-writes errors"}], during=during)
    assert game.at_s("mark.begin") == pytest.approx(4, abs=0.1)


def test_the_clock_stands_still_so_steps_keep_their_distance_and_faults_in_force_last(tmp_path):
    said = {0: servers(a=(3, True, 9), b=(3, False, 9)), 7: servers(a=(4, False, 9), b=(4, True, 9))}
    later = {"mark": "later", "at": "3s", "for": "1s"}
    game = played(tmp_path, [SLOW, {**MARK, "when": "leader elected"}, later], said)
    begins = {e.data["mark"]: game.since_method_s(e.t_ns) for e in game.journal if e.event == "mark.begin"}
    assert begins == {"then": pytest.approx(7, abs=0.1), "later": pytest.approx(9, abs=0.1)}
    assert game.times_s("fault.reverted")["0-disk.latency-consul-2"] == pytest.approx(10, abs=0.2)
    [stops] = [entry for entry in game.journal if entry.event == "clock.stops"]
    assert stops.data["waits_for"] == ["`leader elected`"]
    assert moment(game)["waited_ns"] / S == pytest.approx(6, abs=0.1)
