"""Cases of Nomad's faults, for the fake and for the real datacenter, and how each is taken away behind its back."""

from __future__ import annotations

from hashidrill.services.nomad import api
from hashidrill.services.nomad.agents import data_dir

NOMAD_CASES = [
    ("nomad.node.eligibility", {}, "nomad:one-client"),
    ("nomad.node.drain", {"deadline": "10s"}, "nomad:one-client"),
    ("nomad.node.black_hole", {}, "nomad:one-client"),
    ("nomad.leader.transfer", {}, "nomad:leader"),
]
MOMENTARY = {"nomad.leader.transfer"}


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


DISARMED = {
    "nomad.node.eligibility": _made_eligible,
    "nomad.node.drain": _undrained,
    "nomad.node.black_hole": _writable,
    "nomad.leader.transfer": _handed_back,
}
"""Kind to what takes the effect away without the fault's help."""
