"""Manifests for a Kubernetes API server: the Role and ClusterRole that give rights, and a Job that runs with them."""

from collections.abc import Iterable, Mapping
from typing import Any

from hashidrill.core.protocols.rights import Right

SERVICE = "kubernetes"
_NAME = "hashidrill"
_OF_THE_CLUSTER = {"nodes"}
"""Resources without a namespace."""


def _connects(resource: str) -> tuple[Right, Right]:
    """A WebSocket is a GET; Kubernetes 1.35 also needs `create` (AuthorizePodWebsocketUpgradeCreatePermission)."""
    return Right(SERVICE, resource, access="create"), Right(SERVICE, resource, access="get")


EXEC = _connects("pods/exec")
"""Rights to read what a container uses. Their holder may run any command in the pods of the namespace."""
OF_PODS = (
    Right(SERVICE, "pods", access="list"),
    *_connects("pods/portforward"),
)
"""Rights to find the pods of agents, and to connect to pods to which this machine has no route."""


def policy(rights: Iterable[Right], why: Mapping[Right, str]) -> str:
    """Manifests for `kubectl apply`; "" for no rights. `why` holds the comment over each rule.

    A Role for resources in the agents' namespace, which `kubectl -n` chooses; a ClusterRole for those without one.
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


_FOLDER, _ATTACH = "/etc/hashidrill", "attach.yaml"
_REVERTS_WITHIN_S = 600
"""How long a deleted pod may take to revert its faults, before its kubelet kills it."""


def job(image: str, namespace: str, attach: str, experiments: Mapping[str, str], roles: str) -> str:
    """The manifests that run experiments in a pod, whose account has the roles of `policy`.

    `attach` is the text of a file with `context: in-cluster`; `experiments` holds texts by name, and `roles` is what
    `policy` returned. Files that `attach` names, like a token, are keys of a Secret `hashidrill`, in the same folder.
    """
    files = {_ATTACH: attach, **{f"{name}.yaml": text for name, text in experiments.items()}}
    named = [f"{_FOLDER}/{name}.yaml" for name in experiments]
    account = {"kind": "ServiceAccount", "name": _NAME, "namespace": namespace}
    metadata = {"name": _NAME, "namespace": namespace}
    of_config, of_secret = {"configMap": {"name": _NAME}}, {"secret": {"name": _NAME, "optional": True}}
    container = {
        "name": _NAME,
        "image": image,
        "args": ["run", *named, "--attach", f"{_FOLDER}/{_ATTACH}", "--plain", "--runs", "/runs"],
        "env": [{"name": "HOME", "value": "/runs"}],
        "volumeMounts": [
            {"name": "files", "mountPath": _FOLDER, "readOnly": True},
            {"name": "runs", "mountPath": "/runs"},
        ],
    }
    pod = {
        "serviceAccountName": _NAME,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _REVERTS_WITHIN_S,
        "containers": [container],
        "volumes": [
            {"name": "files", "projected": {"sources": [of_config, of_secret]}},
            {"name": "runs", "emptyDir": {}},
        ],
    }
    group = "rbac.authorization.k8s.io"
    bindings = [
        {
            "apiVersion": f"{group}/v1",
            "kind": f"{kind}Binding",
            "metadata": metadata if kind == "Role" else {"name": _NAME},
            "roleRef": {"apiGroup": group, "kind": kind, "name": _NAME},
            "subjects": [account],
        }
        for kind in ("Role", "ClusterRole")
        if f"kind: {kind}\n" in roles
    ]
    return _written(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        *bindings,
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": files},
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": metadata,
            # a second pod would run while the first one reverts
            "spec": {"backoffLimit": 0, "template": {"spec": pod}},
        },
    )


def _written(*manifests: Mapping[str, Any]) -> str:
    import io  # noqa: PLC0415 - few commands write YAML

    from ruamel.yaml import YAML  # noqa: PLC0415 - a tenth of a second that not every command needs

    yaml, out = YAML(typ="rt"), io.StringIO()
    yaml.default_flow_style = False
    yaml.representer.add_representer(str, _text)
    yaml.representer.ignore_aliases = lambda _: True
    yaml.dump_all(manifests, out)
    return out.getvalue()


def _text(representer: Any, text: str) -> Any:
    return representer.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)
