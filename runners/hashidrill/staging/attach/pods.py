"""Agents that are pods of a Kubernetes: the part `datacenter.kubernetes` of an Attach file.

Who lists the pods is in backends/kubernetes/agents.py; whether those that were found fit, in pods_found.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import Field, create_model

from hashidrill.staging.attach.beside import KubernetesPart
from hashidrill.staging.attach.product import Attachable, Part, attachables

KUBERNETES = "kubernetes"
"""Its name under `datacenter:`, where products have theirs."""
PLACE = f"datacenter.{KUBERNETES}"
_ROLES = ("server", "client")
_SAYS = "Labels that the pods of its {} have, and no others"


class KubernetesDatacenter(KubernetesPart):
    """A datacenter whose agents are pods: each product is found by the labels of its pods."""

    context: str = Field(
        description="Context of the kubeconfig; `in-cluster` for the service account of our own pod, without a file"
    )
    namespace: str = Field(description="Where the agents' pods are and faults are created")


class Selectors(Part):
    """What pods the agents of a product are."""

    servers: dict[str, str] | None = Field(default=None, min_length=1, description=_SAYS.format("servers"))
    clients: dict[str, str] | None = Field(default=None, min_length=1, description=_SAYS.format("clients"))


@cache
def part_of_pods(name: str) -> type[Part]:
    """The part of a product whose agents are pods: how it is logged in to, as anywhere else, and its selectors."""
    own = {key: (field.annotation, field) for key, field in Selectors.model_fields.items() if key.endswith("s")}
    fields: Any = {key: own[key] for key in ("servers", "clients")}
    found: type[Part] = create_model(f"{name.title()}Pods", __base__=attachables([name])[name].Part, **fields)
    return found


@cache
def model_of_kubernetes() -> type[KubernetesDatacenter]:
    """With a part for each product that can be attached."""
    fields: Any = {
        name: (dict[str, Any] | None, Field(default=None, description=f"{name.title()}, by the labels of its pods"))
        for name in attachables()
    }
    found: type[KubernetesDatacenter] = create_model(
        "KubernetesDatacenter", __base__=KubernetesDatacenter, __doc__=KubernetesDatacenter.__doc__, **fields
    )
    return found


def selectors_of(product: Attachable, part: Part) -> dict[str, dict[str, str]]:
    """By role, the labels of its pods: what the file says, else those of the official chart. No role for none."""
    said = {role: getattr(part, f"{role}s", None) for role in _ROLES}
    return {role: dict(labels) for role in _ROLES if (labels := said[role] or product.pods.get(role))}


def shown(labels: Mapping[str, str]) -> str:
    """As `kubectl get pods -l` takes them."""
    return ",".join(f"{key}={value}" for key, value in labels.items())
