"""The replicated store in one thread and virtual time: its nodes, their network and disks, and users who remember.

`World(seed).play(story)` runs a story: a generator that breaks things and yields seconds to wait, or a condition to
wait for. Afterwards `broken()` says which promises do not hold.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import marshal
import random
from collections import Counter

from hashidrill.core.judging.linearizability import Answer, Op, check
from hashidrill.products.sample.store import TICK_S, Node, State

NAMES = ["replica-1", "replica-2", "replica-3"]
_ANSWER_S = 1.0
TTL_S = 2.0
USERS = "users"
_MOST_EVENTS = 8_000
"""Of a second: a busy store has 2,000."""
OPTIONS = {
    "log-cut-before-snapshot": {"trailing": 10, "snapshot_every": 30},
    "snapshot-of-uncommitted": {"trailing": 500},
    "async-when-slow": {"snapshot_every": 5000},
}
"""The store's options with which a planted bug shows, where the usual ones hide it."""


def copied(data):
    """A deep copy of plain data, ten times as fast as `copy.deepcopy`."""
    return marshal.loads(marshal.dumps(data))


class DiskError(OSError):
    pass


class Disk:
    """Keeps what is safe; an operation on a slow disk keeps its node busy."""

    def __init__(self, world, name):
        self.world, self.name = world, name
        self.kept = (0, "", {"index": 0, "term": 0, "state": ""}, 0, 0, [])
        self.takes_s = 0.0
        self.full = False
        self.slow = False

    def load(self):
        return copied(self.kept)

    def _keep(self, **parts):
        if self.full:
            raise DiskError("no space left")
        names = ("term", "vote", "snapshot", "base", "base_term", "entries")
        self.kept = tuple(parts.get(name, old) for name, old in zip(names, self.kept, strict=True))
        self.world.busy(self.name, self.takes_s)

    def save_vote(self, term, vote):
        self._keep(term=term, vote=vote)

    def append(self, entries):
        self._keep(entries=self.kept[5] + copied(entries))
        self.slow = self.takes_s > 0.15

    def rewrite(self, base, base_term, entries):
        self._keep(base=base, base_term=base_term, entries=copied(entries))

    def save_snapshot(self, snapshot):
        self._keep(snapshot=copied(snapshot))

    def begin_snapshot(self, snapshot, done):
        world, life = self.world, self.world.lives[self.name]

        def end():
            if world.lives[self.name] == life and world.nodes[self.name] is not None and not self.full:
                if snapshot["index"] > self.kept[2]["index"]:
                    self.kept = (*self.kept[:2], copied(snapshot), *self.kept[3:])
                done()

        world.later(world.dice.uniform(0.005, 0.02) + 8 * self.takes_s, end)


