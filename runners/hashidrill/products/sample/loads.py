"""`sample.get`: requests to the programs of the sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.loads.answer import read_error
from hashidrill.core.loads.base import AgentLoad, Timeout
from hashidrill.core.loads.schedule import Reply
from hashidrill.core.protocols.rights import Right
from hashidrill.core.units import Duration, Percent, Rate

if TYPE_CHECKING:
    from hashidrill.core.protocols.abc import EmitOperation

Via = Annotated[
    str,
    Field(pattern=r"^(sample:[a-z]+|host:[a-z][a-z0-9-]*)$", description="The programs that are asked, in rotation"),
]


class Get(AgentLoad):
    """Asks for `keys` things of its own in rotation. A share of the requests, `fresh`, is for something new."""

    divides: ClassVar[bool] = True
    kind: ClassVar[str] = "sample.get"
    asks: ClassVar[str] = "program of the sample"

    class Params(Strict):
        """The requested things; fresh ones are in no cache."""

        rate: Rate = Field(gt=0, le=1000)
        """Requests offered, like `50/s`, whatever comes back."""
        keys: Annotated[int, Field(ge=1, le=10_000, description="How many things, in turn")] = 20
        fresh: Annotated[Percent, Field(le=1, description="The share of requests for something new")] = Percent("0%")
        via: Via
        timeout: Timeout = Duration("30s")

    params: Params

    @classmethod
    def rights(cls, name: str, params: Any) -> Sequence[Right]:  # noqa: ARG003 - of all loads
        return ()

    async def run(self, emit: EmitOperation) -> None:
        context = self.context
        async with context.http() as http:

            async def get(n: int, key: str, value: str) -> Reply:  # noqa: ARG001 - nothing is written
                url = context.endpoints[n % len(context.endpoints)].rstrip("/")
                answer = await http.request("GET", f"{url}/{key}", timeout_s=float(self.params.timeout))
                if answer.status == 200:
                    return Reply("ok", status=200)
                return Reply("fail", status=answer.status, error=read_error(answer), reason=answer.why)

            await self.open_loop(self._plan, get).run(emit)

    def _plan(self, n: int) -> tuple[str, str]:
        fresh = int((n + 1) * self.params.fresh) > int(n * self.params.fresh)
        return f"{self.name}/" + (f"fresh-{self.context.run_id}-{n}" if fresh else f"item-{n % self.params.keys}"), ""
