"""Alerts on a real datacenter with a real Prometheus: experiments pass, and a rule that sleeps is found."""

import re
import shlex

import pytest

from drills import Drill, hashidrill
from hashidrill.core.recording.reader import Recording
from hashidrill.products.prometheus.service import rules_file
from library_runs import LIBRARY, needs_of_experiment
from places import ROOT

OURS = sorted(name for name in LIBRARY if name.startswith("alerts/"))
FIRST = "alerts/slow-commits"
SLO = "alerts/slo-slow-follower"
pytestmark = [pytest.mark.live, pytest.mark.prometheus, pytest.mark.needs(*needs_of_experiment(FIRST))]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.needs(*needs_of_experiment(name))) for name in OURS]
)
def test_an_experiment_about_alerts_passes(name, tmp_path):
    drill = Drill(name, tmp_path, cwd=ROOT, within_s=400)
    assert (drill.exit_code, drill.result["verdict"], drill.result["outcome"]) == (0, "PASS", "complete"), drill.said
    assert all(window.proven and window.gone_ns is not None for window in Recording(drill.recording).faults)
    assert "`ConsulCommitsSlow`" in (drill.recording / "summary.md").read_text()


def changed(path, name, old, new):
    """A shipped experiment with another text in one place."""
    text = LIBRARY[name].read_text().replace("../bases/", f"{ROOT}/experiments/bases/")
    text = text.replace("slo: slo-", f"slo: {ROOT}/experiments/alerts/slo-")
    assert text.count(old) == 1, old
    path.write_text(text.replace(old, new))
    return path


@pytest.mark.lie
def test_a_rule_that_never_fires_fails_the_experiment(tmp_path):
    rules = tmp_path / "rules.yml"
    rules.write_text(rules_file("alerts/rules.yml").read_text().replace("} > 300", "} > 300000"))
    mine = changed(
        tmp_path / "asleep.yaml", FIRST, "method:\n", f"datacenter: {{prometheus: {{rules: {rules}}}}}\nmethod:\n"
    )
    drill = Drill(mine, tmp_path / "runs", within_s=240)
    assert (drill.exit_code, drill.result["verdict"]) == (1, "FAIL"), drill.said
    broken = [each["text"] for each in drill.result["expectations"] if each["finding"] == "broken"]
    assert len(broken) == 2
    assert all("it never fired" in text for text in broken)


@pytest.mark.lie
@pytest.mark.needs(*needs_of_experiment("alerts/alertmanager"))
def test_an_alertmanager_that_is_cut_off_is_not_quiet(tmp_path):
    """Prometheus ends while the leader's disk is slow: Alertmanager has no alert then, and no watchdog either."""
    method = 'method:\n  - {fault: process.kill, on: "host:prometheus-1", for: 30s}\n'
    mine = changed(tmp_path / "cut-off.yaml", "alerts/alertmanager", "method:\n", method)
    drill = Drill(mine, tmp_path / "runs", within_s=240)
    assert (drill.exit_code, drill.result["verdict"]) == (3, "INVALID"), drill.said
    said = " ".join(each["text"] for each in drill.result["expectations"])
    assert "Watchdog should always fire but does not" in said


@pytest.mark.lie
def test_a_slow_leader_burns_what_a_slow_follower_does_not(tmp_path):
    mine = changed(tmp_path / "burnt.yaml", SLO, "consul:one-follower", "consul:leader")
    drill = Drill(mine, tmp_path / "runs", within_s=240)
    assert (drill.exit_code, drill.result["verdict"]) == (1, "FAIL"), drill.said


@pytest.mark.lie
def test_a_series_of_another_name_breaks_the_contract(tmp_path):
    mine = changed(tmp_path / "renamed.yaml", "alerts/series-exist", "consul_kvs_apply{", "consul_kvs_applied{")
    drill = Drill(mine, tmp_path / "runs", within_s=240)
    assert (drill.exit_code, drill.result["verdict"]) == (1, "FAIL"), drill.said
    assert "missing: consul_kvs_applied" in " ".join(each["text"] for each in drill.result["expectations"])


def test_the_commands_of_the_page_work_in_its_order(tmp_path):
    """All but the one that takes a staging datacenter."""
    page = (ROOT / "playbooks/your-own-evidence.md").read_text()
    [section] = re.findall(r"^## Does the alert fire in time\?\n(.*?)(?=^## )", page, re.MULTILINE | re.DOTALL)
    commands = [line for block in re.findall(r"```sh\n(.*?)```", section, re.DOTALL) for line in block.splitlines()]
    assert len(commands) >= 4
    for command in commands:
        if "--attach" not in command:
            done = hashidrill(*shlex.split(command, comments=True)[1:], cwd=tmp_path, within_s=240)
            assert done.returncode == 0, (command, done.stderr)
