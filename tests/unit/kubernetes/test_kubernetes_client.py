"""The API server: errors that say what to do, calls that end, kubeconfigs that are read as kubectl reads them."""

import base64
import datetime as dt
import json

import anyio
import pytest
import trustme

from fake_kubernetes import FakeKubernetes
from hashidrill.core.errors import AttachError
from hashidrill.kubernetes.client import ClusterError, cluster_of
from hashidrill.kubernetes.objects import dropped, problems
from hashidrill.staging.attach.target import KubernetesPart, kubernetes_of
from virtual_time import run

KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: staging
clusters:
  - {name: one, cluster: {server: "https://10.0.0.1:6443"}}
  - {name: two, cluster: {server: "https://prod.example:6443"}}
contexts:
  - {name: staging, context: {cluster: one, user: me, namespace: consul}}
  - {name: production, context: {cluster: two, user: me}}
  - {name: nobody, context: {cluster: one}}
users:
  - {name: me, user: {token: secret-token}}
"""


@pytest.fixture
def kubeconfig(tmp_path):
    path = tmp_path / "config"
    path.write_text(KUBECONFIG)
    return path


def settings(path, **others):
    return {"kubeconfig": str(path), "context": None, "namespace": None, **others}


def test_a_context_decides_server_and_namespace(kubeconfig):
    one = cluster_of(settings(kubeconfig))
    assert (one.server, one.namespace, one.context) == ("https://10.0.0.1:6443", "consul", "staging")
    two = cluster_of(settings(kubeconfig, context="production", namespace="vault"))
    assert (two.server, two.namespace) == ("https://prod.example:6443", "vault")
    assert two.kubectl("get pods") == "kubectl --context production -n vault get pods"


@pytest.mark.parametrize(
    ("text", "context", "why"),
    [
        (KUBECONFIG, "stagign", "Context 'stagign' not found"),
        (KUBECONFIG, "nobody", "the context nobody names no user to log in as"),
        ("kind: Config\n", None, "it lacks 'clusters'"),
        ("[1, 2", None, "not a kubeconfig"),
        ("just text", None, "not a kubeconfig"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_told(tmp_path, text, context, why):
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(AttachError, match=why):
        cluster_of(settings(path, context=context))
    with pytest.raises(AttachError, match="not found"):
        cluster_of(settings(tmp_path / "absent"))


def test_without_a_kubeconfig_and_outside_of_a_pod_it_says_what_to_name(monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(AttachError, match=r"our own pod: .*name a `kubeconfig` under services\.kubernetes"):
        cluster_of(settings(""))


def test_the_file_decides_then_the_variable_then_the_usual_place(tmp_path, kubeconfig, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    attach, environ = tmp_path / "staging.yaml", {"KUBECONFIG": f"{kubeconfig}:/elsewhere"}
    part = KubernetesPart()
    assert kubernetes_of(None, attach, environ) == {}
    assert kubernetes_of(part, attach, {})["kubeconfig"] == ""
    assert kubernetes_of(part, attach, environ)["kubeconfig"] == str(kubeconfig)
    assert kubernetes_of(KubernetesPart(kubeconfig="other"), attach, environ)["kubeconfig"] == str(tmp_path / "other")
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube/config").write_text(KUBECONFIG)
    usual = kubernetes_of(part, attach, {})
    assert (usual["context"], usual["namespace"], usual["server"]) == ("staging", "consul", "https://10.0.0.1:6443")


def asked(kubernetes, what):
    return run(what(kubernetes.cluster()))


def test_a_server_that_is_silent_ends_the_call_at_its_limit():
    kubernetes = FakeKubernetes()
    kubernetes.silent_s = 10_000.0
    with pytest.raises(ClusterError, match="list Pod: no answer within 10s") as error:
        asked(kubernetes, lambda cluster: cluster.listed("v1", "Pod"))
    assert error.value.status == 0


@pytest.mark.parametrize(
    ("status", "why"),
    [(403, r"hashidrill staging acl kubernetes EXPERIMENT"), (500, "is forbidden"), (429, "is forbidden")],
)
def test_what_the_server_refuses_is_told_with_what_helps(status, why):
    kubernetes = FakeKubernetes()
    kubernetes.refuses["GET", "pods"] = status
    with pytest.raises(ClusterError, match=why) as error:
        asked(kubernetes, lambda cluster: cluster.listed("v1", "Pod"))
    assert error.value.status == status


@pytest.mark.lie
@pytest.mark.parametrize(
    ("busy", "takes_s"),
    [(["1"], 1.0), (["3", "2"], 5.0), ([None], 1.0), (["Wed, 21 Oct"], 1.0), (["0"], 1.0), ([], 0.0)],
)
async def test_a_server_that_is_too_busy_is_asked_again_when_it_says_to(busy, takes_s):
    kubernetes = FakeKubernetes()
    kubernetes.busy = list(busy)
    cluster, began_s = kubernetes.cluster(), anyio.current_time()
    found = await cluster.listed("v1", "Pod")
    took_s = anyio.current_time() - began_s
    assert found == []
    assert took_s == pytest.approx(takes_s, abs=0.01)
    assert [asked[1] for asked in kubernetes.asked] == ["busy"] * len(busy) + ["pods"]


@pytest.mark.parametrize(("busy", "waited_s"), [(["1"] * 100, 15), (["600"], 0)])
def test_a_server_that_stays_too_busy_ends_the_call_and_says_for_how_long(busy, waited_s):
    kubernetes = FakeKubernetes()
    kubernetes.busy = busy
    with pytest.raises(ClusterError, match=rf"HTTP 429; it said so for {waited_s}s, and to wait \d+s more") as error:
        asked(kubernetes, lambda cluster: cluster.listed("v1", "Pod"))
    assert error.value.status == 429


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (
            'pods "x" is forbidden: unable to create new content in namespace consul because it is being terminated',
            "the namespace is being deleted",
        ),
        ('admission webhook "vpod.kb.io" denied the request: spec: no', "denied the request: spec: no"),
    ],
)
def test_what_is_forbidden_for_another_reason_than_a_role_does_not_send_anybody_for_a_role(said, why):
    kubernetes = FakeKubernetes()
    kubernetes.refuses["GET", "pods"] = 403
    kubernetes.says = said
    with pytest.raises(ClusterError, match=why) as error:
        asked(kubernetes, lambda cluster: cluster.listed("v1", "Pod"))
    assert "acl kubernetes" not in str(error.value)


def test_who_is_not_known_is_told_to_log_in_again():
    kubernetes = FakeKubernetes()
    kubernetes.token = "another"
    with pytest.raises(ClusterError, match=r"log in again with `kubectl --context staging -n consul get pods`"):
        asked(kubernetes, lambda cluster: cluster.listed("v1", "Pod"))


@pytest.mark.parametrize(
    ("ended", "said"), [(True, "client certificate expired on 2026-01-02 03:04 UTC;"), (False, "")]
)
def test_who_is_not_known_any_more_hears_that_the_client_certificate_expired(ended, said, tmp_path):
    kubernetes = FakeKubernetes()
    kubernetes.token = "only this one"
    ends = dt.datetime(2026 if ended else 2999, 1, 2, 3, 4, tzinfo=dt.UTC)
    leaf = trustme.CA().issue_cert("me", not_before=dt.datetime(2025, 1, 1, tzinfo=dt.UTC), not_after=ends)
    pems = {
        "client-certificate-data": leaf.cert_chain_pems[0].bytes(),
        "client-key-data": leaf.private_key_pem.bytes(),
    }
    user = {name: base64.b64encode(pem).decode() for name, pem in pems.items()}
    path = tmp_path / "kube"
    path.write_text(
        json.dumps(
            {
                "current-context": "here",
                "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "consul"}}],
                "clusters": [{"name": "c", "cluster": {"server": "https://api.example:6443"}}],
                "users": [{"name": "u", "user": user}],
            }
        )
    )
    cluster = cluster_of({"kubeconfig": str(path)}, transport=kubernetes.transport())
    with pytest.raises(ClusterError, match="log in again with `kubectl --context here") as error:
        run(cluster.listed("v1", "Pod"))
    assert said in str(error.value)
    assert ("expired" in str(error.value)) is ended


def test_an_object_that_is_not_there_is_none_and_its_deletion_no_error():
    kubernetes = FakeKubernetes()
    assert asked(kubernetes, lambda cluster: cluster.get("chaos-mesh.org/v1alpha1", "PodChaos", "x")) is None
    assert asked(kubernetes, lambda cluster: cluster.delete("chaos-mesh.org/v1alpha1", "PodChaos", "x")) is False
    assert asked(kubernetes, lambda cluster: cluster.definition("nothing", "chaos-mesh.org")) is None


SCHEMA = {
    "type": "object",
    "required": ["mode"],
    "properties": {
        "mode": {"type": "string", "enum": ["one", "all"]},
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
        "deep": {"type": "object", "properties": {"names": {"type": "array", "items": {"type": "string"}}}},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "either": {"x-kubernetes-int-or-string": True},
    },
}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"mode": "one", "labels": {"a": "b"}, "free": {"x": [1]}, "either": "5%", "count": 3}, []),
        ({}, ["spec.mode: is missing"]),
        ({"mode": "al"}, ["spec.mode: 'al' is not an allowed value: did you mean all?"]),
        ({"mode": "one", "count": "3"}, ["spec.count: expected an integer, got '3'"]),
        ({"mode": "one", "count": True}, ["spec.count: expected an integer, got True"]),
        ({"mode": "one", "count": 0}, ["spec.count: must be at least 1, got 0"]),
        ({"mode": "one", "count": 10}, ["spec.count: must be at most 9, got 10"]),
        ({"mode": "one", "labels": {"a": 1}}, ["spec.labels.a: expected a string, got 1"]),
        ({"mode": "one", "either": {}}, ["spec.either: expected a number or a text, got {}"]),
        ({"mode": "one", "deep": {"names": ["a", 1]}}, ["spec.deep.names[1]: expected a string, got 1"]),
        (
            {"mode": "one", "deep": {"nmaes": []}},
            ["spec.deep.nmaes: the cluster's definition does not have it, and would drop it: did you mean names?"],
        ),
        ([], ["spec: expected an object, got []"]),
    ],
)
def test_a_spec_is_checked_more_strictly_than_the_server_does(value, told):
    assert list(problems(value, SCHEMA)) == told


def test_what_the_server_dropped_is_found_wherever_it_was():
    sent = {"a": 1, "b": {"c": [{"d": 1, "e": 2}]}}
    assert list(dropped(sent, {"a": 1, "b": {"c": [{"d": 1}]}, "more": 1})) == ["spec.b.c[0].e"]
    assert list(dropped(sent, {"a": 1})) == ["spec.b"]
    assert list(dropped(sent, sent)) == []
