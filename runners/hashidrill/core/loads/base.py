"""The bases of loads: of all loads, and of those that call agents.

The context of a load: its agents, the clock, and its reports to the load generator.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from hashidrill.core.experiment.load_levels import Course
from hashidrill.core.loads.schedule import CpuMeter, LagMeter, Now, OpenLoop, Reply, RequestLoop, Waiting
from hashidrill.core.protocols.abc import LoadCost
from hashidrill.core.recording.journal import Clock
from hashidrill.core.units import Duration, Rate, positive

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from pydantic import BaseModel

    from hashidrill.core.loads.answer import Answer, Request
    from hashidrill.core.loads.http_client import Entrance, HttpClient
    from hashidrill.core.protocols.abc import Detail


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


MAX_RATE_PER_S = 20_000


def _sane_rate(rate: Rate) -> Rate:
    if not 0 < rate <= MAX_RATE_PER_S:
        raise ValueError(f"a rate is over 0/s and at most {MAX_RATE_PER_S}/s (what one process can offer), not {rate}")
    return rate


Keys = Annotated[int, Field(ge=1, le=100_000, description="How many keys are used in turn")]
Timeout = Annotated[
    Duration,
    AfterValidator(positive),
    Field(description="When to stop waiting for an answer. Keep it long, so that a stall shows as latency"),
]
LoadRate = Annotated[Rate, AfterValidator(_sane_rate), Field(description="Operations offered, whatever is answered")]


class BaseLoad:
    """Base of loads: holds the load's name, its parameters and its context.

    A load that queries agents, prepares, reads back or cleans up has the methods of the optional protocols
    (hashidrill.core.protocols.abc).
    """

    kind: ClassVar[str]
    Params: ClassVar[type[BaseModel]]
    params: Any

    def __init__(self, name: str, params: Any, context: LoadContext) -> None:
        self.name = name
        self.params = params
        self.context = context


class AgentLoad(BaseLoad):
    """A load on the agents that its parameter `via` selects. Raises ValueError if it selects none.

    A load's cost follows from its parameter `rate`, unless the load computes it otherwise.
    """

    asks: ClassVar[str] = "agent"

    def __init__(self, name: str, params: Any, context: LoadContext) -> None:
        if not context.endpoints:
            raise ValueError(f"load {name!r} has no {self.asks} to talk to")
        super().__init__(name, params, context)
        self._agents = [url.rstrip("/") for url in context.endpoints]

    @classmethod
    def via(cls, params: Any) -> str | None:
        selector: str = params.via
        return selector

    @classmethod
    def cost(cls, params: Any) -> LoadCost:
        return LoadCost(rate_per_s=getattr(params, "rate", 0.0))

    def client(self) -> HttpClient:
        return self.context.http()

    def endpoint(self, n: int) -> str:
        """The URL of the agent whose turn it is."""
        return self._agents[n % len(self._agents)]

    def open_loop(
        self,
        plan: Callable[[int], tuple[str, str]],
        perform: Callable[[int, str, str], Awaitable[Reply]],
        *,
        at_once: int | None = None,
        detail: Callable[[int], Detail] | None = None,
    ) -> OpenLoop:
        """The load's operations, offered at its parameter `rate`, with at most `at_once` in flight."""
        return OpenLoop(self.name, self.params.rate, plan, perform, **self._options(), at_once=at_once, detail=detail)

    def request_loop(
        self,
        http: HttpClient,
        plan: Callable[[int], tuple[str, str]],
        request: Callable[[int, str, str], Request],
        reply: Callable[[Answer], Reply],
    ) -> OpenLoop:
        """Like `open_loop`, for operations that are one request each, which costs less CPU. A request gives up after
        the parameter `timeout`.
        """
        ask = partial(http.ask, timeout_s=float(self.params.timeout))
        return RequestLoop(self.name, self.params.rate, plan, request, **self._options(), reply=reply, ask=ask)

    def _options(self) -> dict[str, Any]:
        context = self.context
        return {"clock": context.clock, "lag": context.lag, "waiting": context.waiting, "course": context.course}
