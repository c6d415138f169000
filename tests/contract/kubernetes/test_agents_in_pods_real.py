"""A datacenter whose agents are pods, found through a real API server, with a real Consul at their addresses.

No kubelet runs them: what it would say is written by hand. So no fault is put in here.
"""

from __future__ import annotations

import pytest

from hashidrill.lab.provision.products import KUBERNETES_VERSIONS
from sandboxed_cases import CONSUL, played

VERSIONS = {name: version for name, version in dict(KUBERNETES_VERSIONS).items() if name in {"etcd", "kube-apiserver"}}
pytestmark = [
    pytest.mark.live,
    pytest.mark.kubernetes,
    pytest.mark.needs("datacenter", f"consul {CONSUL}", *(f"{name} {version}" for name, version in VERSIONS.items())),
]
SERVERS = ["consul-1", "consul-2", "consul-3"]


@pytest.fixture(scope="module")
def cases(binary, tmp_path_factory, tell):
    """One sandbox with all of it, every case one after the other."""
    log = tmp_path_factory.mktemp("pods") / "log"
    return played("real_agents_in_pods.py", binary=binary, versions=VERSIONS, log=log, tell=tell)


def test_each_server_is_the_pod_that_has_its_address_and_the_leader_is_one_of_them(cases):
    line = cases["servers_are_found_by_their_labels"]
    assert line["said"] == line["expected"]
    assert sorted(line["said"]) == SERVERS
    assert line["leader"][0] == line["leader"][1] in SERVERS
    assert line["troubles"] == []


def test_the_experiments_on_pods_are_planned_and_doctor_says_that_they_can_run(cases):
    line = cases["experiments_on_pods_are_planned"]
    faults = {name.removeprefix("kubernetes/"): planned for name, planned in line["planned"].items()}
    kinds = {
        "consul-leader-pod-killed": "chaos_mesh.pod_kill",
        "consul-server-partitioned": "chaos_mesh.network.partition",
        "consul-io-latency": "chaos_mesh.io.latency",
        "node-drain-with-quorum": "litmus.node_drain",
        "clock-skew-on-leader": "chaos_mesh.time",
    }
    assert faults == {name: [[kind, SERVERS]] for name, kind in kinds.items()}
    assert sorted(line["can"]) == sorted(line["planned"])


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("context", "Context 'sandbx' not found; datacenter.kubernetes.context: did you mean sandbox"),
        ("namespace", 'cannot list resource "pods" in API group "" in the namespace "consull"'),
        (
            "labels",
            "no pod in namespace consul of context sandbox has the labels app=hashi; `kubectl --context",
        ),
        ("unready", "1 of its 3 pods is not ready: consul-server-1 (Running)"),
        ("mixed", "it does not know other-server-0, which have app=consul,component=server"),
        ("elsewhere", "which are not pods with app=consul,component=server in namespace consul of context sandbox"),
    ],
)
def test_what_is_wrong_is_one_message(cases, what, said):
    assert said in cases["what_is_wrong_is_told"][what]


def test_a_pod_of_another_application_is_no_server_though_it_has_the_name_of_one(cases):
    line = cases["a_pod_that_has_the_name_of_a_host_means_nothing"]
    assert line["said"] == "pod consul-server-0 in consul"
    assert line["troubles"] == []


def test_the_right_to_list_pods_is_needed_and_no_other(cases):
    line = cases["without_its_role_nothing_is_seen"]
    assert "datacenter.kubernetes.consul" in line["told"]
    assert 'cannot list resource "pods"' in line["told"]
