"""`hashidrill staging acl` prints policies, and starts nothing."""

import json

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from hashidrill.core.errors import UnknownNameError, UsageError
from hashidrill.core.experiment.loader import load_experiment
from hashidrill.faces.cli.app import app


def acl(*arguments):
    return CliRunner().invoke(app, ["staging", "acl", *arguments], catch_exceptions=False)


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


ATTACH = """\
apiVersion: hashidrill/v1
kind: Attach
metadata: {name: staging}
datacenter: {consul: {token_file: not-made-yet.token}, nomad: {namespace: drills}}
interlocks: {lock: {key: teams/sre/lock}}
"""


def test_the_policy_for_a_datacenter_has_what_its_interlocks_and_its_workers_need(tmp_path):
    """Before there is any token: this is what one is made of."""
    path = tmp_path / "staging.yaml"
    path.write_text(ATTACH)
    assert 'key "teams/sre/lock"' in acl("consul", "raft/slow-leader-disk", "--attach", str(path)).stdout
    assert acl("nomad", "raft/slow-leader-disk", "--attach", str(path)).stdout == "", "loads run on this machine"
    path.write_text(ATTACH + "engine: {nomad: {workers: 3}}\n")
    said = acl("nomad", "raft/slow-leader-disk", "--attach", str(path), "--json").stdout
    rights = [(one["resource"], one["name"], one["access"]) for one in json.loads(said)["rights"]]
    for access in ("submit-job", "read-job", "list-jobs", "read-logs"):
        assert ("namespace", "drills", access) in rights
    assert "# for the job of workers" in json.loads(said)["policy"]
    path.write_text(ATTACH + "carriers: {nomad: {}}\n")
    said = json.loads(acl("nomad", "raft/slow-leader-disk", "--attach", str(path), "--json").stdout)
    for access in ("submit-job", "alloc-lifecycle", "alloc-exec", "alloc-node-exec"):
        assert {"resource": "namespace", "name": "drills", "access": access, "for": ["jobs that carry faults"]} in (
            said["rights"]
        )


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


def test_kubernetes_is_a_product_of_faults_of_chaos_mesh(tmp_path):
    path = tmp_path / "pods.yaml"
    path.write_text(
        "apiVersion: hashidrill/v1\nkind: Experiment\nmetadata: {name: pods, title: Pods, why: because}\n"
        "datacenter: {consul: {servers: 3}}\n"
        "load: {kv-writes: {kind: consul.kv.write, rate: 5/s}}\nsteady_state: {require: ['raft.leader >= 0']}\n"
        "method: [{fault: chaos_mesh.pod_failure, on: 'consul:leader', for: 5s}]\n"
        "expect: [{no_acknowledged_write_lost: {load: kv-writes}}]\n"
    )
    said = acl("kubernetes", str(path)).stdout
    assert "# for chaos_mesh.pod_failure" in said
    assert "resources: [podchaos]\n    verbs: [create, delete, get, list]" in said
    assert "no rights in kubernetes are needed" in acl("kubernetes", "raft/slow-leader-disk").stderr


def test_agents_in_pods_need_the_right_to_forward_and_others_do_not(tmp_path):
    said = acl("kubernetes", "kubernetes/consul-leader-pod-killed").stdout
    assert "    resources: [pods/portforward]\n    verbs: [create, get]\n" in said
    assert "# for finding pods, and port forwards to pods without a route" in said
    path = tmp_path / "staging.yaml"
    path.write_text(
        ATTACH.replace("{consul: {token_file: not-made-yet.token}, nomad: {namespace: drills}}", "{consul: {}}")
    )
    assert "portforward" not in acl("kubernetes", "raft/slow-leader-disk", "--attach", str(path)).stdout
    path.write_text(path.read_text().replace("{consul: {}}", "{kubernetes: {context: a, namespace: b, consul: {}}}"))
    assert "portforward" in acl("kubernetes", "raft/slow-leader-disk", "--attach", str(path)).stdout


IN_CLUSTER = """\
apiVersion: hashidrill/v1
kind: Attach
metadata: {name: staging}
datacenter:
  kubernetes: {context: in-cluster, namespace: eu, consul: {token_file: token}}
"""


def test_a_job_runs_the_experiment_in_the_cluster_with_the_same_rights(tmp_path):
    path = tmp_path / "in-cluster.yaml"
    path.write_text(IN_CLUSTER)
    asked = ("kubernetes", "kubernetes/consul-leader-pod-killed", "--attach", str(path))
    said = acl(*asked, "--job", "registry.example/hashidrill:1").stdout
    assert said.startswith(acl(*asked).stdout)
    found = {one["kind"]: one for one in YAML(typ="safe", pure=True).load_all(said)}
    assert {*found} == {
        *("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"),
        *("ServiceAccount", "ConfigMap", "Job"),
    }
    [bound] = found["RoleBinding"]["subjects"]
    assert bound == {"kind": "ServiceAccount", "name": "hashidrill", "namespace": "eu"}
    assert found["RoleBinding"]["roleRef"]["name"] == found["Role"]["metadata"]["name"]
    files = found["ConfigMap"]["data"]
    assert files["attach.yaml"] == IN_CLUSTER
    (tmp_path / "again.yaml").write_text(files["consul-leader-pod-killed.yaml"])
    assert load_experiment(tmp_path / "again.yaml").metadata.name == "consul-leader-pod-killed"
    pod = found["Job"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == found["ServiceAccount"]["metadata"]["name"]
    [container] = pod["containers"]
    assert container["args"][:2] == ["run", "/etc/hashidrill/consul-leader-pod-killed.yaml"]
    assert found["Job"]["spec"]["backoffLimit"] == 0


@pytest.mark.parametrize("text", [IN_CLUSTER.replace("in-cluster", "staging"), ATTACH])
def test_a_job_needs_a_file_for_a_pod_of_that_cluster(text, tmp_path):
    path = tmp_path / "in-cluster.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"with `context: in-cluster` under datacenter\.kubernetes of FILE"):
        acl("kubernetes", "kubernetes/consul-leader-pod-killed", "--attach", str(path), "--job", "x")
