"""Where a load runs, and honest outcomes of its requests. The client itself is in `thin`.

A write that was perhaps applied must never be recorded as failed, and a write must never be sent twice behind the
recording's back: either would make the durability checks judge something that did not happen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hashidrill.abc import Reason
from hashidrill.experiment.course import Course
from hashidrill.loads.answer import Answer
from hashidrill.loads.schedule import CpuMeter, LagMeter, Now, Reply
from hashidrill.loads.thin import Client
from hashidrill.loads.waiting import Waiting
from hashidrill.recording.journal import Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Answer", "Client", "LoadContext", "read_error", "write_reply"]


def _nowhere(_what: str, _value: float | None, _text: str) -> None:
    """Where samples go that nobody asked for."""


@dataclass(frozen=True)
class LoadContext:
    """Where a load runs: base URLs of the agents that its `via` selected, and the clock of the run.

    `local_address` is the IPv4 address to send from (None: the kernel chooses). `lag` collects how late operations
    start. `waiting` knows those that have not ended, whose age guardrails count: hand it to the OpenLoop or Agenda, or
    put each request into a block `with context.waiting.operation(due_ns):`. `course` is the level of this load over
    time: hand it to the OpenLoop, or ask it how much of a standing load there should be now. `cpu` is what the
    generator uses of its core. `control` and `namespace` are for clients: see LoadSpecification. So is
    `attempts_waiting`, for the requests at a client's tap.
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
    cpu: CpuMeter = field(default_factory=CpuMeter)

    def sample(self, what: str, value: float | None, text: str = "") -> None:
        """Record a sample of the load's own, now, as the signal `LOAD.what`; no value is a failed sample.

        Declare what a condition may compare in the load's class: `signals = {"held": None, "drift": Duration}`.
        """
        self.emit_sample(what, value, text)


def write_reply(answer: Answer) -> Reply:
    """The outcome of a KV write.

    `ok` is 200 with the body `true`. `fail` is what certainly was not applied: no connection, a request that Consul
    refused (4xx, rate limits included), or the body `false`. All else is `unknown`: a timeout, a connection lost after
    the request may have left, and every 5xx. "No cluster leader" is one of these: the agent that answers it may have
    forwarded the write to a leader that lost leadership while it replicated.
    """
    if not answer.sent:
        return Reply("fail", error=answer.error, reason=answer.why)
    if answer.status == 0:
        return Reply("unknown", error=answer.error, reason=answer.why)
    said = answer.body.strip()
    if answer.status == 200:
        if said == b"true":
            return Reply("ok", status=200)
        if said == b"false":
            return Reply("fail", status=200, error="Consul answered false", reason=Reason.REFUSED)
        return Reply("unknown", status=200, error=f"neither true nor false: {_shown(said)}", reason=answer.why)
    # 408 is the one 4xx that speaks of the exchange, not of the request
    refused = 400 <= answer.status < 500 and answer.status != 408
    return Reply("fail" if refused else "unknown", status=answer.status, error=_shown(said), reason=answer.why)


def _shown(body: bytes) -> str:
    return body[:200].decode(errors="replace") or "(empty body)"


def read_error(answer: Answer) -> str:
    """Why a read failed: there was no answer, or not the status 200."""
    return answer.error if answer.status == 0 else f"HTTP {answer.status}: {_shown(answer.body.strip())}"
