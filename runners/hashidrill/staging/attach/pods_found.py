"""Whether the pods that were found are those of one datacenter that is well: what is told before a run begins."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hashidrill.staging.attach.pods import PLACE, shown

if TYPE_CHECKING:
    from hashidrill.staging.attach.estate import Estate, FoundHost
    from hashidrill.staging.attach.target import AttachTarget


def place_of(target: AttachTarget) -> str:
    """Like `namespace consul of context staging`."""
    context, namespace = target.kubernetes.get("context"), target.kubernetes.get("namespace")
    return f"namespace {namespace} of {f'context {context}' if context else 'our own cluster'}"


def troubles(target: AttachTarget, estate: Estate) -> list[str]:
    """Why no run may begin with the pods as they were found: some are not ready, or two clusters are mixed."""
    found: Mapping[str, Mapping[str, Mapping[str, Any]]] = target.kubernetes.get("found", {})
    told = []
    for product, roles in found.items():
        told += [f"{PLACE}.{product}: {text}" for text in (*_unready(target, roles), *_mixed(target, estate, product))]
    return told


def _unready(target: AttachTarget, roles: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    pods = {name: pod for of_role in roles.values() for name, pod in of_role.items()}
    if bad := [f"{name} ({pod['phase']})" for name, pod in sorted(pods.items()) if not pod["ready"]]:
        are = "is" if len(bad) == 1 else "are"
        yield (
            f"{len(bad)} of its {len(pods)} pods {are} not ready: {', '.join(bad)}; a drill begins with what is well:"
            f" wait, or find out why in {place_of(target)}"
        )


def _mixed(target: AttachTarget, estate: Estate, product: str) -> Iterator[str]:
    """Its servers as it knows them itself, and as pods. Clients may be elsewhere: machines may join servers in pods."""
    pods = target.kubernetes["found"][product].get("server", {})
    labels = shown(target.kubernetes["pods"][product]["server"])
    servers, where = estate.having(product, "server"), place_of(target)
    url = target.logins[product].address
    if others := [f"{host.name} ({host.address})" for host in servers if not _pod_of(host, pods)]:
        yield (
            f"at {url} it has the servers {', '.join(others)}, which are no pods with {labels} in {where}: two clusters"
            " are mixed; let `address`, `context` and `namespace` mean the same one"
        )
    known = {_pod_of(host, pods) for host in servers}
    if strangers := sorted({*pods} - known):
        yield (
            f"at {url} it does not know {', '.join(strangers)}, which have {labels} in {where}: two clusters are mixed;"
            " write labels under `servers` that only one of them has, like that of its release"
        )


def _pod_of(host: FoundHost, pods: Mapping[str, Any]) -> str:
    """By the address; by the first part of it where that is a name: `vault-0.vault-internal`. "" for none."""
    at = [name for name, pod in pods.items() if pod["address"] == host.address]
    try:
        ipaddress.ip_address(host.address)
    except ValueError:
        at = at or [name for name in pods if name == host.address.partition(".")[0]]
    return at[0] if at else ""
