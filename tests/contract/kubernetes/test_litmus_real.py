"""Faults of Litmus on a real Consul, behind a real API server with RBAC and with Litmus's own definitions.

Its operator and its experiments are stand-ins of ours (tests/support/litmus_operator.py): there are no nodes.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from hashidrill.lab.provision.build import find_go
from hashidrill.lab.provision.products import KUBERNETES_VERSIONS
from sandboxed_cases import CONSUL, played

VERSIONS = {name: version for name, version in KUBERNETES_VERSIONS if name in {"etcd", "kube-apiserver"}}
MODULE = "github.com/litmuschaos/chaos-operator"
VERSION, SUM = "v0.0.0-20230718113617-6819a4be12e4", "h1:GVU1jK8Gb9OaYuU3iDyU/FE3uZYmBwAEB95VY41SYJ8="
pytestmark = [
    pytest.mark.live,
    pytest.mark.kubernetes,
    pytest.mark.needs(
        "datacenter", f"consul {CONSUL}", "go", *(f"{name} {version}" for name, version in VERSIONS.items())
    ),
]


@pytest.fixture(scope="module")
def definitions():
    """The CustomResourceDefinitions of Litmus: the module of its operator has them. By that very hash."""
    said = subprocess.run(
        [str(find_go().path), "mod", "download", "-json", f"{MODULE}@{VERSION}"],
        env=os.environ | {"GONOSUMDB": MODULE, "GOFLAGS": "-mod=mod"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    found = json.loads(said.stdout)
    assert found["Sum"] == SUM
    return Path(found["Dir"]) / "deploy/crds"


@pytest.fixture(scope="module")
def cases(binary, definitions, tmp_path_factory, tell):
    """One sandbox with all of it, every case one after the other."""
    log = tmp_path_factory.mktemp("litmus") / "log"
    return played("real_litmus.py", definitions, binary=binary, versions=VERSIONS, log=log, tell=tell)


def test_faults_keep_their_contract_and_leave_nothing(cases):
    reports = cases["keeps_its_contract"]["reports"]
    assert len(reports) == 4
    for report in reports.values():
        assert report["present"]["ok"]
        assert report["gone"]["ok"]
        assert "its ChaosResult says" in report["present"]["figures"]["litmus"] or report["present"]["ok"]
        assert report["left"] == []


def test_a_pass_of_a_hundred_without_a_probe_proves_nothing(cases):
    line = cases["a_pass_of_a_hundred_without_an_effect_is_none"]
    assert not line["ok"]
    assert "Completed, Pass of 100 without a single probe, which says nothing (history: injected)" in line["measured"]
    assert line["left"] == []


def test_an_operator_that_is_away_is_told(cases):
    line = cases["an_operator_that_is_away_is_told"]
    assert not line["ok"]
    assert "no operator has started on it: is chaos-operator running" in line["measured"]
    assert line["left"] == []


def test_a_typo_in_an_engine_is_kept_by_a_real_server_and_refused_by_us(cases):
    line = cases["a_typo_is_kept_by_the_server_and_refused_by_us"]
    assert line["status"] == 201
    assert line["kept"]
    assert (
        "spec.chaosServiceAcount: the cluster's definition does not have it, and nothing would read it" in line["told"]
    )


def test_what_is_exported_is_taken_by_the_real_definitions(cases):
    line = cases["what_is_exported_is_taken"]
    assert line["refused"] == {}
    assert {"pod-delete", "pod-network-latency", "pod-network-loss", "pod-network-rate-limit"} <= set(line["taken"])


def test_a_stuck_finalizer_is_told_and_what_is_advised_ends_it(cases):
    line = cases["a_stuck_finalizer_is_told_and_the_way_out_works"]
    assert '"finalizers":null' in line["told"]
    assert line["gone"]
    assert line["left"] == []


def test_what_is_left_is_found_by_its_labels_and_gone(cases):
    line = cases["what_is_left_is_found_by_its_labels"]
    assert line["found"] == [["ChaosEngine", "run-1"]]
    assert line["gone"]
    assert line["left"] == []


def test_without_each_rule_of_its_role_it_is_refused(cases):
    told = cases["without_a_rule_it_is_refused"]["told"]
    assert len(told) == 11
    assert all("`hashidrill staging acl kubernetes EXPERIMENT` prints the role" in why for why in told.values())
