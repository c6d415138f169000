"""Inside of a sandbox: a real datacenter, and every fault of its state on it. One JSON line a case.

python real_state_faults.py CONSUL ROOT VERSION BBOLT
"""

import sys
from dataclasses import asdict
from pathlib import Path

import anyio

from hashidrill.core.engine.inject import planned
from hashidrill.core.errors import FaultError
from hashidrill.core.experiment.model import DatacenterSpec
from hashidrill.lab.local.datacenter import LocalDatacenter
from hashidrill.products.consul import markers
from hashidrill.products.consul.faults.raft import RaftDb
from hashidrill.products.consul.model import Consul
from hashidrill.products.consul.snapshots import read_snapshot, restored_name, saved_name
from hashidrill.testing.faults import check_fault
from told_cases import fault_of, seen, told

FREE_PAGES = 200_000


async def main() -> None:
    consul, root, version, bbolt = sys.argv[1:]
    boltdb = {} if version.startswith("1.10.") else {"raft_logstore": {"backend": "boltdb"}}
    spec = DatacenterSpec(
        consul=Consul(version=version, config={"performance": {"raft_multiplier": 1}}, server_config=boltdb, clients=0)
    )
    binaries = {"consul": Path(consul), "bbolt": Path(bbolt)}
    datacenter = LocalDatacenter(spec, Path(root), binaries, artifacts=Path(root) / "artifacts")
    await datacenter.start()
    await datacenter.wait_ready()
    for check in [*CHECKS, bloat_by_writes_keeps_its_contract] if version.startswith("1.10.") else CHECKS:
        await told({"check": check.__name__}, check(datacenter), under="")


async def _on(datacenter, selector):
    [target] = await datacenter.select(selector)
    return target


async def _put(datacenter, key, value):
    host = datacenter.hosts["consul-1"]
    answer = await host.api("PUT", f"/v1/kv/{key}", body=value, agent="consul")
    assert answer.body.strip() == b"true", answer


async def _kv(datacenter):
    """Everything that is there, with its indexes."""
    answer = await datacenter.hosts["consul-2"].api(
        "GET", "/v1/kv/", params={"recurse": "", "consistent": ""}, agent="consul"
    )
    return {entry["Key"]: (entry["Value"], entry["ModifyIndex"], entry["CreateIndex"]) for entry in answer.json()}


async def save_and_restore_keep_their_contract(datacenter):
    """And set back exactly what was there: values, deleted keys, new keys, indexes."""
    for name in ("kept", "changed", "deleted"):
        await _put(datacenter, f"app/{name}", b"old")
    before = await _kv(datacenter)
    save = fault_of(datacenter, "consul.snapshot.save", {"name": "before"})
    saved = await check_fault(save, await _on(datacenter, "consul:leader"), momentary=True)
    await _put(datacenter, "app/changed", b"new")
    await _put(datacenter, "app/created", b"new")
    await datacenter.hosts["consul-1"].api("DELETE", "/v1/kv/app/deleted", agent="consul")
    assert await _kv(datacenter) != before
    restore = fault_of(datacenter, "consul.snapshot.restore", {"snapshot": "before"})
    restored = await check_fault(restore, await _on(datacenter, "consul:one-follower"), momentary=True)
    assert await _kv(datacenter) == before
    one, two = (read_snapshot(datacenter.artifacts / name("before")) for name in (saved_name, restored_name))
    ours = lambda snapshot: {k: e for k, e in snapshot.kv.items() if not k.startswith(markers.PREFIX)}  # noqa: E731
    assert ours(one) == ours(two)
    assert {key: index for key, (_, index, _) in before.items()} == {k: e.modify_index for k, e in ours(one).items()}
    return {"saved": asdict(saved.present), "restored": asdict(restored.present), "gone": asdict(restored.gone)}


