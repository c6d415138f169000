"""A datacenter of pods on the node as hashidrill has it: attached by a kubeconfig, with the role that faults need."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from ruamel.yaml import YAML

from hashidrill.core.experiment.model import DatacenterSpec
from hashidrill.core.protocols.rights import Right
from hashidrill.kubernetes.attach_capabilities import held, located, watched
from hashidrill.kubernetes.rbac import policy
from hashidrill.staging.attach.datacenter import AttachedDatacenter, attach
from hashidrill.staging.attach.target import read_target
from kubernetes.init import NAME
from kubernetes.node import Node

USER = "hashidrill"
_API = "rbac.authorization.k8s.io"


def grant(node: Node, rights: Iterable[Right], namespace: str) -> None:
    """Gives our user the roles that `staging acl kubernetes` prints for these rights, and no others."""
    node.kubectl("delete", "role,rolebinding", USER, "-n", namespace, "--ignore-not-found")
    node.kubectl("delete", "clusterrole,clusterrolebinding", USER, "--ignore-not-found")
    made: list[Mapping[str, Any]] = []
    for text in policy(list(dict.fromkeys(rights)), {}).split("---\n"):
        role = YAML(typ="safe", pure=True).load(text)
        kind, metadata = role["kind"], {"name": role["metadata"]["name"]}
        if kind == "Role":
            metadata["namespace"] = role["metadata"]["namespace"] = namespace
        subject = {"kind": "User", "name": USER, "apiGroup": _API}
        reference = {"kind": kind, "name": metadata["name"], "apiGroup": _API}
        binding = {"apiVersion": f"{_API}/v1", "kind": f"{kind}Binding", "metadata": metadata}
        made += [role, {**binding, "subjects": [subject], "roleRef": reference}]
    node.apply(made)


@asynccontextmanager
async def attached(
    node: Node,
    namespace: str,
    *,
    lasts_s: float = 60.0,
    tell: Callable[[str], None] = lambda _: None,
    **settings: Any,
) -> AsyncIterator[AttachedDatacenter]:
    """For use in the node's network. `lasts_s`: after that, the injectors end faults by themselves."""
    kubernetes = {"kubeconfig": str(node.user), "context": NAME, "namespace": namespace, "consul": {}, **settings}
    file = node.folder / f"attach-{namespace}.yaml"
    metadata = {"name": "pods"}
    file.write_text(
        json.dumps(
            {
                "apiVersion": "hashidrill/v1",
                "kind": "Attach",
                "metadata": metadata,
                "datacenter": {"kubernetes": kubernetes},
            }
        )
    )
    target = await located(read_target(file, {}))
    async with AsyncExitStack() as stack:
        estate, wires = await attach(target, stack)
        parts = await stack.enter_async_context(held(target, estate, wires, deadline_s=lasts_s, tell=tell, run="run-1"))
        looks = await stack.enter_async_context(watched(target))
        spec = DatacenterSpec.model_validate(estate.as_datacenter())
        yield AttachedDatacenter(spec, target, estate, wires, carried=parts, pods=looks)


def container(node: Node, namespace: str, pod: str) -> tuple[str, int]:
    """The id of the first container of a pod, and its process as the node counts."""
    found = node.get("pod", pod, "-n", namespace)["status"]["containerStatuses"][0]
    identity = found["containerID"].removeprefix("containerd://")
    for line in node.enter(["ctr", "-n", "k8s.io", "tasks", "ls"]).stdout.splitlines():
        if line.startswith(identity):
            return identity, int(line.split()[1])
    raise AssertionError(f"{pod} runs no container {identity}")


def in_network(node: Node, namespace: str, pod: str, command: Sequence[str]) -> None:
    """Runs a command of the node in the network of a pod."""
    _, pid = container(node, namespace, pod)
    said = node.enter(["nsenter", f"--net=/proc/{pid}/ns/net", *command])
    assert said.returncode == 0, said.stderr
