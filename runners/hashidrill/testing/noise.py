"""What a FakeDatacenter is like without any fault: how quick it is, and how much that varies."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Times: TypeAlias = npt.NDArray[np.float64]


@dataclass
class Noise:
    """Times are seconds. `spread` is that of the logarithm: with 0.5, one in 40 takes 2.7 times as long as typical."""

    disk_s: float = 0.001
    disk_bytes_per_s: float = 2e9
    link_s: float = 0.001
    spread: float = 0.0
    lost: float = 0.0
    """Share of the datagrams that do not come back."""
    cpus: int = 2
    busy: float = 0.0
    """Other processes use up to this share of each CPU, varying from moment to moment."""

    @property
    def slowest_s(self) -> float:
        """What one in some 100,000 operations of disk or link takes."""
        return float(max(self.disk_s, self.link_s) * math.exp(4.5 * self.spread))

    def disk(self, dice: np.random.Generator, size_bytes: int, times: int) -> Times:
        return self._varied(dice, self.disk_s, times) + size_bytes / self.disk_bytes_per_s

    def link(self, dice: np.random.Generator, times: int) -> Times:
        return self._varied(dice, self.link_s, times)

    def cores(self, dice: random.Random, threads: int) -> float:
        return sum(1.0 - dice.uniform(0.0, self.busy) for _ in range(min(threads, self.cpus)))

    def _varied(self, dice: np.random.Generator, typical: float, times: int) -> Times:
        return typical * dice.lognormal(0.0, self.spread, times)
