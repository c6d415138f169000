"""Checks a well-formed experiment for errors: unknown loads, missing hosts, faults that collide.

The rules look at a Draft, in which each part that could not be read is None. They check what is there and skip what
already has an error of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hashidrill.core.errors import UnknownNameError
from hashidrill.core.experiment.check_clashes import check_clashes, placed
from hashidrill.core.experiment.check_expectations import check_expectations
from hashidrill.core.experiment.conditions import (
    LOAD_SIGNALS,
    LOAD_STATISTICS,
    PROBE_NAMESPACES,
    PROBE_SIGNALS,
    Condition,
    load_signals,
    unit_trouble,
)
from hashidrill.core.experiment.draft import Draft, Expectation, Load, Mark, Note, Side, Step
from hashidrill.core.experiment.selectors import CLIENT_PREFIX, HOST_FORMS, aimed, parse_selector
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import TOOLS
from hashidrill.core.protocols.registry import near
from hashidrill.core.units import Duration, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hashidrill.core.experiment.problems import Loc
    from hashidrill.core.experiment.profile import Profile
    from hashidrill.core.protocols.abc import Requires

__all__ = ["Draft", "Expectation", "Load", "Mark", "Side", "Step", "check", "condition", "duration", "shown"]

LONGEST = Duration("1h")
DURATIONS: dict[Loc, str] = {
    ("datacenter", "ready_within"): "",
    ("steady_state", "within"): "",
    ("recovery", "for"): "20s",
}
"""The durations, apart from those of steps, that decide how long a run takes, and what is known of their defaults."""

_OF_CLIENTS = (*LOAD_STATISTICS, *(f"attempts.{each}" for each in LOAD_STATISTICS), *LOAD_SIGNALS)
"""What a condition may compare of a client."""


def condition(text: Any) -> Condition | None:
    """The condition, or None where the model has said what is wrong with it."""
    try:
        return Condition.parse(text) if isinstance(text, str) else None
    except ValueError:
        return None


def duration(text: Any) -> Duration | None:
    """The duration, or None where the model has said what is wrong with it."""
    try:
        return Duration(text) if isinstance(text, str) else None
    except ValueError:
        return None


def check(draft: Draft, note: Note) -> None:
    """Note every problem of the draft."""
    _check_loads(draft, note)
    _check_clients(draft, note)
    for index, each in enumerate(draft.require):
        _check_condition(each, draft, ("steady_state", "require", index), note)
    for index, each in enumerate(draft.guardrails):
        _check_condition(each, draft, ("guardrails", index), note)
    for index, step in enumerate(draft.steps):
        if step is not None:
            _check_step(step, draft, ("method", index), note)
    _check_marks(draft, note)
    _check_after(draft, note)
    _check_names(draft, note)
    check_clashes(draft, note)
    for service in draft.services or []:
        service.check(draft, note)
    check_expectations(draft, note)
    for loc, length in draft.durations.items():
        if length is not None and length > LONGEST:
            note(loc, f"{length} is too long: a part of an experiment takes at most {LONGEST}")


def _check_loads(draft: Draft, note: Note) -> None:
    for name, load in draft.loads.items():
        if name in PROBE_NAMESPACES:
            note(("load", name), f"{name} is the name of a probe's signals; give the load another", key=True)
        for parameter, selector in _asked(load):
            if not _served(selector, draft):
                _check_selector(selector, draft, ("load", name, parameter), note)
        if load is not None and load.profile is not None:
            _check_profile(load.profile, draft, ("load", name, "profile"), note)


def _asked(load: Any) -> Iterator[tuple[str, str]]:
    """The selectors of the agents that a load asks, by parameter; none of one that could not be read."""
    if load is not None:
        kind = registry.load(load.kind)
        via = kind.via(load.params)
        yield from ({"via": via} if via is not None else {}).items()
        yield from kind.also(load.params).items()


def _served(via: str, draft: Draft) -> bool:
    """Whether that `via` always has agents: without Consul clients, the servers stand in."""
    name, _, role = via.partition(":")
    here = draft.services is None or name in {service.name for service in draft.services}
    return here and name in registry.services() and role in registry.services()[name].served


def _check_clients(draft: Draft, note: Note) -> None:
    for name, client in draft.clients.items():
        if name in PROBE_NAMESPACES or name in draft.loads:
            taken = "a load" if name in draft.loads else "a probe's signals"
            note(("clients", name), f"{name} is the name of {taken}; give the client another", key=True)
        if client is None:
            continue
        if client.on is not None:
            _check_selector(client.on, draft, ("clients", name, "on"), note)
        if client.agents is not None and not _served(client.agents, draft):
            _check_selector(client.agents, draft, ("clients", name, "via"), note)
        if client.profile is not None:
            _check_profile(client.profile, draft, ("clients", name, "profile"), note)


def _check_profile(profile: Profile, draft: Draft, loc: Loc, note: Note) -> None:
    steered = ("search", "until") if profile.search is not None else ("ramp", "while")
    for index, each in enumerate(profile.conditions):
        _check_condition(each, draft, (*loc, *steered, index), note)
    steps = [*draft.steps, *draft.marks.values()]
    ends = [step.at + step.for_ for step in steps if step and step.at is not None and step.for_ is not None]
    recovery = draft.durations.get(("recovery", "for"))
    if recovery is None or len(ends) < len(draft.steps) or not ends:
        return
    if profile.search is not None and profile.length_s > max(ends):
        length, there = Duration(profile.length_s), Duration(max(ends))
        note(
            loc,
            f"the search and its level take {length}, but the method ends after {there}; make a step of the"
            " method last longer (a mark will do)",
        )
    elif profile.length_s > max(ends) + recovery:
        length, there = Duration(profile.length_s), Duration(max(ends) + recovery)
        note(
            loc,
            f"the profile takes {length}, but the loads stop {there} after the method began; make a step of the"
            " method (a mark will do) or the recovery last longer",
        )


def _check_condition(condition: Condition | None, draft: Draft, loc: Loc, note: Note) -> None:
    if condition is None:
        return
    source, what = condition.source, condition.what
    if source in PROBE_NAMESPACES:
        signals = [signal for signal in PROBE_SIGNALS if signal.startswith(f"{source}.")]
        if f"{source}.{what}" not in signals:
            note(
                loc, f"{shown(condition.text)}: there is no signal {source}.{what}: {near(f'{source}.{what}', signals)}"
            )
    elif draft.load_names is None:
        return
    elif source not in draft.load_names:
        known = [*draft.load_names, *PROBE_NAMESPACES]
        note(loc, f"{shown(condition.text)}: there is no load or probe {source!r}: {near(source, known)}")
    elif source in draft.clients:
        if what not in _OF_CLIENTS:
            note(loc, f"{shown(condition.text)}: a client has no {what!r}: {near(what, _OF_CLIENTS)}")
    elif what not in LOAD_STATISTICS:
        _check_own_signal(condition, draft, loc, note)


def _check_own_signal(condition: Condition, draft: Draft, loc: Loc, note: Note) -> None:
    """Checks a signal that only some kinds of load have."""
    what, load = condition.what, draft.loads.get(condition.source)
    # a load that could not be read may be of any kind
    kinds = registry.loads().values() if load is None else [registry.load(load.kind)]
    own = {name: unit for kind in kinds for name, unit in load_signals(kind).items()}
    if what not in own:
        known = (*LOAD_STATISTICS, *own)
        note(loc, f"{shown(condition.text)}: a load has no {what!r}: {near(what, known)}")
    elif load is not None and (trouble := unit_trouble(condition, own[what])):
        note(loc, trouble)


def _check_step(step: Step, draft: Draft, loc: Loc, note: Note) -> None:
    if step.on is not None:
        _check_on(step, step.on, draft, (*loc, "on"), note)
    if (fault := step.fault) is not None:
        _check_requires(fault.kind, fault.requires(), draft, (*loc, "fault"), note)
        place = placed(step, draft)
        # at most one message per place in the step; a selector without a match already has one
        said: list[tuple[str | int, ...]] = [("on",)] if draft.services is not None and not place.hosts else []
        for at, text in fault.troubles(place):
            if at not in said:
                note((*loc, *at), text)
                said.append(at)
    if step.for_ is not None and step.at is not None and step.at + step.for_ > LONGEST:
        end = Duration(step.at + step.for_)
        note((*loc, "for"), f"the fault would end {end} into the method; at + for may be at most {LONGEST}")


def _check_requires(kind: str, required: Requires, draft: Draft, loc: Loc, note: Note) -> None:
    if required.sized_disk and draft.disk is not None and draft.disk.size is None:
        note(loc, f"{kind} needs a disk of limited size: set datacenter.disk.size, for example to 256MiB")
    for tool in sorted(required.tools - TOOLS):
        note(loc, f"{kind} requires the tool {shown(tool)}, which hashidrill cannot install: {near(tool, TOOLS)}")


def _check_on(step: Step, on: str, draft: Draft, loc: Loc, note: Note) -> None:
    """Faults of a tap target a client, all others target hosts."""
    client = on.removeprefix(CLIENT_PREFIX) if on.startswith(CLIENT_PREFIX) else None
    of_a_tap = step.kind in registry.fault_kinds() and registry.fault(step.kind).on_client
    if client is None and of_a_tap:
        note(loc, f"{step.kind} targets a client (client:NAME), not {shown(on)}: {near(on, _taps(draft))}")
    elif client is None:
        _check_selector(aimed(step.kind, on), draft, loc, note)
    elif not of_a_tap:
        alone = " and ".join(kind for kind, fault in sorted(registry.faults().items()) if fault.on_client)
        note(loc, f"{shown(on)} is a client's tap, which takes only {alone}; {step.kind} targets a host")
    elif client not in draft.clients:
        note(loc, f"there is no client {shown(client)}: {near(on, _taps(draft))}")


def _taps(draft: Draft) -> list[str]:
    return [f"{CLIENT_PREFIX}{client}" for client in draft.clients]


def _check_names(draft: Draft, note: Note) -> None:
    """A step's name is unique, and is not a kind of fault."""
    seen: dict[str, int] = {}
    for index, fault in enumerate(draft.steps):
        step, key = (draft.marks[index], "mark") if index in draft.marks else (fault, "name")
        if step is None or step.name is None:
            continue
        if step.name in seen:
            text = f"method[{seen[step.name]}] already has the name {shown(step.name)}; give each step its own"
            note(("method", index, key), text)
        elif step.name in registry.fault_kinds():
            note(("method", index, key), f"{shown(step.name)} is a kind of fault; give the step another name")
        seen.setdefault(step.name, index)


