"""Games that were played: a small scenario, what a trainee said and did, and the recording that it left.

    game = PlayedGame(tmp_path).says("diagnosis", "the disk of consul-1 is slow", at=25).done(at=40)
    card = game.card()

All times are seconds since the run began: the fault is in force from 10 on, the pager goes at 20, and users are watched
from `done` on for 15 s.
"""

import datetime as dt
import json
from pathlib import Path

from hashidrill.core.experiment.documents import Document
from hashidrill.core.judging.judge import judge
from hashidrill.core.protocols.events import Intent, Proof, Steady, Where
from hashidrill.core.recording.journal import read_journal
from hashidrill.gamedays.training.card import card_of
from hashidrill.gamedays.training.course import WATCH, WATCH_S, chosen, course_of
from hashidrill.gamedays.training.game_log import Desk
from hashidrill.gamedays.training.scenario import scenario_of
from hashidrill.testing.recordings import RecordingBuilder

S = 1_000_000_000
FAULT_S, PAGE_S = 10, 20
ADDRESSES = {f"consul-{n}": f"10.73.0.1{n}" for n in (1, 2, 3)} | {"consul-client-1": "10.73.0.14"}
SMALL = {
    "apiVersion": "hashidrill/v1",
    "kind": "Scenario",
    "metadata": {"name": "small", "title": "It is slow", "level": 1, "limit": "30m"},
    "pager": {"from": "shop", "text": "Carts take ${delay} and more."},
    "load": {"kv-writes": {"kind": "consul.kv.write", "rate": "50/s"}},
    "choose": {"delay": ["300ms", "500ms"]},
    "truths": {
        "slow-disk": {
            "title": "A slow disk",
            "method": [{"fault": "disk.latency", "on": "consul:leader", "with": {"op": "fsync", "delay": "${delay}"}}],
            "diagnosis": {
                "component": ["disk"],
                "trouble": ["slow"],
                "where": ["$host", "leader"],
                "never": ["network", "cpu"],
                "exact": "the disk of ${host} takes ${delay}",
            },
            "hints": [{"price": 5, "text": "Look at the disks."}, {"price": 10, "text": "Look at the leader's disk."}],
            "expert": [{"look": "metrics", "shows": "commitTime of the leader", "after": "10s"}],
            "repair": "Move the leadership away from ${host}.",
            "debrief": "Heartbeats do not wait for the disk.",
        }
    },
}


def written(name="small", **over):
    """A scenario like the small one, with other keys at its top."""
    text = json.dumps({**SMALL, "metadata": {**SMALL["metadata"], "name": name}, **over})
    return scenario_of(Document(f"{name}.yaml", text), Path(f"{name}.yaml"))


def course(seed=1, **over):
    scenario = written(**over)
    return course_of(scenario, chosen(scenario, seed))


def desk_of(game_course, *, paged=True):
    """A desk whose hidden fault is in force on consul-1, and whose pager went."""
    desk = Desk(game_course, ADDRESSES)
    desk.event(Steady(held=True), 0)
    if paged:
        break_it(desk)
        desk.page(PAGE_S * S)
    return desk


def break_it(desk, at=FAULT_S):
    """Returns when the pager is due."""
    due = None
    for step in desk.course.hidden:
        fault = f"{step}-disk.latency-consul-1"
        desk.event(Intent(fault_id=fault, kind="disk.latency", target=Where("consul-1"), step=step), at * S)
        due = desk.event(Proof(event="fault.proven", fault_id=fault), at * S)
    return due


