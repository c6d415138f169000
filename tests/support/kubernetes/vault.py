"""Three Vault servers as pods, with Raft storage and an auto-unseal, as the official chart makes them in HA mode.

Its labels, ports, environment, readiness and service registration (templates/server-statefulset.yaml of vault-helm). A
development server beside them has the transit key that unseals them. What differs, because one node has neither DNS nor
a provisioner: each container writes the addresses of the others into its own /etc/hosts, volumes are folders of the
node, the probe asks by HTTP, and nothing runs as another user.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kubernetes import images
from kubernetes.images import Image
from kubernetes.node import Node
from polled import wait

LABELS = {"app.kubernetes.io/name": "vault", "app.kubernetes.io/instance": "vault", "component": "server"}
SERVERS = ("vault-0", "vault-1", "vault-2")
_ROOT = "root-of-the-transit"
_READY_WITHIN_S = 60.0
HOSTS = (
    "while sleep 2; do kubectl get pods -l component=server -o go-template='{{range .items}}{{if .status.podIP}}"
    '{{.status.podIP}} {{.metadata.name}}.{{.spec.subdomain}}{{"\\n"}}{{end}}{{end}}\' > /tmp/hosts'
    " && echo 127.0.0.1 localhost >> /tmp/hosts && cat /tmp/hosts > /etc/hosts; done &"
)
"""In place of the cluster's DNS, with the account of the pod: the names that a headless Service gives its pods."""


def install(node: Node, vault: Path, namespace: str) -> str:
    """The root token, once all three are unsealed and vote; with an engine for the secrets of loads.

    Raises MachineError.
    """
    files = {**images.shell(node.root), "/bin/vault": vault, "/bin/kubectl": node.programs["kubectl"]}
    image = node.load(Image("vault", files))
    node.apply([_transit(namespace, image)])
    node.kubectl("-n", namespace, "wait", "--for=condition=Ready", "pod/vault-transit", "--timeout=60s", timeout=70)
    transit = f"http://{node.get('-n', namespace, 'pod', 'vault-transit')['status']['podIP']}:8200"
    _ask(node, transit, "POST sys/mounts/transit", {"type": "transit"}, _ROOT)
    _ask(node, transit, "POST transit/keys/unseal", {}, _ROOT)
    node.apply(_manifests(namespace, image, transit))

    def first() -> str:
        status = node.get("-n", namespace, "pods", "-l", "component=server,app.kubernetes.io/name=vault")["items"]
        found = {one["metadata"]["name"]: one["status"].get("podIP", "") for one in status}
        return str(found.get(SERVERS[0], ""))

    wait("an address of vault-0", lambda: bool(first()), _READY_WITHIN_S, 0.5)
    url = f"http://{first()}:8200"
    wait("vault-0 to answer", lambda: _answers(node, url), _READY_WITHIN_S, 0.5)
    made = _ask(node, url, "PUT sys/init", {"recovery_shares": 1, "recovery_threshold": 1})
    node.kubectl(
        "-n", namespace, "rollout", "status", "statefulset/vault", f"--timeout={_READY_WITHIN_S:g}s", timeout=70
    )
    token = str(made["root_token"])

    def voters() -> bool:
        """Raft takes a server as a voter once it was well for ten seconds."""
        told = _ask(node, url, "GET sys/storage/raft/configuration", token=token)["data"]["config"]["servers"]
        return [one["voter"] for one in told] == [True] * len(SERVERS)

    _ask(node, url, "POST sys/mounts/hashidrill", {"type": "kv", "options": {"version": "2"}}, token)
    wait("three voters in Raft", voters, _READY_WITHIN_S, 0.5)
    return token


def _answers(node: Node, url: str) -> bool:
    try:
        _ask(node, url, "GET sys/seal-status")
    except OSError:
        return False
    return True


def _ask(node: Node, url: str, what: str, body: dict[str, Any] | None = None, token: str = "") -> Any:
    """In the network of the node. Raises OSError."""
    method, path = what.split()
    content = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(f"{url}/v1/{path}", content, {"X-Vault-Token": token}, method=method)

    def call() -> Any:
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return json.loads(answer.read() or b"{}")

    return node.call_inside(call)


