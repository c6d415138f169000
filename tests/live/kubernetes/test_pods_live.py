"""The experiments on pods, run as a user runs them, against Consul in the pods of a real node with a real Chaos Mesh.

This machine has no route to the pods: agents are reached by forwards. What a forward does not see is run once more in
the network of the node.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess

import pytest

from docs_pages import Page
from kubernetes import consul
from kubernetes.drill import ATTACH, HASHIDRILL, PARTITION, SKEWED, proven
from kubernetes.node import kubeconfig

pytestmark = [
    pytest.mark.live,
    pytest.mark.kubernetes,
    pytest.mark.needs("kubernetes-node", "consul 1.22.2"),
]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (PARTITION, "it could not be proven: its agent is reached by a forward"),
        ("consul-io-latency", "`lacks` of the attach file says that no IOChaos can be injected there"),
        ("node-drain-with-quorum", "`drain` of the attach file does not say that nodes may be drained"),
    ],
)
def test_a_fault_that_cannot_be_there_is_refused_before_anything_is_touched(drill, name, said):
    done = drill.run(name, drill.forwarded)
    assert done.returncode == 2
    assert said in " ".join((done.stdout + done.stderr).split())
    assert drill.left() == []
    told = drill.cli("doctor", "--attach", str(drill.forwarded)).stdout
    [line] = [each for each in told.splitlines() if each.startswith(f"  kubernetes/{name}: ")]
    assert said in line


def test_a_node_with_every_server_is_not_drained_though_the_file_allows_it(drill):
    file = drill.file("drain.yaml", drill.node.kubeconfig, more="drain: true, ")
    told = drill.run("node-drain-with-quorum", file)
    assert told.returncode == 2
    assert "the node node-1 also runs consul-server-" in " ".join((told.stdout + told.stderr).split())
    assert drill.node.get("node", "node-1")["spec"].get("unschedulable") is None


def test_the_role_that_acl_prints_is_enough_and_without_forwards_one_message_says_so(drill):
    """With RBAC of the real API server, which asks for `get` or for both."""
    said = drill.cli("staging", "acl", "kubernetes", "kubernetes/consul-leader-pod-killed", check=True).stdout
    node, namespace = drill.node, drill.pods.namespace
    node.kubectl("-n", namespace, "create", "serviceaccount", "drill")
    token = node.kubectl("-n", namespace, "create", "token", "drill").strip()
    node.kubectl(
        "-n", namespace, "create", "rolebinding", "drill", "--role=hashidrill", f"--serviceaccount={namespace}:drill"
    )
    node.kubectl(
        "create", "clusterrolebinding", "drill", "--clusterrole=hashidrill", f"--serviceaccount={namespace}:drill"
    )
    server = json.loads(node.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    login = drill.folder / "role"
    login.write_text(kubeconfig(server, node.authority.cert_pem.bytes().decode(), token))
    file = drill.file("role.yaml", login)
    without = said.replace("[pods/portforward]", "[pods/log]")
    node.kubectl("-n", namespace, "apply", "-f", "-", stdin=without)
    refused = drill.cli("doctor", "--attach", str(file))
    assert refused.returncode == 2
    assert "HTTP 403: our role lacks get or create on pods/portforward" in refused.stderr
    node.kubectl("-n", namespace, "apply", "-f", "-", stdin=said)
    assert "kubernetes/consul-leader-pod-killed" in drill.cli("doctor", "--attach", str(file), check=True).stdout


def test_the_job_that_acl_prints_is_admitted_by_the_api_server(drill):
    file = drill.folder / "in-cluster.yaml"
    file.write_text(drill.forwarded.read_text().replace("context: node-1", "context: in-cluster"))
    name = "kubernetes/consul-leader-pod-killed"
    printed = drill.cli(
        "staging", "acl", "kubernetes", name, "--attach", str(file), "--job", "x/hashidrill:1", check=True
    )
    apply = ("-n", drill.pods.namespace, "apply", "--dry-run=server", "--validate=strict", "-f", "-")
    said = drill.node.kubectl(*apply, stdin=printed.stdout)
    assert said.count("(server dry run)") == 7
    assert "job.batch/hashidrill created (server dry run)" in said


def test_tls_acls_and_gossip_encryption_are_reached_over_forwards_by_the_certificate_of_the_chart(drill, binary):
    pods = consul.install(drill.node, binary("consul", "1.22.2").path, namespace="secure", secure=True)
    (drill.folder / "ca.pem").write_bytes(pods.authority.cert_pem.bytes())
    (drill.folder / "token").write_text(pods.token)
    said = {"kubeconfig": drill.node.kubeconfig, "namespace": "secure", "more": ""}
    file = drill.folder / "secure.yaml"
    file.write_text(ATTACH.format(**said, consul="{ca_file: ca.pem, token_file: token}"))
    told = drill.cli("doctor", "--attach", str(file), check=True).stdout
    assert "consul 1.22.2 at https://10.22.0." in told
    assert "does not answer" not in told
    file.write_text(ATTACH.format(**said, consul="{token_file: token}"))
    refused = drill.cli("doctor", "--attach", str(file))
    assert refused.returncode == 2
    assert "its certificate is not accepted" in refused.stderr
    consul.remove(drill.node, "secure")


def test_a_skewed_clock_is_proven_over_forwards_and_does_not_end_its_run(drill):
    told = proven(drill.run(SKEWED, drill.forwarded))
    assert "no consul answers from here at http://10.22.0." in told
    assert "forwarded through https://127.0.0.1:" in told
    assert "tries again" not in told, "no forward broke"
    assert drill.left() == []


def test_a_partitioned_server_is_proven_where_pods_are_routed_to(drill):
    at = drill.node.kubectl(
        "-n", "consul", "exec", "consul-server-0", "--", "/bin/consul", "operator", "raft", "list-peers"
    )
    [leader] = [line.split() for line in at.splitlines() if " leader " in line]
    address = f"http://{leader[2].rpartition(':')[0]}:8500"
    # interlocks ask one agent: the partition must not hit that one
    file = drill.file("leader.yaml", drill.node.inside, consul=f'{{address: "{address}"}}')
    told = proven(drill.run(PARTITION, file, within=drill.within))
    assert "forwarded" not in told
    assert drill.left() == []


def pods_of(drill):
    items = drill.node.get("-n", drill.pods.namespace, "pods", "-l", "app=consul")["items"]
    return {one["metadata"]["name"]: (one["metadata"]["uid"], one["status"].get("podIP")) for one in items}


def test_the_playbook_leads_to_a_verdict_and_the_killed_pod_comes_back_by_its_name(drill, tmp_path):
    """Each command that it says a test runs, in its order, with the node's context."""
    page = Page.read("playbooks/kubernetes.md")
    [file] = page.fences("yaml")
    (tmp_path / "staging.yaml").write_text(file.replace("context: kind-drill", "context: node-1"))
    first, second = page.fences("sh")
    (tmp_path / "in-cluster.yaml").write_text(file.replace("context: kind-drill", "context: in-cluster"))
    commands = [*first.splitlines(), *second.replace("IMAGE", "x/hashidrill:1").splitlines()]
    said = []
    before = pods_of(drill)
    for command in commands:
        environment = {**os.environ, "KUBECONFIG": str(drill.node.kubeconfig), "NO_COLOR": "1"}
        words = [HASHIDRILL, *shlex.split(command)[1:]]
        done = subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        if "--plan" in command:
            assert "consul-leader-pod-killed in drill would touch, in this order:" in done.stdout
        else:
            assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        said.append(done.stdout + done.stderr)
    assert "PASS" in said[3]
    assert "kind: Job" in said[-1]
    told, after = said[3], pods_of(drill)
    assert ": proven in force" in told
    assert ": proven gone" in told
    [killed] = [name for name in after if after[name][0] != before[name][0]]
    assert after[killed][1] != before[killed][1]
    assert f"pod {killed} came back at {after[killed][1]} (before: {before[killed][1]}), and the forwards to it" in told
    claims = drill.node.get("-n", drill.pods.namespace, "persistentvolumeclaims")["items"]
    assert {one["status"]["phase"] for one in claims} == {"Bound"}
