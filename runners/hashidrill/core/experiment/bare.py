"""Which services an experiment gets that names none: those that run by default, or none where nothing needs a host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hashidrill.core.experiment.model import SCRIPT
from hashidrill.core.experiment.running import by_default
from hashidrill.core.experiment.selectors import CLIENT_PREFIX
from hashidrill.core.protocols import registry


def settled(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The experiment as it was read, and where it needs no host at all, with `consul: null` under `datacenter:`.

    It needs one for a load, a target, agents behind a tap, and a signal of a probe. Clients whose taps answer from a
    script, and faults of these taps, need none: nothing is started for them.
    """
    written = data.get("datacenter", {})
    named = {"attach", *registry.services()}
    if not isinstance(written, dict) or written.keys() & named or any(_needs(data)):
        return data
    return {**data, "datacenter": {**written, **dict.fromkeys(by_default())}}


def _needs(data: Mapping[str, Any]) -> Iterator[bool]:
    yield bool(data.get("load"))
    for client in _entries(data.get("clients")):
        yield client.get("via") != SCRIPT or client.get("on") is not None
        yield _compares(client.get("profile"))
    for step in _entries(data.get("method")):
        yield "fault" in step and not str(step.get("on")).startswith(CLIENT_PREFIX)
    yield _compares(data.get("steady_state"))
    yield _compares(data.get("guardrails"))


def _entries(part: Any) -> Iterator[Mapping[str, Any]]:
    """The mappings in a list, or under the names of a mapping; of anything else an empty one, which needs hosts."""
    each = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return (one if isinstance(one, dict) else {} for one in each)


def _compares(part: Any) -> bool:
    """Whether a condition somewhere in it compares what the probe of a service that runs by default measures."""
    if isinstance(part, dict):
        return any(_compares(each) for each in part.values())
    if isinstance(part, list):
        return any(_compares(each) for each in part)
    signals = [signal for name in by_default() for signal in registry.services()[name].signals]
    return isinstance(part, str) and any(part.startswith(f"{signal.partition('.')[0]}.") for signal in signals)
