"""A folder with the configuration of several agents: each is compared with its own, or the user says which."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hashidrill.clients.audit.audited import Audited
from hashidrill.clients.audit.sources import collect
from hashidrill.core.errors import UsageError
from hashidrill.core.experiment.library import find_experiment
from hashidrill.core.experiment.loader import resolve
from hashidrill.faces.cli.app import app
from hashidrill.rollouts.bisect.candidates import ChangedKeys
from hashidrill.rollouts.gate.configuration import configurations, sides, sources_of
from hashidrill.rollouts.gate.differences import differences_of
from hashidrill.rollouts.gate.playing import Plan, sides_of
from hashidrill.rollouts.gate.suite import suite

SERVER = 'data_dir = "/opt/consul"\nserver = true\nperformance {{ raft_multiplier = {} }}'
CLIENT = 'data_dir = "/opt/consul"\nserver = false\nlimits {{ rpc_rate = {} }}'


def folder(path: Path, **files: str) -> Path:
    path.mkdir()
    for name, text in files.items():
        (path / f"{name}.hcl").write_text(text)
    return path


@pytest.fixture
def two(tmp_path):
    """Two folders, each with a server and a client."""
    return tuple(
        folder(tmp_path / name, client=CLIENT.format(rate), server=SERVER.format(multiplier))
        for name, rate, multiplier in (("a", 100, 1), ("b", 10, 5))
    )


def compared(before, after, **more):
    one, other = sides(sources_of([before]), sources_of([after]), **more)
    return differences_of({role: (config, other.configs[role]) for role, config in one.configs.items()})


class TestAServerAndAClient:
    def test_each_is_compared_with_its_own(self, two):
        found = compared(*two)
        assert [str(change) for change in found.changes] == [
            "limits.rpc_rate of clients: 100 -> 10",
            "performance.raft_multiplier of servers: 1 -> 5",
        ]
        assert found.untested == [], "server = true in the one is no change of the other"

    def test_each_gets_its_own_configuration_in_an_experiment(self, two, tmp_path):
        [member] = suite(["raft/killed-leader"], "consul")
        plan = Plan(compared(*two), (None, None), tmp_path, 1.0)
        for side, rate, multiplier in zip(sides_of(member, plan), (100, 10), (1, 5), strict=True):
            consul = side.resolved.experiment.datacenter.services["consul"]
            assert consul.client_config["limits"] == {"rpc_rate": rate}
            assert consul.server_config["performance"] == {"raft_multiplier": multiplier}
            assert "limits" not in {**consul.config, **consul.server_config}

    def test_a_role_chooses_one(self, two):
        assert [str(change) for change in compared(*two, role="server").changes] == [
            "performance.raft_multiplier: 1 -> 5"
        ]

    def test_a_file_that_neither_heads_is_a_part_of_each(self, two):
        (two[1] / "zz-log.hcl").write_text('log_level = "WARN"')
        named = [change.named for change in compared(*two).changes]
        assert [name for name in named if "log_level" in name] == ["log_level of clients", "log_level of servers"]

    def test_gate_and_audit_read_the_same_agents(self, two):
        (two[0] / "common.hcl").write_text('log_level = "WARN"')
        by_gate = [
            [source.path.name for source in each.sources] for each in configurations("consul", sources_of([two[0]]))
        ]
        audited = Audited(tuple(collect([two[0]]).documents)).consul_agents
        assert by_gate == [[Path(each.path).name for each in agent.documents] for agent in audited]
        assert len(by_gate) == 2

    def test_nomads_are_told_by_the_block_that_is_enabled(self, tmp_path):
        texts = {role: f'data_dir = "/d"\n{role} {{ enabled = true }}' for role in ("server", "client")}
        before = folder(tmp_path / "a", **texts)
        after = folder(tmp_path / "b", **texts | {"client": texts["client"] + "\nlimits { rpc_handshake_timeout = 5 }"})
        [change] = compared(before, after).changes
        assert change.named == "limits.rpc_handshake_timeout of clients"


class TestWhatCannotBeTold:
    def test_two_servers_end_it(self, tmp_path):
        before = folder(tmp_path / "a", one=SERVER.format(1), two=SERVER.format(1))
        with pytest.raises(
            UsageError, match=r"one.hcl and \S*two.hcl are 2 agents, because each sets data_dir"
        ) as said:
            compared(before, before)
        assert "name the files of one agent" in str(said.value)

    def test_of_two_servers_and_a_client_a_role_can_choose(self, tmp_path):
        before = folder(tmp_path / "a", c=CLIENT.format(1), one=SERVER.format(1), two=SERVER.format(1))
        with pytest.raises(UsageError, match="choose one with --role client, or name"):
            compared(before, before)
        assert compared(before, before, role="client").changes == ()

    def test_an_agent_that_only_one_side_has_ends_it(self, two):
        (two[0] / "client.hcl").unlink()
        with pytest.raises(UsageError, match=r"the baseline has agents that are server, and the candidate .*--role"):
            compared(*two)
        assert len(compared(*two, role="server").changes) == 1

    def test_a_search_for_the_change_to_blame_takes_one_agent(self, two):
        given = resolve(find_experiment("raft/killed-leader"))
        with pytest.raises(UsageError, match=r"are 2 agents.*name the files of one agent"):
            ChangedKeys.of(given, [two[0]], [two[1]], product=None, refusal=lambda _product: lambda *_: "")


def test_the_command_says_whose_keys_differ(two, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hashidrill.faces.cli.gate._ask_agents", lambda *_words, **_more: None)
    done = CliRunner().invoke(app, ["gate", "--baseline", "a", "--candidate", "b", "--dry-run", "--json"])
    assert done.exit_code == 0, done.output
    assert [(each["key"], each["role"]) for each in json.loads(done.stdout)["changes"]] == [
        ("limits.rpc_rate", "client"),
        ("performance.raft_multiplier", "server"),
    ]
