"""A method about Consul's state that cannot work is refused before anything starts."""

import pytest

from drills import experiment
from hashidrill.core.errors import ExperimentError
from hashidrill.core.experiment.loader import load_experiment

SAVE = {"fault": "consul.snapshot.save", "on": "consul:leader", "with": {"name": "before"}, "at": "1s", "for": "1s"}
RESTORE = {
    "fault": "consul.snapshot.restore",
    "on": "consul:leader",
    "with": {"snapshot": "before"},
    "at": "2s",
    "for": "2s",
}
BLOAT = {"fault": "consul.raft.bloat", "on": "host:consul-1", "with": {}, "at": "5s", "for": "10s"}
COMPACT = {"fault": "consul.raft.compact", "on": "host:consul-1", "at": "8s", "for": "2s"}


def pause(at, length, on="consul:servers"):
    return {"fault": "process.pause", "on": on, "at": at, "for": length}


def load(tmp_path, *steps):
    return load_experiment(experiment(tmp_path / "state.yaml", method=list(steps), servers=3, clients=1))


def test_what_works_is_accepted(tmp_path):
    load(tmp_path, SAVE, RESTORE)
    load(tmp_path, RESTORE, SAVE)  # the times say what is first
    load(tmp_path, BLOAT, COMPACT)
    load(tmp_path, {**BLOAT, "for": "20s"}, pause("15s", "9s"), pause("35s", "5s"), pause("0s", "5s"))
    load(tmp_path, BLOAT, pause("4s", "4s", on="host:consul-2"))


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([RESTORE], r"no step saves a snapshot 'before'"),
        (
            [SAVE, {**RESTORE, "with": {"snapshot": "befor"}}],
            r"no step saves a snapshot 'befor': did you mean before\?",
        ),
        ([SAVE, {**RESTORE, "at": "1500ms"}], r"the snapshot 'before' is saved until 2s, after this begins"),
        ([SAVE, {**SAVE, "at": "5s"}, {**RESTORE, "at": "9s"}], r"a snapshot 'before' is saved already"),
        ([{**SAVE, "on": "consul:servers"}], r"the state that all servers share, so one host is enough"),
        ([SAVE, {**RESTORE, "on": "consul:followers"}], r"so one host is enough"),
        ([BLOAT, pause("4s", "2s")], r"consul.raft.bloat restarts host:consul-1 while method\[1\]"),
        ([BLOAT, pause("16s", "2s")], r"consul.raft.bloat restarts host:consul-1"),
        ([BLOAT, COMPACT, pause("8s", "1s")], r"consul.raft.compact restarts host:consul-1"),
        ([{**BLOAT, "with": {"free_pages": 1000}}], r"50000"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path, steps, message):
    with pytest.raises(ExperimentError, match=message.replace(" ", r"\s+")):
        load(tmp_path, *steps)
