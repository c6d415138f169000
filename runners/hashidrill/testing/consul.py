"""Consul's HTTP API in memory, for tests of faults: the part that the built-in faults and observers use.

The hosts' processes and rules decide which server leads: a leader that ends or is cut off is replaced, a server
whose votes are cut is never elected, and without a majority there is no leader.
"""

import base64
import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from hashidrill.core.protocols.abc import ApiAnswer
from hashidrill.testing.snapshots import FakeKv

_RPC_PORT = 8300
_SHOWN: dict[tuple[str, ...], tuple[tuple[str, ...], Any]] = {
    ("log_level",): (("Logging", "LogLevel"), "INFO"),
    ("raft_snapshot_threshold",): (("RaftSnapshotThreshold",), 16384),
    ("raft_trailing_logs",): (("RaftTrailingLogs",), 10240),
    ("raft_snapshot_interval",): (("RaftSnapshotInterval",), "30s"),
    ("use_streaming_backend",): (("UseStreamingBackend",), True),
    ("rpc", "enable_streaming"): (("RPCConfig", "EnableStreaming"), True),
    ("limits", "http_max_conns_per_client"): (("HTTPMaxConnsPerClient",), 200),
    ("limits", "rpc_max_burst"): (("RPCMaxBurst",), 1000),
}
"""Keys of the configuration, where DebugConfig shows them, and their defaults."""
_NOT_SHOWN = {"node_meta", "server", "bootstrap_expect", "node_name", "telemetry", "leave_on_terminate"}
_LATE_SELF = (1, 16, 2)
"""Before this version, an agent shows the configuration that it started with, even after a reload."""
_TRANSFERS = (1, 15, 0)
_MOST_OPERATIONS = 64


class Machine(Protocol):
    """The part of an agent's host that this API reads; FakeHost provides it."""

    name: str
    address: str
    config: Any
    process: Any
    world: Any

    @property
    def role(self) -> str: ...

    def votes_cut(self, address: str) -> bool: ...


