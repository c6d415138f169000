"""Every fault keeps its contract on the fake datacenter; a fault that does not is caught; and the confusion matrix.

`uv run pytest tests/contract/core/test_faults_fake.py -s` prints the matrix of every fault's proof. The real thing is
in test_faults_real.py and its neighbours, where faults are also taken away behind their observer's back.
"""

import itertools
import json
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest

import virtual_time
from confusion import LIE, TRUTH, Matrix, unplanted
from external_faults import CHAOS_MESH_CASES, LITMUS_CASES
from fault_cases import CASES, OLD, STATE_CASES, TAP_CASES, momentary, nature
from hashidrill.core.engine.inject import injected, planned
from hashidrill.core.faults.disk import DiskLatency
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import Target
from hashidrill.core.recording.journal import Journal, read_journal
from hashidrill.testing.fakes import FakeDatacenter, FakeHost
from hashidrill.testing.faults import check_fault
from nomad_fault_cases import NOMAD_CASES
from vault_fault_cases import CASES as VAULT_CASES


def a_world(kind: str, root: Path) -> FakeDatacenter:
    """A datacenter in which that kind of fault finds what it needs."""
    world = FakeDatacenter(spares=1, root=root)
    world.consul.version = OLD.get(kind, world.consul.version)
    world.consul.make_session("consul-1", "lock of a job", "jobs/lock")
    return world


@pytest.mark.parametrize(("kind", "params"), CASES)
def test_a_fault_keeps_its_contract_on_the_fake(kind: str, params: dict[str, Any], tmp_path: Path):
    world = a_world(kind, tmp_path)
    cls = registry.fault(kind)
    fault = cls(cls.Params.model_validate(params), world)
    client = Target("careful", "10.73.0.2", "client")
    aim = client if (kind, params) in TAP_CASES else lambda: world.target("consul-1")
    report = anyio.run(lambda: check_fault(fault, aim, **nature(kind)))
    assert report.present.ok
    assert report.gone.ok
    for host in world.hosts.values():
        assert [host.disk_rules, host.ballast, host.tables, host.limits, host.proxies] == [{}, {}, {}, {}, {}]


@pytest.mark.parametrize("proof_s", [0.0, 2.0])
@pytest.mark.parametrize(("kind", "params"), dict(CASES).items())
def test_a_fault_is_in_force_for_as_long_as_was_asked_however_long_its_proofs_take(
    kind: str, params: dict[str, Any], proof_s: float, tmp_path: Path
):
    """It acts from when it is applied, while it is proven; both proofs are part of its time."""
    world = a_world(kind, tmp_path)
    cls = registry.fault(kind)

    async def slowly(self: Any, undo: Any, *, present: bool) -> Any:
        await anyio.sleep(proof_s)
        return await cls.verify(self, undo, present=present)

    fault = type("Slow", (cls,), {"verify": slowly})(cls.Params.model_validate(params), world)
    tap = (kind, params) in TAP_CASES
    target = Target("careful", "10.73.0.2", "client") if tap else world.target("consul-1")

    async def held() -> None:
        with Journal(tmp_path / "journal.jsonl", virtual_time.VirtualClock()) as journal:
            async with injected(fault, target, fault_id="0-slow", step=0, journal=journal) as in_force:
                await in_force.hold(20.0)

    virtual_time.run(held())
    at = {entry.event: entry.t_ns / 1e9 for entry in read_journal(tmp_path / "journal.jsonl")}
    assert at["fault.reverted"] - at["fault.applied"] == pytest.approx(20, abs=0.2)


def _used_and_declared(kind: str, params: dict[str, Any], root: Path) -> tuple[set[type], set[type]]:
    """The capabilities of its own host: those that the fault calls when it is put on and taken away, and its own.

    It need not declare one that it uses only where the host has it: one that it asked about first.
    """
    world, used, asked_about = a_world(kind, root), set(), set()

    class Recorded(FakeHost):
        def can(self, capability: type) -> bool:
            asked_about.add(capability)
            return super().can(capability)

        def use(self, capability: type) -> Any:
            used.add(capability)
            return super().use(capability)

    world.hosts["consul-1"].__class__ = Recorded
    cls = registry.fault(kind)
    fault = cls(cls.Params.model_validate(params), world)
    anyio.run(lambda: check_fault(fault, lambda: world.target("consul-1"), **nature(kind)))
    declared = set(fault.requires().capabilities)
    return used - (asked_about - declared), declared


