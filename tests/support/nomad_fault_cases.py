"""Cases of Nomad's faults, for the fake and for the real datacenter, and how each is taken away behind its back."""

from fault_cases import on_products
from hashidrill.core.engine.inject import planned
from hashidrill.core.errors import FaultError
from hashidrill.core.faults.base import table_of
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.capabilities import AgentFiles, PacketFilter, ProcessControl
from hashidrill.core.util.wait import wait_until
from hashidrill.products.nomad import api
from hashidrill.products.nomad.faults import snapshot, work
from hashidrill.products.nomad.settings import data_dir

JOB, SNAPSHOT = "sleepers", "before"


def sleepers():
    """What runs wherever these faults are put on something: two tasks that sleep, on two nodes."""
    task = {
        "Name": "task",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/sleep", "args": ["3600"]},
        "Resources": {"CPU": 20, "MemoryMB": 20},
        "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1, "Disabled": True},
        "KillTimeout": 10**9,
    }
    group = {
        "Name": "group",
        "Count": 2,
        "EphemeralDisk": {"SizeMB": 10},
        "Tasks": [task],
        "Spreads": [{"Attribute": "${node.unique.name}", "Weight": 100}],
        "RestartPolicy": {"Attempts": 1, "Interval": 60 * 10**9, "Delay": 10**9, "Mode": "fail"},
        "ReschedulePolicy": {"Unlimited": True, "DelayFunction": "constant", "Delay": 5 * 10**9},
    }
    return {"ID": JOB, "Name": JOB, "Type": "service", "Datacenters": ["*"], "TaskGroups": [group]}


NOMAD_CASES = on_products("products.nomad.faults")


async def prepared(hosts, kind, target):
    """What must have happened before that kind is put on something."""
    if kind == "nomad.snapshot.restore":
        cls = registry.fault("nomad.snapshot.save")
        save = cls(cls.Params.model_validate({"name": SNAPSHOT}), hosts)
        undo = await planned(save, target, "saved-before")
        await save.apply(undo)
        await save.revert(undo)


async def _made_eligible(hosts, undo):
    node = undo["prior"]["node"]
    body = {"NodeID": node, "Eligibility": "eligible"}
    await api.when_led(hosts, "POST", f"/v1/node/{node}/eligibility", body=body)


async def _undrained(hosts, undo):
    node = undo["prior"]["node"]
    body = {"NodeID": node, "DrainSpec": None, "MarkEligible": True}
    await api.when_led(hosts, "POST", f"/v1/node/{node}/drain", body=body)


async def _writable(hosts, undo):
    (data_dir(hosts.host(undo["host"]).data) / "alloc").chmod(0o711)


async def _handed_back(hosts, undo):
    prior = undo["prior"]
    voters = await api.raft_voters(hosts)
    leader, _ = await api.leader_of_terms(hosts)
    path, params = "/v1/operator/raft/transfer-leadership", {"id": voters[prior["leader"]]}
    await api.call(hosts.host(leader), "PUT", path, params=params, timeout_s=20)
    await api.wait_for_leader(hosts, "it to lead again", [prior["leader"]])


async def _connected(hosts, undo):
    await hosts.host(undo["host"]).use(PacketFilter).clear_packet_rules(table_of(undo["fault_id"]))


async def _registered_again(hosts, undo):
    await api.when_led(hosts, "POST", "/v1/jobs", body={"Job": sleepers()})


async def _thawed(hosts, undo):
    for alloc in undo["prior"]["allocs"]:
        path = f"/v1/client/allocation/{alloc}/signal"
        await api.when_led(hosts, "POST", path, body={"Signal": "SIGCONT", "Task": ""})


async def _another_runs(hosts, undo):
    """What a fault would see that had killed nothing: another allocation, which runs."""

    async def found():
        live = [one for one in await work.allocations(hosts, JOB) if work.runs(one)]
        return (live or None), "none runs"

    live = await wait_until("an allocation to run", found, within_s=30)
    undo["prior"]["allocs"][:] = [live[0]["ID"]]


async def _cut_short(hosts, undo):
    file = hosts.artifacts / f"snapshot-{SNAPSHOT}.snap"
    file.write_bytes(file.read_bytes()[:-20])


async def _written_again(hosts, undo):
    await snapshot.put_marker(hosts, undo["fault_id"], "as if nothing had been restored")


async def _restarted_as_before(hosts, undo):
    host = hosts.host(undo["host"])
    await host.use(ProcessControl).stop_agent("nomad")
    await host.use(AgentFiles).set_agent_config("nomad", undo["prior"]["config"])
    await host.use(ProcessControl).start_agent("nomad")

    async def answers():
        try:
            return (await api.call(host, "GET", "/v1/agent/self")).status == 200 or None, ""
        except FaultError as error:
            return None, str(error)

    await wait_until("it to answer", answers, within_s=30)


DISARMED = {
    "nomad.snapshot.save": _cut_short,
    "nomad.snapshot.restore": _written_again,
    "nomad.config": _restarted_as_before,
    "nomad.node.disconnect": _connected,
    "nomad.job.stop": _registered_again,
    "nomad.alloc.signal": _thawed,
    "nomad.alloc.fail": _another_runs,
    "nomad.node.eligibility": _made_eligible,
    "nomad.node.drain": _undrained,
    "nomad.node.black_hole": _writable,
    "nomad.leader.transfer": _handed_back,
}
"""Kind to what takes the effect away without the fault's help."""
