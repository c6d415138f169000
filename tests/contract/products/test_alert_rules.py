"""The shipped alerting rules under promtool: each fires on what it is for, and on nothing that looks alike."""

import shutil
import subprocess

import pytest

from hashidrill.products.prometheus.service import rules_file
from places import TESTS

pytestmark = [pytest.mark.prometheus, pytest.mark.needs("promtool")]


@pytest.fixture
def tested(binary, tmp_path):
    """Runs promtool over rules in which one text is replaced: its exit code, and what it says."""

    def run(old="", new=""):
        rules = rules_file("alerts/rules.yml").read_text()
        assert old in rules
        (tmp_path / "rules.yml").write_text(rules.replace(old, new, 1) if old else rules)
        shutil.copyfile(TESTS / "support/alert_rules.yml", tmp_path / "test.yml")
        command = [binary("promtool").path, "test", "rules", "test.yml"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    return run


def test_each_rule_fires_on_what_it_is_for_and_stays_quiet_otherwise(tested):
    code, said = tested()
    assert code == 0, said


@pytest.mark.lie
@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        (
            'consul_raft_commitTime{quantile="0.9"} > 300',
            'consul_raft_commitTime{quantile="0.9"} > 3000',
            "ConsulCommits",
        ),
        ('consul_raft_commitTime{quantile="0.9"}', "consul_raft_commitTime", "ConsulCommits"),
        ("unless count(consul_server_isLeader == 1)", "unless count(consul_server_isLeader)", "ConsulNoLeader"),
        ("[2m])) > 1.5", "[2m])) > 0.5", "ConsulLeaderFlaps"),
        ('up{job=~"consul|nomad|vault"} == 0', "up == 0", "AgentUnseen"),
        ('absent_over_time(up{job=~"consul|nomad|vault"}[30s])', "absent_over_time(up[30s])", "TelemetryBlind"),
        (
            'absent_over_time(up{job=~"consul|nomad|vault"}[30s])',
            'absent(up{job=~"consul|nomad|vault"})',
            "TelemetryBlind",
        ),
        ("vault_core_unsealed == 0 or", "vault_core_unsealed == 1 or", "VaultSealed"),
        (" unless on (instance) vault_core_unsealed", "", "VaultSealed"),
    ],
)
def test_a_rule_that_is_wrong_is_found(tested, old, new, named):
    code, said = tested(old, new)
    assert code != 0
    assert named in said