async def a_restore_that_did_not_happen_is_noticed(datacenter):
    """The request is lost on its way: everything else was done."""
    restore = fault_of(datacenter, "consul.snapshot.restore", {"snapshot": "before"})
    target = await _on(datacenter, "consul:leader")
    undo = await planned(restore, target, "not-restored")
    host = datacenter.hosts[target.host]
    await markers.put(host, "restored/not-restored", "not-restored")
    lost = await restore.verify(undo, present=True)
    await restore.revert(undo)
    # and one that was undone behind its back
    await restore.apply(undo)
    armed = await seen(restore, undo, ok=True)
    await markers.put(host, "restored/not-restored", "it came back")
    disarmed = await restore.verify(undo, present=True)
    await restore.revert(undo)
    await seen(restore, undo, ok=True, present=False)
    return {"lost": asdict(lost), "armed": asdict(armed), "disarmed": asdict(disarmed)}


async def a_save_that_is_damaged_is_noticed(datacenter):
    save = fault_of(datacenter, "consul.snapshot.save", {"name": "damaged"})
    undo = await planned(save, await _on(datacenter, "consul:leader"), "damaged")
    await save.apply(undo)
    armed = await save.verify(undo, present=True)
    file = datacenter.artifacts / saved_name("damaged")
    file.write_bytes(file.read_bytes()[:-100])
    disarmed = await save.verify(undo, present=True)
    await save.revert(undo)
    restore = fault_of(datacenter, "consul.snapshot.restore", {"snapshot": "damaged"})
    try:
        await planned(restore, await _on(datacenter, "consul:leader"), "of-damaged")
        refused = ""
    except FaultError as error:
        refused = str(error)
    return {"armed": asdict(armed), "disarmed": asdict(disarmed), "refused": refused}


async def bloat_keeps_its_contract(datacenter):
    bloat = fault_of(datacenter, "consul.raft.bloat", {"free_pages": FREE_PAGES})
    report = await check_fault(bloat, await _on(datacenter, "consul:leader"))
    return {"present": asdict(report.present), "gone": asdict(report.gone)}


async def a_bloated_leader_writes_many_times_as_much(datacenter):
    """One server, which is made to lead: fresh, bloated, and compacted."""
    target = await _on(datacenter, "consul:one-follower")
    db = RaftDb(datacenter, datacenter.hosts[target.host])
    bloat = fault_of(datacenter, "consul.raft.bloat", {"free_pages": FREE_PAGES})
    fresh = await _cost_as_leader(datacenter, db)
    undo = await planned(bloat, target, "leader")
    await bloat.apply(undo)
    await seen(bloat, undo, ok=True)
    bloated = await _cost_as_leader(datacenter, db)
    compact = fault_of(datacenter, "consul.raft.compact")
    report = await check_fault(compact, target, momentary=True)
    compacted = await _cost_as_leader(datacenter, db)
    disarmed = await bloat.verify(undo, present=True)  # it was compacted behind its back
    process = await datacenter.hosts[target.host].agent_process("consul")
    await bloat.revert(undo)  # which has nothing to do, and so does not restart the server
    now = await datacenter.hosts[target.host].agent_process("consul")
    assert now == process, f"it was restarted: {process} became {now}"
    await seen(bloat, undo, ok=True, present=False)
    return {
        "fresh": fresh,
        "bloated": bloated,
        "compacted": compacted,
        "compact": asdict(report.present),
        "disarmed": asdict(disarmed),
    }


async def _cost_as_leader(datacenter, db):
    """Bytes per commit while that server leads."""
    pin = fault_of(datacenter, "consul.leader.pin")
    undo = await planned(pin, await _on(datacenter, f"host:{db.host.name}"), "pin")
    await pin.apply(undo)
    try:
        return (await db.cost()).bytes_each
    finally:
        await pin.revert(undo)
        await db.running()


async def bloat_by_writes_keeps_its_contract(datacenter):
    bloat = fault_of(datacenter, "consul.raft.bloat", {"free_pages": 50_000, "by": "writes"})
    target = await _on(datacenter, "consul:one-follower")
    before = await datacenter.hosts[target.host].agent_config("consul")
    report = await check_fault(bloat, target)
    assert await datacenter.hosts[target.host].agent_config("consul") == before
    return {"present": asdict(report.present), "gone": asdict(report.gone)}


CHECKS = (
    save_and_restore_keep_their_contract,
    a_restore_that_did_not_happen_is_noticed,
    a_save_that_is_damaged_is_noticed,
    bloat_keeps_its_contract,
    a_bloated_leader_writes_many_times_as_much,
)

if __name__ == "__main__":
    anyio.run(main)
