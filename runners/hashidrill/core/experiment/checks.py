"""Checks an experiment whose parts fit their models: unknown loads, missing hosts, faults that collide.

Faults declare what they cannot share (hashidrill.core.protocols.claims), so this module names no kind of fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from hashidrill.core.errors import ExperimentError, SelectorError, UnknownNameError
from hashidrill.core.experiment.conditions import (
    LOAD_SIGNALS,
    LOAD_STATISTICS,
    Condition,
    load_signals,
    probe_namespaces,
    probe_signals,
    unit_trouble,
)
from hashidrill.core.experiment.documents import listed
from hashidrill.core.experiment.model import OF_VARIANTS, SECTIONS, Experiment, Mark, Step, make_fault, services_of
from hashidrill.core.experiment.moments import ERRORS, GONE
from hashidrill.core.experiment.selectors import CLIENT_PREFIX, aimed, host_forms, parse_selector, place_of
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import (
    TOOLS,
    FindsTroubles,
    HoldsAgentDown,
    OnTap,
    RestartsAgent,
    claims_of,
    selectors_of,
)
from hashidrill.core.protocols.claims import clash
from hashidrill.core.protocols.registry import near
from hashidrill.core.protocols.service import ChecksExperiments, ServesProfiles, roles_of, shower
from hashidrill.core.tap.catalogue import FAULTS
from hashidrill.core.units import Duration, Quantity, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydantic import BaseModel

    from hashidrill.core.experiment.documents import Document, Loc
    from hashidrill.core.experiment.load_levels import Profile
    from hashidrill.core.experiment.moments import Moment
    from hashidrill.core.hypothesis.marked import Never
    from hashidrill.core.protocols.abc import Fault, Place, Requires, Restarts
    from hashidrill.core.protocols.service import Service

LONGEST = Duration("1h")
MOST_LOOKS_PER_S = 100
"""The limit for all declared probes together: each look takes 1 to 3 ms of the core that watches the guardrails."""
_OF_CLIENTS = (*LOAD_STATISTICS, *(f"attempts.{each}" for each in LOAD_STATISTICS), *LOAD_SIGNALS)
"""The statistics of a client that a condition may compare."""


class Note(Protocol):
    """Receives a problem and its place, like `Document.problem`."""

    def __call__(self, loc: Loc, text: str, *, key: bool = False) -> None: ...


@dataclass(frozen=True)
class Expected:
    """An expectation, or one side of a contrast: its place, and its parameters as the hypothesis receives them."""

    loc: Loc
    params: BaseModel
    never: Never | None = None
    sides: Sequence[Expected] = ()
    compares: Sequence[str] = ()
    """The parameters of a comparison that each name a variant."""


def check(experiment: Experiment, expected: Sequence[Expected], note: Note) -> None:
    """Notes every problem of the experiment."""
    _Rules(experiment, note).check(expected)


class _Rules:
    def __init__(self, experiment: Experiment, note: Note) -> None:
        self._experiment = experiment
        self._note = note
        self._faults = [(n, step, make_fault(step, None)) for n, step in enumerate(experiment.method) if _breaks(step)]
        self._places = {number: self._place(step) for number, step, _ in self._faults}

    @cached_property
    def _services(self) -> list[Service]:
        return services_of(self._experiment.datacenter)

    def check(self, expected: Sequence[Expected]) -> None:
        experiment = self._experiment
        self._check_loads()
        self._check_clients()
        self._check_probes()
        for index, each in enumerate(experiment.steady_state.require):
            self._check_condition(each, ("steady_state", "require", index))
        for index, each in enumerate(experiment.guardrails):
            self._check_condition(each, ("guardrails", index))
        for index, step, fault in self._faults:
            self._check_fault(index, step, fault)
        self._check_order()
        self._check_clashes()
        self._check_restarts()
        self._check_profiles()
        for service in (one for one in self._services if isinstance(one, ChecksExperiments)):
            service.check(experiment, self._note)
        for whole in expected:
            for one in (whole, *whole.sides):
                check_named(one, experiment, self._note)
                for key, text in one.never(one.params, experiment) if one.never else ():
                    self._note((*one.loc, key), text)
        for loc, length in (
            (("datacenter", "ready_within"), experiment.datacenter.ready_within),
            (("steady_state", "within"), experiment.steady_state.within),
            (("recovery", "for"), experiment.recovery.for_),
        ):
            if length > LONGEST:
                self._note(loc, f"{length} is too long: a part of an experiment takes at most {LONGEST}")

    def _check_profiles(self) -> None:
        if self._experiment.profiles in {None, "off"}:
            return
        why = [service.unprofiled() for service in self._services if isinstance(service, ServesProfiles)]
        if not why or all(why):
            because = "; ".join(why) or "no service of this datacenter serves Go profiles"
            self._note(("profiles",), f"{because}: profiles: {self._experiment.profiles} is not possible; write `off`")

    def _place(self, step: Step) -> Place:
        return place_of(step.on, step.at, step.for_, self._services, {"disk": self._experiment.datacenter.disk})

    def _check_loads(self) -> None:
        for name, load in self._experiment.load.items():
            if name in probe_namespaces():
                self._note(("load", name), f"{name} is the name of a probe's signals; give the load another", key=True)
            for parameter, selector in selectors_of(registry.load(load.kind), load.parameters).items():
                if not self._served(selector):
                    self._check_selector(selector, ("load", name, parameter))
            if load.profile is not None:
                self._check_profile(load.profile, ("load", name, "profile"))

    def _served(self, via: str) -> bool:
        """Whether that `via` always has agents: without Consul clients, loads go through the servers."""
        name, _, role = via.partition(":")
        return any(service.name == name and role in roles_of(service).served for service in self._services)

    def _check_clients(self) -> None:
        for name, client in self._experiment.clients.items():
            if name in probe_namespaces() or name in self._experiment.load:
                taken = "a load" if name in self._experiment.load else "a probe's signals"
                self._note(("clients", name), f"{name} is the name of {taken}; give the client another", key=True)
            if client.on is not None:
                self._check_selector(client.on, ("clients", name, "on"))
            if client.agents is not None and not self._served(client.agents):
                self._check_selector(client.agents, ("clients", name, "via"))
            if client.profile is not None:
                self._check_profile(client.profile, ("clients", name, "profile"))

    def _check_probes(self) -> None:
        looks_per_s = sum(1 / probe.every for probe in self._experiment.probes.values())
        if looks_per_s > MOST_LOOKS_PER_S:
            text = f"together they look {looks_per_s:.0f} times a second, over {MOST_LOOKS_PER_S}; make `every` longer"
            self._note(("probes",), text, key=True)
        for name in self._experiment.probes:
            if name in probe_namespaces() or name in self._experiment.traffic:
                taken = "a load or client" if name in self._experiment.traffic else "the signals of a product"
                self._note(("probes", name), f"{name} is the name of {taken}; give the probe another", key=True)

    def _check_profile(self, profile: Profile, loc: Loc) -> None:
        steered = ("search", "until") if profile.search is not None else ("ramp", "while")
        for index, each in enumerate(profile.conditions):
            self._check_condition(each, (*loc, *steered, index))
        method_s = max(step.at + step.for_ for step in self._experiment.method)
        length, there = Duration(profile.length_s), Duration(method_s + self._experiment.recovery.for_)
        if profile.search is not None and length > method_s:
            text = f"the search and its level take {length}, but the method ends after {Duration(method_s)}"
            self._note(loc, f"{text}; make a step of the method last longer (a mark will do)")
        elif length > there:
            text = f"the profile takes {length}, but the loads stop {there} after the method began"
            self._note(loc, f"{text}; make a step of the method (a mark will do) or the recovery last longer")

    def _check_condition(self, condition: Condition, loc: Loc) -> None:
        experiment, source, what = self._experiment, condition.source, condition.what
        signals = {**probe_signals(source), **experiment.declared_signals}
        trouble, unit = "", signals.get(f"{source}.{what}")
        if source in probe_namespaces() or source in experiment.probes:
            if f"{source}.{what}" not in signals:
                trouble = f"there is no signal {source}.{what}: {near(f'{source}.{what}', signals)}"
            elif source in experiment.probes:
                self._check_unit(condition, unit, loc)
        elif source in experiment.clients:
            if what not in _OF_CLIENTS:
                trouble = f"a client has no {what!r}: {near(what, _OF_CLIENTS)}"
        elif source not in experiment.load:
            names = [*experiment.traffic, *experiment.probes, *probe_namespaces()]
            trouble = f"there is no load or probe {source!r}: {near(source, names)}"
        elif what not in LOAD_STATISTICS:
            own = load_signals(registry.load(experiment.load[source].kind))
            if what in own:
                self._check_unit(condition, own[what], loc)
            else:
                trouble = f"a load has no {what!r}: {near(what, (*LOAD_STATISTICS, *own))}"
        if trouble:
            self._note(loc, f"{shown(condition.text)}: {trouble}")

    def _check_unit(self, condition: Condition, unit: type[Quantity] | None, loc: Loc) -> None:
        if wrong := unit_trouble(condition, unit):
            self._note(loc, wrong)

    def _check_fault(self, index: int, step: Step, fault: Fault) -> None:
        loc: Loc = ("method", index)
        self._check_on(step, (*loc, "on"))
        self._check_requires(step.fault, fault.requires(), (*loc, "fault"))
        # at most one message per place in the step; a selector without a match already has one
        place = self._places[index]
        said: list[tuple[str | int, ...]] = [] if place.hosts else [("on",)]
        for at, text in fault.troubles(place) if isinstance(fault, FindsTroubles) else ():
            if at not in said:
                self._note((*loc, *at), text)
                said.append(at)

    def _check_requires(self, kind: str, required: Requires, loc: Loc) -> None:
        if required.sized_disk and self._experiment.datacenter.disk.size is None:
            self._note(loc, f"{kind} needs a disk of limited size: set datacenter.disk.size, for example to 256MiB")
        for tool in sorted(required.tools - TOOLS):
            text = f"{kind} requires the tool {shown(tool)}, which hashidrill cannot install: {near(tool, TOOLS)}"
            self._note(loc, text)

    def _check_on(self, step: Step, loc: Loc) -> None:
        client = step.on.removeprefix(CLIENT_PREFIX) if step.on.startswith(CLIENT_PREFIX) else None
        of_a_tap = _on_tap(registry.fault(step.fault))
        taps = [f"{CLIENT_PREFIX}{name}" for name in self._experiment.clients]
        if client is None and of_a_tap:
            text = f"{step.fault} targets a client (client:NAME), not {shown(step.on)}: {near(step.on, taps)}"
            self._note(loc, text)
        elif client is None:
            self._check_selector(aimed(step.fault, step.on), loc)
        elif not of_a_tap:
            alone = " and ".join(kind for kind, fault in sorted(registry.faults().items()) if _on_tap(fault))
            text = f"{shown(step.on)} is a client's tap, which accepts only {alone}; {step.fault} targets a host"
            self._note(loc, text)
        elif client not in self._experiment.clients:
            self._note(loc, f"there is no client {shown(client)}: {near(step.on, taps)}")

    def _check_order(self) -> None:
        """Checks that a step ends within LONGEST, has a unique name, and waits only for faults that begin before it."""
        named: dict[str, int] = {}
        faults = {step.name: step for _, step, _ in self._faults if step.name is not None}
        marks = {step.name for step in self._experiment.method if isinstance(step, Mark)}
        for index, step in enumerate(self._experiment.method):
            loc, what, key = ("method", index), *(("mark", "mark") if isinstance(step, Mark) else ("fault", "name"))
            if (end := Duration(step.at + step.for_)) > LONGEST:
                text = f"the {what} would end {end} into the method; at + for may be at most {LONGEST}"
                self._note((*loc, "for"), text)
            if step.name in named:
                text = f"method[{named[step.name]}] already has the name {shown(step.name)}; give each step its own"
                self._note((*loc, key), text)
            elif step.name in registry.fault_kinds():
                self._note((*loc, key), f"{shown(step.name)} is a kind of fault; give the step another name")
            if step.name is not None:
                named.setdefault(step.name, index)
            self._check_moment(index, step)
            for name in step.after:
                earlier = faults.get(name)
                if earlier is None:
                    what = "is a mark, which follows the clock" if name in marks else "names no fault of this method"
                    self._note((*loc, "after"), f"{shown(name)} {what}: {near(name, faults)}")
                elif earlier.at >= step.at:
                    text = f"{shown(name)} begins {earlier.at} into the method, not before this step ({step.at})"
                    self._note((*loc, "after"), text)

    def _check_moment(self, index: int, step: Step | Mark) -> None:
        """Checks that the step's moment can come while the clock stands still and no later fault begins or ends."""
        if step.when is None:
            return
        loc: Loc = ("method", index, "when")
        if step.waits_s > LONGEST:
            self._note((*loc[:2], "within"), f"{step.within} is too long: a step waits at most {LONGEST}")
        if step.when.kind == ERRORS:
            if step.when.name not in self._experiment.traffic:
                known = near(step.when.name, self._experiment.traffic)
                self._note(loc, f"there is no load {shown(step.when.name)}: {known}")
        elif step.when.of_product:
            try:
                shower(self._services, step.when.kind, step.when.product)
            except SelectorError as error:
                self._note(loc, str(error))
        else:
            self._check_moment_of_fault(index, step, step.when)

    def _check_moment_of_fault(self, index: int, step: Step | Mark, when: Moment) -> None:
        loc: Loc = ("method", index, "when")
        faults = {one.name: (number, one) for number, one, _ in self._faults if one.name is not None}
        if when.name not in faults:
            self._note(loc, f"{shown(when.name)} names no fault of this method: {near(when.name, faults)}")
            return
        number, earlier = faults[when.name]
        of_earlier = Duration(earlier.at + (earlier.for_ if when.kind == GONE else 0))
        if number == index:
            self._note(loc, "the step waits for itself: name another one")
        elif of_earlier > step.at:
            does = "ends" if when.kind == GONE else "begins"
            text = f"{shown(when.name)} {does} {of_earlier} into the method, after this step ({step.at})"
            self._note(loc, f"{text}, and the clock stands still while it waits: set `at` to {of_earlier} or later")

    def _check_clashes(self) -> None:
        claimed = [(n, step, (self._places[n], claims_of(fault, self._places[n]))) for n, step, fault in self._faults]
        for index, (number, step, claims) in enumerate(claimed):
            for before, earlier, others in claimed[:index]:
                if found := clash(others, claims):
                    text = f"{step.fault} on {step.on} runs while method[{before}] ({earlier.fault} on {earlier.on})"
                    self._note(("method", number), f"{text} {found.said}; {found.advice}")
                    break

    def _check_restarts(self) -> None:
        for number, step, fault in self._faults:
            restarts = fault.restarts if isinstance(fault, RestartsAgent) else None
            for other, holding, holder in self._faults if restarts else ():
                down = isinstance(holder, HoldsAgentDown) and holder.holds_down and other != number
                if down and restarts and _falls_into(restarts, self._places[number], self._places[other]):
                    text = f"{step.fault} restarts {step.on} while method[{other}] ({holding.fault} on {holding.on})"
                    text += " may still be in force; let it begin and end outside that time"
                    self._note(("method", number, "fault"), text)
                    break

    def _check_selector(self, text: str, loc: Loc) -> None:
        try:
            selector = parse_selector(text)
        except UnknownNameError as unknown:
            self._note(loc, str(unknown))
            return
        if selector.is_client:
            self._note(loc, f"{shown(text)} is a client's tap, not a host: {near(text, host_forms())}")
        if reason := selector.impossible(self._services):
            self._note(loc, reason)


