"""The context of a load: its agents, the clock, and its reports to the load generator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hashidrill.core.experiment.load_levels import Course
from hashidrill.core.loads.schedule import CpuMeter, LagMeter, Now, Waiting
from hashidrill.core.recording.journal import Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hashidrill.core.loads.http_client import Entrance, HttpClient


def _nowhere(_what: str, _value: float | None, _text: str) -> None:
    """Discards samples."""


@dataclass(frozen=True)
class LoadContext:
    """Where a load runs: base URLs of the agents that its `via` selected, and the clock of the run.

    `local_address` is the IPv4 address to send from (None: the kernel chooses). `lag` collects how late operations
    start. `waiting` holds the operations that have not ended; guardrails count their age: pass it to the OpenLoop or
    Agenda, or put each request into a block `with context.waiting.operation(due_ns):`. `course` is the level of this
    load over time: pass it to the OpenLoop, or ask it how many views or streams the load should hold now. `cpu`
    measures how much of a core the generator uses. Only clients use `control` and `namespace` (see LoadSpecification)
    and `attempts_waiting`, for the requests at a client's tap. `access` holds the tokens that the agents need, as
    environment variables of their product: VAULT_TOKEN. `others` are the URLs of further agents, by the parameter that
    selects them (`Load.also`).
    """

    endpoints: Sequence[str]
    clock: Now = field(default_factory=Clock)
    local_address: str | None = None
    run_id: str = "run"
    lag: LagMeter = field(default_factory=LagMeter)
    waiting: Waiting = field(default_factory=Waiting)
    attempts_waiting: Waiting = field(default_factory=Waiting)
    course: Course = field(default_factory=Course)
    emit_sample: Callable[[str, float | None, str], None] = _nowhere
    control: str | None = None
    namespace: str | None = None
    access: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, Sequence[str]] = field(default_factory=dict)
    cpu: CpuMeter = field(default_factory=CpuMeter)
    entrances: Mapping[str, Entrance] = field(default_factory=dict, repr=False)
    """Credentials of agents, by the start of their URL."""

    def http(self, headers: Mapping[str, str] | None = None) -> HttpClient:
        """A client for requests to the agents."""
        from hashidrill.core.loads.http_client import HttpClient  # noqa: PLC0415 - not needed to check an experiment

        return HttpClient(local_address=self.local_address, headers=headers, entrances=self.entrances)

    def sample(self, what: str, value: float | None, text: str = "") -> None:
        """Records a sample of one of the load's own signals, `LOAD.what`, now; None means a failed sample.

        Declare the signals that conditions may compare in the load's class: `signals = {"held": None}`.
        """
        self.emit_sample(what, value, text)