class PlayedGame:
    """A trainee's game on the small scenario."""

    def __init__(self, path, *, game_course=None):
        self.path = path
        self.course = game_course or course()
        self.desk = desk_of(self.course)
        self.done_s = None
        self.back_s = None
        self.lost = False
        self.down = {}
        self.new = {}
        self.late = {}
        """By server: the seconds in which the look at its process came too late."""
        self.load_ends_s = None
        self.leaderless, self.unserved = (), ()
        """(from, until) without a leader for a majority of the servers, and without a write that is acknowledged."""
        self.outside = {}
        """Servers that know no leader, (from, until) each."""
        self.logs = {f"consul-{number}": [] for number in (1, 2, 3)}
        """By server: (seconds, a line of its log); None where it has no log."""
        self.log_begins = {}
        """By server, the second before which its log was emptied."""
        self.between_s = 0.0
        """Between both samples of one look, on a busy machine."""
        self.proven = True
        self.also_faulty = ()
        """Hosts whose agent a fault ends."""
        self.herrings = ()
        """Hosts that lose packets."""

    def says(self, what, words="", *, at):
        self.answer, ends = self.desk.say(what, words, at * S)
        if ends:
            self.done_s = at
        return self

    def done(self, *, at):
        return self.says("done", at=at)

    def repairs(self, *, at):
        """Users are fast again from then on."""
        self.back_s = at
        return self

    def acts(self, words, host, *, at):
        self.desk.acted(at * S, host, words)
        return self

    def types(self, words, host="consul-client-1", *, at):
        self.desk.typed(at * S, host, words)
        return self

    def ends_agent(self, host, *, at, until):
        self.down[host] = (at, until)
        return self

    def logs_line(self, host, text, *, at):
        self.logs[host].append((at, text))
        return self

    def _write_logs(self, path):
        began = read_journal(path / "journal.jsonl")[0]
        for host, lines in self.logs.items():
            if lines is None:
                continue
            (path / "logs" / host).mkdir(parents=True)
            wall = lambda at: dt.datetime.fromtimestamp(began.wall + at - began.t_ns / S, dt.UTC)  # noqa: E731
            every = [(self.log_begins.get(host, 4), "agent: Consul agent running!"), *lines]
            text = "".join(f"{wall(at):%Y-%m-%dT%H:%M:%S.%f}Z [INFO]  {said}\n" for at, said in every)
            (path / "logs" / host / "consul.log").write_text(f"==> Starting Consul agent...\n{text}")

    def loses_its_leader(self, *, at, until, writes="stop"):
        self.leaderless = (at, until)
        self.unserved = (at, until) if writes == "stop" else ()
        return self

    def is_outside(self, host, *, at, until):
        self.outside[host] = (at, until)
        return self

    def _faults(self, build, watch_ends):
        build.fault("disk.latency", "consul-1", at=FAULT_S, until=watch_ends, proven=self.proven, step=0)
        for host in self.also_faulty:
            build.fault("process.kill", host, at=FAULT_S, until=watch_ends, step=0)
        for host in self.herrings:
            build.fault("network.loss", host, at=FAULT_S, until=watch_ends, step=0)

    def recording(self):
        watch_ends = self.done_s + WATCH_S
        build = RecordingBuilder(self.path / "run")
        for phase, at in (
            ("start", 0),
            ("ready", 2),
            ("steady", 4),
            ("method", 10),
            ("recovery", watch_ends),
            ("quiesce", watch_ends + 5),
        ):
            build.phase(phase, at=at)
        self._faults(build, watch_ends)
        build.event("attended.begins", at=FAULT_S, at_s=0, in_force=[])
        build._method.append({"fault": "disk.latency", "on": "host:consul-1", "for": "30m", "with": {"delay": "1s"}})
        build.mark(WATCH, at=self.done_s, until=watch_ends)
        back_s = self.back_s if self.back_s is not None else 1e9
        build.load(
            "kv-writes",
            start=4,
            end=self.load_ends_s or watch_ends + 5,
            latency=lambda t: 2.0 if FAULT_S <= t < back_s else 0.01,
            outcome=lambda t: "fail" if self.unserved and self.unserved[0] <= t < self.unserved[1] else "ok",
        )
        build.final_reads("kv-writes", {"kv-writes/100": None} if self.lost else None)
        for host in ("consul-1", "consul-2", "consul-3"):
            at = 4.0
            while at < watch_ends + 5:
                off = host in self.down and self.down[host][0] <= at < self.down[host][1]
                late = at in self.late.get(host, ())
                text = "no answer within 1s" if late else "consul does not run" if off else "S"
                seen = text == "S"
                build.sample("process.rss", 9e7 if seen else None, at=at, host=host, text=text, ok=seen)
                if seen and self.new.get(host) != at and at - 1 not in self.late.get(host, ()):
                    build.sample("process.cpu", 0.1, at=at + self.between_s, host=host)
                at += 1.0

        def leads(t):
            return "" if self.leaderless and self.leaderless[0] <= t < self.leaderless[1] else "consul-1"

        build.healthy(end=watch_ends + 5, leader=leads)
        for host, (left, back) in self.outside.items():
            at = 4.0
            while at < watch_ends + 5:
                knows = bool(leads(at)) and not left <= at < back
                build.sample("raft.leader", float(knows), at=at, host=host, text="consul-1" if knows else "", ok=knows)
                at += 0.5
        build.run_info(
            hosts=[
                {
                    "name": name,
                    "address": address,
                    "role": "server" if "client" not in name else "client",
                    "agents": {"consul": "server" if "client" not in name else "client"},
                }
                for name, address in ADDRESSES.items()
            ]
        )
        for expectation in self.course.resolved.experiment.expect:
            build.expect(expectation.hypothesis, **expectation.params)
        recording = build.build()
        self._write_logs(recording.path)
        return recording

    def card(self):
        recording = self.recording()
        return card_of(self.course, self.desk, recording, judge(recording), trainee="ada")