def _breaks(step: Step | Mark) -> TypeGuard[Step]:
    return isinstance(step, Step)


def _on_tap(fault: Any) -> bool:
    return isinstance(fault, OnTap) and fault.on_client


def _falls_into(restarts: Restarts, place: Place, down: Place) -> bool:
    if down.begins_s is None or down.ends_s is None or not place.hosts & down.hosts:
        return False
    return any(
        moment < down.ends_s and down.begins_s < moment + restarts.within_s for moment in restarts.moments(place)
    )


def check_named(expected: Expected, experiment: Experiment, note: Note) -> None:
    """Notes names in a hypothesis's parameters that the experiment does not have."""
    kinds = sorted({name for step in experiment.method for name in (step.name, getattr(step, "fault", None)) if name})
    of_a_client = _param(expected.params, "client") is not None
    for key, noun, known in (
        ("load", "load", experiment.traffic),
        ("client", "client", experiment.clients),
        ("fault", "step of the method with the fault", kinds),
    ):
        value = _param(expected.params, key)
        for name in [value] if isinstance(value, str) else value if isinstance(value, (list, tuple)) else ():
            # expectations about a client may name a failure of an attempt instead of a step
            by_tap = of_a_client and key == "fault" and (name in FAULTS or name == "no-reply" or name.isdecimal())
            if name not in known and not by_tap:
                note((*expected.loc, key), f"there is no {noun} {shown(name)}: {near(name, known)}")


