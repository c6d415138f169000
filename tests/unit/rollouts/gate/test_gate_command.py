"""What a gate is called with: its experiments, whose configuration is compared, and one message for each mistake."""

import json
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hashidrill.clients.audit.audited import Audited
from hashidrill.clients.audit.sources import collect
from hashidrill.core.errors import UnknownNameError, UsageError
from hashidrill.core.experiment.library import find_experiment
from hashidrill.core.experiment.loader import load_experiment, resolve
from hashidrill.faces.cli.app import app
from hashidrill.rollouts.bisect.candidates import ChangedKeys
from hashidrill.rollouts.gate.configuration import PRODUCTS, configurations, shipped, sides, sources_of
from hashidrill.rollouts.gate.differences import differences_of, why_left_out
from hashidrill.rollouts.gate.playing import Plan, sides_of
from hashidrill.rollouts.gate.suite import TAG, key_map, picked, suite
from hashidrill.rollouts.gate.verdict import GateVerdict


def one(_member):
    return 1


def four(_member):
    return 4


@cache
def members(product="consul"):
    return tuple(suite([TAG], product))


def names(found):
    return [member.name for member in found]


class TestTheMapThatShips:
    @pytest.mark.lie
    @pytest.mark.parametrize("product", PRODUCTS)
    def test_it_names_only_experiments_of_the_suite_that_have_the_product(self, product):
        for group in shipped("keys.yaml")[product]:
            assert group["why"]
            assert set(group["experiments"]) <= set(names(members(product)))

    @pytest.mark.parametrize("product", PRODUCTS)
    def test_it_names_no_key_that_is_left_out_and_none_twice(self, product):
        keys = [key for group in shipped("keys.yaml")[product] for key in group["keys"]]
        assert len(keys) == len(set(keys))
        assert [key for key in keys if why_left_out(product, key)] == []

    @pytest.mark.parametrize("product", PRODUCTS)
    def test_each_experiment_of_the_suite_matters_for_something_and_is_short(self, product):
        mapped = {name for group in shipped("keys.yaml")[product] for name in group["experiments"]}
        assert mapped == set(names(members(product)))
        assert all(member.run_s <= 80 for member in members(product))


class TestTheSuite:
    def test_a_tag_stands_for_all_that_have_it_and_a_name_for_itself(self):
        assert "raft/killed-leader" in names(members())
        assert names(suite(["raft/killed-leader", "raft/frozen-leader", "killed-leader"], "consul")) == [
            "raft/killed-leader",
            "raft/frozen-leader",
        ]

    def test_experiments_without_the_product_are_not_in_it(self):
        assert "raft/killed-leader" not in names(members("nomad"))
        with pytest.raises(UsageError, match="has no Nomad"):
            suite(["raft/killed-leader"], "nomad")

    def test_a_suite_without_an_experiment_is_refused(self):
        with pytest.raises(UsageError, match="no experiment in it has Vault"):
            suite(["locks"], "vault")

    def test_what_is_neither_a_name_nor_a_tag_has_near_ones_of_both(self):
        with pytest.raises(UnknownNameError, match=r"killed-leader.*it is not a tag either"):
            suite(["raft/killed-leadr"], "consul")


class TestTheBudget:
    def test_what_matters_for_the_changed_keys_goes_first_and_says_why(self):
        found = picked(members(), "consul", ["use_streaming_backend"], key_map(), budget_s=600, runs=four)
        assert names(found.members)[:1] == ["config/rollout-year-end"]
        assert found.members[0].mattering == ("use_streaming_backend",)
        assert "streams" in found.members[0].why
        assert found.left
        assert sum(4 * member.run_s for member in found.members) <= 600

    def test_one_experiment_is_run_however_short_the_time(self):
        found = picked(members(), "consul", ["performance.raft_multiplier"], key_map(), budget_s=1, runs=four)
        assert names(found.members) == ["raft/killed-leader"]

    def test_all_of_the_suite_is_run_where_there_is_time(self):
        found = picked(members(), "consul", [], key_map(), budget_s=1e6, runs=four)
        assert sorted(names(found.members)) == sorted(names(members()))
        assert found.left == ()

    def test_a_key_that_nothing_is_known_of_is_told(self):
        found = picked(members(), "consul", ["raft_multipliers"], key_map(), budget_s=600, runs=four)
        assert found.unmapped == ("raft_multipliers",)

    def test_a_key_stands_for_all_below_it_and_for_no_longer_name(self):
        found = picked(members(), "consul", ["limits.request_limits.mode", "limitsx"], key_map(), budget_s=1, runs=one)
        assert found.unmapped == ("limitsx",)
        assert names(found.members) == ["raft/slow-leader-disk-brief"]


