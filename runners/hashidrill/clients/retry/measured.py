"""What a battery is asked for, and what its runs left."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from hashidrill.clients.retry.timing import work_s
from hashidrill.core.tap import catalogue
from hashidrill.core.tap.attempts import Run


@dataclass(frozen=True)
class Settings:
    """What the caller declares. `faults`: names to be given; empty for all."""

    deadline_s: float = catalogue.DEADLINE_S
    most_retries: int = catalogue.MOST_RETRIES
    jitter_clients: int = catalogue.JITTER_CLIENTS
    faults: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    certificate: Path | None = None
    """Key and certificate (PEM) for the taps to listen with TLS; the environment has to make the command trust it."""

    def wants(self, fault: str) -> bool:
        return not self.faults or fault in self.faults

    def baselines(self, verdict: str) -> list[str]:
        """The faults that were not selected, and that this verdict compares with those that were."""
        about = catalogue.VERDICTS[verdict]
        selected = any(self.wants(fault) for fault in about.battery_faults)
        return [fault for fault in about.baseline if selected and not self.wants(fault)]


@dataclass
class Measured:
    """What the runs of one command left: by fault; why a fault could not be given; and the timing runs."""

    command: list[str]
    settings: Settings
    plain: Run | None = None
    long_running: bool = False
    once: dict[str, Run] = field(default_factory=dict)
    lasting: dict[str, list[Run]] = field(default_factory=dict)
    told: dict[str, list[Run]] = field(default_factory=dict)
    """By fault with Retry-After, of a client that heeds it: runs in which it was told a wait that tells something."""
    told_less: list[Run] = field(default_factory=list)
    """And those in which it was told a short one."""
    reused: Run | None = None
    backwards: Run | None = None
    too_quick: str = ""
    """Why nothing says whether it succeeds after one refusal."""
    impossible: dict[str, str] = field(default_factory=dict)
    timed_fault: str = ""
    timed: list[Run] = field(default_factory=list)
    reference: list[Run] = field(default_factory=list)
    reference_gaps_s: list[float] = field(default_factory=list)
    """What the reference sleeps, the same in all of its runs."""

    @property
    def blocking(self) -> bool:
        """The command made blocking queries."""
        return self.plain is not None and any(attempt.asked_index for attempt in self.plain.attempts)

    @property
    def work_s(self) -> float:
        """Processor time of one more attempt, in seconds."""
        plain = [self.plain] if self.plain is not None else []
        return work_s([*plain, *self.once.values(), *(run for runs in self.lasting.values() for run in runs)])