class World:
    def __init__(self, seed, *, bug="", loss=0.0, size=3, **options):
        self.dice = random.Random(seed)
        self.now_s = 0.0
        self.loss, self.names = loss, [f"replica-{n}" for n in range(1, size + 1)]
        self._options = {"snapshot_every": 60, "trailing": 80, "bug": bug, **options}
        self._events = []
        self._numbers = itertools.count()
        self.disks = {name: Disk(self, name) for name in self.names}
        self.nodes = dict.fromkeys(self.names)
        self.lives = dict.fromkeys(self.names, 0)
        self.paused, self.cut, self.lossy = set(), set(), Counter()
        self._held = {name: [] for name in self.names}
        self._busy_until = dict.fromkeys(self.names, 0.0)
        self.terms = {}
        for name in self.names:
            self.start(name)

    # time

    def later(self, wait_s, act):
        heapq.heappush(self._events, (self.now_s + wait_s, next(self._numbers), act))

    def play(self, story=None, *, for_s=60.0):
        """Until the story is over, `for_s` at most, or two servers contradict each other without an end."""
        over, second, left = [], 0, _MOST_EVENTS
        if story is not None:
            self._step(story, over)
        end_s = self.now_s + for_s
        while self._events and not over and self._events[0][0] < end_s and left:
            self.now_s, _, act = heapq.heappop(self._events)
            left, second = (_MOST_EVENTS, int(self.now_s)) if self.now_s >= second + 1 else (left - 1, second)
            act()
        return self

    def _step(self, story, over):
        wait = next(story, None)
        if wait is None:
            over.append(True)
        elif callable(wait):
            self._poll(story, over, wait, self.now_s + 30)
        else:
            self.later(wait, lambda: self._step(story, over))

    def _poll(self, story, over, condition, until_s):
        assert self.now_s < until_s, "the moment never came"
        if condition():
            self._step(story, over)
        else:
            self.later(0.02, lambda: self._poll(story, over, condition, until_s))

    # nodes

    def start(self, name):
        self.lives[name] += 1
        self._held[name] = []
        self.paused.discard(name)
        self._busy_until[name] = 0.0
        dice = random.Random(self.dice.random())
        self.nodes[name] = Node(name, self.names, self.disks[name], now=lambda: self.now_s, dice=dice, **self._options)
        self._tick(name, self.lives[name])

    def kill(self, *names):
        for name in names:
            self.nodes[name] = None
            self.lives[name] += 1

    def restart(self, name):
        self.kill(name)
        self.later(0.3, lambda: self.start(name))

    def pause(self, name):
        self.paused.add(name)

    def resume(self, name):
        self.paused.discard(name)
        held, self._held[name] = self._held[name], []
        for act in held:
            self._do(name, act)

    def busy(self, name, for_s):
        self._busy_until[name] = max(self._busy_until[name], self.now_s) + for_s

    def slow(self, *names, takes_s):
        for name in names:
            self.disks[name].takes_s = takes_s

    def leader(self):
        leads = [node for node in self.nodes.values() if node is not None and node.role == "leader"]
        return max(leads, key=lambda node: node.term).name if leads else ""

    def _tick(self, name, life):
        if self.lives[name] == life and self.nodes[name] is not None:
            if name not in self.paused:  # ticks do not pile up while it stands still
                self._do(name, lambda: self.nodes[name].tick())  # noqa: PLW0108 - by then another node may have the name
            self.later(TICK_S, lambda: self._tick(name, life))

    def _do(self, name, act):
        """What happens to a node now, or when it goes on, or when its disk is done; and what it then sends."""
        life = self.lives[name]
        if self.nodes[name] is None:
            return
        if name in self.paused:
            self._held[name].append(act)
            return
        if self._busy_until[name] > self.now_s:
            wait_s = self._busy_until[name] - self.now_s
            self.later(wait_s, lambda: self._do(name, act) if self.lives[name] == life else None)
            return
        node = self.nodes[name]
        with contextlib.suppress(DiskError):
            act()
        out, node.out = node.out, []
        if node.role == "leader":
            assert self.terms.setdefault(node.term, name) == name or self._options["bug"], "two leaders in a term"
        wait_s = max(self._busy_until[name] - self.now_s, 0)
        for to, message in out:
            if not self.separate(name, to) and self.dice.random() >= max(self.loss, self.lossy[name], self.lossy[to]):
                sent = copied(message)
                self.later(wait_s + self.dice.uniform(0.0005, 0.003), lambda to=to, sent=sent: self._arrive(to, sent))

    def _arrive(self, to, message):
        if not self.separate(message["f"], to):
            self._do(to, lambda: self.nodes[to].receive(message))

    def separate(self, one, two):
        return (one, two) in self.cut

    def cut_off(self, name, *others):
        for other in others or self.names:
            if other != name:
                self.cut |= {(name, other), (other, name)}

    def heal(self):
        self.cut.clear()

    def fill(self, name):
        self.disks[name].full = True

    def mend(self):
        """Takes back whatever is broken."""
        self.heal()
        for name in self.names:
            self.disks[name].full, self.disks[name].takes_s = False, 0.0
            if self.nodes[name] is None:
                self.start(name)
            if name in self.paused:
                self.resume(name)

    # users

    def _reaches(self, one, other):
        return self.nodes.get(other) is not None and not (self.separate(one, other) or self.separate(other, one))

    def ask(self, server, act, done, *, alone=None):
        """Asks that server, which asks the leader; `done` gets None without an answer, "fail" if surely nothing was
        done. `act(node, done)` is False on a server that does not lead.
        """
        answered = []

        def answer(result):
            if not answered:
                answered.append(result)
                self.later(self.dice.uniform(0.0005, 0.003), lambda: done(result))

        self.later(_ANSWER_S, lambda: answer(None))

        def there():
            node = self.nodes[server]
            if node.role == "leader":
                begin(server)
            elif self._reaches(server, leader := node.leader):
                self.later(0.001, lambda: self._do(leader, lambda: begin(leader)))
            elif alone is not None and node.read_alone() is not None:
                answer(alone(node.read_alone()))
            else:
                answer("fail")

        def begin(name):
            try:
                if not act(self.nodes[name], answer):
                    answer("fail")
            except DiskError:
                answer("fail")

        self.later(
            self.dice.uniform(0.0005, 0.003),
            lambda: self._do(server, there) if self._reaches(USERS, server) else answer("fail"),
        )


