"""The algorithm of the small replicated store, without clock, network or disk, so that a simulation can run it.

It is Raft (Ongaro and Ousterhout, 2014) with PreVote, ReadIndex, snapshots and their install, over keys with
compare-and-set, and locks with sessions. `bug` plants one mistake; each place that makes a mistake names the bug.

It needs only the standard library of any Python 3.10: the hosts run its source, followed by the source of
hashidrill.products.sample.store_program.
"""

import contextlib
import json
import random
from collections.abc import Callable
from typing import Any, Protocol

TICK_S = 0.05
_BATCH_BYTES = 40_000
"""One message is one datagram, which holds 65,507 bytes at most."""
_CHUNKS = 10
_RESEND_TICKS = 4
SLOW_S = 0.15

Done = Callable[[Any], None]
Fields = dict[str, Any]
Entry = list[Any]
Entries = list[Entry]


class Disk(Protocol):
    """The data that survives when a node is killed. Every method returns when its data is safe. Raises OSError."""

    slow: bool
    """Whether the last operation took longer than SLOW_S."""

    def load(self) -> tuple[int, str, Fields, int, int, Entries]:
        """(term, vote, snapshot, base, term at base, entries): the log's entries are [term, command] from base + 1."""

    def save_vote(self, term: int, vote: str) -> None: ...

    def append(self, entries: Entries) -> None: ...

    def rewrite(self, base: int, base_term: int, entries: Entries) -> None: ...

    def save_snapshot(self, snapshot: Fields) -> None: ...

    def begin_snapshot(self, snapshot: Fields, done: Callable[[], None]) -> None:
        """Saves the snapshot in the background, then calls `done`, unless the save fails."""


class State:
    """Keys: [value in base64, ModifyIndex, LockIndex, session]; sessions: [TTL in seconds, time of creation]."""

    def __init__(self, text: str = "") -> None:
        said = json.loads(text) if text else {"kv": {}, "sessions": {}}
        self.kv: dict[str, Entry] = said["kv"]
        self.sessions: dict[str, Entry] = said["sessions"]

    def dump(self) -> str:
        return json.dumps({"kv": self.kv, "sessions": self.sessions})

    def apply(self, index: int, command: Entry) -> Any:
        """Applies the command and returns its answer: a bool, or the reason of a refusal."""
        op, *told = command
        if op == "set":
            return self._set(index, *told)
        if op == "delete":
            self.kv = {key: each for key, each in self.kv.items() if not key.startswith(told[0])}
        elif op == "session":
            self.sessions[told[0]] = told[1:]
        elif op == "end":
            self.sessions.pop(told[0], None)
            for entry in self.kv.values():
                entry[3] = "" if entry[3] == told[0] else entry[3]
        return True

    def _set(self, index: int, key: str, *told: Any) -> Any:
        value, cas, acquire, release = told
        old = self.kv.get(key, ["", 0, 0, ""])
        if acquire and acquire not in self.sessions:
            return f"invalid session '{acquire}'"
        if (cas is not None and cas != old[1]) or (acquire and old[3] not in ("", acquire)):
            return False
        if release and old[3] != release:
            return False
        taken = int(bool(acquire) and old[3] != acquire)
        self.kv[key] = [value, index, old[2] + taken, "" if release else acquire or old[3]]
        return True