class FakeConsul:
    """One datacenter's Consul: what all agents know (KV, sessions, leader), and what each was started with."""

    def __init__(self, hosts: Mapping[str, Machine], version: str = "1.22.2") -> None:
        self._hosts = hosts
        self.version = version
        self.kv = FakeKv()
        self.sessions: dict[str, dict[str, Any]] = {}
        self.term = 2
        self.encrypted = False
        self.commit_index = 20
        self.behind: dict[str, Callable[[], int]] = {}
        """The log entries that each host's server has not applied yet."""
        self.voters = [host.name for host in hosts.values() if host.role == "server"]
        self.meta: dict[str, dict[str, str]] = {}
        """Node meta, by host."""
        self._left: set[str] = set()
        self._members = {host.name for host in hosts.values() if host.role != "spare"}
        self._leader: str | None = next(iter(hosts), None)
        self._started: dict[str, dict[str, Any]] = {}
        self._read: dict[str, dict[str, Any]] = {}
        self._made = 0
        for host in hosts.values():
            host.config = {"node_name": host.name, "server": host.role != "client"}
            if host.role == "server":
                host.config["bootstrap_expect"] = len(self.voters)
            self._started[host.name] = self._read[host.name] = copy.deepcopy(host.config)

    # who leads

    @property
    def leader(self) -> str | None:
        """The leader's host name. None removes the leader until one is set again."""
        if self._leader and not self._can_lead(self._leader):
            self._elect([name for name in self.voters if self._can_be_elected(name)])
        return self._leader

    @leader.setter
    def leader(self, name: str | None) -> None:
        self._leader = name

    def _elect(self, candidates: list[str]) -> None:
        self.term += 1
        self._leader = next(iter(candidates), None)

    def _can_lead(self, name: str) -> bool:
        others = [voter for voter in self.voters if voter != name and self._runs(voter)]
        reached = [voter for voter in others if not self._cut_off(name, voter) and not self._cut_off(voter, name)]
        return name in self.voters and self._runs(name) and 2 * (len(reached) + 1) > len(self.voters)

    def _can_be_elected(self, name: str) -> bool:
        return self._can_lead(name) and not any(
            self._hosts[name].votes_cut(self._hosts[voter].address) for voter in self.voters if voter != name
        )

    def _cut_off(self, name: str, other: str) -> bool:
        one, two = self._hosts[name], self._hosts[other]
        return any(rule.share == 1 for rule in one.world.rules_between(one, two.address, _RPC_PORT))

    def _runs(self, name: str) -> bool:
        process = self._hosts[name].process
        return process is not None and process.state != "T"

    # agents that come and go

    def started(self, host: Machine) -> None:
        """A host's agent was started: it reads its file and joins, a server as a voter."""
        self._started[host.name] = self._read[host.name] = copy.deepcopy(host.config)
        self._left.discard(host.name)
        self._members.add(host.name)
        if host.config.get("server") and host.name not in self.voters:
            self.voters.append(host.name)
        if self._leader is None:
            self._elect([name for name in self.voters if self._can_be_elected(name)])

    def stopped(self, host: Machine) -> None:
        """A host's agent ended on SIGTERM: a client agent then leaves, and so does a server that is configured to."""
        config = self._started[host.name]
        if config.get("leave_on_terminate", not config.get("server")):
            self._leave(host)

    def _leave(self, host: Machine) -> None:
        self._left.add(host.name)
        if host.name in self.voters:
            self.voters.remove(host.name)

    def make_session(self, node: str, name: str, *keys: str) -> str:
        self._made += 1
        session = f"{self._made:08d}-0000-0000-0000-000000000000"
        self.sessions[session] = {"ID": session, "Name": name, "Node": node}
        for key in keys:
            self.kv.answer("PUT", f"/v1/kv/{key}", {}, b"")
            self.kv.entries[key] = replace(self.kv.entries[key], session=session)
        return session

    # the API

    def answer(self, host: Machine, method: str, path: str, params: Mapping[str, str], body: bytes) -> ApiAnswer:
        for (verb, start), reply in self._routes().items():
            here = method == verb and (path == start or (start.endswith("/") and path.startswith(start)))
            if here and (said := reply(host, path.removeprefix(start), params, body)) is not None:
                return said
        if (answer := self.kv.answer(method, path, params, body)) is not None:
            return answer
        return ApiAnswer(404, b"no such path in the fake")

    def _routes(self) -> dict[tuple[str, str], Callable[..., ApiAnswer | None]]:
        return {
            ("GET", "/v1/status/leader"): lambda *_: answered(self._address(self.leader)),
            ("GET", "/v1/agent/self"): lambda host, *_: answered(self._about(host)),
            ("GET", "/v1/agent/members"): lambda *_: answered([self._member(name) for name in sorted(self._members)]),
            ("GET", "/v1/catalog/nodes"): lambda *_: answered(
                [
                    {"Node": name, "Address": self._hosts[name].address, "Meta": self.meta.get(name, {})}
                    for name in sorted(self._members)
                ]
            ),
            ("GET", "/v1/catalog/services"): lambda *_: answered({"consul": []}),
            ("GET", "/v1/status/peers"): lambda *_: answered([self._address(name) for name in self.voters]),
            ("GET", "/v1/operator/raft/configuration"): lambda *_: answered(
                {"Servers": [self._peer(name) for name in self.voters]}
            ),
            ("GET", "/v1/health/service/"): lambda host, *_: self._health(host),
            ("GET", "/v1/session/list"): lambda *_: answered(list(self.sessions.values())),
            ("GET", "/v1/session/node/"): lambda _host, node, *_: answered(
                [one for one in self.sessions.values() if one["Node"] == node]
            ),
            ("GET", "/v1/kv/"): self._keys,
            ("PUT", "/v1/kv/"): self._hold,
            ("PUT", "/v1/agent/reload"): lambda host, *_: self._reload(host),
            ("PUT", "/v1/agent/leave"): lambda host, *_: self._asked_to_leave(host),
            ("PUT", "/v1/session/create"): lambda host, _path, _params, body: answered(
                {"ID": self.make_session(host.name, json.loads(body)["Name"])}
            ),
            ("PUT", "/v1/session/renew/"): lambda _host, session, *_: (
                answered([self.sessions[session]]) if session in self.sessions else ApiAnswer(404, b"not found")
            ),
            ("PUT", "/v1/session/destroy/"): lambda _host, session, *_: self._destroy(session),
            ("PUT", "/v1/txn"): lambda _host, _path, _params, body: self._transaction(json.loads(body)),
            ("POST", "/v1/operator/raft/transfer-leader"): lambda _host, _path, params, _body: self._transfer(params),
        }

    def _address(self, name: str | None) -> str:
        return f"{self._hosts[name].address}:{_RPC_PORT}" if name else ""

    def _state(self, name: str) -> int:
        if self._runs(name):
            return 1
        return 3 if name in self._left else 4

    def _member(self, name: str) -> dict[str, Any]:
        role = "consul" if self._hosts[name].role in ("server", "spare") else "node"
        tags = {"role": role, "dc": "drill", "build": f"{self.version}:fake"}
        return {"Name": name, "Status": self._state(name), "Addr": self._hosts[name].address, "Tags": tags}

    def _peer(self, name: str) -> dict[str, Any]:
        return {
            "ID": f"id-of-{name}",
            "Node": name,
            "Address": self._address(name),
            "Voter": True,
            "Leader": name == self.leader,
        }

    def _about(self, host: Machine) -> dict[str, Any]:
        shows = self._read if self._is_at_least(_LATE_SELF) else self._started
        state = "Leader" if host.name == self.leader else "Follower"
        behind = self.behind.get(host.name, lambda: 0)()
        raft = {
            "state": state,
            "term": str(self.term),
            "commit_index": str(self.commit_index),
            "applied_index": str(self.commit_index - behind),
        }
        return {
            "Config": {"Version": self.version, "NodeName": host.name},
            "DebugConfig": {
                **_debug_config(shows[host.name]),
                "TLS": {"InternalRPC": {"VerifyOutgoing": self.encrypted}},
            },
            "Stats": {"raft": raft} if host.config.get("server") else {},
            "Meta": dict(self._read[host.name].get("node_meta", {})),
        }

    def _is_at_least(self, version: tuple[int, ...]) -> bool:
        return tuple(map(int, self.version.split("."))) >= version

    def _health(self, host: Machine) -> ApiAnswer:
        streams = self._started[host.name].get("use_streaming_backend", True)
        return ApiAnswer(200, b"[]", {"x-consul-query-backend": "streaming" if streams else "blocking-query"})

    def _reload(self, host: Machine) -> ApiAnswer:
        known = {path[0] for path in _SHOWN} | _NOT_SHOWN
        if unknown := sorted(host.config.keys() - known):
            return ApiAnswer(500, f"failed to parse the configuration: invalid config key {unknown[0]}".encode())
        self._read[host.name] = copy.deepcopy(host.config)
        return ApiAnswer(200, b"")

    def _asked_to_leave(self, host: Machine) -> ApiAnswer:
        self._leave(host)
        host.process = None
        return ApiAnswer(200, b"")

    def _transfer(self, params: Mapping[str, str]) -> ApiAnswer | None:
        if not self._is_at_least(_TRANSFERS):
            return None
        wanted = [name for name in self.voters if params.get("id", f"id-of-{name}") == f"id-of-{name}"]
        able = [name for name in wanted if name != self.leader and self._can_be_elected(name)]
        if not able:
            return ApiAnswer(500, b"cannot find a server to transfer leadership to")
        self._elect(able)
        return answered({"Success": True})

    def _destroy(self, session: str) -> ApiAnswer:
        self.sessions.pop(session, None)
        for key, entry in self.kv.entries.items():
            if entry.session == session:
                self.kv.entries[key] = replace(entry, session="")
        return answered(value=True)

    def _hold(self, _host: Machine, key: str, params: Mapping[str, str], body: bytes) -> ApiAnswer | None:
        """`?acquire` and `?release`; None for a plain write."""
        session = params.get("acquire", params.get("release"))
        if session is None:
            return None
        there = self.kv.entries.get(key)
        held = there.session if there else ""
        if session not in self.sessions or (held != session if "release" in params else held not in ("", session)):
            return answered(value=False)
        self.kv.answer("PUT", f"/v1/kv/{key}", {}, body)
        self.kv.entries[key] = replace(self.kv.entries[key], session=session if "acquire" in params else "")
        return answered(value=True)

    def _keys(self, _host: Machine, prefix: str, params: Mapping[str, str], _body: bytes) -> ApiAnswer | None:
        if "keys" not in params:
            return None
        keys = sorted(key for key in self.kv.entries if key.startswith(prefix))
        return answered(keys) if keys else ApiAnswer(404, b"")

    def _transaction(self, operations: list[dict[str, Any]]) -> ApiAnswer:
        if len(operations) > _MOST_OPERATIONS:
            return ApiAnswer(413, b"Transaction contains too many operations")
        for each in operations:
            value = base64.b64decode(each["KV"]["Value"])
            self.kv.answer("PUT", f"/v1/kv/{each['KV']['Key']}", {}, value)
        return answered({"Results": [], "Errors": None})


def _debug_config(config: Mapping[str, Any]) -> dict[str, Any]:
    debug: dict[str, Any] = {}
    for path, (names, default) in _SHOWN.items():
        value: Any = config
        for key in path:
            value = value.get(key, {}) if isinstance(value, Mapping) else {}
        below = debug
        for name in names[:-1]:
            below = below.setdefault(name, {})
        below[names[-1]] = default if value == {} else value
    return debug


def answered(value: Any, status: int = 200, **headers: str) -> ApiAnswer:
    return ApiAnswer(status, json.dumps(value).encode(), headers)
