"""The bases of loads: of all loads, and of those that call agents."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from hashidrill.core.loads.schedule import OpenLoop, Reply, RequestLoop
from hashidrill.core.protocols.abc import LoadCost
from hashidrill.core.units import Duration, Rate, positive

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pydantic import BaseModel

    from hashidrill.core.loads.answer import Answer, Request
    from hashidrill.core.loads.context import LoadContext
    from hashidrill.core.loads.http_client import HttpClient
    from hashidrill.core.protocols.abc import Detail


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
