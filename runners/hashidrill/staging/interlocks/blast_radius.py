"""The most hosts that a method may disturb at one time: computed before anything starts, and checked during the run.

A role moves, so in the worst case two overlapping faults on `consul:leader` hit two servers, while two on
`host:consul-1` never do. A fault with `follow` leaves its host before it moves to the next one (`Disturbed`
ensures this). A fault that begins within SETTLES_S of another's end, and not `after` it, counts as overlapping with
it: a revert takes time.

A fault that resets the shared state (the restore of a snapshot) counts as one on every host, and needs the consent
for a broken quorum.

A server that was down before the run counts against the quorum, but not against the number that a game day may disturb.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hashidrill.core.errors import InterlockError

SETTLES_S = 5.0
"""How long after its end a fault may still have effects: while it is reverted, and while the agent catches up."""


@dataclass(frozen=True)
class Group:
    """The agents of one product in one role. `down`: those that did not answer before the run began."""

    service: str
    role: str
    hosts: frozenset[str]
    down: frozenset[str] = frozenset()
    most: int = 1
    """How many of them a game day may disturb at one time."""

    @property
    def votes(self) -> bool:
        return self.role == "server"

    @property
    def quorum(self) -> int:
        """How many servers the product needs."""
        return len(self.hosts) // 2 + 1


@dataclass(frozen=True)
class Limits:
    """The limits in the attach file; if `servers` is None, a third of each product's servers, but at least one."""

    servers: int | None = None
    clients: float = 0.2
    breaks_quorum: bool = False
    """Whether both the experiment and the command allow a broken quorum."""

    def most(self, role: str, count: int) -> int:
        if role == "server":
            return self.servers if self.servers is not None else max(1, count // 3)
        return max(1, int(count * self.clients + 1e-9))


@dataclass(frozen=True)
class Window:
    """One fault of a method: it affects at most `most` of `hosts` at a time, between two times in seconds of the
    method.

    `at_a_time`: how many of its hosts the fault itself disturbs at one time, if that is fewer: a rolling restart
    disturbs one. `after`: the numbers of the steps whose end the fault waits for. `sets_back`: the
    fault resets the state that all agents share (hashidrill.core.protocols.abc.Fault), and `hosts` are all hosts.
    """

    step: int
    label: str
    hosts: frozenset[str]
    begins_s: float
    ends_s: float
    most: int = 1
    at_a_time: int | None = None
    after: frozenset[int] = frozenset()
    sets_back: bool = False

    @property
    def at_once(self) -> int:
        most = min(self.most, len(self.hosts))
        return most if self.at_a_time is None else min(most, self.at_a_time)

    def overlaps(self, moment_s: float, later: Window | None = None) -> bool:
        """Whether the fault may still disturb its hosts at that moment, when `later` begins."""
        if self.begins_s > moment_s:
            return False
        settles = 0.0 if later is not None and self.step in later.after else SETTLES_S
        return moment_s < self.ends_s + settles


def groups_of(
    roles: Mapping[str, Mapping[str, str]], voters: Mapping[str, Iterable[str]], down: Iterable[str], limits: Limits
) -> list[Group]:
    """The groups of a datacenter. `roles`: by host, the role of each of its agents by service; `voters`: by service.

    If the voters are unknown, every server counts as one.
    """
    members: dict[tuple[str, str], set[str]] = {}
    for host, of in roles.items():
        for service, role in of.items():
            members.setdefault((service, role), set()).add(host)
    for service, names in voters.items():
        if found := set(names):
            members[service, "server"] = found
    gone = frozenset(down)
    return [
        Group(service, role, frozenset(hosts), gone & frozenset(hosts), limits.most(role, len(hosts)))
        for (service, role), hosts in sorted(members.items())
        if role in {"server", "client"}
    ]


def troubles(windows: Sequence[Window], groups: Sequence[Group], *, breaks_quorum: bool) -> Iterator[str]:
    """One line for each group and each rule that the method breaks, about the first moment when it does."""
    for group in groups:
        told: set[str] = set()
        for one in sorted(windows, key=lambda each: each.begins_s):
            active = [each for each in windows if each is one or each.overlaps(one.begins_s, one)]
            for rule, text in _broken(active, group, breaks_quorum=breaks_quorum):
                if rule not in told:
                    told.add(rule)
                    yield f"{text} at {one.begins_s:g}s of the method ({_labels(active, group)})"


def check(windows: Sequence[Window], groups: Sequence[Group], *, breaks_quorum: bool, said: str) -> None:
    """Raises InterlockError that lists all excesses. `said`: the text about the missing consent to a broken quorum."""
    found = list(troubles(windows, groups, breaks_quorum=breaks_quorum))
    if not found:
        return
    quorum = [text for text in found if text.startswith("breaks the quorum")]
    if quorum:
        raise InterlockError(f"the method {'; '.join(quorum)}; {said}")
    raise InterlockError(
        f"the blast radius is too wide: the method {'; '.join(found)}; let one fault end before the next begins"
        " (`after`), name hosts instead of roles, or widen interlocks.blast_radius of the attach file"
    )


def _broken(active: Sequence[Window], group: Group, *, breaks_quorum: bool) -> Iterator[tuple[str, str]]:
    if breaks_quorum:
        active = [each for each in active if not each.sets_back]
    disturbed = most_disturbed(active, group.hosts)
    if not disturbed or (group.votes and breaks_quorum):
        return
    many = len(group.hosts)
    if group.votes:
        lost = most_disturbed(active, group.hosts - group.down) + len(group.down)
        if many - lost < group.quorum:
            down = f" with {len(group.down)} already down ({', '.join(sorted(group.down))})" if group.down else ""
            text = f"breaks the quorum of {group.service}: it may disturb {disturbed} of {many} servers{down}"
            yield "quorum", f"{text}, but {group.quorum} must be left"
            return
    if disturbed > group.most:
        text = f"may disturb {disturbed} of {many} {group.service} {group.role}s at one time"
        yield "width", f"{text}, but only {group.most} may be"


def _labels(active: Sequence[Window], group: Group) -> str:
    return " and ".join(each.label for each in active if each.hosts & group.hosts)


def most_disturbed(active: Sequence[Window], hosts: frozenset[str]) -> int:
    """The most of these hosts that the faults can disturb together: each slot of a fault takes a host of its own.

    A largest matching of slots and hosts (augmenting paths): faults on the leader and on consul-1 may hit two hosts.
    """
    slots = [each.hosts & hosts for each in active for _ in range(each.at_once)]
    taken: dict[str, int] = {}

    def place(slot: int, seen: set[str]) -> bool:
        for host in slots[slot] - seen:
            seen.add(host)
            if host not in taken or place(taken[host], seen):
                taken[host] = slot
                return True
        return False

    return sum(place(slot, set()) for slot in range(len(slots)))


@dataclass
class Disturbed:
    """The hosts that are disturbed now, during a method: a final check, independent of the one before the run."""

    groups: Sequence[Group]
    breaks_quorum: bool = False
    _now: dict[str, Window] = field(default_factory=dict)

    def trouble(self, fault_id: str, window: Window) -> str:
        """Why that fault may not be applied now; "" if it may."""
        active = [each for other, each in self._now.items() if other != fault_id]
        for group in self.groups:
            broken = next(_broken([*active, window], group, breaks_quorum=self.breaks_quorum), None)
            if broken is not None and window.hosts & group.hosts and window.at_once:
                return f"{broken[1]} ({_labels([*active, window], group)})"
        return ""

    def has_step(self, step: int) -> bool:
        """Whether a fault of that step is in force: one that follows a role may still be on its last host."""
        return any(each.step == step for each in self._now.values())

    def only(self, fault_id: str) -> bool:
        """Whether no other fault is in force."""
        return not self._now.keys() - {fault_id}

    def begins(self, fault_id: str, window: Window) -> None:
        self._now[fault_id] = window

    def ended(self, fault_id: str) -> None:
        self._now.pop(fault_id, None)
