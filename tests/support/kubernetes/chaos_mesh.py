"""Chaos Mesh on the node: its controller as a Deployment, its daemon as a DaemonSet, as its chart installs them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hashidrill.kubernetes.vocabulary import CHAOS, CHAOS_MESH, plural_of
from kubernetes import builds, debian, images
from kubernetes.images import Image
from kubernetes.init import ADDRESS
from kubernetes.node import Node

NAMESPACE = "chaos-mesh"
_GRPC, _HTTP, _WEBHOOK = 31767, 31766, 9443
_CERTIFICATES = "chaos-mesh-webhook-certs"
_LACKING = [
    {
        "op": "add",
        "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/partitionBehavior",
        "value": {"type": "string"},
    }
]
"""The controller of that commit is newer than its definition of NetworkChaos: it sets a field that the definition
prunes, and could then never write a status.
"""


def controller_image(programs: Mapping[str, Path]) -> Image:
    return Image("chaos-mesh", {"/usr/local/bin/chaos-controller-manager": programs["chaos-controller-manager"]})


def daemon_image(programs: Mapping[str, Path], root: Path) -> Image:
    """With stand-ins for nsexec, pause and memStress; without toda and tproxy, so without IOChaos and HTTPChaos."""
    daemon, stand_ins = programs["chaos-daemon"], images.stand_ins()
    return Image(
        "chaos-daemon",
        {
            **images.shell(root),
            **images.tools(root, "iptables", "ipset", "tc", "ip", "stress-ng", "choom", "nsenter"),
            **debian.libraries(root, [daemon]),
            "/usr/local/bin/chaos-daemon": daemon,
            **{f"/usr/local/bin/{name}": stand_ins for name in ("nsexec", "pause", "memStress")},
        },
    )


def install(node: Node) -> None:
    """Returns when both are ready; nothing is done a second time. Raises MachineError."""
    if NAMESPACE in node.installed:
        return
    programs = builds.programs(builds.CHAOS_MESH)
    controller, daemon = node.load(controller_image(programs)), node.load(daemon_image(programs, node.root))
    node.kubectl("apply", "--server-side", "-f", str(programs["chaos-mesh-definitions"]))
    node.kubectl("patch", "crd", "networkchaos.chaos-mesh.org", "--type=json", "-p", json.dumps(_LACKING))
    node.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}])
    node.apply([*_accounts(), _secret(node), _service(), _daemon(daemon), _controller(controller)])
    node.kubectl("-n", NAMESPACE, "rollout", "status", "daemonset/chaos-daemon", "--timeout=60s", timeout=70)
    node.kubectl(
        "-n", NAMESPACE, "rollout", "status", "deployment/chaos-controller-manager", "--timeout=60s", timeout=70
    )
    node.apply(_webhooks(node))
    node.installed.add(NAMESPACE)


def _accounts() -> list[dict[str, Any]]:
    account = {"kind": "ServiceAccount", "name": NAMESPACE, "namespace": NAMESPACE}
    admin = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAMESPACE, "namespace": NAMESPACE}},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": NAMESPACE},
            "roleRef": admin,
            "subjects": [account],
        },
    ]


def _secret(node: Node) -> dict[str, Any]:
    made = node.authority.issue_cert(ADDRESS)
    pems = {"tls.crt": b"".join(one.bytes() for one in made.cert_chain_pems), "tls.key": made.private_key_pem.bytes()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": _CERTIFICATES, "namespace": NAMESPACE},
        "data": {name: base64.b64encode(pem).decode() for name, pem in pems.items()},
    }


def _service() -> dict[str, Any]:
    """The controller finds the daemon of a node by the EndpointSlices of this name."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "chaos-daemon", "namespace": NAMESPACE},
        "spec": {
            "clusterIP": "None",
            "selector": {"app": "chaos-daemon"},
            "ports": [{"name": "grpc", "port": _GRPC}, {"name": "http", "port": _HTTP}],
        },
    }


