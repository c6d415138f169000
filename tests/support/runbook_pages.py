"""A small runbook that makes sense, as text to change, and hands that are told what they find."""

from dataclasses import dataclass, field
from pathlib import Path

import anyio

from hashidrill.gamedays.runbooks.follower import Ran
from hashidrill.gamedays.runbooks.parser import parse_runbook

PAGE = """\
---
runbook: slow
pager: Writes take seconds
experiments:
  raft/slow-leader-disk: {diagnosis: slow-disk}
look_alikes:
  raft/slow-follower-disk: {diagnosis: not-this}
  healthy: {diagnosis: not-this}
---

# Runbook: slow

```sh
this block is prose, and nobody runs it
```

```sh observe leader on=consul:server
who leads
```

```sh observe commit_ms on={leader} number
how slow
```

```decide
commit_ms > 300   -> slow-disk: the leader's disk
commit_ms is there -> not-this: writes are quick
```

```sh act for=slow-disk on=consul:server
transfer
```

```sh confirm for=slow-disk on=consul:server within=5s
another leads
```

```sh confirm throughout for=slow-disk on=consul:servers
all alive
```
"""
FILE = Path("runbook-slow.md")


def page(*changes, path=FILE):
    """The page with some texts in it replaced, read. Raises ExperimentError."""
    return parse_runbook(path, text(*changes))


def text(*changes):
    changed = PAGE
    for old, new in changes:
        assert old in changed, f"the page does not hold {old!r}"
        changed = changed.replace(old, new)
    return changed


def line_of(what, *changes):
    """The number of the first line of the changed page that holds this."""
    return next(n for n, line in enumerate(text(*changes).splitlines(), 1) if what in line)


@dataclass
class Machine:
    name: str
    address: str
    roles: dict


SERVERS = [Machine(f"consul-{n}", f"10.73.0.1{n}", {"consul": "server"}) for n in (1, 2, 3)]
CLIENT = Machine("client-1", "10.73.0.31", {"consul": "client"})


@dataclass
class FakeHands:
    """`answers`: by command, what it prints, an exit code, or a function of the host and of how often it was asked."""

    answers: dict
    hosts: list = field(default_factory=lambda: [CLIENT, *SERVERS])
    down: frozenset = frozenset()
    gone: tuple = ()
    notes: list = field(default_factory=list)
    ran: list = field(default_factory=list)
    takes_s: float = 0.5

    def machines(self):
        return self.hosts

    async def running(self):
        return {f"{m.name}/{agent}": m.name not in self.down for m in self.hosts for agent in m.roles}

    async def run(self, host, command, seen, within_s):
        await anyio.sleep(min(self.takes_s, within_s))
        self.ran.append((host, command, dict(seen)))
        answer = self.answers[command]
        if callable(answer):
            answer = answer(host, sum(c == command for _, c, _ in self.ran))
        if isinstance(answer, Ran):
            return answer
        return Ran(answer, "", "", 0.5) if answer is None or isinstance(answer, int) else Ran(0, answer, "", 0.5)

    async def faded(self):
        return self.gone

    def note(self, what, text, **data):
        self.notes.append((what, text, data))

    def of(self, what):
        return [data for each, _, data in self.notes if each == what]


def sick(**changed):
    """What a datacenter with a slow leader says: the act helps."""
    acted = []
    answers = {
        "who leads": "consul-2\n",
        "how slow": "812.5\n",
        "transfer": lambda host, count: acted.append(host) or 0,
        "another leads": lambda host, count: 0 if acted else 1,
        "all alive": 0,
        **{command.replace("_", " "): answer for command, answer in changed.items()},
    }
    return FakeHands(answers)
