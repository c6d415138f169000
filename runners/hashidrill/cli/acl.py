"""`hashidrill acl`: the least that tokens must be allowed."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from hashidrill import registry
from hashidrill.cli.common import Json, examples, print_json
from hashidrill.datacenter.interlocks.settings import InterlockSettings, interlock_rights
from hashidrill.errors import UsageError
from hashidrill.experiment.library import find_experiment
from hashidrill.experiment.loader import resolve
from hashidrill.experiment.rights import reasons, rights_of, together
from hashidrill.registry import near
from hashidrill.rights import of_service


def register(app: typer.Typer) -> None:
    """Add the command."""
    calls = ("acl consul raft/slow-leader-disk", "acl nomad nomad/drain-under-load --json")
    app.command(epilog=examples(*calls))(acl)


def acl(
    product: Annotated[str, typer.Argument(metavar="PRODUCT", help="`consul`, `nomad` or `vault`.")],
    experiments: Annotated[list[str], typer.Argument(metavar="EXPERIMENT...", help="Names or paths of experiments.")],
    *,
    as_json: Json = False,
) -> None:
    """Print the policy of a token that may run these experiments in an existing datacenter, and no more.

    Each rule says who needs it: a fault, a load, probes, interlocks. Starts nothing and asks nobody.
    """
    services = registry.services()
    known = [name for name, service in services.items() if getattr(service, "acls", False)]
    if product not in known:
        raise UsageError(f"there is no policy language for {product!r}: {near(product, known)}")
    resolved = [resolve(find_experiment(name)) for name in experiments]
    guards = {"interlocks": interlock_rights(InterlockSettings())}
    needed = together(rights_of(each.experiment, guards) for each in resolved)
    mine = of_service(product, needed)
    service = services[product]
    text = service(service.Spec()).policy(mine, reasons(needed))
    if as_json:
        rights = [
            {"resource": right.resource, "name": right.name, "access": right.access, "for": needed[right]}
            for right in mine
        ]
        print_json({"product": product, "rights": rights, "policy": text})
    elif text:
        sys.stdout.write(text)
    else:
        names = ", ".join(each.name for each in resolved)
        sys.stderr.write(f"hashidrill: {names}: no rights in {product} are needed\n")
