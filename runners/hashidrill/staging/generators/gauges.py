"""Samples of several workers as one generator would report them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

OWN = "generator"
"""A generator's samples of itself: `generator.cpu`, `generator.lag`."""

Sampled = list[Any]
"""Time, signal, value and text, as the engine takes them."""


class Gauges:
    """What workers sample of themselves becomes the worst of them, once each has said it: one that is silent shows.

    `first`: the worker that speaks for each load; what others sample of it is the same.
    """

    def __init__(self, workers: Sequence[str], first: Mapping[str, str]) -> None:
        self._workers = list(workers)
        self._first = first
        self._said: dict[str, dict[str, tuple[int, float]]] = {}

    def take(self, worker: str, t_ns: int, signal: str, value: float | None, text: str) -> Iterator[Sampled]:
        """The samples to pass on."""
        owner = signal.rpartition(".")[0]
        if owner == OWN and value is not None:
            said = self._said.setdefault(signal, {})
            before = said.get(worker, (t_ns, value))
            said[worker] = (t_ns, max(value, before[1]))
            if len(said) == len(self._workers):
                del self._said[signal]
                yield [max(at for at, _ in said.values()), signal, max(number for _, number in said.values()), text]
        elif self._first.get(owner, worker) == worker:
            yield [t_ns, signal, value, text]