def _param(params: BaseModel, key: str) -> Any:
    fields = type(params).model_fields.items()
    return next((getattr(params, name) for name, spec in fields if key == (spec.alias or name)), None)


def check_variants(
    document: Document,
    experiment: Experiment,
    comparisons: Sequence[Expected],
    load: Callable[[Document], Experiment],
) -> None:
    """Raises ExperimentError with every problem of every variant. `load` loads a variant as a separate experiment."""
    variants = written_variants(document)
    if len(variants) == 1:
        text = "one variant has nothing to be compared with: add another, like `as-it-is: {}`"
        document.problem(("variants",), text, key=True)
    for key in OF_VARIANTS:
        if key in document.data and not variants:
            document.problem((key,), "there is nothing to compare: name two `variants:` or more", key=True)
    loaded: dict[str, Experiment] = {}
    for name, one in variants.items():
        try:
            loaded[name] = load(one)
        except ExperimentError:
            document.problems += one.problems
    _check_different(document, loaded)
    for comparison in comparisons if variants else ():
        _check_comparison(document, comparison, list(variants), loaded)
        for key, text in comparison.never(comparison.params, experiment) if comparison.never else ():
            document.problem((*comparison.loc, key), text)
    document.raise_problems()


def _check_comparison(
    document: Document, comparison: Expected, variants: list[str], loaded: Mapping[str, Experiment]
) -> None:
    named = {side: _param(comparison.params, side) for side in comparison.compares}
    for side, name in named.items():
        if name not in variants:
            text = f"there is no variant {shown(name)}: {near(str(name), variants)}"
            document.problem((*comparison.loc, side), text)
        elif name in loaded:
            check_named(comparison, loaded[name], document.problem)
    if len(set(named.values())) < len(named):
        document.problem(comparison.loc, "compares a variant with itself: name a different one for each side")


