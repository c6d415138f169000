"""What an arming consents to: all that an experiment does to a datacenter, and how wide it may go there.

Two experiments with one digest do the same: every step, load and client with its parameters, defaults filled in, from
the steady state to the recovery, and the limits of the attach file. Titles, expectations and reports are not in it.
Neither are programs that it names (a client's command): whoever arms an experiment trusts those as they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hashidrill.core.experiment.model import Step
from hashidrill.core.protocols import registry

if TYPE_CHECKING:
    from hashidrill.core.experiment.model import Experiment
    from hashidrill.staging.interlocks.settings import InterlockSettings

_SHORT = len("sha256:") + 12


def content_of(experiment: Experiment, settings: InterlockSettings) -> dict[str, Any]:
    """Plain data; the same for a file that was written in another way and means the same."""
    written = experiment.model_dump(mode="json", by_alias=True, include={"steady_state", "guardrails", "recovery"})
    return {
        "experiment": experiment.metadata.name,
        "method": [
            _plain(step) | ({"with": _plain(step.parameters)} if isinstance(step, Step) else {})
            for step in experiment.method
        ],
        "load": {
            name: {"kind": load.kind, "profile": load.profile and _plain(load.profile), "with": _plain(load.parameters)}
            for name, load in experiment.load.items()
        },
        "clients": {name: _plain(client) for name, client in experiment.clients.items()},
        **written,
        "breaks_quorum": experiment.breaks_quorum,
        "blast_radius": _plain(settings.blast_radius),
        "not_production": sorted(settings.production.not_production),
    }


def digest_of(experiment: Experiment, settings: InterlockSettings) -> str:
    """`sha256:` and 64 digits."""
    text = json.dumps(content_of(experiment, settings), sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def sets_back(experiment: Experiment) -> bool:
    """Whether a fault of it sets back what all agents share."""
    return any(registry.fault(step.fault).sets_back for step in experiment.faults)


def lines_of(experiment: Experiment, settings: InterlockSettings) -> Iterator[str]:
    """What is consented to, for a person: the digest, then what is done and how wide it may go."""
    yield f"{experiment.metadata.name} {digest_of(experiment, settings)[:_SHORT]}"
    for step in experiment.faults:
        params = json.dumps(_plain(step.parameters), ensure_ascii=False)
        yield f"  {step.at} {step.fault} on {step.on} for {step.for_} {params if params != '{}' else ''}".rstrip()
    for name, load in experiment.load.items():
        yield f"  load {name}: {load.kind} {json.dumps(_plain(load.parameters), ensure_ascii=False)}"
    for name, client in experiment.clients.items():
        yield f"  client {name}: {' '.join(client.command)}"
    limits = settings.blast_radius
    servers = "a third" if limits.servers is None else str(limits.servers)
    wide = "; it may break a quorum or set back all state" if experiment.breaks_quorum else ""
    yield f"  at most {servers} of a product's servers and {limits.clients} of its clients at one time{wide}"
    if settings.production.not_production:
        yield f"  taken for not production: {', '.join(settings.production.not_production)}"


def _plain(model: Any) -> dict[str, Any]:
    data: dict[str, Any] = model.model_dump(mode="json", by_alias=True)
    return data
