"""Cases of Consul's faults for the real datacenter, and how each is taken away behind its back."""

from fault_cases import on_products, without_rules
from hashidrill.products.consul import api as consul_api
from hashidrill.products.consul.faults import agent as consul_agent

_STREAMING_OFF = {"set": {"use_streaming_backend": False, "rpc": {"enable_streaming": False}}}
_THRESHOLD = {"set": {"raft_snapshot_threshold": 50, "raft_trailing_logs": 60}}
_CASES = on_products("products.consul.faults")
_OLD_ALONE = ("consul.streams.gather",)
_OLD_TOO = ("consul.config", "consul.leader.", "consul.server.replace")


async def file_and_reload(_datacenter, host, undo, _snapshot):
    await host.set_agent_config("consul", undo["prior"]["config"])
    await host.api("PUT", "/v1/agent/reload", agent="consul")


async def file_and_restart(datacenter, host, undo, _snapshot):
    await host.stop_agent("consul")
    await host.set_agent_config("consul", undo["prior"]["config"])
    await host.start_agent("consul")
    await consul_api.wait_in_step(datacenter, host)


async def handed_back(datacenter, host, undo, _snapshot):
    leader = datacenter.hosts[await consul_api.leader_of(datacenter)]
    params = {"id": undo["prior"]["voters"][host.name]}
    await leader.api("POST", "/v1/operator/raft/transfer-leader", params=params, timeout_s=20, agent="consul")
    await consul_api.wait_for_leader(datacenter, "it to lead again", [host.name])


async def rules_flushed(_datacenter, host, _undo, _snapshot):
    await without_rules(host)


async def rules_of_another_flushed(datacenter, host, _undo, _snapshot):
    await without_rules(next(other for other in consul_api.servers_of(datacenter) if other is not host))


async def rules_of_an_agent_flushed(datacenter, _host, undo, _snapshot):
    await without_rules(datacenter.hosts[undo["clients"][0]])


async def started_again(datacenter, host, _undo, _snapshot):
    await host.start_agent("consul")
    await consul_api.wait_in_step(datacenter, host)


async def new_server_left(datacenter, _host, undo, _snapshot):
    await consul_agent.leave(datacenter.hosts[undo["prior"]["spare"]])


async def snapshot_restored(datacenter, _host, _undo, snapshot):
    """Brings the sessions back, and their locks."""
    leader = datacenter.hosts[await consul_api.leader_of(datacenter)]
    assert (await leader.api("PUT", "/v1/snapshot", body=snapshot, timeout_s=30, agent="consul")).status == 200


async def keys_deleted(_datacenter, host, _undo, _snapshot):
    await host.api("DELETE", "/v1/kv/hashidrill/obsolete/0000007", agent="consul")


DISARMED = {
    each.__name__: each
    for each in (
        file_and_reload,
        file_and_restart,
        handed_back,
        rules_flushed,
        rules_of_another_flushed,
        rules_of_an_agent_flushed,
        started_again,
        new_server_left,
        snapshot_restored,
        keys_deleted,
    )
}
_DISARMED = (
    ("consul.config", _THRESHOLD, "consul:leader", "file_and_reload"),
    ("consul.config", _STREAMING_OFF, "consul:one-follower", "file_and_restart"),
    ("consul.leader.transfer", {}, "consul:leader", "handed_back"),
    ("consul.leader.avoid", {}, "consul:one-follower", "rules_flushed"),
    ("consul.leader.pin", {}, "consul:leader", "rules_of_another_flushed"),
    ("consul.streams.gather", {}, "consul:leader", "rules_of_an_agent_flushed"),
    ("consul.server.replace", {}, "consul:one-follower", "new_server_left"),
    ("consul.agent.stop", {}, "consul:one-follower", "started_again"),
    ("consul.session.expire", {}, "host:client-1", "snapshot_restored"),
    ("consul.kv.bloat", {"keys": 200}, "host:client-1", "keys_deleted"),
)


RUNS = ("1.22.2", "1.22.2 long", "1.10.3", "1.10.3 long")
"""A version, and whether its cases take minutes and are left out unless asked for."""
WHOLE = tuple(run for run in RUNS if run != "1.10.3")
"""Those in which more is looked at than single faults."""
_SLOW = ("consul.server.replace",)


def _is_slow(kind, params):
    return kind in _SLOW or bool(params.get("leave"))


def cases_of(run):
    """All of them on a current Consul, the slow ones apart; what differs by version on the incident's, as slow.

    What is for the incident's version alone is in its short run.
    """
    return [case for case in _CASES if _is_in(run, case[0], case[1])]


def disarmed_of(run):
    """1.10.3 cannot be asked for a transfer."""
    not_there = {"handed_back", "new_server_left"} if run.startswith("1.10.3") else set()
    return [case for case in _DISARMED if case[3] not in not_there and _is_in(run, case[0], case[1])]


def _is_in(run, kind, params):
    if run == "1.10.3":
        return kind in _OLD_ALONE
    if run == "1.10.3 long":
        return kind.startswith(_OLD_TOO)
    return kind not in _OLD_ALONE and _is_slow(kind, params) == ("long" in run)
