"""Three Consul servers as pods, as the official chart makes them: consul-k8s 1.9.2, whose Consul is 1.22.2.

Its labels, ports, volume claims, configuration, and what ends them. What differs, because one node has neither DNS nor
a provisioner nor curl: servers find each other by `provider=k8s` and not by the name of their Service; each claim has
a volume made for it, a folder that all nodes share; the probe asks the same path by HTTP, and not by a shell in the
pod; the affinity that keeps two servers from one node is left out where there are too few nodes; the container runs as
root.
"""

from __future__ import annotations

import base64
import json
import secrets
import ssl
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trustme

from kubernetes import images
from kubernetes.images import Image
from kubernetes.node import Node
from polled import wait

CHART = {"app": "consul", "chart": "consul-helm", "release": "consul", "component": "server"}
SERVERS = ("consul-server-0", "consul-server-1", "consul-server-2")
_HAS_DNS = {**CHART, "hasDNS": "true"}
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_READY_WITHIN_S = 90.0


def image(consul: Path, root: Path) -> Image:
    return Image("consul", {**images.shell(root), "/bin/consul": consul})


@dataclass(frozen=True)
class ConsulPods:
    """`secure`: with TLS (plain HTTP off, `httpsOnly`), gossip encryption, and ACLs that deny by default.

    `apart`: with the affinity that the chart has by default, so that no node runs two servers.
    """

    namespace: str
    image: str
    secure: bool = False
    apart: bool = False
    authority: trustme.CA = field(default_factory=trustme.CA)
    token: str = field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def volumes(self) -> str:
        return f"/var/lib/hashidrill-volumes/{self.namespace}"

    def manifests(self) -> Iterator[dict[str, Any]]:
        yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
        yield self._of("v1", "ServiceAccount", "consul-server")
        rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]
        yield self._of("rbac.authorization.k8s.io/v1", "Role", "consul-server", rules=rules)
        yield self._of(
            "rbac.authorization.k8s.io/v1",
            "RoleBinding",
            "consul-server",
            roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "consul-server"},
            subjects=[{"kind": "ServiceAccount", "name": "consul-server", "namespace": self.namespace}],
        )
        configuration = {name: json.dumps(content) for name, content in self._configuration().items()}
        yield self._of("v1", "ConfigMap", "consul-server-config", data=configuration)
        ports = [{"name": name, "port": port} for name, port in self._ports() if not name.endswith("-udp")]
        service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": CHART, "ports": ports}
        yield self._of("v1", "Service", "consul-server", spec=service)
        if self.secure:
            yield from self._secrets()
        for name in SERVERS:
            yield self._volume(name)
        yield self._of("apps/v1", "StatefulSet", "consul-server", spec=self._set())

    def _of(self, api: str, kind: str, name: str, **more: Any) -> dict[str, Any]:
        metadata = {"name": name, "namespace": self.namespace, "labels": {**CHART, "heritage": "Helm"}}
        return {"apiVersion": api, "kind": kind, "metadata": metadata, **more}

    def _configuration(self) -> dict[str, Any]:
        grpc = {"grpc": -1, "grpc_tls": 8502} if self.secure else {"grpc": 8502, "grpc_tls": -1}
        labels = ",".join(f"{name}={CHART[name]}" for name in ("app", "component"))
        found: dict[str, Any] = {
            "server.json": {
                "bind_addr": "0.0.0.0",
                "bootstrap_expect": len(SERVERS),
                "client_addr": "0.0.0.0",
                "connect": {"enabled": True},
                "datacenter": "dc1",
                "data_dir": "/consul/data",
                "log_level": "INFO",
                "domain": "consul",
                "limits": {"request_limits": {"mode": "disabled", "read_rate": -1, "write_rate": -1}},
                "ports": {**grpc, "serf_lan": 8301},
                "recursors": [],
                "retry_join": [f'provider=k8s namespace={self.namespace} label_selector="{labels}"'],
                "server": True,
                "leave_on_terminate": True,
                "autopilot": {"min_quorum": 2, "disable_upgrade_migration": True},
            },
            "central-config.json": {"enable_central_service_config": True},
        }
        if self.secure:
            rules = {"enabled": True, "default_policy": "deny", "down_policy": "extend-cache"}
            found["acl-config.json"] = {"acl": {**rules, "enable_token_persistence": True}}
            found["tls-config.json"] = {
                "tls": {
                    "internal_rpc": {"verify_incoming": True, "verify_server_hostname": True},
                    "grpc": {"verify_incoming": False},
                    "defaults": {
                        "verify_outgoing": True,
                        "ca_file": "/consul/tls/ca/tls.crt",
                        "cert_file": "/consul/tls/server/tls.crt",
                        "key_file": "/consul/tls/server/tls.key",
                    },
                },
                "ports": {"http": -1, "https": 8501},
            }
        return found

    def _ports(self) -> list[tuple[str, int]]:
        api = ("https", 8501) if self.secure else ("http", 8500)
        of_serf = [(f"serf{of}-{kind}", port) for of, port in (("lan", 8301), ("wan", 8302)) for kind in ("tcp", "udp")]
        return [api, ("grpc", 8502), *of_serf, ("server", 8300), ("dns-tcp", 8600), ("dns-udp", 8600)]

    def _secrets(self) -> Iterator[dict[str, Any]]:
        names = ("consul-server", f"*.consul-server.{self.namespace}.svc", "server.dc1.consul", "localhost")
        made = self.authority.issue_cert(*names, "127.0.0.1")
        chain = b"".join(one.bytes() for one in made.cert_chain_pems)
        for name, data in {
            "consul-ca-cert": {"tls.crt": self.authority.cert_pem.bytes()},
            "consul-server-cert": {"tls.crt": chain, "tls.key": made.private_key_pem.bytes()},
            "consul-gossip-encryption-key": {"key": base64.b64encode(secrets.token_bytes(32))},
            "consul-bootstrap-acl-token": {"token": self.token.encode()},
        }.items():
            yield self._of("v1", "Secret", name, data={k: base64.b64encode(v).decode() for k, v in data.items()})

    def _volume(self, server: str) -> dict[str, Any]:
        """Bound to the claim of that server's pod before there is one."""
        claim = f"data-{self.namespace}-{server}"
        return {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": claim},
            "spec": {
                "capacity": {"storage": "10Gi"},
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "",
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"namespace": self.namespace, "name": claim},
                "hostPath": {"path": f"{self.volumes}/{server}", "type": "DirectoryOrCreate"},
            },
        }

    def _set(self) -> dict[str, Any]:
        data = f"data-{self.namespace}"
        claim = {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "",
            "resources": {"requests": {"storage": "10Gi"}},
        }
        labels = {name: CHART[name] for name in ("app", "release", "component")}
        others = [{"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}]
        volumes = [{"name": "config", "configMap": {"name": "consul-server-config"}}]
        volumes += [
            {"name": name, "secret": {"secretName": name}}
            for name in ("consul-ca-cert", "consul-server-cert")
            if self.secure
        ]
        return {
            "serviceName": "consul-server",
            "podManagementPolicy": "Parallel",
            "replicas": len(SERVERS),
            "selector": {"matchLabels": _HAS_DNS},
            "template": {
                "metadata": {"labels": _HAS_DNS, "annotations": {"consul.hashicorp.com/connect-inject": "false"}},
                "spec": {
                    "terminationGracePeriodSeconds": 30,
                    "serviceAccountName": "consul-server",
                    "affinity": {"podAntiAffinity": {_REQUIRED: others} if self.apart else {}},
                    "containers": [self._container(data)],
                    "volumes": volumes,
                },
            },
            "volumeClaimTemplates": [{"metadata": {"name": data}, "spec": claim}],
        }

    def _container(self, data: str) -> dict[str, Any]:
        scheme, port = ("HTTPS", 8501) if self.secure else ("HTTP", 8500)
        secrets_of = {"GOSSIP_KEY": ("consul-gossip-encryption-key", "key")}
        secrets_of |= {"ACL_BOOTSTRAP_TOKEN": ("consul-bootstrap-acl-token", "token")}
        environment: list[dict[str, Any]] = [
            {"name": "ADVERTISE_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        ]
        command = ["/bin/consul", "agent", "-advertise=$(ADVERTISE_IP)", "-config-dir=/consul/config"]
        mounts = [{"name": data, "mountPath": "/consul/data"}, {"name": "config", "mountPath": "/consul/config"}]
        if self.secure:
            environment += [
                {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
                for name, (secret, key) in secrets_of.items()
            ]
            command += [
                "-encrypt=$(GOSSIP_KEY)",
                '-hcl=acl { tokens { initial_management = "$(ACL_BOOTSTRAP_TOKEN)" } }',
            ]
            mounts += [
                {"name": "consul-ca-cert", "mountPath": "/consul/tls/ca", "readOnly": True},
                {"name": "consul-server-cert", "mountPath": "/consul/tls/server", "readOnly": True},
            ]
        return {
            "name": "consul",
            "image": self.image,
            "imagePullPolicy": "Never",
            "env": environment,
            "command": command,
            "volumeMounts": mounts,
            "ports": [
                {"name": name, "containerPort": port, "protocol": "UDP" if name.endswith("udp") else "TCP"}
                for name, port in self._ports()
            ],
            "readinessProbe": {
                "httpGet": {"path": "/v1/status/leader", "port": port, "scheme": scheme},
                "failureThreshold": 2,
                "initialDelaySeconds": 5,
                "periodSeconds": 3,
                "successThreshold": 1,
                "timeoutSeconds": 5,
            },
        }


def install(
    node: Node,
    consul: Path,
    *,
    namespace: str = "consul",
    secure: bool = False,
    meanwhile: Callable[[], None] = lambda: None,
) -> ConsulPods:
    """Returns when all pods are ready and each knows the leader. Raises MachineError."""
    pods = ConsulPods(namespace, node.load(image(consul, node.root)), secure, len(node.names) >= len(SERVERS))
    node.apply(pods.manifests())
    meanwhile()
    wait_ready(node, namespace)
    found = node.get("-n", namespace, "pods", "-l", "app=consul")["items"]
    scheme, port = ("https", 8501) if secure else ("http", 8500)
    urls = [f"{scheme}://{one['status']['podIP']}:{port}/v1/status/leader" for one in found]
    wait("a leader", lambda: node.call_inside(lambda: all(map(_led, urls))), within_s=_READY_WITHIN_S, gap_s=0.5)
    return pods


def remove(node: Node, namespace: str) -> None:
    """Everything that `install` made, with what the servers wrote. Raises MachineError."""
    node.kubectl("-n", namespace, "delete", "statefulset,pod", "--all", "--force", "--grace-period=0", timeout=70)
    node.kubectl("delete", "namespace", namespace, "--timeout=60s", timeout=70)
    node.kubectl("delete", "pv", *(f"data-{namespace}-{server}" for server in SERVERS), "--timeout=20s")
    node.enter(["rm", "-rf", f"/var/lib/hashidrill-volumes/{namespace}"])


def wait_ready(node: Node, namespace: str) -> None:
    """Raises MachineError."""
    within = ("--timeout", f"{_READY_WITHIN_S:g}s")
    node.kubectl(
        "-n", namespace, "rollout", "status", "statefulset/consul-server", *within, timeout=_READY_WITHIN_S + 10
    )


def wait_settled(node: Node, namespace: str) -> None:
    """Returns once all pods are ready, one server leads, and all of them vote and know each other's addresses.

    The status of the set may still be that of before a pod was killed, and gossip keeps the address that a killed pod
    had for 30 s after it was found dead (memberlist's DeadNodeReclaimTime, as Consul sets it).
    """
    asked = ("-n", namespace, "exec", SERVERS[0], "--", "/bin/consul")
    addresses = ("-n", namespace, "get", "pods", "-l", "component=server", "-o", "jsonpath={.items[*].status.podIP}")
    pods = (f"pod/{each}" for each in SERVERS)
    ready = ("-n", namespace, "wait", "--for=condition=Ready", "--timeout=0s", *pods)

    def settled() -> bool:
        if node.kubectl(*ready, check=False).count("condition met") < len(SERVERS):
            return False
        peers = node.kubectl(*asked, "operator", "raft", "list-peers", check=False)
        members = node.kubectl(*asked, "members", "-status=alive", check=False)
        places = node.kubectl(*addresses).split()
        known = len(places) == len(SERVERS) and all(f" {one}:8301 " in members for one in places)
        return known and "leader" in peers and peers.count("true") == len(SERVERS)

    wait_ready(node, namespace)
    wait("three pods, a leader and three voters at their pods' addresses", settled, 90, 0.5)


def _led(url: str) -> bool:
    """The chart's probe looks for this in a pod; `httpGet` does not."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(url, timeout=5, context=context if url.startswith("https") else None) as answer:
            return len(answer.read()) > len('""')
    except OSError:
        return False
