"""`consul.metrics.read`: reads the metrics of Consul's servers, at known addresses or at addresses found in Consul.

Monitoring that finds its targets through Consul depends on the system it watches. In the outage of October 2021,
monitoring was blind for that reason.
"""

import base64
import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.loads.answer import Answer, read_error
from hashidrill.core.loads.base import LoadContext, LoadRate, Timeout
from hashidrill.core.loads.http_client import HttpClient, insist
from hashidrill.core.loads.schedule import Reply
from hashidrill.core.protocols.abc import EmitOperation, Reason
from hashidrill.core.protocols.rights import Left, Right
from hashidrill.core.units import Duration, Rate
from hashidrill.core.util.safe_json import parse
from hashidrill.products.consul import rights
from hashidrill.products.consul.loads.base import ConsulLoad, left

HTTP_PORT = 8500
PREFIX = "hashidrill-targets"
PREPARE_WITHIN_S = 60.0
_EMPTY = "an empty answer; Consul offers Prometheus' format only if telemetry.prometheus_retention_time is set"
_OF_CONSUL = b"# TYPE consul_"
"""Every answer in Prometheus' format contains this text."""
_LEAVE_WITHIN_S = 4.0


class MetricsRead(ConsulLoad):
    """Reads the metrics of one server after the other, `rate` times a second, as a monitoring system does.

    An operation reads one server; unless `find` is `fixed`, it first asks Consul for the servers' addresses. Its value
    is the address that was read. The hypothesis `telemetry_survives` judges for how long the load read no metrics.
    """

    kind: ClassVar[str] = "consul.metrics.read"
    not_by_address: ClassVar[str] = "it reads the servers in plain HTTP, at addresses that Consul returns"

    class Params(Strict):
        """Each operation is independent of earlier operations, unless `remember` is set."""

        rate: LoadRate = Rate("3/s")
        find: Annotated[
            Literal["fixed", "health", "kv"],
            Field(
                description="How the load finds the servers. `fixed`: it reads the agents that `via` selects. "
                "`health`: it asks one of these for the service `consul`. `kv`: it asks for a key that lists them"
            ),
        ] = "fixed"
        stale: Annotated[
            bool,
            Field(
                description="Whether any server, not only the leader, may answer the query for the servers' addresses"
            ),
        ] = False
        remember: Annotated[
            bool, Field(description="Whether the load reads the servers last found while it cannot find them again")
        ] = False
        format: Annotated[
            Literal["prometheus", "json"],
            Field(
                description=(
                    "The format. Consul offers Prometheus' format only if `telemetry.prometheus_retention_time` is "
                    "set; it fails to write JSON for a while after it loses the leader"
                )
            ),
        ] = "json"
        via: Annotated[str, Field(description="Selector of the agents to read, or to ask for addresses, in turn")] = (
            "consul:servers"
        )
        timeout: Timeout = Duration("2s")

    params: Params

    @classmethod
    def rights(cls, name: str, params: Any) -> Sequence[Right]:
        asked = {
            "fixed": (),
            "health": (rights.right("node_prefix"), rights.right("service", "consul")),
            "kv": (rights.right("key", f"{PREFIX}/{name}", "write"),),
        }
        return (rights.right("agent_prefix"), *asked[params.find])

    @classmethod
    def leaves(cls, name: str, params: Any, run_id: str) -> Sequence[Left]:  # noqa: ARG003 - the signature of all loads
        return (left(f"{PREFIX}/{name}"),) if params.find == "kv" else ()

    def __init__(self, name: str, params: Params, context: LoadContext) -> None:
        super().__init__(name, params, context)
        self._known: list[str] = []

    @property
    def _key(self) -> str:
        return f"{PREFIX}/{self.name}"

    async def prepare(self, *, within_s: float = PREPARE_WITHIN_S) -> None:
        if self.params.find != "kv":
            return
        agents = self.context.endpoints
        async with self.client() as http:
            peers = await insist(http, agents, "GET", "/v1/status/peers", _peers, within_s=within_s)
            body = json.dumps(peers).encode()
            await insist(http, agents, "PUT", f"/v1/kv/{self._key}", _accepted, within_s=within_s, body=body)

    async def run(self, emit: EmitOperation) -> None:
        async with self.client() as http:

            async def look(n: int, key: str, value: str) -> Reply:  # noqa: ARG001 - it uses only the number
                return await self._look(http, n)

            await self.open_loop(lambda n: (f"{self.name}/{n}", ""), look).run(emit)

    async def _look(self, http: HttpClient, n: int) -> Reply:
        agent = self.context.endpoints[n % len(self.context.endpoints)].rstrip("/")
        if self.params.find == "fixed":
            targets = [agent.removeprefix("http://").rpartition(":")[0]]
        else:
            answer = await http.request("GET", agent + self._path(), timeout_s=float(self.params.timeout))
            found = _listed(answer) if self.params.find == "kv" else _instances(answer)
            if found:
                self._known = found
            elif not self.params.remember or not self._known:
                return Reply("fail", status=answer.status, error=f"no server found: {_said(answer)}", reason=answer.why)
            targets = self._known
        target = targets[n % len(targets)]
        in_json = self.params.format == "json"
        url = f"http://{target}:{HTTP_PORT}/v1/agent/metrics{'' if in_json else '?format=prometheus'}"
        answer = await http.request("GET", url, timeout_s=float(self.params.timeout))
        if answer.status == 200 and (_is_metrics(answer) if in_json else _OF_CONSUL in answer.body):
            return Reply("ok", status=200, value=target)
        reason = Reason.UNEXPECTED if answer.status == 200 else answer.why
        return Reply("fail", status=answer.status, error=_said(answer), value=target, reason=reason)

    def _path(self) -> str:
        mode = "?stale" if self.params.stale else ""
        return f"/v1/kv/{self._key}{mode}" if self.params.find == "kv" else f"/v1/health/service/consul{mode}"

    async def clean_up(self) -> None:
        if self.params.find != "kv":
            return
        async with self.client() as http:
            url = f"{self.context.endpoints[0].rstrip('/')}/v1/kv/{self._key}"
            answer = await http.request("DELETE", url, timeout_s=_LEAVE_WITHIN_S)
        if answer.status != 200:
            self.context.sample("left", 1.0, f"the key {self._key} was not deleted: {_said(answer)}")


