"""Trials of `hashidrill explore` on the replicated store: its own code, in a simulated network and virtual time.

A trial goes as one in the lab: the same steps, moments and roles, three loads, and the same promises.
"""

import random
from collections import Counter
from dataclasses import replace

from hashidrill.core.engine.steps import NEVER_CAME
from hashidrill.core.units import Duration
from hashidrill.rollouts.bisect.trials import Outcome
from hashidrill.rollouts.explore.guidance import Seen
from hashidrill.rollouts.explore.space import (
    BEHIND,
    BEHIND_ENTRIES,
    ELECTED,
    GONE,
    INSTALLED,
    LATER,
    PROVEN,
    SNAPSHOT,
    Move,
)
from store_world import OPTIONS, USERS, Locks, Registers, State, World, Writes

PROMISES = {"broken": "linearizable", "lost": "no_acknowledged_write_lost", "twice": "no_two_lock_holders"}
EXPERIMENT = """\
apiVersion: hashidrill/v1
kind: Experiment
metadata: {name: store-promises, title: The replicated store keeps its promises, why: It tests the search}
datacenter: {store: {}}
load:
  registers: {kind: consul.kv.cas, rate: 20/s, via: "store:servers"}
  writes: {kind: consul.kv.write, rate: 30/s, via: "store:servers"}
  locks: {kind: consul.lock, holders: 8, locks: 4, ttl: 2500ms, renew: 700ms, claim_every: 300ms, via: "store:servers"}
steady_state: {for: 2s, within: 10s, require: ["store.leader >= 1"]}
method: [{fault: process.kill, on: "store:leader", for: 2s}]
recovery: {for: 4s}
expect:
  - linearizable: {load: registers}
  - no_acknowledged_write_lost: {load: writes}
  - no_two_lock_holders: {load: locks}
"""
USUAL = {"snapshot_every": 60, "trailing": 60}
_CUT, _KILL = '{"direction": "both", "from": "servers"}', '{"signal": "KILL"}'
_DISK = '{{"delay": "{}", "op": "fsync", "percent": "100%"}}'
_LEADER, _FOLLOWER, _ALL = "store:leader", "store:one-follower", "store:servers"
_FOLLOWER_AWAY = Move("network.partition", _FOLLOWER, _CUT, 0, 5)
_LEADER_AWAY = Move("network.partition", _LEADER, _CUT, 0, 5)
_NEXT_DIES = Move("process.kill", _LEADER, _KILL, 7, 4, f"{GONE}:0")
SHOWN = {
    "stale-read-after-install": (
        _FOLLOWER_AWAY,
        Move("network.partition", _FOLLOWER, _CUT, 5, 4, INSTALLED),
    ),
    "hole-after-broken-install": (
        _LEADER_AWAY,
        Move("process.kill", _LEADER, _KILL, 5, 4, f"{GONE}:0"),
        Move("process.kill", _LEADER, _KILL, 10, 4, f"{GONE}:1"),
    ),
    "sessions-from-snapshot": (_FOLLOWER_AWAY, _NEXT_DIES),
    "index-after-install": (_FOLLOWER_AWAY, _NEXT_DIES),
    "log-cut-before-snapshot": (
        Move("disk.latency", _ALL, _DISK.format("25ms"), 0, 6),
        Move("process.kill", _ALL, _KILL, 0, 2, SNAPSHOT),
    ),
    "snapshot-of-uncommitted": (Move("network.partition", _LEADER, _CUT, 0, 2), replace(_NEXT_DIES, at=4)),
    "vote-before-recovery": (_LEADER_AWAY, Move("process.kill", _ALL, _KILL, 4, 2)),
    "half-quorum": (Move("process.kill", _FOLLOWER, _KILL, 0, 4), Move("network.partition", _LEADER, _CUT, 3, 4)),
    "async-when-slow": (
        Move("disk.latency", _ALL, _DISK.format("500ms"), 0, 8),
        Move("process.kill", _ALL, _KILL, 4, 2),
    ),
    "lock-lease-in-ticks": (
        Move("network.partition", _LEADER, _CUT, 0, 8),
        Move("process.pause", _LEADER, "{}", 0, 4, f"{PROVEN}:0"),
    ),
}
"""The faults that show each planted bug, with beats of a second."""
_TURN_S, _SLICE = 0.05, 10
_PROVEN_S, _GONE_S, _TARGETS_S, _STEADY_S, _RECOVERY_S = 0.2, 0.4, 5.0, 2.0, 4.0
EFFECTIVE = ("disk.latency", "network.loss", "network.partition", "process.kill", "process.pause", "process.restart")
"""What the simulated network knows; other faults change nothing in it. The store talks over UDP, past TCP's proxies."""
_AGENT = ("process.kill", "process.pause", "process.restart")
_LAGS = (10, 100, 1000)


