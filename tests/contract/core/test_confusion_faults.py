"""The confusion matrix of every fault's proof, on the fake datacenter.

`uv run pytest tests/contract/core/test_confusion_faults.py -s` prints it. The real thing is in test_faults_real.py
and its neighbours, where faults are also taken away behind their observer's back.
"""

import json
from typing import Any

import anyio
import pytest

from confusion import LIE, TRUTH, Matrix, unplanted
from external_faults import CHAOS_MESH_CASES, LITMUS_CASES
from fault_cases import CASES, OLD, TAP_CASES, momentary
from hashidrill.core.engine.inject import planned
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import Target
from hashidrill.testing.fakes import FakeDatacenter
from nomad_fault_cases import NOMAD_CASES
from vault_fault_cases import CASES as VAULT_CASES

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
