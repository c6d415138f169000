"""Steps of a method, as they are read from a foreign file, and what is lost on the way."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from hashidrill.core.units import Duration
from hashidrill.kubernetes.interchange.document import Document, UnsupportedError

ONCE_S = 3.0
"""The length of a step that is over at once, which has none in a foreign file."""
MOST_STEPS = 20
ONE_INTERFACE, RATE_ALONE = "a local host has one network interface", "network.bandwidth has a rate alone"
Faults = list[tuple[str, dict[str, Any]]]
Link = dict[str, Any]
"""Parameters of a fault on the connections of one port."""


@dataclass
class Step:
    """One step of the method to be. Seconds."""

    fault: str
    on: str
    with_: dict[str, Any] = field(default_factory=dict)
    at_s: float = 0.0
    for_s: float = ONCE_S

    def as_data(self) -> dict[str, Any]:
        data: dict[str, Any] = {"fault": self.fault, "on": self.on}
        if self.with_:
            data["with"] = self.with_
        if self.at_s:
            data["at"] = seconds(self.at_s)
        return {**data, "for": seconds(self.for_s)}


@dataclass
class Reading:
    """One file while it is read. `on` is the selector that was asked for; empty where their labels decide."""

    on: str = ""
    side: str = ""
    """The other side of network faults that was asked for; "" where their labels decide."""
    steps: list[Step] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)
    defaults: dict[str, dict[str, str]] = field(default_factory=dict)
    """What the ChaosExperiments of the file say of their environment, by their names."""

    @property
    def all(self) -> tuple[list[Document], list[str]]:
        return self.documents, self.lost

    def lose(self, text: str) -> None:
        self.lost.append(text)

    def add(self, at_s: float, for_s: float, on: str, *faults: tuple[str, dict[str, Any]]) -> None:
        """Raises UnsupportedError for too many."""
        for fault, parameters in faults:
            self.steps.append(Step(fault, on, parameters, at_s, for_s))
        if len(self.steps) > MOST_STEPS:
            raise UnsupportedError(f"it has more than {MOST_STEPS} steps; import its parts one by one")


def seconds(value: float) -> str:
    """As an experiment writes it, and as Go reads it."""
    return str(Duration(round(value, 3)))


def loss_of(percent: float, way: str, side: str, reading: Reading, at: str) -> Faults:
    """Packet loss `out`, `in` or `both` ways. network.loss is both ways: the share is that of lost round trips."""
    if percent == 100:
        return [("network.partition", {"from": side, "direction": way})]
    each = percent if way == "both" else 100 * (1 - math.sqrt(1 - percent / 100))
    if way != "both":
        reading.lose(f"{at}: it loses {percent:g} % one way; here {each:.3g} % each way, so as many round trips fail")
    return [("network.loss", {"percent": f"{each:.3g}%", "from": side})]


def delay_of(link: Link, delay_s: float, jitter_s: float, reading: Reading, at: str) -> Faults:
    """Seconds that a round trip takes longer."""
    ends = "it opens to" if link.get("direction") == "out" else "others open to its"
    reading.lose(
        f"{at}: it delays all packets that are sent; here what is asked on connections that {ends} port {link['port']}"
    )
    jitter = {"jitter": seconds(jitter_s)} if jitter_s else {}
    return [("network.latency", {**link, "delay": seconds(delay_s), **jitter})]
