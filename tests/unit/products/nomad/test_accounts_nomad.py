"""What became of acknowledged work, by Nomad's lists of jobs and allocations; and what loads say of it."""

import pytest
from test_loads_nomad import load

from hashidrill.core.errors import DatacenterError
from hashidrill.core.loads.answer import Answer
from hashidrill.products.nomad.loads import dispatch
from hashidrill.products.nomad.loads.churn import JobChurn
from hashidrill.products.nomad.loads.dispatch import Dispatch, Witness
from load_clients import runs_for
from virtual_time import ran


def job(key="run-0", status="dead"):
    return {"ID": f"hashidrill-work/dispatch-{key}", "Status": status, "Meta": {"hashidrill": key}}


def alloc(status, *, key="run-0", started=1, index=1):
    events = [{"Type": "Received"}, *[{"Type": "Started"}] * started]
    return {
        "JobID": f"hashidrill-work/dispatch-{key}",
        "ClientStatus": status,
        "CreateIndex": index,
        "TaskStates": {"task": {"Events": events}},
    }


@pytest.mark.parametrize(
    ("of", "allocs", "expected"),
    [
        (None, [], ("forgotten", 0)),
        (job(), [], ("dropped", 0)),
        (job(status="pending"), [], ("waits", 0)),
        (job(), [alloc("complete")], ("complete", 1)),
        (job(), [alloc("lost"), alloc("complete", index=2)], ("complete", 2)),
        (job(), [alloc("complete"), alloc("lost", index=2)], ("complete", 2)),
        (job(status="running"), [alloc("running")], ("runs", 1)),
        (job(status="running"), [alloc("lost"), alloc("pending", started=0, index=2)], ("waits", 1)),
        (job(status="pending"), [alloc("lost")], ("waits", 1)),
        (job(), [alloc("failed", index=2), alloc("lost")], ("failed", 2)),
        (job(), [alloc("failed"), alloc("lost", index=2)], ("lost", 2)),
        (job(), [alloc("complete", key="run-1")], ("dropped", 0)),
    ],
)
def test_each_dispatch_has_an_account(of, allocs, expected):
    account = dispatch.account_of(of, allocs)
    assert (account.state, account.started) == expected
    assert account.state in dispatch.STATES


@pytest.mark.lie
async def test_what_nomad_acknowledged_and_forgot_is_read_as_missing_and_not_left_out():
    """What the final reads leave out would be INVALID, where it is lost."""
    samples = []

    def answer(method, path, _body, _params):
        if method == "POST":
            return {}
        return [job("run-0")] if path == "/v1/jobs" else [alloc("complete")]

    it, _ = load(Dispatch, answer, samples, rate="2/s")
    await runs_for(it, 0.9)
    assert (await it.final_reads()) == {"run-0": "dispatched", "run-1": None}
    assert samples[-2:] == [("work", 1.0, "run-0 complete"), ("work", 0.0, "run-1 forgotten")]


def test_what_tasks_say_themselves_is_counted_by_dispatch():
    witness = Witness()
    for line in (
        "begins run-0\n",
        "begins run-1\n",
        "ends run-0\n",
        "begins run-1\n",
        "GET / HTTP/1.1\r\n",
        "",
        "ends",
    ):
        witness.hear(line)
    assert [witness.account(f"run-{n}") for n in range(3)] == [(1, "ended"), (2, "began"), (0, "silent")]


async def test_without_an_address_that_nodes_reach_there_is_no_witness():
    it, _ = load(Dispatch, lambda *_: {}, rate="2/s", witness=True)
    with pytest.raises(DatacenterError, match="cannot report: its load generator has no address"):
        await it.prepare()


async def test_what_was_heard_is_sampled_beside_what_nomad_remembers():
    samples = []

    def answer(method, path, _body, _params):
        return {} if method == "POST" else []

    it, _ = load(Dispatch, answer, samples, rate="2/s", witness=True)
    await runs_for(it, 0.4)
    it._witness.hear("begins run-0")
    it._witness.hear("ends run-0")
    await it.final_reads()
    assert samples[-2:] == [("work", 0.0, "run-0 forgotten"), ("witnessed", 1.0, "run-0 ended")]


# churn


class Known:
    """What Nomad remembers of jobs: their versions."""

    def __init__(self, forgets=""):
        self.versions, self.forgets = {}, forgets

    def answer(self, method, path, body, _params):
        if method == "POST":
            self.versions.setdefault(body["Job"]["ID"], []).insert(0, {"Stop": False, "Meta": body["Job"]["Meta"]})
            return {}
        if method == "DELETE":
            job = path.removeprefix("/v1/job/")
            self.versions[job].insert(0, {**self.versions[job][0], "Stop": True})
            return {}
        known = {job: kept for job, kept in self.versions.items() if job != self.forgets}
        return [{"ID": job} for job in known] if path == "/v1/jobs" else {"Versions": known[path.split("/")[3]]}


@ran
async def churned(seconds, known, **params):
    it, client = load(JobChurn, known.answer, **params)
    operations = await runs_for(it, seconds)
    return operations, await it.final_reads(), client


def test_a_job_is_registered_changed_and_stopped_and_each_step_is_read_back():
    operations, finals, _ = churned(9.9, Known(), rate="1/s", jobs=2)
    assert [op.key.removeprefix("hashidrill-work-") for op in operations] == [
        "0/register",
        "0/change",
        "2/register",
        "0/stop",
        "4/register",
        "2/change",
        "2/stop",
        "4/change",
        "8/register",
        "4/stop",
    ]
    assert {op.outcome for op in operations} == {"ok"}
    assert finals == {op.key: op.value for op in operations}


def test_a_job_that_nomad_forgot_is_read_as_missing_and_as_stopped():
    """Nomad acknowledges the stop of a job that it does not know. Its registration is what was lost."""
    _, finals, _ = churned(5.9, Known(forgets="hashidrill-work-0"), rate="1/s", jobs=2)
    missing = {key for key, value in finals.items() if value is None}
    assert missing == {f"hashidrill-work-0/{step}" for step in ("register", "change")}
    assert finals["hashidrill-work-0/stop"] == "stopped"


async def test_a_change_that_was_undone_is_read_as_missing():
    known = Known()

    it, _ = load(JobChurn, known.answer, rate="1/s", jobs=2)
    await runs_for(it, 1.9)
    known.versions["hashidrill-work-0"].pop(0)
    assert (await it.final_reads()) == {"hashidrill-work-0/register": "registered", "hashidrill-work-0/change": None}


async def test_a_job_whose_registration_was_not_acknowledged_takes_no_further_step():
    known = Known()

    def answer(method, path, body, params):
        if method == "POST" and body["Job"]["ID"].endswith("-0"):
            return Answer(500, b"No cluster leader")
        return known.answer(method, path, body, params)

    it, _ = load(JobChurn, answer, rate="1/s", jobs=2)
    operations = await runs_for(it, 5.9)
    assert [op.outcome for op in operations if "-0/" in op.key] == ["unknown"]
    assert len(operations) == 6


async def test_all_jobs_are_removed_at_the_end():
    known = Known()

    it, client = load(JobChurn, known.answer, rate="1/s", jobs=3)
    await runs_for(it, 3.9)
    await it.clean_up()
    assert sorted([path for method, path, _ in client.asked if method == "DELETE"][-len(known.versions) :]) == sorted(
        f"/v1/job/{job}" for job in known.versions
    )
