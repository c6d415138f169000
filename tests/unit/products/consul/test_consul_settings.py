"""Consul's keys: which need a restart, and where agents show them. Names as 1.10.3 and 1.22.2 really answer."""

import pytest

from hashidrill.core.protocols import packets
from hashidrill.core.util import nested
from hashidrill.products.consul import settings
from hashidrill.products.consul.faults.rpc import cut_streams, cut_votes

DEBUG = {
    "ACLResolverSettings": {"ACLDefaultPolicy": "allow", "NodeName": "consul-2"},
    "Cache": {"EntryFetchMaxBurst": 2, "EntryFetchRate": 1.7976931348623157e308},
    "Cloud": {"NodeName": "consul-2"},
    "ConsulRaftElectionTimeout": "1s",
    "AutopilotCleanupDeadServers": True,
    "DNSNodeTTL": "0s",
    "GossipLANProbeInterval": "1s",
    "HTTPMaxConnsPerClient": 8000,
    "LeaveOnTerm": False,
    "Logging": {"LogLevel": "INFO", "LogJSON": False},
    "RPCConfig": {"EnableStreaming": True},
    "RPCRateLimit": 1.7976931348623157e308,
    "RaftLogStoreConfig": {"Backend": "default", "BoltDB": {"NoFreelistSync": False}, "WAL": {"SegmentSize": 67108864}},
    "RaftSnapshotInterval": "30s",
    "RequestLimitsMode": 2,
    "RequestLimitsWriteRate": 10,
    "RetryJoinLAN": ["10.73.0.11"],
    "UIConfig": {"Enabled": True},
    "UseStreamingBackend": True,
}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("acl.default_policy", "allow"),
        ("autopilot.cleanup_dead_servers", True),
        ("cache.entry_fetch_max_burst", 2),
        ("dns_config.node_ttl", "0s"),
        ("gossip_lan.probe_interval", "1s"),
        ("leave_on_terminate", False),
        ("limits.http_max_conns_per_client", 8000),
        ("limits.request_limits.write_rate", 10),
        ("limits.rpc_rate", 1.7976931348623157e308),
        ("log_level", "INFO"),
        ("performance.raft_multiplier", "1s"),
        ("raft_logstore.backend", "default"),
        ("raft_logstore.boltdb.no_freelist_sync", False),
        ("raft_snapshot_interval", "30s"),
        ("rpc.enable_streaming", True),
        ("telemetry.prefix_filter", None),
        ("ui_config.enabled", True),
        ("use_streaming_backend", True),
        ("node_name", None),  # shown twice: which is meant cannot be said
    ],
)
def test_where_a_key_is_shown(key, value):
    assert settings.shown(DEBUG, tuple(key.split("."))) == value


@pytest.mark.parametrize(
    ("key", "asked", "seen", "right"),
    [
        ("raft_snapshot_interval", "60s", "1m0s", True),
        ("raft_snapshot_interval", "90s", "1m0s", False),
        ("raft_snapshot_interval", "500ms", "500ms", True),
        ("limits.rpc_rate", -1, 1.7976931348623157e308, True),
        ("limits.rpc_rate", 100, 1.7976931348623157e308, False),
        ("limits.rpc_rate", -1, -1, True),
        ("limits.request_limits.mode", "enforcing", 2, True),
        ("limits.request_limits.mode", "permissive", 2, False),
        ("performance.raft_multiplier", 10, "10s", True),
        ("performance.raft_multiplier", 5, "1s", False),
        ("use_streaming_backend", False, False, True),
        ("use_streaming_backend", False, True, False),
        ("use_streaming_backend", False, 0, None),
        ("log_level", "debug", "DEBUG", True),
        ("retry_join", ["a"], ["a"], True),
        ("services", [{"name": "web"}], [{"Name": "web"}], None),
        ("telemetry.prefix_filter", ["-x"], None, None),
    ],
)
def test_what_is_shown_is_what_was_asked_for(key, asked, seen, right):
    assert settings.agrees(key, asked, seen) is right


@pytest.mark.parametrize(
    ("wanted", "version", "restart"),
    [
        ({"raft_snapshot_threshold": 5, "limits": {"rpc_rate": 1}}, (1, 10, 3), []),
        ({"limits": {"request_limits": {"write_rate": 5}}}, (1, 22, 2), []),
        ({"limits": {"request_limits": {"write_rate": 5}}}, (1, 10, 3), ["limits.request_limits.write_rate"]),
        ({"limits": {"http_max_header_bytes": 5}}, (1, 22, 2), ["limits.http_max_header_bytes"]),
        ({"use_streaming_backend": True, "log_level": "WARN"}, None, ["use_streaming_backend"]),
        ({"performance": {"raft_multiplier": 1}}, (1, 22, 2), ["performance.raft_multiplier"]),
        ({"cache": {"entry_fetch_rate": 5}, "dns_config": {"node_ttl": "1s"}}, (1, 10, 3), []),
        ({"cached": 1}, (1, 22, 2), ["cached"]),
    ],
)
def test_which_keys_need_a_restart(wanted, version, restart):
    assert settings.needs_restart(wanted, version) == restart


def test_a_configuration_holds_settings_that_are_deep_in_it():
    config = {"limits": {"rpc_rate": 1, "other": 2}, "log_level": "INFO"}
    assert nested.holds(config, {"limits": {"rpc_rate": 1}})
    assert not nested.holds(config, {"limits": {"rpc_rate": 2}})
    assert not nested.holds(config, {"log_level": {"deeper": 1}})


def test_votes_are_cut_by_the_first_byte_alone():
    """Raft's first byte and a canary's on a new connection, and requests for votes on an older one."""
    script = packets.script("t", [cut_votes(["10.0.0.1", "10.0.0.2"])])
    rejected = [line for line in script.splitlines() if "@th" in line]
    assert all(line.endswith("reject with tcp reset") for line in rejected)
    assert all("ip daddr { 10.0.0.1, 10.0.0.2 } tcp dport { 8300, 21990 }" in line for line in rejected)
    assert sum("0x01 " in line for line in rejected) == 4, "with and without timestamps, new and old connections"
    assert script.splitlines()[:3] == ["add table inet t", "delete table inet t", "add table inet t"]


def test_streams_are_cut_by_the_first_byte_and_older_ones_by_a_frame_of_theirs():
    """gRPC's first byte on a new connection; on an older one what yamux, which all others speak, never sends."""
    script = packets.script("t", [cut_streams(["10.0.0.1"])])
    new = [line for line in script.splitlines() if "ct mark 0x68640001" in line and "@th" in line]
    old = [line for line in script.splitlines() if "ct mark 0x0 " in line]
    assert sum(" 0x08 " in line for line in new) == 2, "with and without timestamps"
    assert not [line for line in new if " 0x01 " in line or " 0x04 " in line], "Raft's and RPC's pass"
    assert "@th,160,16 0x0000 @th,176,8 != 0x00" in old[0]
    assert "@th,256,16 0x0000 @th,272,8 != 0x00" in old[1]
    assert all(line.endswith("reject with tcp reset") for line in new + old)
