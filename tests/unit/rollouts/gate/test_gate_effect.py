"""A change without effect: what the agents report is the same on both sides, and only that is *no change*."""

import json
from dataclasses import replace

import pytest

from hashidrill.core.probes.agent_reports import alike
from hashidrill.rollouts.gate.playing import Plan, play_all
from hashidrill.rollouts.gate.report import as_junit, as_markdown, as_sarif, as_text, pages, verdict_lines
from hashidrill.rollouts.gate.suite import key_map, picked, suite
from hashidrill.rollouts.gate.verdict import Audited, GateVerdict, Result
from planted_gate import PlantedRuns, differing

LOG = 'log_level = "INFO"'


def debug_config(config):
    """As Consul 1.22.2 reports it, cut short."""
    multiplier = config.get("performance", {}).get("raft_multiplier") or 5
    return {
        "Logging": {"LogLevel": config.get("log_level") or "INFO", "LogJSON": False},
        "ConsulRaftElectionTimeout": f"{multiplier}s",
        "ConsulRaftHeartbeatTimeout": f"{multiplier}s",
        "EncryptKey": "hidden",
        "UIConfig": {"Enabled": True},
    }


@pytest.fixture
def runs(tmp_path):
    planted = PlantedRuns(tmp_path)
    planted.reports = debug_config
    planted.plant = lambda _side, config, run: run.run_info(config={"consul-1": {"log_level": "INFO", **config}})
    return planted


@pytest.fixture
def gate(tmp_path, runs):
    """The result of a gate on these two texts."""

    def play(before, after, versions=(None, None)):
        found = differing(tmp_path, before, after)
        members = suite(["raft/slow-leader-disk", "raft/killed-leader"], "consul")
        chosen = picked(members, "consul", found.keys, key_map(), budget_s=10_000.0, runs=lambda _member: 4)
        ran = play_all(chosen, Plan(found, versions, tmp_path, 10_000.0), runs.means())
        shown = tuple(each or "" for each in versions)
        return Result(("before", "after"), shown, found, Audited(), picked=chosen, ran=tuple(ran))

    return play


class TestNoChange:
    def test_a_default_that_is_written_down_passes_after_one_round(self, gate, runs):
        result = gate("", LOG)
        assert (result.verdict, result.verdict.exit_code) == (GateVerdict.NO_CHANGE, 0)
        assert result.reasons == ["log_level: no change, the agents report INFO on both sides"]
        assert len(runs.played) == 2

    def test_it_is_so_everywhere_it_is_shown(self, gate):
        result = gate("", LOG)
        why = "log_level: no change, the agents report INFO on both sides"
        assert any(line.startswith("NO CHANGE") for line in verdict_lines(result))
        assert json.loads(as_text(result))["verdict"] == "no change"
        assert json.loads(as_text(result))["experiments"][0]["unsure"] == []
        assert json.loads(as_sarif(result))["runs"][0]["properties"] == {"verdict": "no change", "reasons": [why]}
        assert json.loads(as_sarif(result))["runs"][0]["invocations"] == [{"executionSuccessful": True}]
        assert "<error" not in as_junit(result)
        assert "<testcase" in as_junit(result).split(result.ran[0].member.name)[1]
        assert as_markdown(result).startswith("### ✓ no change")
        texts = (as_text(result), as_junit(result), str(pages(result)["report.html"]), "\n".join(verdict_lines(result)))
        assert all(why in text for text in (*texts, as_markdown(result).replace("\\", "")))

    def test_what_the_agent_takes_for_its_default_is_none_either(self, gate):
        assert gate("", "performance { raft_multiplier = 5 }").verdict is GateVerdict.NO_CHANGE

    @pytest.mark.long
    def test_a_key_beside_it_that_has_an_effect_is_measured(self, gate, runs):
        result = gate("performance { raft_multiplier = 3 }", f"{LOG}\nperformance {{ raft_multiplier = 7 }}")
        assert result.verdict is GateVerdict.NO_REGRESSION
        assert result.reasons == ["log_level: no change, the agents report INFO on both sides"]
        assert len(runs.played) >= 6

    def test_what_only_ties_an_agent_to_its_machine_is_no_change(self, gate):
        found = gate('node_name = "a"', 'node_name = "b"')
        assert replace(found, ran=()).verdict is GateVerdict.NO_CHANGE


