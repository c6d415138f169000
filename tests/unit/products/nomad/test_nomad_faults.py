"""Nomad's faults keep their contract on the fake, and their observers notice what is planted."""

import os

import pytest
from pydantic import ValidationError

from fault_cases import fault_of, momentary
from hashidrill.core.engine.inject import planned
from hashidrill.core.errors import FaultError, WaitTimeoutError
from hashidrill.core.protocols import claims, registry
from hashidrill.products.nomad import trial_jobs
from hashidrill.testing.faults import check_fault
from hashidrill.testing.nomad import FakeNomad, FakeNomadHost
from nomad_fault_cases import DISARMED, JOB, NOMAD_CASES, SNAPSHOT, prepared, sleepers
from tasks import raising
from virtual_time import ran, run

HOST = {"nomad:one-client": "node-1", "nomad:leader": "nomad-1"}


def busy(folder):
    """A datacenter that runs something."""
    one = FakeNomad(folder)
    one.work.register(sleepers())
    return one


@pytest.fixture
def world(tmp_path):
    one = busy(tmp_path)
    yield one
    for host in one.hosts.values():  # for whoever removes the folder
        (host.data / "nomad/alloc").chmod(0o755)


@ran
async def check(world, kind, params, on):
    await prepared(world, kind, world.target(HOST[on]))
    fault = fault_of(world, kind, params)
    return await check_fault(fault, world.target(HOST[on]), momentary=momentary(kind))


@pytest.mark.parametrize(("kind", "params", "on"), NOMAD_CASES, ids=[kind for kind, *_ in NOMAD_CASES])
def test_a_fault_keeps_its_contract_on_the_fake(world, kind, params, on):
    report = check(world, kind, params, on)
    assert report.present.ok
    assert report.gone.ok
    assert world.jobs == {}, "its trial jobs are left"
    assert {node["SchedulingEligibility"] for node in world.nodes.values()} == {"eligible"}
    assert os.access(world.hosts["node-1"].data / "nomad/alloc", os.W_OK)


@pytest.mark.lie
@pytest.mark.parametrize(("kind", "params", "on"), NOMAD_CASES, ids=[kind for kind, *_ in NOMAD_CASES])
async def test_the_proof_fails_when_the_fault_is_disarmed_behind_its_back(world, kind, params, on):
    await prepared(world, kind, world.target(HOST[on]))
    fault = fault_of(world, kind, params)
    undo = await planned(fault, world.target(HOST[on]), "f1")
    await fault.apply(undo)
    armed = await fault.verify(undo, present=True)
    await DISARMED[kind](world, undo)
    seen = await fault.verify(undo, present=True)
    assert armed.ok, armed
    assert not seen.ok, seen


def test_every_kind_of_fault_has_a_case_and_a_way_to_disarm_it():
    kinds = {kind for kind in registry.fault_kinds() if kind.startswith("nomad.")}
    assert {kind for kind, *_ in NOMAD_CASES} == kinds == set(DISARMED)


def test_a_fault_uses_the_capabilities_of_its_host_that_it_declares_and_no_others(tmp_path):
    for number, (kind, params, on) in enumerate(NOMAD_CASES):
        world, used = busy(tmp_path / str(number)), set()

        class Recorded(FakeNomadHost):
            def use(self, capability, used=used):
                used.add(capability)
                return super().use(capability)

        world.hosts[HOST[on]].__class__ = Recorded
        check(world, kind, params, on)
        assert used == set(registry.fault(kind).capabilities), kind


def prior(world, kind, host, **params):
    fault = fault_of(world, kind, params)
    return run(fault.prior(world.target(host)))