def _daemon(image: str) -> dict[str, Any]:
    run, sys = {"name": "run", "mountPath": "/host-run"}, {"name": "sys", "mountPath": "/host-sys"}
    return _workload(
        "DaemonSet",
        "chaos-daemon",
        {
            "hostPID": True,
            "containers": [
                {
                    "name": "chaos-daemon",
                    "image": image,
                    "imagePullPolicy": "Never",
                    "command": [
                        "/usr/local/bin/chaos-daemon",
                        "--runtime=containerd",
                        f"--http-port={_HTTP}",
                        f"--grpc-port={_GRPC}",
                        "--runtime-socket-path=/host-run/containerd.sock",
                    ],
                    "readinessProbe": {"tcpSocket": {"port": _GRPC}, "periodSeconds": 1},
                    "securityContext": {"privileged": True, "capabilities": {"add": ["SYS_PTRACE"]}},
                    "volumeMounts": [run, {**sys, "mountPropagation": "Bidirectional"}],
                }
            ],
            "volumes": [
                {"name": "run", "hostPath": {"path": "/run/containerd"}},
                {"name": "sys", "hostPath": {"path": "/sys"}},
            ],
        },
    )


def _controller(image: str) -> dict[str, Any]:
    """In the network of its node, where the API server calls its webhooks: no kube-proxy serves a Service here."""
    environment = {
        "NAMESPACE": NAMESPACE,
        "TARGET_NAMESPACE": "",
        "CLUSTER_SCOPED": "true",
        "CHAOS_DAEMON_SERVICE_PORT": str(_GRPC),
        "CERTS_DIR": "/etc/webhook/certs",
        "WEBHOOK_HOST": ADDRESS,
        "WEBHOOK_PORT": str(_WEBHOOK),
        "METRICS_HOST": "127.0.0.1",
        "SECURITY_MODE": "false",
        "CHAOSD_SECURITY_MODE": "false",
        "ENABLE_LEADER_ELECTION": "false",
        "POD_FAILURE_PAUSE_IMAGE": f"{images.REGISTRY}/pause:1",
    }
    return _workload(
        "Deployment",
        "chaos-controller-manager",
        {
            "hostNetwork": True,
            "serviceAccountName": NAMESPACE,
            "containers": [
                {
                    "name": "chaos-mesh",
                    "image": image,
                    "imagePullPolicy": "Never",
                    "command": ["/usr/local/bin/chaos-controller-manager"],
                    "env": [{"name": name, "value": value} for name, value in environment.items()],
                    "readinessProbe": {"tcpSocket": {"port": _WEBHOOK}, "periodSeconds": 1},
                    "volumeMounts": [{"name": "certs", "mountPath": "/etc/webhook/certs", "readOnly": True}],
                }
            ],
            "volumes": [{"name": "certs", "secret": {"secretName": _CERTIFICATES}}],
        },
    )


def _workload(kind: str, name: str, pod: dict[str, Any]) -> dict[str, Any]:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"terminationGracePeriodSeconds": 1, **pod}},
        },
    }


def _webhooks(node: Node) -> list[dict[str, Any]]:
    """Without the mutating one, objects get no defaults; without the other, objects without sense are admitted."""
    bundle = base64.b64encode(node.authority.cert_pem.bytes()).decode()
    return [
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": f"{what.capitalize()}ingWebhookConfiguration",
            "metadata": {"name": f"chaos-mesh-{what}ing"},
            "webhooks": [
                {
                    "name": f"{what}-{plural}.chaos-mesh.org",
                    "sideEffects": "None",
                    "timeoutSeconds": 5,
                    "admissionReviewVersions": ["v1"],
                    "failurePolicy": "Fail",
                    "rules": [
                        {
                            "apiGroups": [CHAOS_MESH.group],
                            "apiVersions": [CHAOS_MESH.version],
                            "operations": ["CREATE", "UPDATE"],
                            "resources": [plural],
                        }
                    ],
                    "clientConfig": {
                        "url": f"https://{ADDRESS}:{_WEBHOOK}/{what}e-chaos-mesh-org-v1alpha1-{plural}",
                        "caBundle": bundle,
                    },
                }
                for plural in map(plural_of, CHAOS)
            ],
        }
        for what in ("mutat", "validat")
    ]