def _said(answer: Answer) -> str:
    if answer.status != 200:
        return read_error(answer)
    return "an answer without the requested data" if answer.body else _EMPTY


def _document(answer: Answer) -> object:
    if answer.status != 200:
        return None
    try:
        return parse(answer.body)
    except ValueError:
        return None


def _is_metrics(answer: Answer) -> bool:
    found = _document(answer)
    return isinstance(found, dict) and "Timestamp" in found and "Gauges" in found


def _instances(answer: Answer) -> list[str]:
    found = _document(answer)
    if not isinstance(found, list):
        return []
    try:
        return sorted(entry["Service"]["Address"] or entry["Node"]["Address"] for entry in found)
    except (KeyError, TypeError):
        return []


def _listed(answer: Answer) -> list[str]:
    found = _document(answer)
    try:
        listed = parse(base64.b64decode(found[0]["Value"])) if isinstance(found, list) else []
    except (ValueError, KeyError, TypeError, IndexError):
        return []
    return [str(each) for each in listed] if isinstance(listed, list) else []


def _peers(answer: Answer) -> Sequence[str] | None:
    found = _document(answer)
    return sorted(str(peer).rpartition(":")[0] for peer in found) if isinstance(found, list) and found else None


def _accepted(answer: Answer) -> bool | None:
    return True if answer.status == 200 and answer.body.strip() == b"true" else None