class Node:
    """One server's Raft. Call `tick` every TICK_S, and `receive` for each message; it puts (to, message) into `out`.

    Times are seconds of `now`, a clock that goes on while the process is frozen.
    """

    def __init__(
        self,
        name: str,
        peers: list[str],
        disk: Disk,
        *,
        now: Callable[[], float],
        dice: random.Random,
        election_s: float = 0.6,
        snapshot_every: int = 100,
        trailing: int = 120,
        install_s: float = 1.0,
        bug: str = "",
    ) -> None:
        self.name, self.others = name, [peer for peer in peers if peer != name]
        self._disk, self._now, self._dice = disk, now, dice
        self._size, self._rank = len(peers), sorted(peers).index(name)
        self._election_s, self._every, self._trailing, self._bug = election_s, snapshot_every, trailing, bug
        self._chunk_s = install_s / _CHUNKS
        self.out: list[tuple[str, Fields]] = []
        self.term, self._vote, self._snapshot, self._base, self._base_term, self._log = disk.load()
        self.state = State(self._snapshot["state"])
        if self.last < self._snapshot["index"]:
            self._base, self._base_term, self._log = self._snapshot["index"], self._snapshot["term"], []
        # the bug log-cut-before-snapshot may leave a log that begins after the snapshot's end
        self.commit = self.applied = max(self._snapshot["index"], self._base)
        self.role, self.leader = "follower", ""
        self.snapshots = self.installs = 0
        self._saving = False
        self._began_s = now()
        self._silent, self._patience = 0, 0.0
        self._rest()
        self._votes: set[str] = set()
        self._waiting: dict[int, tuple[int, Done]] = {}
        self._reads: list[tuple[int, Done]] = []
        self._renewals: list[tuple[str, Done]] = []
        self._chunks: dict[str, Any] = {}
        self._deadlines: dict[str, float] = {}
        self._fresh = False
        self._shift = 0
        self._behind: Entries = []
        self._behind_ticks = 0

    # the log

    @property
    def last(self) -> int:
        return self._base + len(self._log)

    def term_at(self, index: int) -> int | None:
        """The term of that entry; None if the log does not hold the entry."""
        if index == self._base:
            return self._base_term
        if self._base < index <= self.last:
            return int(self._log[index - self._base - 1][0])
        return int(self._snapshot["term"]) if index == self._snapshot["index"] else None

    def _store(self, entries: Entries) -> None:
        if self._bug == "async-when-slow" and self._disk.slow:  # acknowledged now, written some time later
            self._behind += entries
        else:
            self._disk.append(self._behind + entries)
            self._behind = []
        self._log += entries

    def _rewrite(self, base: int, base_term: int, log: Entries) -> None:
        self._disk.rewrite(base, base_term, log)
        self._behind, self._base, self._base_term, self._log = [], base, base_term, log

    def _cut(self, through: int) -> None:
        """Keeps `trailing` entries up to `through` in the log, and all later entries."""
        base = max(self._base, through - self._trailing)
        self._rewrite(base, self.term_at(base) or 0, self._log[base - self._base :])

    def _apply(self) -> None:
        while self.applied < self.commit:
            self.applied += 1
            term, command = self._log[self.applied - self._base - 1]
            if command[0] == "session" and self.role == "leader":
                self._deadlines[command[1]] = self._now() + command[2]
            result = self.state.apply(self.applied + self._shift, command)
            waits = self._waiting.pop(self.applied, None)
            if waits is not None:
                waits[1](result if waits[0] == term else None)
        if self.applied - self._snapshot["index"] >= self._every and not self._saving:
            self._begin_snapshot(self.applied)

    def _begin_snapshot(self, index: int) -> None:
        snapshot: Fields = {"index": index, "term": self.term_at(index) or 0, "state": self.state.dump()}
        self.snapshots += 1
        self._saving = True

        def done() -> None:
            self._saving = False
            if index > self._snapshot["index"]:
                self._snapshot = snapshot
                with contextlib.suppress(OSError):
                    self._cut(index)

        if self._bug == "log-cut-before-snapshot":  # if killed now, it has neither these entries nor their snapshot
            self._cut(index)
        self._disk.begin_snapshot(snapshot, done)

    # elections

    def _rest(self) -> None:
        """Waits for a leader, for a time that differs from server to server, so that elections seldom tie."""
        self._silent = 0
        ticks = self._election_s / TICK_S
        self._patience = ticks * (1 + 0.3 * self._rank) + self._dice.random() * ticks * 0.15

    def _follow(self, term: int, leader: str = "") -> None:
        """Becomes a follower. Raises OSError, and then changes nothing."""
        if term > self.term:
            self._disk.save_vote(term, "")
            self.term, self._vote = term, ""
        led, self.role, self.leader = self.role == "leader", "follower", leader
        if led:
            reads, self._reads = self._reads, []
            for _, done in reads:
                done(None)
            for _, done in self._renewals:
                done(None)
            self._renewals = []
            self._rest()
            if self._bug == "snapshot-of-uncommitted" and self.last > self.commit:
                # the state at `applied`, under the index of the last entry, which may never be committed
                snapshot: Fields = {
                    "index": self.last,
                    "term": self.term_at(self.last) or 0,
                    "state": self.state.dump(),
                }
                self._disk.save_snapshot(snapshot)
                self._rewrite(self.last, snapshot["term"], [])
                self._snapshot, self.commit, self.applied = snapshot, self.last, self.last

    def _stand(self, *, really: bool) -> None:
        """Asks for votes; at first only whether it would get them, so that a cut-off server disturbs no leader."""
        self._rest()
        self.leader = ""
        if really:
            self._disk.save_vote(self.term + 1, self.name)
            self.term, self._vote = self.term + 1, self.name
        self.role = "candidate" if really else "follower"
        self._votes = {self.name}
        asks = {"k": "vote" if really else "pre", "t": self.term + (not really), "li": self.last}
        for other in self.others:
            self._send(other, {**asks, "lt": self.term_at(self.last) or 0})
        self._count()

    def _count(self) -> None:
        if len(self._votes) * 2 <= self._size or self.role == "leader":
            return
        if self.role == "follower":
            self._stand(really=True)
        else:
            self._lead()

    def _lead(self) -> None:
        self.role, self.leader = "leader", self.name
        now = self._now()
        self._next = dict.fromkeys(self.others, self.last + 1)
        self._match = dict.fromkeys(self.others, 0)
        self._heard = dict.fromkeys(self.others, now)
        self._unheard = 0
        self._round, self._acked = 0, dict.fromkeys(self.others, 0)
        self._sent: dict[str, int] = {}
        """For each server, the ticks since it was sent entries or a chunk that it has not answered."""
        self._installs: dict[str, Any] = {}
        self._ending: set[str] = set()
        if self._bug != "sessions-from-snapshot":  # the bug keeps old deadlines of an installed snapshot
            self._deadlines = {}
        for session, (ttl_s, _) in self.state.sessions.items():
            self._deadlines.setdefault(session, now + ttl_s)
        self._noop = self.last + 1
        self.propose(["noop"], lambda _: None)

    # time

    def tick(self) -> None:  # noqa: C901 - one line for each thing that time brings
        """Raises OSError if the disk fails; the node goes on."""
        if self._behind:
            self._behind_ticks = (self._behind_ticks + 1) % 40
            if self._behind_ticks == 0:
                self._disk.append(self._behind)
                self._behind = []
        if self.role != "leader":
            self._silent += 1
            # counted in ticks, because the leader's messages waited while this process was frozen
            if self._silent > self._patience:
                self._stand(really=False)
            return
        self._unheard += 1
        if self._lost_followers():
            self._follow(self.term)
            return
        for session, done in self._renewals:
            self._deadlines[session] = self._now() + self.state.sessions.get(session, [0])[0]
            done(session in self.state.sessions)
        self._renewals = []
        for session, (ttl_s, _) in list(self.state.sessions.items()):
            if self._now() > self._deadlines.setdefault(session, self._now() + ttl_s) and session not in self._ending:
                self._ending.add(session)
                self.propose(["end", session], lambda _: None)
        for other in list(self._sent):
            self._sent[other] += 1
            if self._sent[other] > _RESEND_TICKS:
                del self._sent[other]
        for other in self.others:
            self._beat(other)
            self._replicate(other)

    def _quorum(self) -> int:
        if self._bug == "half-quorum":  # servers that were silent for long do not count, and half of two is enough
            there = 1 + sum(self._now() - heard_s < 3 for heard_s in self._heard.values())
            return self._size // 2 + 1 if there == self._size else max(1, (there + 1) // 2)
        return self._size // 2 + 1

    def _lost_followers(self) -> bool:
        if self._bug == "lock-lease-in-ticks":
            return self._unheard > self._election_s / TICK_S
        since_s = self._now() - self._election_s
        return 1 + sum(heard_s >= since_s for heard_s in self._heard.values()) < self._quorum()

    # requests of users

    def propose(self, command: Entry, done: Done) -> bool:
        """Calls `done` with the answer once the command is committed; with None if its fate stays unknown.

        Returns False if this server does not lead. Raises OSError.
        """
        if self.role != "leader":
            return False
        self._store([[self.term, command]])
        self._waiting[self.last] = (self.term, done)
        self._advance()
        for other in self.others:
            self._replicate(other)
        return True

    def read(self, done: Done) -> bool:
        """Calls `done(state)` once a majority confirmed that this server led after the call; `done(None)` otherwise."""
        if self.role != "leader":
            return False
        self._round += 1
        self._reads.append((self._round, done))
        self._serve()
        for other in self.others:
            self._beat(other)
        return True

    def read_alone(self) -> State | None:
        """The state from which a follower without its leader answers; None if it must not answer."""
        return self.state if self._bug == "stale-read-after-install" and self._fresh else None

    def renew(self, session: str, done: Done) -> bool:
        """Calls `done` with whether the session lives, or None if unknown. Its TTL starts again now."""
        now = self._now()

        def confirmed(state: State | None) -> None:
            if state is None:
                done(None)
            elif session not in state.sessions or session in self._ending:
                done(False)
            else:
                self._deadlines[session] = max(self._deadlines.get(session, 0), now + state.sessions[session][0])
                done(True)

        if self.role == "leader" and self._bug == "lock-lease-in-ticks":
            self._renewals.append((session, done))  # the leader trusts that it leads, for some ticks
            return True
        return self.read(confirmed)

    def _serve(self) -> None:
        """Answers reads that enough servers confirmed, once the commit of the noop shows what was committed before."""
        confirmed = sorted([self._round, *self._acked.values()], reverse=True)[self._quorum() - 1]
        if self.commit < self._noop:
            return
        ready = [done for round_, done in self._reads if round_ <= confirmed]
        self._reads = [each for each in self._reads if each[0] > confirmed]
        for done in ready:
            done(self.state)

    # messages

    def _send(self, to: str, message: Fields) -> None:
        self.out.append((to, {"t": self.term, **message, "f": self.name}))

    def _beat(self, other: str) -> None:
        known = self._match[other] if self.term_at(self._match[other]) is not None else 0
        message = {"k": "append", "pi": known, "pt": self.term_at(known) or 0, "es": [], "c": min(self.commit, known)}
        self._send(other, {**message, "r": self._round})

    def _replicate(self, other: str) -> None:
        if other in self._sent or (self._next[other] > self.last and self._match[other] == self.last):
            return
        before = self._next[other] - 1
        if self.term_at(before) is None or before < self._base:
            self._install(other)
            return
        self._installs.pop(other, None)
        entries: Entries = []
        size = 0
        for entry in self._log[before - self._base :]:
            size += len(json.dumps(entry))
            if entries and size > _BATCH_BYTES:
                break
            entries.append(entry)
        self._sent[other] = 0
        message = {"k": "append", "pi": before, "pt": self.term_at(before), "es": entries, "c": self.commit}
        self._send(other, {**message, "r": self._round})

    def _install(self, other: str) -> None:
        """Sends the next part of the snapshot at the planned pace, so that an install takes a while."""
        going = self._installs.setdefault(other, {"snapshot": self._snapshot, "n": 0, "at_s": 0.0})
        if self._now() < going["at_s"]:
            return
        if going["n"] == 0:
            going["snapshot"] = self._snapshot
        snapshot = going["snapshot"]
        size = min(max(-(-len(snapshot["state"]) // _CHUNKS), 1), _BATCH_BYTES)
        of = max(_CHUNKS, -(-len(snapshot["state"]) // size))
        data = snapshot["state"][going["n"] * size : (going["n"] + 1) * size]
        going["at_s"] = self._now() + self._chunk_s
        self._sent[other] = 0
        part = {"k": "install", "si": snapshot["index"], "st": snapshot["term"], "n": going["n"], "of": of, "d": data}
        self._send(other, part)

    def receive(self, message: Fields) -> None:  # noqa: C901, PLR0912 - one branch for each kind of message
        """Raises OSError if the disk fails: the message then counts as lost."""
        kind, term, sender = message["k"], message["t"], message["f"]
        if kind == "pre":
            self._send(sender, {"k": "pred", "for": term, "ok": self._would_vote(message, term)})
            return
        if term > self.term:
            self._follow(term)
            if kind == "pred":  # refused for its old term: it asks again soon
                self._silent = int(self._patience)
        if kind == "pred":  # also from a server in an earlier term
            if self.role == "follower" and not self.leader and message["ok"] and message["for"] == self.term + 1:
                self._votes.add(sender)
                self._count()
            return
        if term < self.term:
            if kind in ("append", "install", "vote"):
                self._send(sender, {"k": "old"})
            return
        if kind == "vote":
            ok = self._vote in ("", sender) and self.role == "follower" and self._up_to_date(message)
            if ok:
                self._disk.save_vote(term, sender)
                self._vote = sender
                self._rest()
            self._send(sender, {"k": "voted", "ok": ok})
        elif kind == "voted" and self.role == "candidate" and message["ok"]:
            self._votes.add(sender)
            self._count()
        elif kind in ("append", "install"):
            if self.role != "follower" or self.leader != sender:
                self._follow(term, sender)
            self._silent = 0
            (self._appended if kind == "append" else self._part)(message)
        elif kind in ("ack", "got") and self.role == "leader":
            self._heard[sender], self._unheard = self._now(), 0
            (self._acknowledged if kind == "ack" else self._got)(message, sender)

    def _up_to_date(self, message: Fields) -> bool:
        if self._bug == "vote-before-recovery" and self._now() - self._began_s < 1.5:
            return True  # as if its own log were not read yet
        return (message["lt"], message["li"]) >= (self.term_at(self.last) or 0, self.last)

    def _would_vote(self, message: Fields, term: int) -> bool:
        """A server that hears its leader grants no vote against it."""
        content = self.role == "leader" or (self.leader and self._silent < self._election_s / TICK_S)
        return not content and term > self.term and self._up_to_date(message)

    def _appended(self, message: Fields) -> None:
        before, entries = message["pi"], message["es"]
        if before > self.last or (self.term_at(before) not in (None, message["pt"])):
            hint = min(self.last, before - 1)
            self._send(message["f"], {"k": "ack", "ok": False, "m": hint, "r": message["r"]})
            return
        new = [(index, entry) for index, entry in enumerate(entries, before + 1) if index > self._base]
        while new and self.term_at(new[0][0]) == new[0][1][0]:
            new = new[1:]
        if new:
            first = new[0][0]
            if first <= self.last:
                self._rewrite(self._base, self._base_term, self._log[: first - self._base - 1])
            self._store([entry for _, entry in new])
        self.commit = max(self.commit, min(message["c"], before + len(entries)))
        self._apply()
        answer = {"k": "ack", "ok": True, "m": before + len(entries), "n": len(entries)}
        self._send(message["f"], {**answer, "r": message["r"]})

    def _part(self, message: Fields) -> None:
        """Handles one part of a snapshot. The answer names the part that this server wants next."""
        index, term, n = message["si"], message["st"], message["n"]
        going = self._chunks
        if n == 0 or going.get("of") != (message["f"], self.term, index):
            going = self._chunks = {"of": (message["f"], self.term, index), "parts": []}
            if self._bug == "hole-after-broken-install" and n == 0 and index > self.commit:
                # as if the whole snapshot were here; if the rest never comes, the entries in between are missing
                self._rewrite(index, term, [])
                self.commit = self.applied = index
        if n == len(going["parts"]):
            going["parts"].append(message["d"])
        if len(going["parts"]) == message["of"]:
            if index > self.commit or self._bug == "hole-after-broken-install":
                self._installed(index, term, "".join(going["parts"]))
            self._chunks = {}
            self._send(message["f"], {"k": "got", "si": index, "n": -1})
        else:
            self._send(message["f"], {"k": "got", "si": index, "n": len(going["parts"])})

    def _installed(self, index: int, term: int, text: str) -> None:
        snapshot = {"index": index, "term": term, "state": text}
        self._disk.save_snapshot(snapshot)
        rest = self._log[index - self._base :] if self.term_at(index) == term and index >= self._base else []
        self._rewrite(index, term, rest)
        self._snapshot, self.state, self.commit, self.applied = snapshot, State(text), index, index
        self.installs += 1
        self._fresh = True
        self._shift = int(self._bug == "index-after-install")  # it counts the snapshot as one more entry
        if self._bug == "sessions-from-snapshot":
            holders = {entry[3] for entry in self.state.kv.values() if entry[3] in self.state.sessions}
            self._deadlines = {each: sum(self.state.sessions[each]) for each in holders}
        for waits in [self._waiting.pop(each) for each in list(self._waiting) if each <= index]:
            waits[1](None)

    def _acknowledged(self, message: Fields, sender: str) -> None:
        self._acked[sender] = max(self._acked[sender], message["r"])
        if not message["ok"]:
            self._sent.pop(sender, None)
            self._next[sender] = max(min(self._next[sender] - 1, message["m"] + 1), self._match[sender] + 1)
        elif message["m"] >= self._match[sender]:
            self._match[sender] = message["m"]
            if message["n"]:
                self._sent.pop(sender, None)
            self._next[sender] = max(self._next[sender], message["m"] + 1)
        self._advance()
        self._serve()
        self._replicate(sender)

    def _got(self, message: Fields, sender: str) -> None:
        going = self._installs.get(sender)
        if going is None or message["si"] != going["snapshot"]["index"]:
            return
        self._sent.pop(sender, None)
        if message["n"] < 0:
            del self._installs[sender]
            self._match[sender] = max(self._match[sender], message["si"])
            self._next[sender] = self._match[sender] + 1
        else:
            going["n"] = message["n"]

    def _advance(self) -> None:
        """Commits the entries that enough servers have, if the last one is of this term (Raft, 5.4.2)."""
        index = sorted([self.last, *self._match.values()], reverse=True)[self._quorum() - 1]
        if index > self.commit and self.term_at(index) == self.term:
            self.commit = index
            self._apply()
