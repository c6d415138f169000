"""What else stands in an estate, beside its products: the part `services` of an Attach file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from hashidrill.core.experiment.strict import Strict

_USUAL = "~/.kube/config"
IN_CLUSTER = "in-cluster"
"""The context that means the service account of our own pod, and no kubeconfig."""
PLACE = "services.kubernetes"


class ToxiproxyPart(Strict):
    """The toxiproxy of an estate, in whose links faults may put toxics."""

    address: str = Field(description="URL of its API, like http://toxiproxy.staging.example:8474")


class KubernetesPart(Strict):
    """The Kubernetes whose Chaos Mesh or Litmus injects faults: into the pods of agents, by chaosd into machines."""

    kubeconfig: str | None = Field(
        default=None, description="Its file; default: KUBECONFIG, ~/.kube/config, or the service account of our own pod"
    )
    context: str | None = Field(default=None, description="Context of that file; default: its current one")
    namespace: str | None = Field(
        default=None, description="Where the agents' pods are and faults are created; default: that of the context"
    )
    chaosd: dict[str, str] = Field(
        default={}, description="URL of the chaosd on a machine, by host, like http://10.1.2.3:31767"
    )
    netem: bool = Field(
        default=False, description="Whether the kernels of the nodes have netem (`modprobe sch_netem` succeeds)"
    )
    litmus_account: str = Field(
        default="litmus-admin", description="ServiceAccount in that namespace as which experiments of Litmus run"
    )
    drain: bool = Field(default=False, description="Whether nodes may be drained: every pod on them leaves them")


class Beside(Strict):
    """What else stands in the estate, beside its products."""

    toxiproxy: ToxiproxyPart | None = Field(default=None, description="The toxiproxy that is in its links")
    kubernetes: KubernetesPart | None = Field(default=None, description="The Kubernetes with the Chaos Mesh or Litmus")


def kubernetes_of(
    part: KubernetesPart | None, path: Path, environ: Mapping[str, str], *, place: str = PLACE
) -> dict[str, Any]:
    """Plain data for whoever connects: `kubeconfig` is a whole path ("" for our own pod's account).

    `place` is where the file says it, for messages.

    `context`, `namespace` and `server` are those that will be used, as far as the file can be read: interlocks look for
    `production` in them. Empty without that part. A relative path is relative to the Attach file at `path`.
    """
    if part is None:
        return {}
    if part.context == IN_CLUSTER:
        part, file = part.model_copy(update={"context": None}), ""
    elif part.kubeconfig is not None:
        file = str(path.parent / Path(part.kubeconfig).expanduser())
    else:
        usual = os.path.expanduser(_USUAL)  # noqa: PTH111 - HOME may be unset
        named = environ.get("KUBECONFIG", "").partition(os.pathsep)[0].strip()
        file = named or (usual if os.path.exists(usual) else "")  # noqa: PTH110 - as above
    own = part.model_dump(include=set(KubernetesPart.model_fields))
    said = {**own, "kubeconfig": file, "server": "", "place": place}
    return said | _meant(file, part) if file else said


def _meant(file: str, part: KubernetesPart) -> dict[str, str | None]:
    """The context that will be used, its namespace and its server; {} for a file that whoever connects will refuse."""
    try:
        written = YAML(typ="safe", pure=True).load(Path(file).read_text())
        name = part.context or written["current-context"]
        context = next(one["context"] for one in written["contexts"] if one["name"] == name)
        cluster = next(one["cluster"] for one in written["clusters"] if one["name"] == context["cluster"])
    except (OSError, ValueError, LookupError, TypeError, StopIteration, YAMLError):
        return {}
    namespace = part.namespace or context.get("namespace") or "default"
    return {"context": str(name), "namespace": str(namespace), "server": str(cluster.get("server", ""))}
