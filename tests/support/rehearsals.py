"""Planted recordings of rehearsals."""

from hashidrill.gamedays.runbooks.judge import judge_drill
from hashidrill.testing.recordings import RecordingBuilder

PAGER, ACT, DONE, LEFT = 22.0, 30.0, 34.0, 50.0
"""The fault is there from 10 on; the last operations that count are those before `LEFT`."""
EVERY = {f"consul-{n}/consul": f"{n}@1" for n in (1, 2, 3)} | {"client-1/consul": "9@1"}


class Drilled:
    """A rehearsal that went well, as its recording tells it; `changes` are what a test changes of it."""

    observed, acts, act_code = True, True, 0
    said = "the runbook was followed to its end"
    gone, held, throughout_held = (), False, True
    agents = ()
    """(time, {HOST/AGENT: process})."""
    well_from, sick_from, comes_until = ACT, 10.0, 60.0
    lost, users, end = False, "sick", "complete"
    info = None
    """More of what run.json says."""

    def __init__(self, path, *, look_alike=False, diagnosis=None, **changes):
        self.look_alike, self.diagnosis = look_alike, diagnosis or ("not-this" if look_alike else "slow-disk")
        self.reached, self.outcome = self.diagnosis, "hands-off" if look_alike else "done"
        self.built = RecordingBuilder(path)
        if look_alike:
            self.acts, self.sick_from = False, 99.0
        for name, value in changes.items():
            assert hasattr(self, name), name
            setattr(self, name, value)

    def did(self, what, at, text="", **data):
        self.built.event("attended.did", at=at, what=what, text=text, **data)

    def build(self):
        built = self.built
        phases = {"start": 0, "ready": 2, "steady": 4, "method": 10, "recovery": LEFT, "quiesce": 58}
        for phase, at in phases.items():
            built.phase(phase, at=float(at))
        if self.look_alike:
            built.mark("healthy", at=10, until=LEFT)
        else:
            built.fault("disk.latency", "consul-1", at=10, until=LEFT + 0.5)
        built.event("attended.begins", at=11, at_s=0, in_force=[])
        self.did("agents", PAGER - 0.1, agents=EVERY)
        self.did("pager", PAGER, "writes take seconds")
        if self.observed:
            self.did("command", PAGER + 2, kind="observe", name="commit_ms", line=21, host="consul-1", code=0)
            self.did("observed", PAGER + 2, name="commit_ms", value=812.5, line=21)
        self.did("decided", PAGER + 3, self.reached, diagnosis=self.reached, line=26, because={"commit_ms": 812.5})
        if self.acts:
            self.did("proof", ACT - 2, gone=list(self.gone))
            self.did("control", ACT - 1, line=34, tried=True, held=self.held, throughout=False)
            self.did("control", ACT - 1, line=38, tried=True, held=self.throughout_held, throughout=True)
            self.did("acts", ACT - 0.5, line=30, host="consul-1")
            self.did("command", ACT, kind="act", line=30, host="consul-1", code=self.act_code)
        for at, agents in self.agents:
            self.did("agents", at, agents=agents)
        self.did("done", DONE, self.said, outcome=self.outcome, diagnosis=self.reached)
        built.event("attended.ends", at=LEFT)

        def sick(t):
            return self.sick_from <= t < self.well_from

        built.load(
            "kv-writes",
            rate=50,
            start=4,
            end=min(58, self.comes_until),
            latency=lambda t: 3.0 if sick(t) else 0.01,
            outcome=lambda t: "fail" if sick(t) else "ok",
        )
        if self.comes_until < 58:
            built.load("kv-writes", rate=0.5, start=self.comes_until, end=58)
        built.healthy(end=58).series("generator.lag", 0.001, end=58)
        first = "kv-writes/0"
        built.final_reads("kv-writes", {first: None} if self.lost else None)
        built.expect("no_acknowledged_write_lost", load="kv-writes")
        built.expect("writes_recover", load="kv-writes", within="10s")
        about = {
            "runbook": "slow",
            "experiment": "healthy" if self.look_alike else "raft/slow-leader-disk",
            "look_alike": self.look_alike,
            "diagnosis": self.diagnosis,
            "users": self.users,
        }
        built.run_info(**{"rehearsal": about, **(self.info or {})})
        built.end(self.end)
        return judge_drill(built.build().path)
