"""The scripted experts find the sick host by what the tools print, and fail where there is nothing to be found."""

import json
import re

import pytest

import training_players as players
from hashidrill.gamedays.training.scenario import list_scenarios
from training_players import NotFoundError

pytestmark = pytest.mark.lie

SERVERS = ("consul-1", "consul-2", "consul-3")
NODES = ("node-1", "node-2", "node-3")
CLIENTS = ("client-1", "client-2", "client-3", "client-4")
ADDRESSES = {name: f"10.73.0.1{name[-1]}" for name in SERVERS} | {name: f"10.73.0.3{name[-1]}" for name in CLIENTS}


class FakeGame:
    """What the vendors' tools print of a datacenter of which one host is sick, and what the script did."""

    def __init__(self, sick: str, what: str, leads: str = "consul-1"):
        self.sick, self.what, self.leads = sick, what, leads
        self.did: list[tuple[str, str]] = []
        self.said: list[tuple[str, str]] = []
        self.repaired = False

    def say(self, what, words=""):
        if what == "users":
            return f"kv-writes  20/s  4ms  9ms  {'0.0' if self.repaired else '33.3'}%"
        self.said.append((what, words))
        return "noted"

    def done(self):
        return None

    def on(self, host, command):
        for pattern, answer in self._answers().items():
            if re.search(pattern, command):
                return answer(host, command)
        self.did.append((host, command))
        self.repaired = True
        return 0, ""

    def _answers(self):
        return {
            r"^consul members": self._members,
            r"list-peers": self._peers,
            r"kv/probe": lambda *_: (0, "2.500" if self.what == "disk" and not self.repaired else "0.004"),
            r"conv=fsync": lambda host, _: (0, f"{900_000_000 if self._is(host, 'disk') else 4_000_000}\n"),
            r"^df ": lambda host, _: (0, f" {100 if self._is(host, 'full') else 8}%\n"),
            r"is-active": lambda host, _: (3 if self._is(host, "full") else 0, ""),
            r"^stat ": lambda host, _: (0, "1600000000\n" if self._is(host, "bloat") else "20000000\n"),
            r"routed\?cached": self._backend,
            r"^for i in": self._ten_reads,
            r"http://10\.[\d.]+:8500/v1/status/leader": self._asked_from_elsewhere,
            r"ADDR/v1/status/leader": lambda host, _: (28 if self._is(host, "frozen") and not self.repaired else 0, ""),
            r"^ss ": lambda host, _: (0, f"{60 if host == self.sick else 3}\n"),
            r"v1/allocations": self._allocations,
            r"v1/nodes": lambda *_: (0, json.dumps([{"Name": name, "ID": f"id-of-{name}"} for name in NODES])),
            r"^vault status": lambda host, _: (
                2 if host == self.sick else 0,
                json.dumps({"sealed": host == self.sick}),
            ),
        }

    def _is(self, host, what):
        return (host, what) == (self.sick, self.what)

    def _members(self, *_):
        lines = ["Node Address Status Type Build Protocol DC"]
        for name in (*SERVERS, *CLIENTS):
            gone = name == self.sick and self.what in {"gone", "frozen"} and not self.repaired
            kind = "server" if name in SERVERS else "client"
            lines.append(f"{name} {ADDRESSES[name]}:8301 {'failed' if gone else 'alive'} {kind} 1.22.2 2 drill")
        return 0, "\n".join(lines)

    def _peers(self, *_):
        rows = [(one, "leader" if one == self.leads else "follower") for one in SERVERS]
        return 0, "\n".join(["Node ID Address State Voter", *(f"{one} id 10:8300 {state} true" for one, state in rows)])

    def _backend(self, *_):
        return 0, f"X-Consul-Query-Backend: {'streaming' if self.what == 'streams' else 'blocking-query'}"

    def _ten_reads(self, _, command):
        slow = self.what == "loss" and f"//{ADDRESSES[self.sick]}:" in command
        return 0, ("1.200\n" if slow else "0.004\n") * 10

    def _asked_from_elsewhere(self, _, command):
        silent = self.sick in ADDRESSES and f"//{ADDRESSES[self.sick]}:" in command and not self.repaired
        return (28, "") if silent else (0, '"10.73.0.11:8300"')

    def _allocations(self, *_):
        return 0, json.dumps(
            [{"NodeName": name, "ClientStatus": "failed" if name == self.sick else "running"} for name in NODES]
        )


@pytest.fixture(autouse=True)
def _no_time_passes(monkeypatch):
    monkeypatch.setattr(players.time, "sleep", lambda _: None)


