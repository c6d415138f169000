"""Nomad's faults keep their contract on the fake, and their observers notice what is planted."""

from __future__ import annotations

import os

import pytest

from hashidrill import registry
from hashidrill.engine.inject import planned
from hashidrill.errors import FaultError
from hashidrill.services.nomad import trial_jobs
from hashidrill.testing.faults import check_fault
from hashidrill.testing.nomad import FakeNomad, FakeNomadHost
from nomad_fault_cases import DISARMED, MOMENTARY, NOMAD_CASES
from virtual_time import run

HOST = {"nomad:one-client": "node-1", "nomad:leader": "nomad-1"}


@pytest.fixture
def world(tmp_path):
    one = FakeNomad(tmp_path)
    yield one
    for host in one.hosts.values():  # for whoever removes the folder
        (host.data / "nomad/alloc").chmod(0o755)


def fault_of(world, kind, params):
    cls = registry.fault(kind)
    return cls(cls.Params.model_validate(params), world)


def check(world, kind, params, on):
    fault = fault_of(world, kind, params)
    return run(check_fault(fault, world.target(HOST[on]), momentary=kind in MOMENTARY))


@pytest.mark.parametrize(("kind", "params", "on"), NOMAD_CASES, ids=[kind for kind, *_ in NOMAD_CASES])
def test_a_fault_keeps_its_contract_on_the_fake(world, kind, params, on):
    report = check(world, kind, params, on)
    assert report.present.ok
    assert report.gone.ok
    assert world.jobs == {}, "its trial jobs are left"
    assert {node["SchedulingEligibility"] for node in world.nodes.values()} == {"eligible"}
    assert os.access(world.hosts["node-1"].data / "nomad/alloc", os.W_OK)


@pytest.mark.parametrize(("kind", "params", "on"), NOMAD_CASES, ids=[kind for kind, *_ in NOMAD_CASES])
def test_the_proof_fails_when_the_fault_is_disarmed_behind_its_back(world, kind, params, on):
    async def disarmed():
        fault = fault_of(world, kind, params)
        undo = await planned(fault, world.target(HOST[on]), "f1")
        await fault.apply(undo)
        armed = await fault.verify(undo, present=True)
        await DISARMED[kind](world, undo)
        return armed, await fault.verify(undo, present=True)

    armed, seen = run(disarmed())
    assert armed.ok, armed
    assert not seen.ok, seen


def test_every_kind_of_fault_has_a_case_and_a_way_to_disarm_it():
    kinds = {kind for kind in registry.fault_kinds() if kind.startswith("nomad.")}
    assert {kind for kind, *_ in NOMAD_CASES} == kinds == set(DISARMED)


def test_a_fault_uses_the_capabilities_of_its_host_that_it_declares_and_no_others(tmp_path):
    for number, (kind, params, on) in enumerate(NOMAD_CASES):
        world, used = FakeNomad(tmp_path / str(number)), set()

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


def test_a_server_is_no_node(world):
    with pytest.raises(FaultError, match="nomad-1 is no client of Nomad; the clients are node-1, node-2"):
        prior(world, "nomad.node.drain", "nomad-1")


def test_a_node_that_takes_no_work_already_is_refused_before_anything_is_touched(world):
    world.nodes["id-node-1"]["SchedulingEligibility"] = "ineligible"
    for kind in ("nomad.node.eligibility", "nomad.node.drain"):
        with pytest.raises(FaultError, match="node-1 is ready and ineligible: it gets no work"):
            prior(world, kind, "node-1")


def test_a_node_on_which_tasks_fail_already_makes_no_black_hole(world):
    (world.hosts["node-1"].data / "nomad/alloc").chmod(0o555)
    with pytest.raises(FaultError, match="a task on node-1 is failed already"):
        prior(world, "nomad.node.black_hole", "node-1")


def test_a_black_hole_that_everybody_sees_to_be_sick_is_not_one(world):
    """A node that is down gets no work, and swallows none."""

    async def seen():
        fault = fault_of(world, "nomad.node.black_hole", {})
        undo = await planned(fault, world.target("node-1"), "f1")
        await fault.apply(undo)
        world.nodes["id-node-1"]["Status"] = "down"
        return await fault.verify(undo, present=True)

    evidence = run(seen())
    assert not evidence.ok
    assert "not placed" in evidence.measured


def test_a_follower_has_no_leadership_to_transfer(world):
    with pytest.raises(FaultError, match="nomad-2 does not lead, nomad-1 does; put it on nomad:leader"):
        prior(world, "nomad.leader.transfer", "nomad-2")


def test_leadership_goes_to_a_voter_alone(world):
    with pytest.raises(FaultError, match="cannot go to node-1; the other voters are nomad-2, nomad-3"):
        prior(world, "nomad.leader.transfer", "nomad-1", to="node-1")


def test_a_leader_that_believes_in_itself_in_an_older_term_does_not_count(world, monkeypatch):
    """A frozen leader says so until it hears of the others."""
    from hashidrill.services.nomad import api

    def told(host, _parts, _params, _body):
        old = host.name == "nomad-1"
        raft = {"state": "Leader" if host.name in ("nomad-1", "nomad-2") else "Follower", "term": "3" if old else "4"}
        return {"stats": {"raft": raft}}

    monkeypatch.setattr(world, "_get_agent", told)
    assert run(api.leader_of_terms(world)) == ("nomad-2", 4)


def test_a_trial_whose_job_cannot_be_removed_is_said(world, monkeypatch):
    def refused(*_):
        raise KeyError("permission")

    monkeypatch.setattr(world, "_delete_job", refused)
    with pytest.raises(FaultError, match="the trial job hashidrill-trial-x could not be removed"):
        run(trial_jobs.outcome(world, "id-node-1", "x"))
