"""Compares two experiments: a recording may be judged only as a run of its own experiment."""

from __future__ import annotations

import os
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from hashidrill.core.util.redaction import MARK, Redactor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hashidrill.core.experiment.model import Experiment

RUN_BY = ("datacenter", "load", "clients", "probes", "steady_state", "method", "guardrails", "recovery")
"""The parts that shape a run. `expect` is judged afterwards and may differ; `metadata` is for readers."""
_NOTHING = object()
_LONGEST = 80


def differences(asked: Experiment, run: Experiment) -> list[str]:
    """How the two would run differently, one line each, in YAML's terms. A default equals its written-out value.

    A redacted value of the recording counts as equal, unless `asked` has no value there.
    """
    redact = Redactor().data  # older recordings hold secrets unredacted; they must compare equal too
    ours, theirs = (redact(each.model_dump(mode="json", by_alias=True, include=set(RUN_BY))) for each in (asked, run))
    return list(_of_all(ours, theirs))


def hidden(one: Experiment, other: Experiment) -> list[str]:
    """Where two experiments, neither from a recording, differ only in secrets, in YAML's terms.

    Their recordings look the same there. Returns only the places, never a value.
    """
    real = [each.model_dump(mode="json", by_alias=True, include=set(RUN_BY)) for each in (one, other)]
    found = [{line.partition(":")[0] for line in _of_all(*each)} for each in (real, [_recorded(each) for each in real])]
    return sorted(found[0] - found[1])


def _recorded(said: dict[str, Any]) -> dict[str, Any]:
    redactor = Redactor()
    redactor.learn_environment(os.environ)
    clean: dict[str, Any] = redactor.clean(said)
    return clean


def _of_all(asked: dict[str, Any], run: dict[str, Any]) -> Iterator[str]:
    for part in RUN_BY:
        yield from _between(asked.get(part), run.get(part), part)


def _between(asked: Any, run: Any, at: str) -> Iterator[str]:
    if isinstance(asked, dict) and isinstance(run, dict):
        for key in dict.fromkeys([*asked, *run]):
            yield from _between(asked.get(key, _NOTHING), run.get(key, _NOTHING), f"{at}.{key}")
    elif isinstance(asked, list) and isinstance(run, list):
        for index, (one, other) in enumerate(zip_longest(asked, run, fillvalue=_NOTHING)):
            yield from _between(one, other, f"{at}[{index}]")
    elif asked != run and (asked is _NOTHING or not (isinstance(run, str) and MARK in run)):
        yield f"{at}: the experiment says {_shown(asked)}, the run had {_shown(run)}"


def _shown(value: Any) -> str:
    if value is _NOTHING:
        return "nothing"
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
