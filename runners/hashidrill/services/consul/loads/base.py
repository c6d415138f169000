"""What all loads on Consul share: the agents that they ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from hashidrill.loads.base import BaseLoad

if TYPE_CHECKING:
    from hashidrill.loads.context import LoadContext


class ConsulLoad(BaseLoad):
    """Its parameter `via` selects the agents. Raises ValueError for none."""

    asks: ClassVar[str] = "agent"

    def __init__(self, name: str, params: Any, context: LoadContext) -> None:
        if not context.endpoints:
            raise ValueError(f"load {name!r} has no {self.asks} to talk to")
        super().__init__(name, params, context)

    @classmethod
    def via(cls, params: Any) -> str | None:
        selector: str = params.via
        return selector