@pytest.mark.long
class TestLies:
    """What would pass if a gate were careless: in none of these is it known that nothing changes."""

    def test_a_key_that_agents_do_not_report(self, gate, runs):
        runs.reports = lambda config: {"UIConfig": debug_config(config)["UIConfig"]}
        result = gate("", LOG)
        assert result.verdict is GateVerdict.CANNOT_TELL
        assert any("log_level took no effect" in reason for reason in result.reasons)

    def test_a_secret_that_agents_hide(self, gate, runs):
        runs.reports = lambda config: {**debug_config(config), "SharedSecret": "hidden"}
        assert gate(*(f'shared_secret = "swordfish-{n}"' for n in (1, 2))).verdict is not GateVerdict.NO_CHANGE

    def test_an_agent_that_did_not_report(self, gate, runs):
        plant = runs.plant

        def silent(side, config, run):
            plant(side, config, run)
            if side == "candidate":
                run.run_info(reported={})

        runs.plant = silent
        assert gate("", LOG).verdict is GateVerdict.CANNOT_TELL

    def test_another_setting_that_moved_with_the_key(self, gate, runs):
        runs.reports = lambda config: {**debug_config(config), "Other": "log_level" in config}
        assert gate("", LOG).verdict is not GateVerdict.NO_CHANGE

    def test_what_was_asked_for_and_is_not_what_the_agent_runs_with(self, gate, runs):
        runs.reports = lambda _config: debug_config({})
        runs.plant = lambda _side, _config, run: run.run_info(config={"consul-1": {"log_level": "INFO"}})
        assert gate("", 'log_level = "DEBUG"').verdict is GateVerdict.CANNOT_TELL

    def test_a_later_round_that_reports_something_else(self, gate, runs):
        runs.reports = lambda config: {**debug_config(config), "Other": len(runs.played)}
        assert gate("", LOG).verdict is not GateVerdict.NO_CHANGE
        assert len(runs.played) > 2, "it is measured"

    def test_two_versions(self, gate):
        assert gate("", LOG, versions=("1.22.2", "1.10.3")).verdict is not GateVerdict.NO_CHANGE

    def test_a_key_that_no_gate_tests_beside_it(self, gate):
        result = gate("", f'{LOG}\nacl {{ default_policy = "deny" }}')
        assert result.verdict is GateVerdict.CANNOT_TELL
        assert result.reasons[0] == "differs, and no gate tests it: acl.default_policy"
        assert "<error" in as_junit(result)


REPORT = {
    "Logging": {"LogLevel": "INFO"},
    "UIConfig": {"Enabled": True},
    "RPCRateLimit": 1.7976931348623157e308,
    "EncryptKey": "hidden",
    "TLS": {"GRPC": {"KeyFile": "hidden"}},
    "RequestLimitsMode": 0,
}


@pytest.mark.parametrize(
    ("product", "key", "said", "report", "found"),
    [
        ("consul", "log_level", (None, "info"), REPORT, "INFO"),
        ("consul", "Log_Level", (None, "info"), REPORT, "INFO"),
        ("consul", "log_level", (None, "DEBUG"), REPORT, ""),
        ("consul", "audit.enabled", (None, True), REPORT, None),
        ("consul", "limits.request_limits.mode", (None, "disabled"), REPORT, "0"),
        ("consul", "encrypt_key", (None, "swordfish"), REPORT, None),
        ("nomad", "log_level", (None, "INFO"), {"LogLevel": "INFO"}, "INFO"),
        ("nomad", "server.heartbeat_grace", (None, "10s"), {"Server": {"HeartbeatGrace": 10 * 10**9}}, "10000000000"),
        ("nomad", "server.heartbeat_grace", ("20s", "10s"), {"Server": {"HeartbeatGrace": 10 * 10**9}}, ""),
        ("nomad", "consul.token", (None, "x"), {"Consul": {"Token": "<redacted>"}}, None),
        ("vault", "max_lease_ttl", (None, "1h"), {"max_lease_ttl": 3600}, "3600"),
        ("vault", "max_lease_ttl", (None, "2h"), {"max_lease_ttl": 3600}, ""),
        ("vault", "storage.raft.performance_multiplier", (None, 5), {"storage": {"type": "raft"}}, None),
        ("vault", "disable_cache", (None, True), {"disable_cache": 1}, ""),
    ],
)
def test_what_two_agents_that_report_the_same_prove(product, key, said, report, found):
    assert alike(product, key, said, report, report) == found
