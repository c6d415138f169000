"""Each kind of fault on pods that this node can do, on real pods of Consul, with no more rights than its role has."""

from __future__ import annotations

from dataclasses import asdict

import anyio
import pytest

from hashidrill.core.engine.inject import planned
from hashidrill.core.errors import FaultError
from hashidrill.testing.faults import check_fault
from kubernetes import kinds
from sandboxed_cases import CONSUL
from told_cases import looked, seen

pytestmark = [
    pytest.mark.live,
    pytest.mark.kubernetes,
    pytest.mark.needs("kubernetes-node", f"consul {CONSUL}", "toxiproxy-server", "toxiproxy-cli"),
]


@pytest.mark.parametrize("kind", kinds.ALL, ids=lambda kind: kind.label)
def test_a_kind_is_proven_in_force_and_gone_with_the_rights_of_its_role(pods, kind):
    async def case(fault, target):
        report = await check_fault(fault, target, momentary=kind.disarm is None)
        return {"present": asdict(report.present), "gone": asdict(report.gone)}

    told = pods(kind, case)
    assert told["present"]["ok"]
    assert told["gone"]["ok"]


@pytest.mark.lie
@pytest.mark.parametrize("kind", kinds.LASTING, ids=lambda kind: kind.label)
def test_an_effect_that_is_taken_away_behind_its_back_is_noticed(node, pods, kind):
    """The object stays, and its controller says that it is in force."""

    async def case(fault, target):
        undo = await planned(fault, target, f"disarmed-{kind.label}")
        await fault.apply(undo)
        try:
            await seen(fault, undo, within_s=fault.observed_within_s)
            await anyio.to_thread.run_sync(kind.disarm, node)
            after = await looked(fault, undo, ok=False, within_s=30.0)
        finally:
            await fault.revert(undo)
        await seen(fault, undo, present=False, within_s=60.0)
        return after.ok, after.measured

    noticed, measured = pods(kind, case)
    assert not noticed, measured


@pytest.mark.parametrize(
    ("name", "params", "said"),
    [
        ("chaos_mesh.network.delay", {"delay": "200ms"}, "modprobe sch_netem"),
        ("litmus.pod_network_latency", {"delay": "200ms"}, "modprobe sch_netem"),
        ("litmus.node_drain", {}, "the node node-1 also runs consul-server-0, consul-server-2"),
    ],
)
def test_what_this_node_cannot_do_is_refused_before_anything_is_created(pods, name, params, said):
    async def case(fault, target):
        with pytest.raises(FaultError) as told:
            await planned(fault, target, "refused")
        return str(told.value)

    assert said in pods(kinds.Kind(name, params), case)