def test_a_fault_uses_the_capabilities_of_its_host_that_it_declares_and_no_others(tmp_path: Path):
    used: dict[str, set[type]] = {}
    declared: dict[str, set[type]] = {}
    for number, (kind, params) in enumerate(case for case in CASES if case not in TAP_CASES):
        (tmp_path / str(number)).mkdir()
        of_this, requires = _used_and_declared(kind, params, tmp_path / str(number))
        used[kind] = used.get(kind, set()) | of_this
        declared[kind] = requires
    assert used == declared


def test_every_kind_of_fault_has_a_case():
    # those of other products are checked in tests/unit/products, each on a fake of its own
    others = {kind for kind, *_ in [*NOMAD_CASES, *VAULT_CASES, *CHAOS_MESH_CASES, *LITMUS_CASES]}
    assert {kind for kind, _ in [*CASES, *STATE_CASES]} | others == set(registry.faults())


def _broken(**overrides: Any) -> type[DiskLatency]:
    return type("Broken", (DiskLatency,), overrides)


async def _nothing(self: Any, undo: Any) -> None:
    return


async def _always(self: Any, undo: Any, *, present: bool) -> Any:
    from hashidrill.core.protocols.abc import Evidence

    return Evidence(True, "anything", "whatever")


_COUNTER = itertools.count()
DEFECTS: dict[str, tuple[dict[str, Any], str]] = {
    "apply does nothing": ({"apply": _nothing}, "to be in force"),
    "the observer always agrees": ({"verify": _always}, "before it was applied"),
    "plan changes its mind": ({"plan_more": lambda self, target: {"token": next(_COUNTER)}}, "deterministic"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_fault_that_breaks_the_contract_is_caught(defect: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("hashidrill.testing.faults.PROVEN_WITHIN_S", 0.1)
    monkeypatch.setattr("hashidrill.testing.faults.GONE_WITHIN_S", 0.1)
    overrides, message = DEFECTS[defect]
    world = FakeDatacenter()
    cls = _broken(**overrides)
    fault = cls(cls.Params.model_validate({"delay": "500ms"}), world)
    with pytest.raises(AssertionError, match=message):
        anyio.run(lambda: check_fault(fault, world.target("consul-1"), recreate=False))


@pytest.mark.long
def test_a_fault_whose_revert_does_nothing_is_caught(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("hashidrill.testing.faults.GONE_WITHIN_S", 0.1)
    world = FakeDatacenter()
    cls = _broken(revert=_nothing)
    fault = cls(cls.Params.model_validate({"delay": "500ms"}), world)
    with pytest.raises(AssertionError, match="to be gone"):
        anyio.run(lambda: check_fault(fault, world.target("consul-1"), recreate=False))


@pytest.mark.long
def test_an_effect_that_is_over_by_itself_is_caught_unless_it_is_done_once(monkeypatch: pytest.MonkeyPatch):
    """The first look proves it, and takes it away: at the end of a run it would have faded."""
    monkeypatch.setattr("hashidrill.testing.faults.PROVEN_WITHIN_S", 0.1)

    async def look_once(self: DiskLatency, undo: Any, *, present: bool) -> Any:
        evidence = await DiskLatency.verify(self, undo, present=present)
        if evidence.ok and present:
            await self.revert(undo)
        return evidence

    world = FakeDatacenter()
    cls = _broken(verify=look_once)
    fault = cls(cls.Params.model_validate({"delay": "500ms"}), world)
    with pytest.raises(AssertionError, match="to be still in force"):
        anyio.run(lambda: check_fault(fault, world.target("consul-1"), recreate=False))
    once = type("Once", (cls,), {"once": True})(fault.params, world)
    anyio.run(lambda: check_fault(once, world.target("consul-1"), momentary=True, recreate=False))


class _Forgetful(DiskLatency):
    kind: ClassVar[str] = "disk.latency"

    def plan(self, target: Any, *, fault_id: str) -> Any:
        return {"fault_id": fault_id, "host": target.host}


def test_an_undo_that_a_fresh_process_cannot_use_is_caught():
    world = FakeDatacenter()
    fault = _Forgetful(_Forgetful.Params.model_validate({"delay": "500ms"}), world)
    with pytest.raises(AssertionError, match="lacks 'kind'"):
        anyio.run(lambda: check_fault(fault, world.target("consul-1")))


EFFECTIVE = [(kind, params) for kind, params in CASES if kind != "noop"]
"""`noop` has no effect that could be told from its absence."""
LASTING = [case for case in EFFECTIVE if not momentary(case[0])]
OF_STATE = {"consul.raft.bloat", "consul.raft.compact", "consul.snapshot.save", "consul.snapshot.restore"}
"""These need a raft.db or a snapshot: test_state_faults_fake.py plants theirs."""
PLANTED = {
    "it is in force, and said to be": (EFFECTIVE, TRUTH),
    "it is gone, and said to be": (LASTING, TRUTH),
    "apply did nothing, and it is said to be in force": (EFFECTIVE, LIE),
    "revert did nothing, and it is said to be gone": (LASTING, LIE),
    "it is in force, and said to be gone": (LASTING, LIE),
    "it is gone, and said to be in force": (LASTING, LIE),
}
ROWS = [
    pytest.param((words, planted, case), id=f"{case[0]}-{number}-{words.replace(' ', '-')}")
    for words, (cases, planted) in PLANTED.items()
    for number, case in enumerate(cases)
]


@pytest.fixture(scope="module")
def matrix():
    it = Matrix("faults")
    yield it
    print(f"\n\n{it}")


def made(kind, params, root):
    """(fault, target) on a datacenter of their own."""
    world = FakeDatacenter(spares=1, root=root)
    world.consul.version = OLD.get(kind, world.consul.version)
    world.consul.make_session("consul-1", "lock of a job", "jobs/lock")
    cls = registry.fault(kind)
    client = Target("careful", "10.73.0.2", "client")
    target = client if (kind, params) in TAP_CASES else world.target("consul-1")
    return cls(cls.Params.model_validate(params), world), target


async def believed(words, fault, target):
    """Whether the observer believes what is claimed in those words, once all of the rest was done."""
    undo: dict[str, Any] = json.loads(json.dumps(dict(await planned(fault, target, "f-1"))))
    if "apply did nothing" not in words:
        await fault.apply(undo)
        with anyio.move_on_after(5):
            while not (await fault.verify(undo, present=True)).ok:
                await anyio.lowlevel.checkpoint()
    if words.startswith("it is gone"):
        await fault.revert(undo)
    said = "in force" if words.endswith(("in force", "in force, and said to be")) else "gone"
    return (await fault.verify(undo, present=said == "in force")).ok


@pytest.mark.lie
@pytest.mark.parametrize("case", ROWS)
def test_an_observer_believes_what_is_so_and_nothing_else(case, matrix, tmp_path):
    words, planted, (kind, params) = case
    fault, target = made(kind, params, tmp_path)
    found = TRUTH if anyio.run(believed, words, fault, target) else LIE
    row = matrix.note(kind, f"{params}: {words}", planted, found)
    assert row.right, row


def test_every_kind_with_an_effect_has_a_planted_truth_and_a_planted_lie():
    cases: dict[str, list[str]] = {}
    for each, planted in PLANTED.values():
        for kind, _ in each:
            cases.setdefault(kind, []).append(planted)
    # both are planted for those of other products in tests/unit/products, each on a fake of its own
    others = {kind for kind, *_ in [*NOMAD_CASES, *VAULT_CASES, *CHAOS_MESH_CASES, *LITMUS_CASES]}
    assert unplanted(cases, set(registry.faults()) - {"noop"} - OF_STATE - others) == {}
