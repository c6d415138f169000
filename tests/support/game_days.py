"""Game days for tests: files, planted results of runs, a clock that moves when it is looked at, scripted leads."""

import copy
import datetime as dt
import json

from hashidrill.gamedays.gameday.conduct import conduct
from hashidrill.gamedays.gameday.journal import DayJournal
from hashidrill.gamedays.gameday.plan import read_plan
from hashidrill.gamedays.gameday.report import outcome_of

HOSTILE = "<script>alert(1)</script> | **bold** `x` @all \N{RIGHT-TO-LEFT OVERRIDE}"
DAY = {
    "apiVersion": "hashidrill/v1",
    "kind": "GameDay",
    "metadata": {"name": "a-day", "title": "A day", "why": "It tests hashidrill itself"},
    "goals": ["See an election"],
    "people": {"ada": {"role": "lead", "name": "Ada"}, "grace": {"role": "on-call", "name": "Grace"}},
    "before": [{"check": "machine"}, {"confirm": "Nobody deploys", "unattended": True}],
    "alerts": {"slow": "kv-writes.latency.p50 > 300ms for 5s"},
    "questions": {
        "leader": {"measure": "leader", "ask": "Who leads afterwards?"},
        "stop": {"measure": "stop", "load": "kv-writes", "ask": "How long do writes stop?"},
    },
    "experiments": [
        {"experiment": "raft/killed-leader", "name": "first", "pause": "1m", "discuss": ["What is our multiplier?"]}
        | {"title": "A server goes away", "title_after": "The leader was killed"},
        {"experiment": "raft/slow-follower-disk", "name": "second"},
    ],
    "messages": [
        {"when": "start", "to": "#sre", "say": "It begins"},
        {"when": "before second", "to": "#dba", "say": "A follower is slow now"},
        {"when": "abort", "to": "#sre", "say": "It was aborted"},
        {"when": "no-go", "to": "#sre", "say": "Not today"},
        {"when": "end", "to": "#sre", "say": "It is over"},
    ],
    "on_failure": {"owner": "grace", "within_days": 7},
}


def day_file(folder, **changes):
    """A file of a game day; a key of `changes` replaces that of DAY, None takes it away."""
    data = copy.deepcopy(DAY) | changes
    path = folder / "a-day.yaml"
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not None}, indent=2))
    return path


def planned(folder, **changes):
    return read_plan(day_file(folder, **changes))


def result(verdict="PASS", *, leader="another", stop=2.0, outcome="complete", passed=(), reasons=()):
    """What a run is planted to have come to, without its recording."""
    measured = {
        "leader": {"value": leader, "text": f"{leader}: consul-2"},
        "stop": {"value": stop, "text": f"{stop}s"},
    }
    finding = {"PASS": "held", "FAIL": "broken", "INVALID": "invalid"}[verdict]
    return {
        "verdict": verdict,
        "outcome": outcome,
        "report": True,
        "reasons": list(reasons),
        "expectations": [{"title": "writes_recover(load=kv-writes)", "finding": finding, "text": "after 2s"}],
        "measured": measured,
        "figures": [["kv-writes", "steady state", "100", "50/s", "2 ms", "3 ms", "0 %"]],
        "passed": list(passed),
    }


class Clock:
    """Each look at it is a second later, or as much as it is told."""

    def __init__(self, start="2026-03-01T10:00:00+00:00", *, step_s=1):
        self.t, self.step_s = dt.datetime.fromisoformat(start), step_s

    def __call__(self):
        self.go_on(self.step_s)
        return self.t

    def go_on(self, seconds):
        self.t += dt.timedelta(seconds=seconds)


class Plays:
    """Plays runs: the results of each name in turn, the last one again and again. Notes what it played."""

    def __init__(self, **results):
        self.results, self.played = results, []

    def __call__(self, run, folder):
        self.played.append(run.name)
        recording = folder / f"{len(list(folder.glob('*'))) if folder.exists() else 0:03}-{run.name}"
        recording.mkdir(parents=True)
        planted = self.results.get(run.name, ["PASS"])
        one = planted[min(self.played.count(run.name), len(planted)) - 1]
        if isinstance(one, BaseException):
            raise type(one)(recording)
        return {**(result(one) if isinstance(one, str) else copy.deepcopy(one)), "recording": str(recording)}


class Script:
    """A lead who answers from a script; what was asked is in `asked`."""

    def __init__(self, *, confirms=True, predictions=None, goes=None, actions=()):
        self.confirmed, self.predictions, self.does = confirms, predictions or {}, goes or {}
        self.items, self.asked, self.paused = list(actions), [], []

    def checked(self, check, found):
        self.asked.append(("checked", check.title, found))

    def confirms(self, check):
        self.asked.append(("confirm", check.confirm))
        return self.confirmed, "Ada says so"

    def is_told(self, message):
        self.asked.append(("message", message.when))
        return True

    def predicts(self, run, key, person, name, question):
        del person, question
        self.asked.append(("predict", run.name, key, name))
        return self.predictions.get((run.name, key, name))

    def goes(self, run):
        self.asked.append(("go", run.name))
        return self.does.get(run.name, "go")

    def goes_on(self, run):
        self.asked.append(("goes on", run.name))
        return self.does.get(run.name, "go") != "not now"

    def begins(self, run, attempt):
        self.asked.append(("run", run.name, attempt))

    def notes(self, run, result):
        self.asked.append(("note", run.name, result["verdict"]))
        return f"seen: {run.name}"

    def pauses(self, run):
        self.paused.append(run.name)

    def action(self, number):
        nothing = {"what": "", "owner": "", "due": ""}
        return self.items[number - 1] if number <= len(self.items) else nothing


def fits(check):
    del check
    return True, "as it must be"


def folder_of(tmp_path, name="day"):
    folder = tmp_path / name
    folder.mkdir()
    return folder


def begin(plan, folder, *, clock=None):
    """The journal of a new day."""
    head = {"name": plan.day.metadata.name, "file": "a-day.yaml", "folder": str(plan.folder), "sources": plan.sources}
    journal = DayJournal.create(folder, head, now=clock or Clock())
    journal.session(unattended=False)
    return journal


def whole_day(plan, folder, *, lead=None, plays=None, look=fits, clock=None):
    """A day from its begin to its end; what came of it."""
    with begin(plan, folder, clock=clock) as journal:
        conduct(plan, journal, lead or Script(), plays or Plays(), look)
        return outcome_of(plan, journal)


def resumed(plan, folder, *, lead=None, plays=None, look=fits, clock=None):
    with DayJournal.resume(folder, now=clock or Clock("2026-03-02T10:00:00+00:00")) as journal:
        journal.session(unattended=False)
        conduct(plan, journal, lead or Script(), plays or Plays(), look)
        return outcome_of(plan, journal)
