"""`hashidrill acl` prints policies, and starts nothing."""

import json

import pytest
from typer.testing import CliRunner

from hashidrill.cli.app import app
from hashidrill.errors import UnknownNameError, UsageError


def acl(*arguments):
    return CliRunner().invoke(app, ["acl", *arguments], catch_exceptions=False)


def test_it_prints_the_policy_of_an_experiment_with_who_needs_each_rule():
    said = acl("consul", "raft/slow-leader-disk").stdout
    assert '# for consul.kv.write (kv-writes)\nkey_prefix "hashidrill/kv-writes/" {\n  policy = "write"\n}' in said
    assert '# for interlocks\nkey "hashidrill-interlocks/armed" {\n  policy = "read"\n}' in said
    assert "acl =" not in said, "no snapshot is taken"


def test_an_experiment_that_saves_the_state_needs_more():
    assert 'acl = "write"' in acl("consul", "raft/slow-leader-disk", "state/snapshot-reset").stdout


def test_as_json_it_has_each_right():
    said = json.loads(acl("nomad", "nomad/drain-under-load", "--json").stdout)
    assert {"resource": "node", "name": "", "access": "write", "for": ["nomad.node.drain"]} in said["rights"]
    assert 'node {\n  policy = "write"\n}' in said["policy"]


def test_what_needs_nothing_of_a_product_says_so():
    result = acl("vault", "raft/slow-leader-disk")
    assert result.stdout == ""
    assert "no rights in vault are needed" in result.stderr


def test_a_product_without_policies_is_refused():
    with pytest.raises(UsageError, match="there is no policy language for 'consull': did you mean consul"):
        acl("consull", "raft/slow-leader-disk")
    with pytest.raises(UsageError, match="no policy language for 'sample'"):
        acl("sample", "raft/slow-leader-disk")


def test_an_unknown_experiment_is_refused():
    with pytest.raises((UnknownNameError, UsageError), match="slow-leader-disk"):
        acl("consul", "raft/slow-leader-disc")