class StoreTrials:
    """Plays candidates on the store with that bug. Like a real trial, one with faults is INVALID now and then."""

    def __init__(self, bug="", seed=0, *, invalid=0.03, options=None):
        self.bug, self.seed, self.played, self._invalid = bug, seed, 0, invalid
        self._options = OPTIONS.get(bug, {}) if options is None else options

    def __call__(self, candidate, beat_s=1.0):
        self.played += 1
        name = f"{self.bug}-{self.seed}-{self.played}"
        if candidate and not any(move.kind in EFFECTIVE for move in candidate):
            return Seen(Outcome.HELD, caused=((),) * len(candidate), took_s={"method": 20.0})
        if candidate and random.Random(name).random() < self._invalid:
            return Seen(Outcome.INVALID, "the machine was busy", took_s={"method": 20.0})
        world = World(name, bug=self.bug, **{**USUAL, **self._options})
        return _Trial(world, candidate, beat_s).seen()


class _Move:
    """One fault on its way: what it waits for, whom it hit, and how much of it is left."""

    def __init__(self, move, beat_s):
        self.move, self.kind, self.params = move, move.kind, move.parameters
        self.at_s, self.left_s = move.at * beat_s, move.length * beat_s
        self.planned_end_s = self.at_s + self.left_s
        self.waited_s = 0.0
        self.came = not move.when
        self.hosts = []
        self.began_s = self.proven_s = self.ended_s = self.gone_s = None