class TestAMapOfOnesOwn:
    def test_it_goes_before_the_one_that_ships(self, tmp_path):
        file = tmp_path / "map.yaml"
        file.write_text("consul: [{keys: [limits], experiments: [raft/frozen-leader], why: ours}]")
        found = picked(members(), "consul", ["limits.rpc_rate"], key_map(file), budget_s=1, runs=one)
        assert names(found.members) == ["raft/frozen-leader"]
        assert found.members[0].why == "ours"

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("consol: []", "the top-level keys are consul, nomad, vault"),
            ("consul: [{keys: [a]}]", "consul, group 1: a group has only `keys`, `experiments`"),
            ("consul: [{keys: a, experiments: []}]", "`keys` must be a list of names"),
            (
                "consul: [{keys: [a], experiments: [raft/kiled-leader]}]",
                "group 1: there is no experiment.*killed-leader",
            ),
            ("a: [", "is not YAML"),
        ],
    )
    def test_what_is_wrong_with_it_is_said(self, tmp_path, text, said):
        file = tmp_path / "map.yaml"
        file.write_text(text)
        with pytest.raises(UsageError, match=said):
            key_map(file)


def test_the_two_days_of_the_rollout_differ_by_half_as_many_routing_nodes_again():
    moderate, year_end = (
        load_experiment(find_experiment(f"config/rollout-{day}")).datacenter.consul for day in ("moderate", "year-end")
    )
    assert year_end.clients == 1.5 * moderate.clients
    assert moderate.version == year_end.version == "1.10.3"


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
            UsageError, match=r"one.hcl and \S*two.hcl belong to 2 agents, because each sets data_dir"
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
        with pytest.raises(UsageError, match=r"the baseline's agents are server, the candidate's .*--role"):
            compared(*two)
        assert len(compared(*two, role="server").changes) == 1

    def test_a_search_for_the_change_to_blame_takes_one_agent(self, two):
        given = resolve(find_experiment("raft/killed-leader"))
        with pytest.raises(UsageError, match=r"belong to 2 agents.*name the files of one agent"):
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


