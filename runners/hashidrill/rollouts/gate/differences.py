"""The differences between two configurations, without keys that tie an agent to its machine."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from hashidrill.core.probes.agent_reports import alike
from hashidrill.core.recording.reader import Recording
from hashidrill.core.units import seconds
from hashidrill.core.util.nested import dotted, leaves
from hashidrill.core.util.redaction import MARK, Redactor, is_secret_name
from hashidrill.rollouts.gate.configuration import Configuration, Place, shipped


@dataclass(frozen=True)
class LeftOut:
    """A key that a side's files set but that the gate removes from both sides, and why. Its value is never shown."""

    key: str
    why: str
    differs: bool
    """Whether the key's value differs between the sides; the gate does not test that difference."""
    harmless: bool = False
    """Whether the datacenter's behaviour cannot depend on it; left_out.yaml must say so."""

    @property
    def shown(self) -> str:
        """The key for people, with a note if its value is a secret."""
        return f"{self.key} (a secret)" if any(map(is_secret_name, self.key.split("."))) else self.key


ANOTHER = "a secret that differs"


@dataclass(frozen=True)
class Change:
    """A key whose value differs. None stands for a missing key. `place`: where the candidate sets it."""

    key: str
    baseline: Any
    candidate: Any
    place: Place | None
    role: str = ""
    """The role that the key belongs to, if several roles are compared."""

    @property
    def named(self) -> str:
        """`limits.rpc_rate`, or `limits.rpc_rate of clients`."""
        return f"{self.key} of {self.role}s" if self.role else self.key

    def shown(self) -> tuple[str, str]:
        """Both values for people, with secrets redacted; the second is ANOTHER if only a secret differs."""
        secret = any(is_secret_name(part) for part in self.key.split("."))
        redact = Redactor()
        redact.learn([self.baseline, self.candidate])
        before, after = (_shown(value, redact, secret=secret) for value in (self.baseline, self.candidate))
        return before, ANOTHER if before == after else after

    def __str__(self) -> str:
        before, after = self.shown()
        return f"{self.named}: a secret changed" if after == ANOTHER else f"{self.named}: {before} -> {after}"


@dataclass(frozen=True)
class Differences:
    """`of` holds each role's configuration on each side: baseline, candidate."""

    product: str
    changes: tuple[Change, ...]
    left_out: tuple[LeftOut, ...]
    of: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]]

    @property
    def kept(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Both sides' configuration, if only one role is compared."""
        [both] = self.of.values()
        return both

    @property
    def untested(self) -> list[str]:
        """Keys that differ and may change what the datacenter does, but that no gate tests."""
        return [each.shown for each in self.left_out if each.differs and not each.harmless]

    @property
    def keys(self) -> list[str]:
        return list(dict.fromkeys(change.key for change in self.changes))


def why_left_out(product: str, key: str) -> str | None:
    """The reason for leaving this dotted key out; None to keep it."""
    group = _left_out(product, key)
    return None if group is None else str(group["why"])


def _left_out(product: str, key: str) -> Mapping[str, Any] | None:
    """The group of left_out.yaml that has the key. Consul ignores the case of its keys: `Data_Dir` is `data_dir`."""
    key = key.lower() if product == "consul" else key
    for group in shipped("left_out.yaml")[product]:
        for pattern in group["keys"]:
            if fnmatchcase(key, pattern) or fnmatchcase(key, f"{pattern}.*"):
                found: Mapping[str, Any] = group
                return found
    return None


def differences_of(sides: Mapping[str, tuple[Configuration, Configuration]]) -> Differences:
    """The differences between the agents of each role."""
    found = {role: differences(*both, role=role) for role, both in sides.items()}
    several = len(found) > 1
    changes = [replace(each, role=role if several else "") for role, one in found.items() for each in one.changes]
    left_out: dict[str, LeftOut] = {}
    for each in (each for one in found.values() for each in one.left_out):
        known = left_out.get(each.key, each)
        left_out[each.key] = replace(each, differs=each.differs or known.differs)
    [product] = {one.product for one in found.values()}
    return Differences(
        product, tuple(changes), tuple(left_out.values()), {role: one.kept for role, one in found.items()}
    )


def differences(baseline: Configuration, candidate: Configuration, *, role: str = "all") -> Differences:
    """The differences between the agents of one role. Both sides belong to one product."""
    product = candidate.product
    before, after = (dict(_said(side.settings)) for side in (baseline, candidate))
    left, changes = [], []
    for key in dict.fromkeys([*before, *after]):
        old, new = before.get(key), after.get(key)
        if group := _left_out(product, key):
            left.append(LeftOut(key, str(group["why"]), not same(old, new), group.get("harmless") is True))
        elif not same(old, new):
            changes.append(Change(key, old, new, candidate.place(key) or baseline.place(key)))
    kept = tuple(_kept(product, side.settings) for side in (baseline, candidate))
    return Differences(product, tuple(changes), tuple(left), {role: (kept[0], kept[1])})


def same(one: Any, other: Any) -> bool:
    """Whether both values mean the same to an agent: `60s` is `1m`."""
    if isinstance(one, str) and isinstance(other, str) and one != other:
        lengths = seconds(one), seconds(other)
        return lengths[0] == lengths[1] and None not in lengths
    # in Python, true equals 1
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _said(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each key that is not a map; null and an empty block count as missing."""
    for path, value in leaves(settings):
        if value is not None and value != {}:
            yield dotted(path), value


def _kept(product: str, settings: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    kept = {}
    for name, value in settings.items():
        key = f"{above}.{name}" if above else name
        if value is None or why_left_out(product, key):
            continue
        if isinstance(value, Mapping):
            if inner := _kept(product, value, key):
                kept[name] = inner
        else:
            kept[name] = value
    return kept


def _shown(value: Any, redact: Redactor, *, secret: bool) -> str:
    if value is None:
        return "not set"
    if secret and not isinstance(value, bool):
        return MARK
    redacted = redact.clean(value)
    if isinstance(redacted, bool):
        return str(redacted).lower()
    return redacted if isinstance(redacted, str) else str(redacted)


Reports = Mapping[str, Mapping[str, Any]]


def without_effect(found: Differences, one: Recording, other: Recording) -> dict[str, str]:
    """The changes for which all affected agents report the same value in both runs, and that value.

    The key is `Change.named`. If an agent's report is missing, nothing is known about the change.
    """
    reports: list[Reports] = [run.run.get("reported", {}).get(found.product, {}) for run in (one, other)]
    roles = [_roles(found.product, run) for run in (one, other)]
    if roles[0] != roles[1] or any(set(each) != set(roles[0]) for each in reports):
        return {}
    told = {}
    for change in found.changes:
        whose = {change.role} if change.role else {*found.of}
        said = [
            alike(found.product, change.key, (change.baseline, change.candidate), reports[0][host], reports[1][host])
            for host, role in roles[0].items()
            if whose & {"all", role}
        ]
        if None not in said and any(said):
            told[change.named] = next(each for each in said if each)
    return told


def reports_differ(found: Differences, one: Recording, other: Recording) -> bool:
    """Whether the agents' reports differ between the sides: a changed key may have another name in a report."""
    said = [run.run.get("reported", {}).get(found.product) for run in (one, other)]
    return bool(said[0] != said[1])


def _roles(product: str, run: Recording) -> dict[str, str]:
    return {each["name"]: each["agents"][product] for each in run.run.get("hosts", ()) if product in each["agents"]}