class _Trial:
    def __init__(self, world, candidate, beat_s):
        self.world = world
        self.loads = [Registers(world, per_s=20, keys=4), Writes(world, per_s=30), Locks(world)]
        self.moves = [_Move(each, beat_s) for each in candidate]
        self.waits_s = max(4.0, 4 * beat_s)
        self.beat_s, self.clock_s, self.wrong = beat_s, 0.0, ""
        self.last, self.since_leader_s, self.gap_s = {}, None, 0.0
        self.states, self.effects, self.caused = {}, {}, [{} for _ in candidate]
        self.first_term, self.was_behind = 0, False

    def seen(self):
        world = self.world
        world.play(self._story(), for_s=120.0)
        took = {"method": round(world.now_s, 1)}
        if not (self.wrong or hasattr(world, "final")):
            self.wrong = "the store was too busy to come to an end"
        if self.wrong:
            return Seen(Outcome.INVALID, self.wrong, took_s=took)
        broken = [PROMISES[n] for load in self.loads for n in PROMISES if hasattr(load, n) and getattr(load, n)()]
        return Seen(
            Outcome.BROKEN if broken else Outcome.HELD,
            " and ".join(broken),
            tuple(broken),
            states=tuple(self.states),
            effects=tuple(self.effects),
            caused=tuple(map(tuple, self.caused)),
            took_s=took,
            gap_s=round(self.gap_s, 2),
        )

    def _story(self):
        yield _STEADY_S
        self.first_term = max(node.term for node in self.world.nodes.values())
        self._look()
        quiet_s, until_s = 0.0, 4 * self.beat_s if not self.moves else 0.0
        turns = 0
        while quiet_s < _RECOVERY_S:
            yield _TURN_S
            happened = self._look()
            self._note(happened)
            if turns % _SLICE == 0:
                self.states[self._state()] = None
            turns += 1
            waiting = self._turn(happened)
            if self.wrong:
                return
            if not waiting:
                self.clock_s += _TURN_S
            over = self.clock_s >= until_s and all(each.gone_s is not None for each in self.moves)
            quiet_s = quiet_s + _TURN_S if over else 0.0
        for load in self.loads:
            load.on = False
        yield 2.0
        said = []
        for _ in range(20):
            if leader := self._leader():
                self.world.nodes[leader].read(said.append)
            yield 0.5
            if any(said):
                break
        if not any(said):
            self.wrong = "nothing could be read at the end"
            return
        said = [state for state in said if state is not None]
        self.world.final = State(said[-1].dump())

    # steps

    def _turn(self, happened):
        """Whether a step waits for its moment: the method's clock stands still then."""
        due = [each for each in self.moves if each.began_s is None and self.clock_s >= each.at_s - 1e-9]
        for each in due:
            each.came = each.came or self._came(each.move.when, happened)
            if each.came:
                self._begin(each)
                continue
            each.waited_s += _TURN_S
            if each.waited_s > self.waits_s:
                self.wrong = f"{NEVER_CAME}: {each.move}"
        waiting = not all(each.came for each in due)
        for each in self.moves:
            if each.began_s is not None and each.gone_s is None:
                self._hold(each, waiting)
        return waiting

    def _hold(self, each, waiting):
        now_s = self.world.now_s
        if each.ended_s is not None:
            each.gone_s = now_s if now_s >= each.ended_s + _GONE_S else None
            return
        if each.proven_s is None and now_s >= each.began_s + _PROVEN_S:
            each.proven_s = now_s
        if not waiting or self.clock_s >= each.planned_end_s - 1e-9:
            each.left_s -= _TURN_S
        if each.left_s <= 1e-9 or each.kind == "process.restart":
            each.proven_s, each.ended_s = each.proven_s or now_s, now_s
            for host in each.hosts:
                self._apply(each, host, on=False)

    def _came(self, when, happened):
        what, _, of = when.partition(":")
        if of:
            other = self.moves[int(of)]
            return (other.proven_s if what == PROVEN else other.gone_s) is not None
        return when in happened

    def _begin(self, each):
        hosts = self._select(each.move.on)
        held = {host for one in self.moves if one.kind in _AGENT and one.ended_s is None for host in one.hosts}
        if not hosts or (each.kind in _AGENT and held & set(hosts)):
            each.waited_s += _TURN_S
            if each.waited_s > self.waits_s + _TARGETS_S:
                self.wrong = f"{each.move.on}: no server is known to a majority as the leader just now"
            return
        each.hosts, each.began_s = hosts, self.world.now_s
        for host in hosts:
            self._apply(each, host, on=True)

    def _apply(self, each, host, *, on):
        world, params = self.world, each.params
        match each.kind:
            case "process.kill":
                world.kill(host) if on else world.start(host)
            case "process.pause":
                world.pause(host) if on else world.resume(host)
            case "process.restart" if on:
                world.restart(host)
            case "disk.latency" if params["op"] != "read":
                takes_s = float(Duration.parse(params["delay"])) * float(params["percent"].rstrip("%")) / 100
                world.slow(host, takes_s=takes_s if on else 0.0)
            case "network.loss":
                world.lossy[host] = float(params["percent"].rstrip("%")) / 100 if on else 0.0
                if world.lossy[host] == 1 and params["from"] == "all":
                    world.cut.add((USERS, host))
                else:
                    world.cut.discard((USERS, host))
            case "network.partition":
                others = [name for name in world.names if name != host] + [USERS] * (params["from"] == "all")
                pairs = {(host, name) for name in others if params["direction"] != "in"}
                pairs |= {(name, host) for name in others if params["direction"] != "out"}
                world.cut = world.cut | pairs if on else world.cut - pairs

    def _select(self, on):
        role = on.partition(":")[2]
        if role == "servers":
            return list(self.world.names)
        leader = self._leader()
        if not leader:
            return []
        return [leader] if role == "leader" else [name for name in self.world.names if name != leader][:1]

    # what is seen

    def _there(self):
        return [node for name, node in self.world.nodes.items() if node is not None and name not in self.world.paused]

    def _leader(self):
        votes = Counter(node.leader for node in self._there() if node.leader)
        return next((name for name, count in votes.items() if count > len(self.world.names) // 2), "")

    def _look(self):
        """The moments that came since the last look."""
        happened = set()
        there = self._there()
        leading = max((node for node in there if node.role == "leader"), key=lambda node: node.term, default=None)
        for node in there:
            now = (node.role == "leader", node.term, node.commit, node.snapshots, node.installs)
            before = self.last.get(node.name)
            self.last[node.name] = now
            if before is None:
                continue
            if now[0] and (not before[0] or now[1] > before[1]):
                happened.add(ELECTED)
            if now[3] > before[3]:
                happened.add(SNAPSHOT)
            if now[4] > before[4]:
                happened.add(INSTALLED)
            if leading is not None and leading.commit - node.commit >= BEHIND_ENTRIES:
                happened.add(BEHIND)
        if self._leader():
            self.since_leader_s = None
        else:
            self.since_leader_s = self.world.now_s if self.since_leader_s is None else self.since_leader_s
            self.gap_s = max(self.gap_s, self.world.now_s - self.since_leader_s)
        return happened

    def _note(self, happened):
        behind, self.was_behind = self.was_behind, BEHIND in happened
        if behind:
            happened = happened - {BEHIND}
        begun = [(each.began_s, n) for n, each in enumerate(self.moves) if each.began_s is not None]
        gone = bool(self.moves) and all(each.gone_s is not None for each in self.moves)
        for what in happened:
            if what not in self.effects:
                self.effects[LATER * gone + what] = None
            if begun:
                last = max(begun)[1]
                later = LATER * (self.moves[last].gone_s is not None)
                if what not in self.caused[last]:
                    self.caused[last][later + what] = None

    def _state(self):
        there = self._there()
        leads = min(sum(node.role == "leader" for node in there), 2)
        commits = [each[2] for each in self.last.values()]
        lag = sum(max(commits) - min(commits) >= each for each in _LAGS)
        terms = min(max((node.term for node in there), default=self.first_term) - self.first_term, 3)
        silent = min(len(self.world.names) - len(there), 2)
        return f"leader {int(bool(self._leader()))} leads {leads} silent {silent} terms {terms} lag {lag}"
