"""Litmus on the node: its operator, its experiments and helpers, and a runner of our own, which no registry has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hashidrill.kubernetes.vocabulary import LITMUS
from hashidrill.lab.provision import binaries
from kubernetes import builds, images
from kubernetes.images import Image
from kubernetes.init import CONTAINERD
from kubernetes.node import Node

NAMESPACE, ACCOUNT = "litmus", "litmus-admin"
_TOXIPROXY = "2.12.0"

_RUNNER = """\
#!/bin/sh
# What Litmus's runner does: for each experiment of the engine a Job, and what became of it into the engine's status.
set -eu
trap 'exit 0' TERM
asked() { kubectl -n "$CHAOS_NAMESPACE" "$@"; }
uid=$(asked get chaosengine "$CHAOSENGINE" -o 'jsonpath={.metadata.uid}')
for name in $(echo "$EXPERIMENT_LIST" | tr , ' '); do
  job=$name-$(date +%s)
  told() {
    asked patch chaosengine "$CHAOSENGINE" --type merge -p "{\\"status\\":{\\"experiments\\":[{\\"name\\":\\"$name\\",
      \\"runner\\":\\"$CHAOSENGINE-runner\\",\\"experimentPod\\":\\"$job\\",\\"status\\":\\"$1\\",\\"verdict\\":\\"$2\\",
      \\"probeSuccessPercentage\\":\\"$3\\",\\"lastUpdateTime\\":\\"$(date -u +%Y-%m-%dT%H:%M:%SZ)\\"}]}}"
  }
  told Waiting Awaited Awaited
  cat > /tmp/job <<END
apiVersion: batch/v1
kind: Job
metadata: {name: $job, labels: {name: $name, chaosUID: $uid}}
spec:
  backoffLimit: 0
  template:
    metadata: {labels: {name: $name, chaosUID: $uid}}
    spec:
      serviceAccountName: $CHAOS_SVC_ACC
      restartPolicy: Never
{{range (index .items 1).spec.experiments}}{{range \\$key, \\$value := .spec.components.nodeSelector -}}
      {{"      "}}nodeSelector: { {{printf "%q: %q" \\$key \\$value}} }
{{end}}{{end}}      containers:
      - name: $job
        image: {{(index .items 0).spec.definition.image}}
        imagePullPolicy: IfNotPresent
        command: [{{range (index .items 0).spec.definition.command}}{{printf "%q" .}}, {{end}}]
        args: [{{range (index .items 0).spec.definition.args}}{{printf "%q" .}}, {{end}}]
        env:
{{range (index .items 0).spec.definition.env}}        - {name: {{.name}}, value: {{printf "%q" (or .value "")}}}
{{end}}{{range (index .items 1).spec.experiments}}{{if eq .name "$name"}}{{range .spec.components.env -}}
        {{"        "}}- {name: {{.name}}, value: {{printf "%q" (or .value "")}}}
{{end}}{{end}}{{end}}        - {name: CHAOSENGINE, value: $CHAOSENGINE}
        - {name: EXPERIMENT_NAME, value: $name}
        - {name: CHAOS_UID, value: $uid}
        - {name: CHAOS_NAMESPACE, value: $CHAOS_NAMESPACE}
        - {name: CHAOS_SERVICE_ACCOUNT, value: $CHAOS_SVC_ACC}
        - {name: TARGETS, value: "${TARGETS-}"}
        - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
END
  asked get "chaosexperiment/$name" "chaosengine/$CHAOSENGINE" -o go-template-file=/tmp/job > /tmp/job.yaml
  asked create -f /tmp/job.yaml
  told Running Awaited Awaited
  ended=
  until [ -n "$ended" ]; do
    sleep 1
    ended=$(asked get job "$job" -o 'jsonpath={.status.succeeded}{.status.failed}') || exit 0  # stopped by the operator
  done
  result() { asked get chaosresult "$CHAOSENGINE-$name" -o "jsonpath={.status.experimentStatus.$1}"; }
  told Completed "$(result verdict)" "$(result probeSuccessPercentage)"
  policy=$(asked get chaosengine "$CHAOSENGINE" -o 'jsonpath={.spec.jobCleanUpPolicy}')
  [ "$policy" = retain ] || asked delete job "$job"
done
"""
_CRICTL = """\
#!/bin/sh
# crictl -i unix://SOCKET -r unix://SOCKET inspect ID | stop [--timeout=0] ID...
set -eu
socket=${2#unix://} what=$5; shift 5
asked() { ctr -a "$socket" -n k8s.io tasks "$@"; }
case $what in
  inspect)
    pid=$(asked ls | awk -v id="$1" '$1 == id { print $2 }')
    network="{\\"type\\":\\"network\\",\\"path\\":\\"/proc/$pid/ns/net\\"}"
    echo "{\\"info\\":{\\"pid\\":${pid:-0},\\"runtimeSpec\\":{\\"linux\\":{\\"namespaces\\":[$network]}}}}" ;;
  stop)
    signal=SIGTERM
    if [ "$1" = --timeout=0 ]; then signal=SIGKILL; shift; fi
    for id; do asked kill -s $signal "$id"; done ;;
