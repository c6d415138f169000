"""How each part of the control plane is started, and where it listens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hashidrill.core.protocols.service import Site
from hashidrill.kubernetes.lab_plane.papers import NAMESPACE

ETCD, PEERS, API, WEBHOOK, METRICS, CHAOSD = 2379, 2380, 6443, 9443, 10080, 31767


def etcd(site: Site) -> list[str]:
    """Without fsync: it ends with the datacenter, and has nothing to keep."""
    clients, peers = f"http://{site.address}:{ETCD}", f"http://{site.address}:{PEERS}"
    return [
        str(site.binaries["etcd"]),
        "--data-dir",
        str(site.data / "data"),
        "--unsafe-no-fsync",
        "--log-level",
        "warn",
        "--listen-client-urls",
        clients,
        "--advertise-client-urls",
        clients,
        "--listen-peer-urls",
        peers,
        "--initial-advertise-peer-urls",
        peers,
        "--initial-cluster",
        f"default={peers}",
    ]


def api_server(site: Site, etcd_address: str) -> list[str]:
    """With RBAC, and without accounts in pods: there is no pod."""
    data = site.data
    return [
        str(site.binaries["kube-apiserver"]),
        "--etcd-servers",
        f"http://{etcd_address}:{ETCD}",
        "--secure-port",
        str(API),
        "--bind-address",
        site.address,
        "--advertise-address",
        site.address,
        "--tls-cert-file",
        str(data / "tls.crt"),
        "--tls-private-key-file",
        str(data / "tls.key"),
        "--cert-dir",
        str(data),
        "--token-auth-file",
        str(data / "tokens.csv"),
        "--authorization-mode",
        "RBAC",
        "--disable-admission-plugins",
        "ServiceAccount",
        "--service-account-issuer",
        f"https://{site.address}:{API}",
        "--service-account-key-file",
        str(data / "accounts.key"),
        "--service-account-signing-key-file",
        str(data / "accounts.key"),
        "--service-cluster-ip-range",
        "10.96.0.0/16",
    ]


def controller(site: Site) -> Mapping[str, str]:
    """It takes all it is told from its environment. The files are in its folder."""
    return {
        "KUBECONFIG": str(site.data / "kubeconfig"),
        "NAMESPACE": NAMESPACE,
        "CERTS_DIR": str(site.data),
        "WEBHOOK_HOST": site.address,
        "WEBHOOK_PORT": str(WEBHOOK),
        "METRICS_HOST": site.address,
        "METRICS_PORT": str(METRICS),
        "SECURITY_MODE": "false",
        "CHAOSD_SECURITY_MODE": "false",
        "ENABLE_LEADER_ELECTION": "false",
    }


def chaosd(site: Site) -> list[str]:
    """It listens for its controller on the address of its host."""
    return [str(site.binaries["chaosd"]), "server", "--host", site.address, "--port", str(CHAOSD)]


def chaosd_environment(path: str, folders: tuple[str, ...], processes: Path) -> Mapping[str, str]:
    """Its tools are system tools, which not everybody's PATH leads to; it looks for processes below HOST_PROC."""
    named = [*filter(None, path.split(":"))]
    return {"PATH": ":".join(dict.fromkeys([*named, *folders])), "HOST_PROC": str(processes)}