def diagnosis(game):
    return next(words for what, words in game.said if what == "diagnosis")


TRANSFER, RESTART = "consul operator raft transfer-leader", "systemctl restart consul"
SOLVED = [
    ("first", FakeGame("consul-2", "disk", leads="consul-2"), "disk of consul-2", "consul-2", TRANSFER),
    ("payday", FakeGame("consul-3", "full"), "disks of consul-3 are full", "consul-3", "rm $CONSUL_DATA/../core.*"),
    ("payday", FakeGame("consul-2", "full"), "disks of consul-2", "consul-2", RESTART),
    ("morning-shift", FakeGame("consul-2", "bloat", leads="consul-2"), "raft.db of consul-2", "consul-2", TRANSFER),
    ("quarter-end", FakeGame("", "streams"), "streaming", "client-4", RESTART),
    ("cron-hour", FakeGame("consul-3", "disk", leads="consul-3"), "consul-3 has a slow disk", "consul-3", TRANSFER),
    ("long-tail", FakeGame("consul-3", "loss"), "consul-3, a follower, loses", "consul-3", "rotation out consul-3"),
    ("two-racks", FakeGame("consul-3", "gone"), "consul-3", "consul-1", "consul force-leave consul-3"),
    ("silence", FakeGame("client-2", "half-open"), "client-2: connections to its", "client-2", "rotation out client-2"),
    ("silence", FakeGame("client-3", "frozen"), "client-3 is frozen", "client-3", RESTART),
    ("aftershock", FakeGame("client-1", "queue"), "agent on client-1", "client-1", RESTART),
    ("lights-on", FakeGame("consul-2", "frozen"), "consul-2 is frozen", "consul-2", RESTART),
    (
        "night-batch",
        FakeGame("node-2", "hole"),
        "node-2 is a black hole",
        "nomad-1",
        "nomad node eligibility -disable id-of-node-2",
    ),
    (
        "patch-night",
        FakeGame("vault-3", "seal"),
        "vault-3, a standby, is sealed",
        "vault-3",
        'vault operator unseal "$VAULT_UNSEAL_KEY"',
    ),
]


@pytest.mark.parametrize(
    ("name", "game", "says", "on", "does"), SOLVED, ids=[f"{s[0]}-{s[1].what}-{s[1].sick}" for s in SOLVED]
)
def test_an_expert_finds_the_sick_host_says_it_and_repairs_it(name, game, says, on, does):
    players.EXPERTS[name](game)
    assert says in diagnosis(game)
    assert (on, does) in game.did


SEES = "first payday morning-shift quarter-end cron-hour long-tail silence lights-on night-batch patch-night"


def test_every_scenario_has_an_expert():
    assert set(players.EXPERTS) == {path.stem for path in list_scenarios()}


def test_a_follower_with_a_slow_disk_is_not_what_an_expert_of_the_first_scenario_repairs():
    game = FakeGame("consul-3", "disk", leads="consul-1")
    with pytest.raises(NotFoundError):
        players.EXPERTS["first"](game)
    assert not game.did


@pytest.mark.parametrize("name", SEES.split())
def test_an_expert_says_nothing_where_nothing_is_to_be_seen(name):
    game = FakeGame("nobody", "nothing")
    with pytest.raises(NotFoundError):
        players.EXPERTS[name](game)
    assert not game.said


def test_a_leader_that_is_too_sick_to_hand_over_is_stopped(monkeypatch):
    game = FakeGame("consul-3", "disk", leads="consul-3")
    answers = game.on
    refused = (1, "500 (leadership transfer timeout)")
    monkeypatch.setattr(game, "on", lambda host, text: refused if "transfer" in text else answers(host, text))
    players.EXPERTS["cron-hour"](game)
    assert game.did == [("consul-3", "systemctl stop consul")]


def test_the_bungler_restarts_every_agent_and_says_nothing():
    game = FakeGame("consul-1", "disk")
    players.bungle(game, ["consul-1", "node-1", "vault-1", "client-1"])
    assert [command for _, command in game.did] == [
        f"systemctl restart {one}" for one in ("consul", "nomad", "vault", "consul")
    ]
    assert not game.said


def test_the_guesser_says_the_words_and_touches_nothing():
    game = FakeGame("consul-1", "disk")
    players.guess(game, "the disk of consul-1, the leader, is slow")
    assert [what for what, _ in game.said] == ["detected", "diagnosis"]
    assert not game.did