esac
"""
_HELPERS = {
    "CONTAINER_RUNTIME": "containerd",
    "SOCKET_PATH": CONTAINERD,
    "LIB_IMAGE": f"{images.REGISTRY}/litmus-go:1",
    "LIB_IMAGE_PULL_POLICY": "IfNotPresent",
    "TARGET_CONTAINER": "",
}
_HTTP = {"TARGET_SERVICE_PORT": "80", "PROXY_PORT": "20000", "TOXICITY": "100", "NETWORK_INTERFACE": "eth0"}
EXPERIMENTS: Mapping[str, Mapping[str, str]] = {
    "pod-delete": {"FORCE": "true"},
    "container-kill": {**_HELPERS, "SIGNAL": "SIGKILL"},
    "pod-cpu-hog": {**_HELPERS, "CPU_CORES": "1", "CPU_LOAD": "100"},
    "pod-memory-hog": {**_HELPERS, "MEMORY_CONSUMPTION": "100", "NUMBER_OF_WORKERS": "1"},
    "pod-http-latency": {**_HELPERS, **_HTTP, "LATENCY": "2000"},
    "pod-http-reset-peer": {**_HELPERS, **_HTTP, "RESET_TIMEOUT": "0"},
    "node-drain": {"TARGET_NODE": "", "NODE_LABEL": ""},
}
"""Those of the ChaosHub that this node has, with the environment that their definitions list."""


def install(node: Node, namespace: str = "default") -> None:
    """The operator, and in that namespace the experiments and the account that they run as. Raises MachineError."""
    programs = builds.programs(builds.LITMUS)
    operator, _, _ = (node.load(make(node, programs)) for make in (_operator, _runner, _experiments))
    node.kubectl("apply", "--server-side", "-f", str(programs["litmus-definitions"]))
    node.apply([*_mended_labels(), _deployment(operator), *_account(namespace)])
    node.kubectl("-n", NAMESPACE, "rollout", "status", "deployment/litmus", "--timeout=60s", timeout=70)
    node.apply(_definitions(namespace))


def _operator(_: Node, programs: Mapping[str, Path]) -> Image:
    return Image("chaos-operator", {"/usr/local/bin/chaos-operator": programs["chaos-operator"]})


def _runner(node: Node, _: Mapping[str, Path]) -> Image:
    files = {**images.shell(node.root), "/usr/local/bin/kubectl": node.programs["kubectl"], "/runner": _RUNNER}
    return Image("chaos-runner", files, ("/runner",))


def _experiments(node: Node, programs: Mapping[str, Path]) -> Image:
    stand_ins, proxies = images.stand_ins(), ("toxiproxy-server", "toxiproxy-cli")
    return Image(
        "litmus-go",
        {
            **images.shell(node.root),
            **images.tools(node.root, "iptables", "tc", "stress-ng", "ctr", "nsenter"),
            "/bin/bash": '#!/bin/sh\nexec /bin/sh "$@"\n',
            "/usr/local/bin/sudo": '#!/bin/sh\nexec "$@"\n',
            "/usr/local/bin/crictl": _CRICTL,
            "/usr/local/bin/kubectl": node.programs["kubectl"],
            **{f"/usr/local/bin/{name}": binaries.ensure(name, _TOXIPROXY).path for name in proxies},
            **{f"/usr/local/bin/{name}": stand_ins for name in ("pause", "nsutil")},
            **{f"/litmus/{name}": programs[name] for name in ("experiments", "helpers")},
        },
        folder="/litmus",
    )


def _deployment(image: str) -> dict[str, Any]:
    environment = {
        "CHAOS_RUNNER_IMAGE": f"{images.REGISTRY}/chaos-runner:1",
        "WATCH_NAMESPACE": "",
        "POD_NAMESPACE": NAMESPACE,
        "OPERATOR_NAME": "chaos-operator",
        "ANALYTICS": "FALSE",
    }
    container = {
        "name": "chaos-operator",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["/usr/local/bin/chaos-operator"],
        "env": [{"name": name, "value": value} for name, value in environment.items()],
    }
    labels = {"name": "chaos-operator"}
    pod = {"serviceAccountName": NAMESPACE, "terminationGracePeriodSeconds": 1, "containers": [container]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAMESPACE, "namespace": NAMESPACE},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}},
    }


def _account(namespace: str) -> list[dict[str, Any]]:
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": namespace}},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": f"{ACCOUNT}-{namespace}"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}],
        },
    ]


def _definitions(namespace: str) -> Iterator[dict[str, Any]]:
    for name, environment in EXPERIMENTS.items():
        yield {
            "apiVersion": LITMUS.api,
            "kind": "ChaosExperiment",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "definition": {
                    "scope": "Namespaced",
                    "permissions": [],
                    "image": f"{images.REGISTRY}/litmus-go:1",
                    "command": ["/bin/bash"],
                    "args": ["-c", f"./experiments -name {name}"],
                    "env": [{"name": key, "value": value} for key, value in environment.items()],
                    "labels": {"name": name},
                }
            },
        }


def _mended_labels() -> list[dict[str, Any]]:
    """Experiments of 2023 give their helper pod the labels of their own pod, among them one by which the Job of today's
    Kubernetes takes it for its own, and deletes it.
    """
    label, api, name = "batch.kubernetes.io/controller-uid", "admissionregistration.k8s.io/v1beta1", "litmus-helpers"
    helper = "object.metadata.?generateName.orValue('').endsWith('-helper-')"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    removed = f"[JSONPatch{{op: 'remove', path: '/metadata/labels/' + jsonpatch.escapeKey('{label}')}}]"
    return [
        {
            "apiVersion": api,
            "kind": "MutatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "failurePolicy": "Fail",
                "reinvocationPolicy": "Never",
                "matchConstraints": {"resourceRules": [rule]},
                "matchConditions": [
                    {
                        "name": "helper",
                        "expression": f"{helper} && has(object.metadata.labels) && '{label}' in object.metadata.labels",
                    }
                ],
                "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": removed}}],
            },
        },
        {
            "apiVersion": api,
            "kind": "MutatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name},
        },
    ]