def _transit(namespace: str, image: str) -> dict[str, Any]:
    command = ["/bin/vault", "server", "-dev", f"-dev-root-token-id={_ROOT}", "-dev-listen-address=0.0.0.0:8200"]
    container = {
        "name": "vault",
        "image": image,
        "imagePullPolicy": "Never",
        "command": command,
        "env": [{"name": "HOME", "value": "/tmp"}],
        "readinessProbe": {"httpGet": {"path": "/v1/sys/health", "port": 8200}, "periodSeconds": 1},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "vault-transit", "namespace": namespace, "labels": {"app": "vault-transit"}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]},
    }


def _manifests(namespace: str, image: str, transit: str) -> Iterator[dict[str, Any]]:
    def of(api: str, kind: str, name: str, **more: Any) -> dict[str, Any]:
        return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": namespace}, **more}

    api = "rbac.authorization.k8s.io"
    yield of("v1", "ServiceAccount", "vault")
    verbs = ["get", "list", "patch", "update"]
    yield of(f"{api}/v1", "Role", "vault", rules=[{"apiGroups": [""], "resources": ["pods"], "verbs": verbs}])
    reference = {"apiGroup": api, "kind": "Role", "name": "vault"}
    account = {"kind": "ServiceAccount", "name": "vault", "namespace": namespace}
    yield of(f"{api}/v1", "RoleBinding", "vault", roleRef=reference, subjects=[account])
    joins = "".join(f'  retry_join {{ leader_api_addr = "http://{name}.vault-internal:8200" }}\n' for name in SERVERS)
    configuration = (
        "disable_mlock = true\n"
        'listener "tcp" {\n  address = "0.0.0.0:8200"\n  cluster_address = "0.0.0.0:8201"\n  tls_disable = true\n}\n'
        f'storage "raft" {{\n  path = "/vault/data"\n{joins}}}\n'
        f'seal "transit" {{\n  address = "{transit}"\n  token = "{_ROOT}"\n  key_name = "unseal"\n'
        '  mount_path = "transit/"\n}\n'
        'service_registration "kubernetes" {}\n'
    )
    yield of("v1", "ConfigMap", "vault-config", data={"extraconfig-from-values.hcl": configuration})
    ports = [{"name": "http", "port": 8200}, {"name": "https-internal", "port": 8201}]
    service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": LABELS, "ports": ports}
    yield of("v1", "Service", "vault-internal", spec=service)
    fields = {"POD_IP": "status.podIP", "VAULT_K8S_POD_NAME": "metadata.name", "HOSTNAME": "metadata.name"}
    fields |= {"VAULT_K8S_NAMESPACE": "metadata.namespace", "VAULT_RAFT_NODE_ID": "metadata.name"}
    values = {"VAULT_ADDR": "http://127.0.0.1:8200", "VAULT_API_ADDR": "http://$(POD_IP):8200", "HOME": "/tmp"}
    values["VAULT_CLUSTER_ADDR"] = "https://$(HOSTNAME).vault-internal:8201"
    container = {
        "name": "vault",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-ec", f"{HOSTS}\nexec vault server -config=/vault/config"],
        "env": [
            *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
            *({"name": name, "value": value} for name, value in values.items()),
        ],
        "ports": [
            {"name": "http", "containerPort": 8200},
            {"name": "https-internal", "containerPort": 8201},
            {"name": "http-rep", "containerPort": 8202},
        ],
        "readinessProbe": {
            "httpGet": {"path": "/v1/sys/health?standbyok=true", "port": 8200},
            "failureThreshold": 2,
            "initialDelaySeconds": 5,
            "periodSeconds": 5,
            "timeoutSeconds": 3,
        },
        "volumeMounts": [
            {"name": "data", "mountPath": "/vault/data", "subPathExpr": "$(HOSTNAME)"},
            {"name": "config", "mountPath": "/vault/config"},
        ],
    }
    volumes = [
        {"name": "config", "configMap": {"name": "vault-config"}},
        {
            "name": "data",
            "hostPath": {"path": f"/var/lib/hashidrill-volumes/{namespace}-vault", "type": "DirectoryOrCreate"},
        },
    ]
    pod = {
        "serviceAccountName": "vault",
        "terminationGracePeriodSeconds": 10,
        "containers": [container],
        "volumes": volumes,
    }
    yield of(
        "apps/v1",
        "StatefulSet",
        "vault",
        spec={
            "serviceName": "vault-internal",
            "podManagementPolicy": "Parallel",
            "replicas": len(SERVERS),
            "selector": {"matchLabels": LABELS},
            "template": {"metadata": {"labels": LABELS}, "spec": pod},
        },
    )