@pytest.fixture
def gate(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.hcl").write_text("use_streaming_backend = false")
    (tmp_path / "b.hcl").write_text("use_streaming_backend = true")
    (tmp_path / "broken.hcl").write_text("limits {")

    def started(*_words, **_more):
        raise AssertionError("something was started")

    monkeypatch.setattr("hashidrill.faces.cli.gate.play_all", started)
    monkeypatch.setattr("hashidrill.faces.cli.gate.check_taken", started)
    monkeypatch.setattr("hashidrill.faces.cli.gate.calibrate", started)
    return lambda *words: CliRunner().invoke(app, ["gate", *words])


BOTH = ["--baseline", "a.hcl", "--candidate", "b.hcl"]


@pytest.mark.lie
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "nothing to compare"),
        (["--candidate", "b.hcl"], "--candidate needs --baseline"),
        (["--candidate-version", "1.22.2"], "--candidate-version needs --baseline-version"),
        (["--baseline", "a.hcl", "--git", "a..b"], "--git names both sides"),
        (["--baseline", "a.hcl", "--path", "x"], "use it with --git"),
        (["--baseline", "a.hcl"], "--baseline needs --candidate"),
        (["--baseline-version", "1.22.2"], "--baseline-version needs --candidate-version"),
        (["--baseline", "none.hcl", "--candidate", "a.hcl"], "none.hcl: there is no such file or directory"),
        (["--baseline", "a.hcl", "--candidate", "broken.hcl"], "broken.hcl:1:9: a } is missing"),
        (["--baseline", "a.hcl", "--candidate", "b.hcl", "--product", "consl"], "there is no product 'consl'"),
        (["--baseline", "a.hcl", "--candidate", "b.hcl", "--suite", "nothing"], "it is not a tag either"),
        (["--baseline", "a.hcl", "--candidate", "b.hcl", "--suite", "retry/vault-503"], "has no Consul"),
        (["--baseline", "a.hcl", "--candidate", "b.hcl", "--time-budget", "10"], "--time-budget: "),
        (["--baseline", "a.hcl", "--candidate", "b.hcl", "--role", "leaders"], "Consul has all, server, client"),
        (["--baseline", "a.hcl", "--candidate", "b.hcl", "--margin", "x=much"], "write it like"),
        (["--baseline", "a.hcl", "--candidate", "b.hcl", "--margin", "cpu=-200%"], "write it like"),
        (["--baseline", "a.hcl", "--candidate", "b.hcl", "--margin", "cpu=nan"], "write it like"),
        (["--baseline", "a.hcl", "--candidate", "b.hcl", "--margin", "kv-write.latency.p50=5%"], "has this figure"),
        (["--baseline", "a.hcl", "--candidate", "b.hcl", "--key-map", "none.yaml"], "none.yaml: cannot be read"),
        (["--calibrate", "--suite", "nothing"], "it is not a tag either"),
        (["--calibrate", "--baseline", "a.hcl", "--candidate", "b.hcl"], "against itself: leave out --baseline"),
        (["--baseline", "a.hcl", "--candidate", "b.hcl", "--time-budget", "0s"], "too short to run anything"),
        ([*BOTH, "--time-budget", "20s"], "--time-budget 20s: one round of config/rollout-year-end, which"),
        ([*BOTH, "--time-budget", "20s", "--dry-run"], "s or more; an answer usually takes about"),
        (["--calibrate", "--dry-run"], "against itself: leave out --dry-run"),
        (["--calibrate", "--candidate-version", "1.10.3"], "against itself: leave out --candidate-version"),
    ],
)
def test_each_mistake_has_one_message(gate, words, said):
    done = gate(*words)
    assert done.exception.exit_code == 2, done.output
    assert said in str(done.exception)


@pytest.mark.lie
@pytest.mark.parametrize(
    ("suite", "version"), [("raft/killed-leader", "1.22.2"), ("config/rollout-year-end", "1.10.3")]
)
def test_the_version_that_both_sides_will_run_is_in_the_first_line_and_in_the_document(
    gate, monkeypatch, suite, version
):
    monkeypatch.setattr("hashidrill.faces.cli.gate._ask_agents", lambda *_words, **_more: None)
    done = gate(*BOTH, "--suite", suite, "--dry-run", "--json")
    assert f"Consul {version}: a.hcl against b.hcl" in done.output
    assert [side["version"] for side in json.loads(done.stdout)["sides"].values()] == [version, version]


def test_the_schema_of_its_document_is_printed(gate):
    done = gate("--schema")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["title"] == "hashidrill gate"


@pytest.mark.parametrize(("words", "code"), [([], 3), (["neutral"], 3), (["pass"], 0), (["fail"], 1)])
def test_what_a_gate_that_cannot_tell_ends_with_is_a_choice(gate, monkeypatch, words, code):
    monkeypatch.setattr("hashidrill.faces.cli.gate._ask_agents", lambda *_words, **_more: None)
    monkeypatch.setattr("hashidrill.faces.cli.gate.play_all", lambda *_words, **_more: [])  # nothing ran
    how = [part for word in words for part in ("--on-cannot-tell", word)]
    done = gate("--baseline", "a.hcl", "--candidate", "b.hcl", *how)
    assert "CANNOT TELL" in done.output
    assert done.exit_code == code


@pytest.mark.lie
def test_a_regression_is_none_that_could_pass(gate, monkeypatch):
    """Planted: a choice of exit code that is used for every verdict."""
    monkeypatch.setattr("hashidrill.faces.cli.gate._ask_agents", lambda *_words, **_more: None)
    monkeypatch.setattr("hashidrill.rollouts.gate.verdict.Result.tested", GateVerdict.REGRESSION)
    monkeypatch.setattr("hashidrill.faces.cli.gate.play_all", lambda *_words, **_more: [])
    assert gate("--baseline", "a.hcl", "--candidate", "b.hcl", "--on-cannot-tell", "pass").exit_code == 1
