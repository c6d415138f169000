"""Which figures of an experiment count: those of the loads that its author judges, and what the agents cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hashidrill.core.compare.measured import Figure
from hashidrill.core.experiment.model import Experiment


def counting(figures: Sequence[Figure], experiment: Experiment) -> list[Figure]:
    """Without those of loads that no expectation and no condition of the steady state names.

    Such a load is there for its pressure: how it fares is not what the experiment asks, and a change that throttles it
    would pass for an improvement of it, or for a regression.
    """
    named = set(_texts([each.params for each in experiment.expect]))
    named |= {condition.source for condition in experiment.steady_state.require}
    unnamed = [load for load in experiment.traffic if load not in named]
    return [each for each in figures if not any(each.name.startswith(f"{load}.") for load in unnamed)]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _texts(each)