def _check_different(document: Document, loaded: Mapping[str, Experiment]) -> None:
    """Refuses variants that run identically: only chance could make their results differ."""
    seen: dict[str, str] = {}
    for name, experiment in loaded.items():
        runs = repr(experiment.model_dump(mode="json", by_alias=True, include=set(SECTIONS) - {"expect"}))
        if runs in seen:
            text = f"runs the same as the variant {seen[runs]}: change its datacenter, load or clients"
            document.problem(("variants", name), text, key=True)
        seen.setdefault(runs, name)


def check_sections(over: Document, name: str) -> None:
    """Raises ExperimentError if an overlay has a section that cannot vary."""
    if not isinstance(over.data, dict):
        over.problem((), f"the overlay of the variant {name} must be a mapping of {listed(SECTIONS)}")
    else:
        for key in over.data:
            if key not in SECTIONS:
                over.problem((key,), f"{key} cannot vary: {near(key, SECTIONS)}", key=True)
    over.raise_problems()


def written_variants(document: Document) -> dict[str, Document]:
    """The variants of a document, by name, each as a whole document without the keys about variants."""
    written = document.data.get("variants") if isinstance(document.data, dict) else None
    names = list(written) if isinstance(written, dict) else []
    return {name: document.variant_of(("variants", name), without=OF_VARIANTS, variant=name) for name in names}