@pytest.mark.parametrize(
    ("kind", "host", "params", "why"),
    [
        ("nomad.node.drain", "nomad-1", {}, "nomad-1 is not a Nomad client; the clients are node-1, node-2"),
        ("nomad.leader.transfer", "nomad-2", {}, "nomad-2 does not lead, but nomad-1 does; use on: nomad:leader"),
        ("nomad.leader.transfer", "nomad-1", {"to": "node-1"}, "cannot go to node-1; the other voters are nomad-2, n"),
        ("nomad.job.stop", "nomad-1", {"job": "sleeper"}, "knows no job 'sleeper': did you mean sleepers"),
        ("nomad.snapshot.restore", "nomad-1", {"snapshot": SNAPSHOT}, "there is no snapshot 'before' to restore"),
        ("nomad.config", "nomad-1", {"set": {"server": {"heartbeat_grace": "3s"}}}, "the fault would change nothing"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_touched(world, kind, host, params, why):
    with pytest.raises(FaultError, match=why):
        prior(world, kind, host, **params)


def test_a_node_that_takes_no_work_already_is_refused_before_anything_is_touched(world):
    world.nodes["id-node-1"]["SchedulingEligibility"] = "ineligible"
    for kind in ("nomad.node.eligibility", "nomad.node.drain"):
        with pytest.raises(FaultError, match="node-1 is ready and ineligible: it gets no work"):
            prior(world, kind, "node-1")


def test_a_node_on_which_tasks_fail_already_makes_no_black_hole(world):
    (world.hosts["node-1"].data / "nomad/alloc").chmod(0o555)
    with pytest.raises(FaultError, match="a task on node-1 is failed already"):
        prior(world, "nomad.node.black_hole", "node-1")


@pytest.mark.lie
async def test_the_jobs_by_which_a_black_hole_is_seen_tell_nobody_of_it(world, monkeypatch):
    """A trainee reads Nomad's jobs and allocations."""
    names = []

    async def outcome(_hosts, _node, name):
        names.append(name)
        return "complete"

    monkeypatch.setattr(trial_jobs, "outcome", outcome)
    fault = fault_of(world, "nomad.node.black_hole", {})
    undo = await planned(fault, world.target("node-1"), "0-nomad.node.black_hole-node-1")
    await fault.verify(undo, present=True)
    assert len({*names}) == 2
    assert not [word for word in ("black", "hole", "nomad", "node-1", "before") if word in " ".join(names)]


@pytest.mark.lie
async def test_a_black_hole_that_everybody_sees_to_be_sick_is_not_one(world):
    """A node that is down gets no work, and swallows none."""
    fault = fault_of(world, "nomad.node.black_hole", {})
    undo = await planned(fault, world.target("node-1"), "f1")
    await fault.apply(undo)
    world.nodes["id-node-1"]["Status"] = "down"
    evidence = await fault.verify(undo, present=True)
    assert not evidence.ok
    assert "not placed" in evidence.measured


@pytest.mark.lie
@pytest.mark.parametrize("armed", [True, False])
async def test_a_black_hole_on_a_node_made_ineligible_meanwhile_is_seen_by_its_folder(world, armed):
    """No task can be tried there, and that is no proof of either."""
    fault = fault_of(world, "nomad.node.black_hole", {})
    undo = await planned(fault, world.target("node-1"), "f1")
    if armed:
        await fault.apply(undo)
    world.nodes["id-node-1"]["SchedulingEligibility"] = "ineligible"
    there, gone = [await fault.verify(undo, present=present) for present in (True, False)]
    assert (there.ok, gone.ok) == (armed, not armed)
    assert "no task can be tried there" in there.measured


def test_the_node_of_a_black_hole_can_be_made_ineligible_meanwhile(world):
    """It is what an operator would do; draining it twice is not."""

    def clash(first, second):
        place = claims.Place(on="host:node-1", hosts=frozenset({"node-1"}))
        one, other = (cls(cls.Params(), world).uses(place) for cls in map(registry.fault, (first, second)))
        return {claim.thing for claim in one} & {claim.thing for claim in other} - {claims.HOST}

    assert not clash("nomad.node.black_hole", "nomad.node.eligibility")
    assert clash("nomad.node.drain", "nomad.node.eligibility")
    assert clash("nomad.node.black_hole", "nomad.node.black_hole")


@pytest.mark.lie
def test_a_leader_that_believes_in_itself_in_an_older_term_does_not_count(world, monkeypatch):
    """A frozen leader says so until it hears of the others."""
    from hashidrill.products.nomad import api

    def told(host, _parts, _params, _body):
        old = host.name == "nomad-1"
        raft = {"state": "Leader" if host.name in ("nomad-1", "nomad-2") else "Follower", "term": "3" if old else "4"}
        return {"stats": {"raft": raft}}

    monkeypatch.setattr(world, "_get_agent", told)
    assert run(api.leader_of_terms(world)) == ("nomad-2", 4)


def test_a_trial_whose_job_cannot_be_removed_is_said(world, monkeypatch):
    monkeypatch.setattr(world, "_delete_job", raising(KeyError("permission")))
    with pytest.raises(FaultError, match="the trial job hashidrill-trial-x could not be removed"):
        run(trial_jobs.outcome(world, "id-node-1", "x"))


# work


def applied(world, kind, host="nomad-1", **params):
    """(the fault, its undo, the proof) of a fault that was put on."""
    fault = fault_of(world, kind, params)

    async def put():
        undo = await planned(fault, world.target(host), "f1")
        await fault.apply(undo)
        return undo, await fault.verify(undo, present=True)

    return fault, *run(put())


def test_a_job_that_is_stopped_already_is_refused(world):
    world.work.stop(JOB, purge=False)
    for kind, more in (("nomad.job.stop", {}), ("nomad.alloc.fail", {"count": 1})):
        with pytest.raises(FaultError, match="sleepers is already stopped"):
            prior(world, kind, "nomad-1", job=JOB, **more)


def test_a_purged_job_is_registered_again_as_it_was(world):
    fault, undo, evidence = applied(world, "nomad.job.stop", job=JOB, purge=True)
    assert evidence.ok, evidence
    assert "the job is not known" in evidence.measured
    run(fault.revert(undo))
    assert not world.work.registered[JOB]["Stop"]
    assert len(world.work.live(JOB)) == 2


@pytest.mark.lie
def test_a_job_that_is_only_stopped_does_not_pass_for_purged(world):
    fault, undo, _ = applied(world, "nomad.job.stop", job=JOB)
    purged = fault_of(world, "nomad.job.stop", {"job": JOB, "purge": True})
    assert not run(purged.verify(undo, present=True)).ok
    assert fault.params.purge is False


@pytest.mark.lie
def test_a_job_whose_tasks_go_on_is_not_stopped_whatever_the_servers_say(world):
    _, undo, _ = applied(world, "nomad.job.stop", job=JOB)
    world.work._start({"ID": "alloc-1", "JobID": JOB, "NodeName": "node-1"})
    fault = fault_of(world, "nomad.job.stop", {"job": JOB})
    evidence = run(fault.verify(undo, present=True))
    assert not evidence.ok
    assert "1 processes of its tasks run" in evidence.measured


def test_a_job_that_was_registered_anew_meanwhile_is_left_alone(world):
    fault, undo, _ = applied(world, "nomad.job.stop", job=JOB)
    newer = {**sleepers(), "Meta": {"version": "2"}}
    world.work.register(newer)
    run(fault.revert(undo))
    assert world.work.registered[JOB]["Meta"] == {"version": "2"}


def test_an_allocation_is_killed_again_after_each_restart_until_nomad_gives_it_up(world):
    _, undo, evidence = applied(world, "nomad.alloc.fail", job=JOB, count=1)
    assert evidence.ok, evidence
    [alloc] = [one for one in world.work.allocs if one["ID"] in undo["prior"]["allocs"]]
    assert (alloc["ClientStatus"], alloc["restarts"]) == ("failed", 3)
    assert len(world.work.live(JOB)) == 2, "Nomad replaced it"


@pytest.mark.lie
def test_one_that_is_restarted_for_ever_does_not_fail_in_time(world, monkeypatch):
    monkeypatch.setattr("hashidrill.testing.nomad.RESTARTS", 10**6)
    with pytest.raises(WaitTimeoutError, match="1 still run or are restarted"):
        applied(world, "nomad.alloc.fail", job=JOB, count=1, within="5s")


@pytest.mark.parametrize(("picked", "expected"), [({"count": 2}, 2), ({"share": "50%"}, 1), ({"share": "51%"}, 2)])
def test_as_many_are_picked_as_asked_for(world, picked, expected):
    assert len(prior(world, "nomad.alloc.fail", "nomad-1", job=JOB, **picked)["allocs"]) == expected


def test_on_a_node_only_its_own_allocations_are_picked(world):
    found = prior(world, "nomad.alloc.signal", "node-2", job=JOB, share="100%")
    assert [world.work.processes[alloc][0] for alloc in found["allocs"]] == ["node-2"]
    with pytest.raises(FaultError, match="sleepers runs 1 allocations on node-2, but the fault needs 2"):
        prior(world, "nomad.alloc.signal", "node-2", job=JOB, count=2)


def test_where_no_process_can_be_seen_nothing_is_applied(world):
    world.work.processes.clear()
    with pytest.raises(FaultError, match="2 of the 2 allocations have no visible process"):
        prior(world, "nomad.alloc.fail", "nomad-1", job=JOB, share="100%")


@pytest.mark.parametrize("params", [{}, {"count": 1, "share": "50%"}])
def test_either_a_count_or_a_share_is_written(params):
    with pytest.raises(ValidationError, match="write either count or share"):
        registry.fault("nomad.alloc.fail").Params.model_validate({"job": JOB, **params})


def test_a_signal_that_ends_tasks_is_proven_by_processes_that_are_gone(world):
    _, _, evidence = applied(world, "nomad.alloc.signal", job=JOB, count=1, signal="TERM")
    assert evidence.ok, evidence
    assert "of 1 processes 1 ended" in evidence.measured


@pytest.mark.lie
def test_a_signal_that_a_task_handles_is_proven_by_what_nomad_wrote(world):
    world.work.catches = frozenset({1})
    world.work.stop(JOB, purge=True)
    world.work.register(sleepers())
    fault, undo, evidence = applied(world, "nomad.alloc.signal", job=JOB, count=1, signal="HUP")
    assert evidence.ok, evidence
    assert "0 ended, 1 handle it and run; Nomad notes 1 signals" in evidence.measured
    undo["prior"]["signalled"] += 1  # as if it had not been sent
    assert not run(fault.verify(undo, present=True)).ok


@pytest.mark.lie
def test_a_node_that_is_down_for_another_reason_is_not_disconnected(world):
    """The servers' word alone is not enough: the node itself must miss its heartbeats."""
    fault, undo, _ = applied(world, "nomad.node.disconnect", "node-1")
    world.hosts["node-1"].tables.clear()
    world.nodes["id-node-1"]["Status"] = "down"
    evidence = run(fault.verify(undo, present=True))
    assert not evidence.ok
    assert "the node is down; its last heartbeat was accepted 0.3s ago" in evidence.measured


def test_a_node_that_is_gone_already_cannot_be_disconnected(world):
    world.nodes["id-node-1"]["Status"] = "down"
    with pytest.raises(FaultError, match="node-1 is down already"):
        prior(world, "nomad.node.disconnect", "node-1")


def test_the_tasks_of_a_disconnected_node_are_counted(world):
    _, _, evidence = applied(world, "nomad.node.disconnect", "node-1")
    assert "1 of 1 processes of its tasks still run" in evidence.measured


# state


async def restored(world, between):
    """A snapshot is saved, `between` happens, and it is restored."""
    target = world.target("nomad-1")
    await prepared(world, "nomad.snapshot.restore", target)
    between()
    fault = fault_of(world, "nomad.snapshot.restore", {"snapshot": SNAPSHOT})
    undo = await planned(fault, target, "f1")
    await fault.apply(undo)
    return fault, undo, await fault.verify(undo, present=True)


def later(world):
    world.work.register({**sleepers(), "ID": "later"})


def test_what_was_registered_since_the_save_is_gone_and_its_processes_run_on(world):
    fault, undo, evidence = run(restored(world, lambda: later(world)))
    assert evidence.ok, evidence
    assert "later" not in world.work.registered
    assert evidence.figures["unknown_allocations"] == 2
    assert "2 allocations that no server knows still run" in evidence.measured
    run(fault.revert(undo))
    assert set(world.work.registered) == {JOB}, "its markers are left"


def test_a_file_that_somebody_else_put_there_is_not_restored(world):
    world.artifacts.mkdir()
    (world.artifacts / f"snapshot-{SNAPSHOT}.snap").write_bytes(world.work.saved())
    with pytest.raises(FaultError, match="holds no marker"):
        prior(world, "nomad.snapshot.restore", "nomad-1", snapshot=SNAPSHOT)


@pytest.mark.lie
async def test_a_follower_that_kept_the_later_state_is_noticed(world, monkeypatch):
    """A restore that only the leader took."""
    fault, undo, _ = await restored(world, lambda: later(world))
    real = world._get_jobs

    def told(host, parts, params, body):
        found = real(host, parts, params, body)
        mark = f"hashidrill-marker-{undo['fault_id']}"
        stale = "stale" in params and params.get("prefix") == mark
        return [*found, {"ID": mark, "Stop": False, "JobModifyIndex": 999, "Meta": None}] if stale else found

    monkeypatch.setattr(world, "_get_jobs", told)
    evidence = await fault.verify(undo, present=True)
    assert not evidence.ok
    assert "a follower's copy is not restored" in evidence.measured


# configuration


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data_dir": "/elsewhere"}, "data_dir cannot be changed"),
        ({"server": {"bootstrap_expect": 5}}, "server.bootstrap_expect cannot be changed"),
        ({"client": {"server_join": {"retry_join": []}}}, "client.server_join cannot be changed"),
        ({"server": {"heartbeat_grace": None}}, "server.heartbeat_grace has no value"),
    ],
)
def test_settings_that_take_the_agent_out_of_the_datacenter_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        registry.fault("nomad.config").Params.model_validate({"set": settings})


def test_a_server_without_which_nobody_could_lead_is_not_restarted(world):
    world.hosts["nomad-3"].running = None
    with pytest.raises(FaultError, match="of 3 voters only nomad-2 would be left"):
        prior(world, "nomad.config", "nomad-1", set={"log_level": "DEBUG"})


@pytest.mark.lie
async def test_a_file_that_was_changed_under_a_process_that_never_read_it_is_noticed(world, monkeypatch):
    fault = fault_of(world, "nomad.config", {"set": {"log_level": "DEBUG"}})
    undo = await planned(fault, world.target("node-1"), "f1")
    await world.hosts["node-1"].set_agent_config("nomad", {**undo["prior"]["config"], "log_level": "DEBUG"})
    evidence = await fault.verify(undo, present=True)
    assert not evidence.ok
    assert "in its file, the same process, log_level INFO" in evidence.measured


def test_a_client_is_restarted_as_well(world):
    fault, undo, evidence = applied(world, "nomad.config", "node-1", set={"log_level": "DEBUG"})
    assert evidence.ok, evidence
    run(fault.revert(undo))
    assert run(fault.verify(undo, present=False)).ok
    assert world.starts == 2
    run(fault.revert(undo))
    assert world.starts == 2, "an agent that has its own configuration again is left alone"
