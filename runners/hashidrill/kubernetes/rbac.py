"""Rights on a Kubernetes API server as the manifests that give them: one Role and one ClusterRole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hashidrill.core.protocols.rights import Right

SERVICE = "kubernetes"
_NAME = "hashidrill"
_OF_THE_CLUSTER = {"nodes"}
"""What is in no namespace."""
OF_PODS = (
    Right(SERVICE, "pods", access="list"),
    # a WebSocket is a GET; Kubernetes 1.35 also wants `create` (AuthorizePodWebsocketUpgradeCreatePermission)
    Right(SERVICE, "pods/portforward", access="create"),
    Right(SERVICE, "pods/portforward", access="get"),
)
"""To find the pods of agents, and to reach those to which this machine has no route."""


def policy(rights: Iterable[Right], why: Mapping[Right, str]) -> str:
    """Manifests for `kubectl apply`; "" for no rights. `why` is what stands over each rule.

    A Role for what is in the namespace of the agents, which `kubectl -n` chooses; a ClusterRole for what is in none.
    """
    inside: dict[str, list[Right]] = {}
    outside: list[Right] = []
    whole: dict[str, list[Right]] = {}
    for right in sorted(rights):
        if right.name:
            outside.append(right)
        elif right.resource in _OF_THE_CLUSTER:
            whole.setdefault(right.resource, []).append(right)
        else:
            inside.setdefault(right.resource, []).append(right)
    parts = [_role("Role", [_of(resource, each, why) for resource, each in inside.items()])] if inside else []
    of_cluster = [_of(resource, each, why) for resource, each in whole.items()]
    if outside or of_cluster:
        parts.append(_role("ClusterRole", [*(_of_named(right, why) for right in outside), *of_cluster]))
    return "---\n".join(parts)


def _role(kind: str, rules: Iterable[str]) -> str:
    head = f"apiVersion: rbac.authorization.k8s.io/v1\nkind: {kind}\nmetadata:\n  name: {_NAME}\nrules:\n"
    return head + "".join(rules)


def _of(resource: str, rights: list[Right], why: Mapping[Right, str]) -> str:
    plural, _, group = resource.partition(".")
    verbs = ", ".join(sorted({right.access for right in rights}))
    told = "".join(f"  # {text}\n" for text in dict.fromkeys(why.get(right, "") for right in rights) if text)
    return f'{told}  - apiGroups: ["{group}"]\n    resources: [{plural}]\n    verbs: [{verbs}]\n'


def _of_named(right: Right, why: Mapping[Right, str]) -> str:
    plural, _, group = right.resource.partition(".")
    told = f"  # {why[right]}\n" if why.get(right) else ""
    head = f'{told}  - apiGroups: ["{group}"]\n    resources: [{plural}]\n'
    return f"{head}    resourceNames: [{right.name}]\n    verbs: [{right.access}]\n"
