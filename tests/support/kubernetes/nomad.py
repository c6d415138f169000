"""Three Nomad servers as pods, as people write them: no vendor's chart runs Nomad on Kubernetes.

A StatefulSet with `app: nomad`, the ports `http`, `rpc`, `serf-tcp` and `serf-udp`, a headless Service, and
`retry_join` of the pods' names, much as in kelseyhightower/nomad-on-kubernetes. The probe is Nomad's health of a
server, which asks whether it knows a leader. Names stand in each container's /etc/hosts, as for Vault. There are no
clients: a client mounts and isolates as root, so its pod would have to be privileged. Jobs are registered, and wait.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kubernetes import debian, images
from kubernetes.images import Image
from kubernetes.node import Node
from kubernetes.vault import HOSTS
from polled import wait

LABELS = {"app": "nomad", "component": "server"}
SERVERS = ("nomad-0", "nomad-1", "nomad-2")
_READY_WITHIN_S = 60.0


def install(node: Node, nomad: Path, namespace: str, *, leaves: bool = True) -> None:
    """Returns when all three are ready and vote. `leaves`: a server that is told to end leaves first. Raises
    MachineError.
    """
    files = {**images.shell(node.root), "/bin/nomad": nomad, "/bin/kubectl": node.programs["kubectl"]}
    image = node.load(Image("nomad", {**files, **debian.libraries(node.root, [nomad])}))
    node.apply(_manifests(namespace, image, leaves=leaves))
    wait_settled(node, namespace, within_s=_READY_WITHIN_S)


def wait_settled(node: Node, namespace: str, *, within_s: float) -> None:
    """Returns once all pods are ready, and each votes at its pod's address and gossips from there."""

    def settled() -> bool:
        pods = node.get("-n", namespace, "pods", "-l", "app=nomad")["items"]
        ready = [one["status"]["podIP"] for one in pods if _ready(one)]
        if len(ready) < len(SERVERS):
            return False
        peers, members = (ask(node, ready[0], path) for path in ("operator/raft/configuration?stale", "agent/members"))
        voting = [one["Address"].partition(":")[0] for one in peers["Servers"] if one["Voter"]]
        alive = [one["Addr"] for one in members["Members"] if one["Status"] == "alive"]
        led = any(one["Leader"] for one in peers["Servers"])
        return led and sorted(voting) == sorted(alive) == sorted(ready)

    wait("three Nomad servers that vote at their pods' addresses", settled, within_s, 0.5)


def ask(node: Node, address: str, path: str) -> Any:
    """In the network of the node. Raises OSError."""

    def call() -> Any:
        with urllib.request.urlopen(f"http://{address}:4646/v1/{path}", timeout=10) as answer:
            return json.loads(answer.read())

    return node.call_inside(call)


def _ready(pod: dict[str, Any]) -> bool:
    said = pod["status"].get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in said)


def _manifests(namespace: str, image: str, *, leaves: bool) -> Iterator[dict[str, Any]]:
    def of(api: str, kind: str, name: str, **more: Any) -> dict[str, Any]:
        return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": namespace}, **more}

    api = "rbac.authorization.k8s.io"
    yield of("v1", "ServiceAccount", "nomad")
    yield of(f"{api}/v1", "Role", "nomad", rules=[{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}])
    reference = {"apiGroup": api, "kind": "Role", "name": "nomad"}
    account = {"kind": "ServiceAccount", "name": "nomad", "namespace": namespace}
    yield of(f"{api}/v1", "RoleBinding", "nomad", roleRef=reference, subjects=[account])
    configuration = {
        "data_dir": "/nomad/data",
        "bind_addr": "0.0.0.0",
        "disable_update_check": True,
        "leave_on_terminate": leaves,
        "server": {
            "enabled": True,
            "bootstrap_expect": len(SERVERS),
            "server_join": {"retry_join": [f"{name}.nomad" for name in SERVERS], "retry_interval": "2s"},
        },
    }
    yield of("v1", "ConfigMap", "nomad-config", data={"server.json": json.dumps(configuration)})
    ports = [("http", 4646, "TCP"), ("rpc", 4647, "TCP"), ("serf-tcp", 4648, "TCP"), ("serf-udp", 4648, "UDP")]
    listed = [{"name": name, "port": port, "protocol": protocol} for name, port, protocol in ports]
    service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": LABELS, "ports": listed}
    yield of("v1", "Service", "nomad", spec=service)
    container = {
        "name": "nomad",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-ec", f"{HOSTS}\nexec nomad agent -config=/nomad/config"],
        "env": [{"name": "HOSTNAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "ports": [{"name": name, "containerPort": port, "protocol": protocol} for name, port, protocol in ports],
        "readinessProbe": {
            "httpGet": {"path": "/v1/agent/health?type=server", "port": "http"},
            "periodSeconds": 3,
            "timeoutSeconds": 3,
        },
        "volumeMounts": [
            {"name": "data", "mountPath": "/nomad/data", "subPathExpr": "$(HOSTNAME)"},
            {"name": "config", "mountPath": "/nomad/config"},
        ],
    }
    path = f"/var/lib/hashidrill-volumes/{namespace}-nomad"
    pod = {
        "serviceAccountName": "nomad",
        "terminationGracePeriodSeconds": 10,
        "containers": [container],
        "volumes": [
            {"name": "config", "configMap": {"name": "nomad-config"}},
            {"name": "data", "hostPath": {"path": path, "type": "DirectoryOrCreate"}},
        ],
    }
    yield of(
        "apps/v1",
        "StatefulSet",
        "nomad",
        spec={
            "serviceName": "nomad",
            "podManagementPolicy": "Parallel",
            "replicas": len(SERVERS),
            "selector": {"matchLabels": LABELS},
            "template": {"metadata": {"labels": LABELS}, "spec": pod},
        },
    )
