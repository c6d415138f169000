"""`hashidrill staging acl`: the fewest rights that a token needs."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from hashidrill.core.errors import UsageError
from hashidrill.core.experiment.library import complete, find_experiment, read_experiment
from hashidrill.core.experiment.loader import resolve
from hashidrill.core.experiment.rights import reasons, rights_of, together
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.registry import near
from hashidrill.core.protocols.rights import Right, of_service
from hashidrill.core.protocols.service import HasAcls
from hashidrill.faces.cli.common import Json, examples, print_json, print_text
from hashidrill.kubernetes import rbac
from hashidrill.staging.attach.plan import sets_back
from hashidrill.staging.attach.target import IN_CLUSTER, KUBERNETES, PODS_PLACE, written_in
from hashidrill.staging.carriers.settings import carrier_rights, carriers_of
from hashidrill.staging.generators.settings import engine_rights, worker_count
from hashidrill.staging.interlocks.settings import InterlockSettings, interlock_rights, settings_of

_OF_PODS = "finding pods, and port forwards to pods without a route"


def register(app: typer.Typer) -> None:
    calls = (
        "staging acl consul raft/slow-leader-disk",
        "staging acl nomad nomad/drain-under-load --attach staging.yaml",
        "staging acl kubernetes EXPERIMENT",
        "staging acl kubernetes EXPERIMENT --attach in-cluster.yaml --job registry.example/hashidrill:0.1.0",
    )
    app.command(epilog=examples(*calls))(acl)


def acl(
    product: Annotated[str, typer.Argument(metavar="PRODUCT", help="`consul`, `nomad`, `vault` or `kubernetes`.")],
    experiments: Annotated[list[str], typer.Argument(metavar="EXPERIMENT", help="Names or paths of experiments.")],
    *,
    attach: Annotated[
        Path | None,
        typer.Option("--attach", metavar="FILE", help="Add the rights of FILE's interlocks, workers and carriers."),
    ] = None,
    job: Annotated[
        str,
        typer.Option(
            "--job", metavar="IMAGE", help="For kubernetes: add a Job with this image that runs them in the cluster."
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Print the policy of a token that may run these experiments.

    It allows what they need in an existing datacenter, and nothing else.

    Each rule says what needs it: a fault, a load, probes, interlocks, workers. Starts nothing and contacts no agent.
    """
    policies = {cls.name: cls(cls.Spec()).policy for cls in registry.services_with(HasAcls)} | {
        rbac.SERVICE: rbac.policy
    }
    if product not in policies:
        raise UsageError(f"there is no policy language for {product!r}: {near(product, policies)}")
    resolved = [resolve(find_experiment(name)) for name in experiments]
    guards = _beside(attach, sets_back=any(sets_back(each.experiment) for each in resolved))
    if any(each.experiment.datacenter.stands == PODS_PLACE for each in resolved):
        guards = {**guards, _OF_PODS: rbac.OF_PODS}
    needed = together(rights_of(each.experiment, guards) for each in resolved)
    mine = of_service(product, needed)
    text = policies[product](mine, reasons(needed))
    if job:
        text += f"---\n{_job(job, product, attach, experiments, text)}"
    if as_json:
        rights = [
            {"resource": right.resource, "name": right.name, "access": right.access, "for": needed[right]}
            for right in mine
        ]
        print_json({"product": product, "rights": rights, "policy": text})
    elif text:
        print_text(text)
    else:
        names = ", ".join(each.name for each in resolved)
        print_text(f"hashidrill: {names}: no rights in {product} are needed\n", stderr=True)


def _beside(attach: Path | None, *, sets_back: bool) -> Mapping[str, Sequence[Right]]:
    """The rights that every run needs, by the part that needs each. Raises ExperimentError, AttachError."""
    if attach is None:
        return {"interlocks": interlock_rights(InterlockSettings(), sets_back=sets_back)}
    said = written_in(attach)
    guards = {"interlocks": interlock_rights(settings_of(said.interlocks, str(attach)), sets_back=sets_back)}
    if KUBERNETES in said.datacenter:
        guards[_OF_PODS] = rbac.OF_PODS
    written = (said.datacenter.get("nomad") or {}).get("namespace")
    namespace = written or os.environ.get("NOMAD_NAMESPACE") or "default"
    if worker_count(said.engine, str(attach)):
        guards["the job of workers"] = engine_rights(namespace)
    if rights := carrier_rights(carriers_of(said.carriers, str(attach)), namespace):
        guards["jobs that carry faults"] = rights
    return guards


def _job(image: str, product: str, attach: Path | None, experiments: Sequence[str], roles: str) -> str:
    """Raises UsageError unless the file is for a pod of the cluster that the agents are in."""
    said = None if attach is None or product != rbac.SERVICE else written_in(attach).datacenter.get(KUBERNETES)
    if attach is None or said is None or said.get("context") != IN_CLUSTER:
        raise UsageError(
            f"--job: use `staging acl kubernetes EXPERIMENT --attach FILE`, with `context: {IN_CLUSTER}` under"
            f" {PODS_PLACE} of FILE: the Job logs in with its own service account"
        )
    texts = {path.stem: complete(read_experiment(path)) for path in map(find_experiment, experiments)}
    return rbac.job(image, str(said["namespace"]), attach.read_text(), texts, roles)