def _check_marks(draft: Draft, note: Note) -> None:
    for index, mark in draft.marks.items():
        if mark.for_ is not None and mark.at is not None and mark.at + mark.for_ > LONGEST:
            text = f"the mark would end {Duration(mark.at + mark.for_)} into the method"
            note(("method", index, "for"), f"{text}; at + for may be at most {LONGEST}")


def _check_after(draft: Draft, note: Note) -> None:
    """A step comes after faults of the method that have a name and begin before it."""
    faults = {step.name: step for step in draft.steps if step is not None and step.name is not None}
    for index, fault in enumerate(draft.steps):
        step = draft.marks.get(index, fault)
        for name in step.after if step is not None else ():
            loc = ("method", index, "after")
            earlier = faults.get(name)
            if earlier is None:
                is_mark = any(mark.name == name for mark in draft.marks.values())
                said = "a mark, which goes by the clock" if is_mark else "no name of a fault in this method"
                note(loc, f"{shown(name)} is {said}: {near(name, faults)}")
            elif earlier.at is not None and step is not None and step.at is not None and earlier.at >= step.at:
                note(loc, f"{shown(name)} begins {earlier.at} into the method, not before this step ({step.at})")


def _check_selector(text: str, draft: Draft, loc: Loc, note: Note) -> None:
    try:
        selector = parse_selector(text)
    except UnknownNameError as unknown:
        note(loc, str(unknown))
        return
    if selector.is_client:
        note(loc, f"{shown(text)} is a client's tap, not a host: {near(text, HOST_FORMS)}")
    if draft.services is None:
        return
    if reason := selector.impossible(draft.services):
        note(loc, reason)
