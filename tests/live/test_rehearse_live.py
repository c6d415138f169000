"""Every runbook is rehearsed on real clusters: where it has to help, and where it must do nothing.

All of it takes more than an hour, and is of the nightly tier; `-m long` rehearses one.
"""

import json

import pytest

from drills import hashidrill
from hashidrill.gamedays.runbooks.parser import read_runbook
from places import ROOT

RUNBOOKS = sorted((ROOT / "playbooks").glob("runbook-*.md"))
SHORT = ROOT / "playbooks/runbook-slow-leader.md"
WRONG = ROOT / "tests/support/planted/runbook-restart-all.md"
pytestmark = [pytest.mark.timeout(900), pytest.mark.needs("datacenter")]


def every(kind):
    """(file, name) of each that the front matters name."""
    return [
        pytest.param(path, name, id=f"{path.stem}-{name}")
        for path in RUNBOOKS
        for name in getattr(read_runbook(path).front, kind)
    ]


def rehearsed(path, folder, *options):
    """(exit code, what became of its one run)."""
    done = hashidrill("rehearse", path, *options, "--json", "--runs", folder, cwd=ROOT, within_s=800)
    assert done.stdout.startswith("{"), done.stderr
    [drill] = json.loads(done.stdout)["drills"]
    return done.returncode, drill


@pytest.mark.nightly
@pytest.mark.parametrize(("path", "name"), every("experiments"))
def test_a_runbook_helps_where_it_has_to(path, name, tmp_path):
    code, drill = rehearsed(path, tmp_path, "--experiment", name, "--look-alike", "none")
    assert (code, drill["verdict"]) == (0, "PASS"), drill
    assert drill["reached"] == drill["expected"]
    assert drill["acted_s"] is not None


@pytest.mark.nightly
@pytest.mark.parametrize(("path", "name"), every("look_alikes"))
def test_a_runbook_does_nothing_where_it_is_another_illness(path, name, tmp_path):
    code, drill = rehearsed(path, tmp_path, "--experiment", "none", "--look-alike", name)
    assert (code, drill["verdict"]) == (0, "PASS"), drill
    assert drill["acted_s"] is None


@pytest.mark.nightly
def test_the_runbook_for_a_slow_leader_helps(tmp_path):
    code, drill = rehearsed(SHORT, tmp_path, "--look-alike", "none")
    assert (code, drill["verdict"]) == (0, "PASS"), drill
    assert drill["back_s"] is not None


@pytest.mark.nightly
def test_a_runbook_that_restarts_all_servers_is_caught(tmp_path):
    """Planted: it claims an illness that everything has, and turns all servers off and on again."""
    code, drill = rehearsed(WRONG, tmp_path, "--look-alike", "none")
    assert (code, drill["verdict"]) == (1, "FAIL"), drill
    assert any("quorum of consul was lost by hand" in text for text in drill["harm"])
    assert any("a healthy server was restarted" in text for text in drill["harm"])
