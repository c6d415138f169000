"""A method about Nomad's state, work or configuration that cannot work is refused before anything starts."""

import pytest

from drills import experiment
from hashidrill.core.errors import ExperimentError
from hashidrill.core.experiment.loader import load_experiment


def step(fault, on="nomad:leader", *, at="1s", lasts="2s", **params):
    return {"fault": fault, "on": on, "with": params, "at": at, "for": lasts}


SAVE = step("nomad.snapshot.save", at="0s", lasts="1s", name="before")
RESTORE = step("nomad.snapshot.restore", at="2s", snapshot="before")
STOP = step("nomad.job.stop", job="hashidrill-batch")
FAIL = step("nomad.alloc.fail", at="2s", job="hashidrill-batch", count=1)
CUT = step("nomad.node.disconnect", "host:node-1")
CONFIG = {"server": {"heartbeat_grace": "5s"}}


def load(tmp_path, *steps):
    work = {"load": {"batch": {"kind": "nomad.dispatch", "rate": "1/s"}}, "require": ["batch.errors < 1%"]}
    agents, lost = {"nomad": {"servers": 3, "clients": 2}}, [{"no_alloc_lost": {"load": "batch"}}]
    path = experiment(tmp_path / "work.yaml", datacenter=agents, method=list(steps), expect=lost, **work)
    return load_experiment(path)


def test_what_works_is_accepted(tmp_path):
    load(tmp_path, SAVE, RESTORE)
    load(tmp_path, STOP, {**FAIL, "at": "4s"})
    load(tmp_path, STOP, {**FAIL, "with": {"job": "another", "share": "50%"}})
    load(tmp_path, CUT, step("nomad.config", "host:node-2", set=CONFIG), {**FAIL, "on": "nomad:one-client"})


@pytest.mark.lie
@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([RESTORE], r"no step saves a snapshot 'before'"),
        (
            [SAVE, {**RESTORE, "with": {"snapshot": "befor"}}],
            r"no step saves a snapshot 'befor': did you mean",
        ),
        ([SAVE, {**SAVE, "at": "5s"}, RESTORE], r"a snapshot 'before' is saved already"),
        ([{**SAVE, "on": "nomad:servers"}], r"one server is enough"),
        ([{**STOP, "on": "nomad:servers"}], r"one server is enough"),
        ([{**STOP, "on": "host:node-1"}], r"nomad.job.stop targets servers of Nomad"),
        ([{**FAIL, "on": "nomad:clients"}], r"picks from all allocations of a job"),
        ([STOP, FAIL], r"both stop or end tasks of the same job"),
        ([{**CUT, "on": "nomad:leader"}], r"nomad.node.disconnect targets clients of Nomad"),
        (
            [CUT, step("process.kill", "host:node-1")],
            r"the node itself must report that no server accepts its heartbeats",
        ),
        ([step("nomad.config", set={"data_dir": "/x"})], r"data_dir cannot be changed"),
        (
            [step("nomad.config", "host:nomad-1", set=CONFIG), step("process.pause", "host:nomad-2")],
            r"another one restarting, no server may lead",
        ),
    ],
)
def test_what_cannot_work_is_refused(tmp_path, steps, message):
    with pytest.raises(ExperimentError, match=message.replace(" ", r"\s+")):
        load(tmp_path, *steps)
