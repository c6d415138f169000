"""Candidates between two configurations: the good one with some of the changes that lead to the bad one."""

from __future__ import annotations

import contextlib
import copy
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hashidrill.core.errors import ExperimentError, UsageError
from hashidrill.core.experiment.variants import varied
from hashidrill.core.util.nested import Keys as Key
from hashidrill.core.util.nested import dotted, leaves, merge
from hashidrill.core.util.redaction import Redactor
from hashidrill.rollouts.bisect.candidates import Alike, RefusedError
from hashidrill.rollouts.bisect.log import hash_of_secret
from hashidrill.rollouts.bisect.smallest import members_of
from hashidrill.rollouts.gate.configuration import configuration, sources_of
from hashidrill.rollouts.gate.differences import Change, Differences, differences
from hashidrill.rollouts.gate.overlay import overlay, role_of
from hashidrill.rollouts.gate.sides import product_of

if TYPE_CHECKING:
    from hashidrill.core.experiment.resolved import ResolvedExperiment

_ROLE = "server"
"""The key that says whose configuration it is: left out of what agents get, and needed to validate it."""

Refusal = Callable[[Path, Path, Mapping[str, Any]], str]
"""(file, folder to work in, settings) to the agent's words against it; "" where it takes it."""


@dataclass(frozen=True)
class ChangedKeys:
    """The changes between two configurations, in the order of their keys, which keeps those of one block together."""

    given: ResolvedExperiment
    found: Differences
    settings: Mapping[str, Any]
    """The bad configuration, whole."""
    refusal: Refusal
    source: str
    """What messages call a candidate's configuration."""

    @classmethod
    def of(
        cls,
        given: ResolvedExperiment,
        good: Sequence[Path],
        bad: Sequence[Path],
        *,
        product: str | None,
        refusal: Callable[[str], Refusal],
    ) -> ChangedKeys:
        """Raises UsageError: what cannot be read, no change, or an experiment without such agents."""
        ends = sources_of(good), sources_of(bad)
        named = product_of(*ends, product)
        if named not in given.experiment.datacenter.services:
            raise UsageError(f"{given.path}: {given.name} has no {named.capitalize()}, whose configuration changes")
        before, after = (configuration(named, end) for end in ends)
        found = differences(before, after)
        if not found.changes:
            left = sorted(each.shown for each in found.left_out if each.differs)
            what = f"; what differs is left out: {', '.join(left)} (`hashidrill gate` says why)" if left else ""
            raise UsageError(
                f"{_names(good)} and {_names(bad)} give the agents of an experiment the same: nothing to search{what}"
            )
        return cls(given, found, after.settings, refusal(named), f"{_names(good)} with changes")

    @property
    def changes(self) -> list[Change]:
        """By their keys, so that those which need each other are mostly neighbours."""
        return sorted(self.found.changes, key=lambda change: change.key)

    @property
    def question(self) -> dict[str, Any]:
        """What the answer depends on, without any value: a log may be shown."""
        return {
            "product": self.found.product,
            "good": hash_of_secret(self.found.kept[0]),
            "bad": hash_of_secret(self.found.kept[1]),
            "changes": [change.key for change in self.changes],
            "role": role_of(self.found.product, self.settings),
        }

    def shown(self, name: str) -> str:
        """A set of changes for a person."""
        members = members_of(name)
        if not members:
            return "good, unchanged"
        if len(members) == len(self.changes):
            return "bad, all changes"
        keys = [self.changes[number].key for number in members]
        return f"{len(keys)} of {len(self.changes)} changes ({', '.join(keys[:3])}{', ...' if len(keys) > 3 else ''})"

    def resolved(self, name: str) -> ResolvedExperiment:
        """The experiment with that configuration. Raises RefusedError with the agent's words."""
        every = merge(*self.found.kept)
        making = _Making(self.given, self.found.product, self.refusal, self.source)
        return making.resolved(self.kept(members_of(name)), every, self.settings)

    def alike(self, one: str, other: str) -> Alike | None:  # noqa: ARG002 - two sets of changes never are
        return None

    def kept(self, members: Sequence[int]) -> dict[str, Any]:
        """The good configuration with these changes."""
        settings: dict[str, Any] = copy.deepcopy(dict(self.found.kept[0]))
        paths = {dotted(path): path for end in self.found.kept for path, _ in leaves(end)}
        chosen = [self.changes[number] for number in members]
        for change in chosen:
            _take(settings, paths[change.key])
        for change in chosen:
            if change.candidate is not None:
                _put(settings, paths[change.key], change.candidate)
        return settings


def configured(
    given: ResolvedExperiment,
    files: Sequence[Path],
    *,
    product: str | None,
    refusal: Callable[[str], Refusal],
    ends: Sequence[Sequence[Path]] = (),
) -> ResolvedExperiment:
    """The experiment with the configuration in these files. Raises UsageError, RefusedError.

    `ends`: the files of the two ends of a search. A key that only they say is not what the experiment sets.
    """
    sources = sources_of(files)
    named = product_of(sources, sources, product)
    whole = configuration(named, sources)
    kept = differences(whole, whole).kept[0]
    every: Mapping[str, Any] = kept
    for end in ends:
        with contextlib.suppress(UsageError):  # said where that end is run
            there = configuration(named, sources_of(end))
            every = merge(differences(there, there).kept[0], every)
    return _Making(given, named, refusal(named), _names(files)).resolved(kept, every, whole.settings)


@dataclass(frozen=True)
class _Making:
    """Makes experiments whose agents of one product get a configuration."""

    given: ResolvedExperiment
    product: str
    refusal: Refusal
    source: str

    def resolved(
        self, kept: Mapping[str, Any], every: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> ResolvedExperiment:
        """`every` has the keys of all candidates, `settings` all that one of them says. Raises RefusedError."""
        self._check(kept, settings)
        written = dict(self.given.data.get("datacenter") or {}).get(self.product) or {}
        layer = overlay(self.product, kept, every, written, role=role_of(self.product, settings))
        try:
            return varied(self.given, layer, name="candidate", source=self.source)
        except ExperimentError as error:
            raise RefusedError(str(error)) from None

    def _check(self, kept: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        whole = dict(kept) | ({_ROLE: settings[_ROLE]} if isinstance(settings.get(_ROLE), bool) else {})
        with tempfile.TemporaryDirectory(prefix="hashidrill-bisect-") as folder:
            work = Path(folder)
            file = work / "candidate.json"
            file.write_text(json.dumps(whole))
            words = self.refusal(file, work, whole)
        if words:
            redact = Redactor()
            redact.learn(whole)
            raise RefusedError(redact.text(words.replace(str(file), "candidate")))


def _names(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths))


def _take(settings: dict[str, Any], path: Key) -> None:
    """Removes a key, and the blocks that are empty without it."""
    at: Any = settings
    above = []
    for name in path[:-1]:
        if not isinstance(at, dict) or name not in at:
            return
        above.append((at, name))
        at = at[name]
    if isinstance(at, dict):
        at.pop(path[-1], None)
    for block, name in reversed(above):
        if block[name] == {}:
            del block[name]


def _put(settings: dict[str, Any], path: Key, value: Any) -> None:
    at = settings
    for name in path[:-1]:
        if not isinstance(at.get(name), dict):
            at[name] = {}
        at = at[name]
    at[path[-1]] = value
