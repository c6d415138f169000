"""Compares two experiments: a recording may be judged only as a run of its own experiment."""

import os
from collections.abc import Iterator
from typing import Any

from hashidrill.core.experiment.model import Experiment
from hashidrill.core.util.nested import ABSENT, differing, in_words
from hashidrill.core.util.redaction import MARK, Redactor

RUN_BY = ("datacenter", "load", "clients", "probes", "steady_state", "method", "guardrails", "recovery")
"""The parts of an experiment that shape a run. `expect` is judged later and may differ; `metadata` is for readers."""


def differences(asked: Experiment, run: Experiment) -> list[str]:
    """How the two would run differently, one line each, in YAML's terms. A default equals its written-out value.

    A redacted value in the recording counts as equal, unless `asked` has no value in that place.
    """
    redact = Redactor().data  # older recordings hold secrets unredacted; they must compare equal too
    ours, theirs = (redact(each.model_dump(mode="json", by_alias=True, include=set(RUN_BY))) for each in (asked, run))
    return list(_of_all(ours, theirs))


def hidden(one: Experiment, other: Experiment) -> list[str]:
    """The YAML paths at which two experiments, neither of them from a recording, differ only in secrets.

    Their recordings look the same at these paths. Returns only paths, never values.
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
        for at, one, other in differing(asked.get(part), run.get(part), part):
            if one is ABSENT or not (isinstance(other, str) and MARK in other):
                yield f"{at}: the experiment says {in_words(one)}, the run had {in_words(other)}"
