"""What observers share with injectors: every kind says it, the report shows it, and what can be independent is."""

import copy

import pytest

import virtual_time
from fault_cases import fault_of
from hashidrill.core.engine.inject import noted, planned
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import ApiAnswer, Evidence, Observer
from hashidrill.products.consul import api
from hashidrill.reports.html import fault_proofs
from hashidrill.testing.fakes import FakeDatacenter
from hashidrill.testing.recordings import RecordingBuilder


def built_in():
    return {kind: cls for kind, cls in registry.faults().items() if cls.__module__.startswith("hashidrill.")}


# what is said of it


@pytest.mark.lie
@pytest.mark.parametrize("kind", sorted(built_in()))
def test_every_kind_says_what_its_observer_looks_through_and_what_that_shares(kind):
    observer = vars(built_in()[kind]).get("observer")  # its own: what a base class says may not be so for this kind
    assert isinstance(observer, Observer)
    assert observer.through


def test_the_journal_and_the_report_have_it_with_the_proof(tmp_path):
    fault = fault_of(FakeDatacenter(), "consul.raft.compact")
    evidence = noted(fault, Evidence(True, "compacted", "another file"))
    assert evidence["measured"] == "another file"
    assert evidence["shares"] == "bbolt, which compacts the file as well"
    target = {"host": "consul-1", "address": "10.73.0.11", "agent": "consul"}
    intent = {"fault_id": "0", "kind": fault.kind, "step": 0, "params": {}, "undo": {}, "target": target}
    run = RecordingBuilder(tmp_path / "run").event("fault.intent", at=10, **intent)
    run.event("fault.applied", at=11, fault_id="0").event("fault.proven", at=12, fault_id="0", evidence=evidence)
    page = str(fault_proofs(run.load("kv-writes").build()))
    assert "shared with the injector: bbolt, which compacts the file as well" in page


# an agent that answers for itself alone


def answering_for_itself(world, name):
    """That host's agent goes on with a state of its own, which no other server ever hears of."""
    alone = FakeDatacenter(root=world.artifacts.parent)
    alone.consul.kv = copy.deepcopy(world.consul.kv)
    alone.consul.sessions = copy.deepcopy(world.consul.sessions)
    world.hosts[name].api = alone.hosts[name].api


async def seen(world, kind, host, *, lie, prepare=lambda _world: None, **params):
    """The first proof: by a sound agent, or by one that answers for itself alone from just before `apply` on."""
    prepare(world)
    fault = fault_of(world, kind, **params)
    undo = await planned(fault, world.target(host), "0")
    if lie:
        answering_for_itself(world, host)
    await fault.apply(undo)
    return await fault.verify(undo, present=True)


def with_sessions(world):
    world.consul.make_session("client-1", "lock", "hashidrill/leases/0")


CASES = [
    ("consul.kv.bloat", "client-1", {"keys": 200, "value": "1kB"}, lambda _world: None),
    ("consul.session.expire", "client-1", {}, with_sessions),
]


@pytest.mark.lie
@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
@pytest.mark.parametrize("lie", [False, True])
def test_what_was_written_through_an_agent_is_looked_for_on_another_server(case, lie, tmp_path):
    kind, host, params, prepare = case
    evidence = virtual_time.run(seen(FakeDatacenter(root=tmp_path), kind, host, lie=lie, prepare=prepare, **params))
    assert evidence.ok is not lie, evidence


@pytest.mark.lie
@pytest.mark.parametrize("lie", [False, True])
async def test_a_restore_that_only_one_agent_knows_of_is_not_proven(lie, tmp_path):
    world = FakeDatacenter(root=tmp_path)
    save = fault_of(world, "consul.snapshot.save", name="before")
    await save.apply(await planned(save, world.target("consul-1"), "0"))
    evidence = await seen(world, "consul.snapshot.restore", "consul-1", lie=lie, snapshot="before")
    assert evidence.ok is not lie, evidence
    assert ("another server's own copy is not restored" in evidence.measured) is lie


@pytest.mark.lie
@pytest.mark.parametrize(
    ("kind", "host", "leads", "named"),
    [
        ("consul.leader.transfer", "consul-1", "consul-1", "consul-2"),
        ("consul.leader.pin", "consul-2", "consul-3", "consul-2"),
    ],
)
async def test_a_leader_that_others_name_and_that_does_not_lead_is_no_proof(kind, host, leads, named, monkeypatch):
    """Whom others take for the leader is what applying waits for: here all of them are mistaken alike."""

    world = FakeDatacenter()
    fault = fault_of(world, kind)
    undo = await planned(fault, world.target(host), "0")
    await fault.apply(undo)
    sound = await fault.verify(undo, present=True)

    async def mistaken(_hosts):
        return named

    monkeypatch.setattr(api, "leader_of", mistaken)
    world.consul.term += 1
    world.consul.leader = leads
    deceived = await fault.verify(undo, present=True)
    assert sound.ok, sound
    assert not deceived.ok
    assert f"{leads} leads" in deceived.measured


async def test_a_copy_that_knows_no_leader_and_a_server_that_does_not_answer_are_passed_over():
    world = FakeDatacenter(servers=5)
    fault = fault_of(world, "consul.kv.bloat", keys=10)
    undo = await planned(fault, world.target("consul-1"), "0")
    await fault.apply(undo)
    world.hosts["consul-2"].process = None

    async def out_of_date(method, path, **request):
        return ApiAnswer(404, b"", {"x-consul-knownleader": "false"})

    world.hosts["consul-3"].api = out_of_date
    assert (await fault.verify(undo, present=True)).ok