class Registers:
    """Clients that read, write and compare-and-set a few keys, as `consul.kv.cas` does."""

    def __init__(self, world, *, per_s=40, keys=8, clients=9):
        self.world, self.ops, self.on = world, {}, True
        self._seen, self._n, self._keys, self._clients, self._gap_s = {}, 0, keys, clients, 1 / per_s
        self._one()

    def _one(self):
        if self.on:
            self._operate()
            self.world.later(self._gap_s, self._one)

    def _operate(self):
        world, client = self.world, self._n % self._clients
        key, value = f"k{world.dice.randrange(self._keys)}", f"v{self._n}"
        self._n += 1
        server = world.names[client % len(world.names)]
        began, draw = world.now_s, world.dice.random()
        seen = self._seen.pop((client, key), None) if draw > 0.5 else None
        if draw < 0.1:
            self._change(server, key, value, (None, None), began)
        elif seen is not None:
            self._change(server, key, value, seen, began)
        else:
            self.read(server, key, began, client)

    def read(self, server, key, began, client=None, then=None):
        def look(state):
            entry = state.kv.get(key)
            return (None, 0) if entry is None else (entry[0], entry[1])

        def done(result):
            if isinstance(result, tuple):
                self.ops.setdefault(key, []).append(self._op("read", result[0], began))
                self._seen[client, key] = result
            if then is not None:
                then(result)

        self.world.ask(
            server,
            lambda node, answer: node.read(lambda state: answer(None if state is None else look(state))),
            done,
            alone=look,
        )

    def _op(self, kind, value, began, expected=None, *, known=True):
        ends = round(self.world.now_s * 1e9) if known else None
        return Op(kind, value, round(began * 1e9), ends, expected)

    def _change(self, server, key, value, seen, began):
        expected, index = seen

        def done(result):
            kind = "write" if index is None else "cas" if result is not False else "miss"
            if result != "fail":
                self.ops.setdefault(key, []).append(self._op(kind, value, began, expected, known=result is not None))

        command = ["set", key, value, index, "", ""]
        self.world.ask(server, lambda node, answer: node.propose(command, answer), done)

    def broken(self):
        return [key for key, ops in self.ops.items() if check(ops)[0] is Answer.NO]


class Writes:
    """Writes keys once each, and looks at the end which acknowledged ones are there, as `consul.kv.write` does."""

    def __init__(self, world, *, per_s=60):
        self.world, self.kept, self.on, self._n, self._gap_s = world, set(), True, 0, 1 / per_s
        self._one()

    def _one(self):
        if self.on:
            key, server = f"once-{self._n}", self.world.names[self._n % len(self.world.names)]
            self._n += 1
            self.world.ask(
                server,
                lambda node, answer: node.propose(["set", key, "x", None, "", ""], answer),
                lambda result: self.kept.add(key) if result is True else None,
            )
            self.world.later(self._gap_s, self._one)

    def lost(self):
        return self.kept - self.world.final.kv.keys()


class Locks:
    """Contenders for locks, two for each, as those of `consul.lock`; each remembers when it may believe to hold it."""

    def __init__(self, world, *, contenders=6):
        self.world, self.on = world, True
        self.beliefs = []
        """(from, until, lock, session) of each time that a contender had every right to believe that it holds it."""
        for number in range(contenders):
            self._begin(number)

    def _begin(self, number):
        if not self.on:
            return
        world, server = self.world, self.world.names[number % len(self.world.names)]
        session, sent = f"s{number}-{world.dice.random()}", world.now_s
        lock = f"lock-{number // 2}"
        me = {
            "number": number,
            "lock": lock,
            "server": server,
            "session": session,
            "lease": 0.0,
            "claimed": None,
            "over": False,
        }

        def made(result):
            if result is True:
                me["lease"] = sent + TTL_S
                self._renew(me)
                self._claim(me)
            else:
                world.later(0.3, lambda: self._begin(number))

        command = ["session", session, TTL_S, sent]
        world.ask(server, lambda node, answer: node.propose(command, answer), made)

    def _renew(self, me):
        world, sent = self.world, self.world.now_s

        def done(result):
            if result is False:
                me["over"] = True
                world.later(0.3, lambda: self._begin(me["number"]))
                return
            if result is True:
                self._believe(me, world.now_s, sent + TTL_S)
            world.later(0.3 if result in (None, "fail") else 0.7, lambda: self._renew(me))

        world.ask(me["server"], lambda node, answer: node.renew(me["session"], answer), done)

    def _claim(self, me):
        world = self.world

        def done(result):
            if result is True:
                me["claimed"] = world.now_s
                self._believe(me, world.now_s, me["lease"])
            elif not me["over"]:
                world.later(0.3, lambda: self._claim(me))

        if not me["over"] and self.on:
            command = ["set", me["lock"], "", None, me["session"], ""]
            world.ask(me["server"], lambda node, answer: node.propose(command, answer), done)

    def _believe(self, me, since, until):
        me["lease"] = max(me["lease"], until)
        if me["claimed"] is not None and since < until:
            self.beliefs.append((since, until, me["lock"], me["session"]))

    def twice(self):
        return [
            (one, two)
            for one, two in itertools.combinations(sorted(self.beliefs), 2)
            if two[0] < one[1] and one[2] == two[2] and one[3] != two[3]
        ]


def settled(world, *loads):
    """The end of a story: all is healed, users stop, and a leader that all agree with tells what there is."""
    world.mend()
    yield 4.0
    for load in loads:
        load.on = False
    yield 4.0
    yield lambda: bool(world.leader())
    said = []
    world.nodes[world.leader()].read(said.append)
    yield lambda: bool(said)
    assert said[0] is not None, "the last read found no leader"
    world.final = State(said[0].dump())
