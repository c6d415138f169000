"""`consul.service.churn`: services that are registered, fail, recover and are removed, as in deployments with flapping
checks.
"""

import asyncio
import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.loads.answer import Answer
from hashidrill.core.loads.base import LoadContext, LoadRate, Timeout
from hashidrill.core.loads.http_client import for_each
from hashidrill.core.loads.schedule import Reply
from hashidrill.core.protocols.abc import EmitOperation
from hashidrill.core.protocols.rights import Left, Right
from hashidrill.core.units import Duration
from hashidrill.products.consul import leftovers, rights
from hashidrill.products.consul.loads.base import NOWHERE, ConsulLoad, mark
from hashidrill.products.consul.loads.kv import Via
from hashidrill.products.consul.loads.views import Service

_LEAVE_WITHIN_S = 4.0
_CHECK_TTL = "1h"
_GONE = (200, 404)
_FLIPS = ("critical", "passing")


class ServiceChurn(ConsulLoad):
    """Re-registers `services` instances of one service round robin, `rate` changes a second, over all agents."""

    kind: ClassVar[str] = "consul.service.churn"

    class Params(Strict):
        """Each instance is registered, becomes critical, becomes passing, is deregistered, and so on.

        An agent carries out one change at a time and waits until Raft has committed it. An unlimited queue would
        outlast the load, so no change starts while `at_once` changes are in flight. The load then offers only as many
        changes as the datacenter completes, and the verdict says how many.
        """

        rate: LoadRate
        services: Annotated[int, Field(ge=1, le=10_000, description="Number of instances, each with its own id")] = 50
        service: Service = "hashidrill"
        at_once: Annotated[
            int, Field(ge=1, le=10_000, description="Maximum changes in flight; at this number no change starts")
        ] = 50
        through: Annotated[
            str,
            Field(
                pattern="^(agents|catalog)$",
                description=(
                    "`catalog`: instances are registered with the servers, like an external service's, so changes of "
                    "different instances do not wait for each other"
                ),
            ),
        ] = "agents"
        only: Annotated[
            str, Field(pattern="^(flips|all)$", description="`flips`: after one registration, only the check changes")
        ] = "all"
        via: Via = "consul:clients"
        timeout: Timeout = Duration("30s")

    params: Params

    @classmethod
    def rights(cls, name: str, params: Any) -> Sequence[Right]:
        return rights.registering(params.service, f"hashidrill-{name}" if params.through == "catalog" else "")

    @classmethod
    def leaves(cls, name: str, params: Any, run_id: str) -> Sequence[Left]:  # noqa: ARG003 - the signature of all loads
        left = leftovers.numbered(params.service, f"{params.service}-{name}-")
        return (
            left,
            *([Left(leftovers.SERVICE, leftovers.NODE, f"hashidrill-{name}")] if params.through == "catalog" else []),
        )

    def __init__(self, name: str, params: Params, context: LoadContext) -> None:
        super().__init__(name, params, context)
        self._turns = [asyncio.Lock() for _ in range(params.services)]
        self._registered: set[int] = set()

    async def run(self, emit: EmitOperation) -> None:
        async with self.context.http() as self._http:
            await self.open_loop(self._plan, self._change, at_once=self.params.at_once).run(emit)

    async def clean_up(self) -> None:
        """Deregisters the instances. Gives up after 4 s, so that it does not wait for a sick agent."""

        async def leave(instance: int) -> None:
            await self._send(instance, self._id(instance), "deregister")

        try:
            async with (
                asyncio.timeout(_LEAVE_WITHIN_S),
                self.context.http() as self._http,
            ):
                await for_each(sorted(self._registered), leave)
        except TimeoutError:
            left = len(self._registered)
            self.context.sample("left", float(left), f"{left} instances were not deregistered: agents did not answer")

    def _id(self, instance: int) -> str:
        return f"{self.params.service}-{self.name}-{instance}"

    def _plan(self, n: int) -> tuple[str, str]:
        turn, instance = divmod(n, self.params.services)
        steps = _FLIPS if self.params.only == "flips" else (*_FLIPS, "deregister", "register")
        return self._id(instance), "register" if turn == 0 else steps[(turn - 1) % len(steps)]

    async def _change(self, n: int, key: str, step: str) -> Reply:
        instance = n % self.params.services
        async with self._turns[instance]:  # the changes of one instance happen in order
            return _reply(await self._send(instance, key, step), step)

    async def _send(self, instance: int, key: str, step: str) -> Answer:
        agent, timeout_s = self.endpoint(instance), float(self.params.timeout)
        path, body = (self._at_agent if self.params.through == "agents" else self._in_catalog)(key, step)
        if step == "register":
            self._registered.add(instance)
        content = json.dumps(body).encode() if body else b""
        answer = await self._http.request("PUT", agent + path, body=content, timeout_s=timeout_s)
        if step == "deregister" and answer.status in _GONE:
            self._registered.discard(instance)
        return answer

    def _at_agent(self, key: str, step: str) -> tuple[str, dict[str, Any]]:
        sent = mark(self.context.clock.now_ns())
        if step == "register":
            check = {"CheckID": f"service:{key}", "TTL": _CHECK_TTL, "Status": "passing"}
            meta = {"hashidrill": sent}
            return "/v1/agent/service/register", {"ID": key, "Name": self.params.service, "Meta": meta, "Check": check}
        if step == "deregister":
            return f"/v1/agent/service/deregister/{key}", {}
        return f"/v1/agent/check/update/service:{key}", {"Status": step, "Output": sent}

    def _in_catalog(self, key: str, step: str) -> tuple[str, dict[str, Any]]:
        node = f"hashidrill-{self.name}"
        if step == "deregister":
            return "/v1/catalog/deregister", {"Node": node, "ServiceID": key}
        sent = mark(self.context.clock.now_ns())
        status = "passing" if step == "register" else step
        check = {"CheckID": f"service:{key}", "Name": key, "ServiceID": key, "Status": status, "Output": sent}
        service = {"ID": key, "Service": self.params.service}
        return "/v1/catalog/register", {"Node": node, "Address": NOWHERE, "Service": service, "Check": check}


def _reply(answer: Answer, step: str) -> Reply:
    """`ok` is 200, or 404 for the removal of an instance. `fail` is a refusal. Any other answer is `unknown`."""
    said = answer.error or answer.body[:200].decode(errors="replace").strip()
    if answer.status == 200:
        return Reply("ok", status=200)
    if step == "deregister" and answer.status in _GONE:
        return Reply("ok", status=404, error=said)
    refused = not answer.sent or (400 <= answer.status < 500 and answer.status != 408)
    return Reply(
        "fail" if refused else "unknown", status=answer.status, error=said or "(empty body)", reason=answer.why
    )
