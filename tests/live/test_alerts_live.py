"""Alerts on a real datacenter with a real Prometheus: experiments pass, and a rule that sleeps is found."""

from __future__ import annotations

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
pytestmark = [pytest.mark.live, pytest.mark.prometheus, pytest.mark.needs(*needs_of_experiment(FIRST))]


@pytest.mark.parametrize("name", OURS)
def test_an_experiment_about_alerts_passes(name, tmp_path):
    drill = Drill(name, tmp_path, cwd=ROOT, within_s=240)
    assert (drill.exit_code, drill.result["verdict"], drill.result["outcome"]) == (0, "PASS", "complete"), drill.said
    assert all(window.proven and window.gone_ns is not None for window in Recording(drill.recording).faults)
    assert "| `ConsulCommitsSlow` |" in (drill.recording / "summary.md").read_text()


@pytest.mark.lie
def test_a_rule_that_never_fires_fails_the_experiment(tmp_path):
    rules, mine = tmp_path / "rules.yml", tmp_path / "asleep.yaml"
    rules.write_text(rules_file("alerts/rules.yml").read_text().replace("} > 300", "} > 300000"))
    text = LIBRARY[FIRST].read_text().replace("../bases/", f"{ROOT}/experiments/bases/")
    mine.write_text(f"{text}datacenter: {{prometheus: {{rules: {rules}}}}}\n")
    drill = Drill(mine, tmp_path / "runs", within_s=240)
    assert (drill.exit_code, drill.result["verdict"]) == (1, "FAIL"), drill.said
    broken = [each["text"] for each in drill.result["expectations"] if each["finding"] == "broken"]
    assert len(broken) == 2
    assert all("it never fired" in text for text in broken)


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
