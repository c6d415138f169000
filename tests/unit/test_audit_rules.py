"""Each rule finds what it is for, in the right line, and leaves the near miss alone. The near misses are the point."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hashidrill.audit.all_rules import RULES
from hashidrill.audit.run import audit

FIXTURES = Path(__file__).with_name("audit")
ROOT = FIXTURES.parents[2]
FIRING = sorted(path for path in FIXTURES.glob("HD*/fires*"))
NEAR = sorted(path for path in FIXTURES.glob("HD*/near_miss*"))


def shown(path):
    return f"{path.parent.name}-{path.name}"


def found(folder, rule_id):
    return [finding for finding in audit([folder]).findings if finding.rule_id == rule_id]


def marked(folder, rule_id):
    """(file, line) of the lines that a fixture marks as the place of the finding."""
    return {
        (str(path), number)
        for path in folder.rglob("*")
        if path.is_file()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if f"<- {rule_id}" in line
    }


def test_every_rule_has_a_file_that_fires_it_and_a_near_miss():
    assert {path.parent.name for path in FIRING} == set(RULES)
    assert {path.parent.name for path in NEAR} == set(RULES)


@pytest.mark.parametrize("folder", FIRING, ids=shown)
def test_it_fires(folder):
    rule_id = folder.parent.name
    hits = found(folder, rule_id)
    assert hits
    assert all(hit.severity is RULES[rule_id].severity for hit in hits)


@pytest.mark.parametrize("folder", FIRING, ids=shown)
def test_it_fires_where_it_should_and_nowhere_else(folder):
    rule_id = folder.parent.name
    if expected := marked(folder, rule_id):
        assert {(hit.path, hit.place.line) for hit in found(folder, rule_id)} == expected


@pytest.mark.parametrize("folder", NEAR, ids=shown)
def test_the_near_miss_does_not_fire(folder):
    result = audit([folder])
    assert result.files, "the near miss was not even recognised"
    assert not result.problems
    assert [finding for finding in result.findings if finding.rule_id == folder.parent.name] == []


def test_most_findings_are_marked_in_their_fixture():
    """JSON, systemd units and environment files have no comment beside a value."""
    unmarked = {shown(path) for path in FIRING if not marked(path, path.parent.name)}
    assert unmarked == {
        "HD001-fires",
        "HD002-fires",
        "HD105-fires",
        "HD111-fires_json",
        "HD211-fires_json",
        "HD301-fires_json",
        "HD302-fires",
        "HD302-fires_env",
        "HD501-fires",
    }


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.id)
def test_a_rule_says_what_why_and_what_to_do(rule):
    assert all(len(said) > 5 for said in (rule.what, rule.why, rule.fix, rule.source))
    assert rule.link.startswith("https://") or (ROOT / rule.link).is_file()
    assert rule.name == rule.name.lower()


NOT_SHOWN = {
    "HD001": "about the audit's own comments: the fixtures show it",
    "HD002": "about the audit's own comments: the fixtures show it",
    "HD501": "about systemd, which cannot be started beside the one that runs a machine",
}
"""Rules without a live test, and why."""


def test_each_rule_names_the_test_that_showed_it_or_is_known_to_have_none():
    assert {rule.id for rule in RULES.values() if rule.verified is None} == set(NOT_SHOWN)


def shown_by(rule):
    """What the test that showed a rule says of itself; None where there is no such test."""
    path, _, name = rule.verified.partition("::")
    _, found, test = (ROOT / path).read_text().partition(f"def {name}(")
    return test.partition('"""')[2].partition('"""')[0] if found else None


@pytest.mark.parametrize("rule", [rule for rule in RULES.values() if rule.verified], ids=lambda rule: rule.id)
def test_a_verified_claim_names_a_test_that_exists_and_that_names_the_rule(rule):
    assert rule.id in shown_by(rule)


def test_a_test_that_is_gone_or_shows_something_else_would_be_noticed():
    rule = RULES["HD101"]
    assert shown_by(replace(rule, verified=f"{rule.verified}_in_time")) is None
    assert rule.id not in shown_by(RULES["HD102"])
