"""Do the Go profiles of the servers name the code that grew?"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from hashidrill import Held, HypothesisInvalidError, Percent, Recording, hypothesis, measure, require
from hashidrill.core.judging.measure import SECOND
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.service import Drawn
from hashidrill.core.recording.profiles import (
    HEALTHY,
    Profile,
    Taken,
    amount,
    compared,
    grown,
    missed,
    short_name,
    taken,
)

_LEADER, _SHOWN = "leader", 8
_LEAST_SAMPLES = 30
"""A share of fewer samples says little. At 100 Hz, 30 samples are a tenth of a core for 3 s."""


def _never(params: Any, experiment: Any) -> Iterator[tuple[str, str]]:
    try:
        re.compile(params.function)
    except re.error as error:
        yield "function", f"{params.function!r} is not a regular expression: {error}"
    if experiment.profiles == "off":
        yield "function", "this experiment takes no profiles: remove `profiles: off`"


@dataclass(frozen=True)
class _Look:
    """One profile compared with the healthy one: the weight of the stacks with the function, and their share."""

    of: Taken
    names: tuple[str, ...]
    share: float
    amount: float
    before: float
    times: float
    unit: str
    others: str

    def __str__(self) -> str:
        if not self.names:
            return f"{self.of}: the function is in no stack; what grew there: {self.others}"
        return (
            f"{self.of}: {', '.join(self.names)} in {measure.share(self.share)} of it"
            f" ({amount(self.amount, self.unit)}, {amount(self.before, self.unit)} in the steady state); what grew"
            f" there: {self.others}"
        )


@hypothesis(never=_never)
def profile_names(
    recording: Recording,
    *,
    function: str,
    kind: Literal["cpu", "goroutine", "mutex", "block"] = "cpu",
    fault: str | None = None,
    host: str | None = None,
    share: Percent = Percent("20%"),
    times: float = 2.0,
) -> Held:
    """A Go profile of a sick server names the code: much of it is below `function`, and much more than when healthy.

    Profiles of that `kind` count if they were taken while the faults (or the mark) were in force, from any server or
    from `host`: a name, or `leader` for the server that led then. In one of them, stacks with a function that matches
    the expression `function` must have at least `share` of the weight, and `times` their weight in the same server's
    profile from the steady state (where less than one sample counts as one). INVALID if there is no such profile, if
    all these servers were idle, or if a profile is torn, empty, of another moment or without a healthy one, unless
    another profile names the code. Consul, Nomad and Vault never switch on mutex and block profiles: these are empty.
    """
    spans = [measure.in_force(recording, window) for window in measure.windows(recording, fault)]
    picked = [
        one
        for one in taken(recording)
        if one.kind == kind and one.why != HEALTHY and _of_host(recording, one, host)
        # the end of a profile is recorded after its last byte
        if any(start <= one.began_ns and one.ended_ns <= end + SECOND for start, end in spans)
    ]
    looks: list[_Look] = []
    unknown: list[str] = []
    for one in picked:
        try:
            sick, healthy = compared(recording, one)
        except HypothesisInvalidError as error:
            unknown.append(str(error))
            continue
        if sick.samples >= _LEAST_SAMPLES:
            looks.append(_look(one, sick, healthy, re.compile(function)))
    named = [look for look in looks if look.share >= share and look.times >= times]
    if not named and (unknown or not looks):
        where = f"{kind} profile{f' of {host}' if host else ''}"
        idle = f"no {where} has {_LEAST_SAMPLES} samples: these servers were idle" if picked else ""
        there = ", ".join(f"{one} ({one.why})" for one in taken(recording)[:_SHOWN]) or "none"
        none = "; ".join(
            [
                f"no {where} was taken while {fault or 'a fault'} was in force; there are: {there}",
                *missed(recording)[:3],
            ]
        )
        raise HypothesisInvalidError("; ".join(unknown) or idle or none)
    best = max(named or looks, key=lambda look: look.share)
    figures = {"share": best.share, "times": best.times, "amount": best.amount, "healthy_amount": best.before}
    asked = f"{function!r} in at least {share} of a {kind} profile, {times:g} times as much as in the steady state"
    require(named, f"no profile names the code: expected {asked}\n" + "\n".join(map(str, looks)), **figures)
    return Held(f"{amount(best.times, 'times')} as much as in the steady state; {best}", **figures)


def _of_host(recording: Recording, one: Taken, host: str | None) -> bool:
    if host != _LEADER:
        return host in {None, one.host}
    signals = {
        product.name: lane.signal for product in registry.services_with(Drawn) for lane in product.lanes if lane.names
    }
    if one.agent not in signals:
        return False
    led = measure.reigns(recording, one.began_ns, one.ended_ns, signals[one.agent])
    return {reign.host for reign in led} == {one.host}


def _look(one: Taken, sick: Profile, healthy: Profile, pattern: re.Pattern[str]) -> _Look:
    names = {name for name in sick.functions | healthy.functions if pattern.search(name)}
    now, before = sick.of(names), healthy.of(names)
    by_weight = sorted(names & sick.functions, key=lambda name: -sick.of({name}))
    others = "; ".join(
        f"{short_name(each.function)} by {amount(each.grew, sick.unit)}" for each in grown(sick, healthy, 6)
    )
    return _Look(
        one,
        tuple(map(short_name, by_weight[:3])),
        now / sick.total,
        now,
        before,
        now / max(before, healthy.one),
        sick.unit,
        others or "nothing",
    )
