"""`consul.dns.read`: clients whom Consul's DNS sends to the service or to a waiting page, in shares set by weights.

Roblox let its players back in by DNS (roblox-2021): a growing share of the names' answers led to the service, the
others to a static page. A client learns of a new share only when it resolves the name again, after the answer's TTL.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

import dns.asyncquery
import dns.exception
import dns.message
import dns.rdatatype
from pydantic import Field

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.loads.answer import Answer
from hashidrill.core.loads.base import Keys, LoadContext, Timeout
from hashidrill.core.loads.http_client import HttpClient, insist
from hashidrill.core.loads.schedule import OpenLoop, Reply
from hashidrill.core.protocols.abc import EmitOperation, LoadCost, Reason
from hashidrill.core.protocols.rights import Left, Right
from hashidrill.core.units import Duration, Percent, Quantity
from hashidrill.products.consul import leftovers, rights
from hashidrill.products.consul.loads.base import NOWHERE
from hashidrill.products.consul.loads.kv import PREPARE_WITHIN_S, SeededLoad, Via, read_reply
from hashidrill.products.consul.loads.views import Service

DNS_PORT = 8600
_DNS_WITHIN_S = 2.0
_UDP_BYTES = 4096
_MOST_SITES = 50
"""Consul accepts 64 changes in a transaction."""
_LOOK_EVERY_S = 0.25
_LEAVE_WITHIN_S = 4.0
_WAITS = Reply("ok", status=302)
"""The client is at the waiting page: it sends nothing to the service, so the operation is not recorded."""


@dataclass
class _Client:
    """One client's resolver: the agent that its last answer led to ("": the waiting page), and when that expires."""

    site: str = ""
    until_s: float = 0.0


class DnsRead(SeededLoad):
    """Clients that resolve a service in Consul's DNS, keep the answer for its TTL, and read keys where it leads.

    An answer (SRV) names the agents of `via` and a waiting page; each client chooses by the weights (RFC 2782). The
    level of the load's profile is the agents' share of the weights, which the load sets in Consul's catalog. An
    operation is a read; a client at the waiting page sends none. `dns_config: {service_ttl: {gate: 30s}}` sets the TTL.

    The signals are `LOAD.steered`, the share that the weights ask for, `LOAD.inside`, the share of the clients whose
    last answer leads to the service, and `LOAD.behind`, the difference of both.
    """

    kind: ClassVar[str] = "consul.dns.read"
    divides: ClassVar[bool] = False
    signals: ClassVar[Mapping[str, type[Quantity] | None]] = dict.fromkeys(("steered", "inside", "behind"), Percent)

    class Params(Strict):
        """`clients` clients, each of which reads one key each `every`."""

        clients: Annotated[int, Field(ge=1, le=2000, description="Clients, each with a resolver of its own")] = 200
        every: Annotated[Duration, Field(ge=0.1, le=3600, description="How often each client reads")] = Duration("1s")
        service: Annotated[Service, Field(description="The name that clients resolve: SERVICE.service.consul")] = "gate"
        keys: Keys = 100
        via: Via = "consul:clients"
        timeout: Timeout = Duration("30s")

    params: Params

    def __init__(self, name: str, params: Params, context: LoadContext) -> None:
        super().__init__(name, params, context)
        self._clients = [_Client() for _ in range(params.clients)]
        places = [urlsplit(url) for url in self._agents[:_MOST_SITES]]
        self._sites = {(str(place.hostname), place.port): place.geturl() for place in places}
        self._random = random.Random(context.run_id)
        self._steered: float | None = None

    @classmethod
    def rights(cls, name: str, params: Any) -> Sequence[Right]:
        return (*super().rights(name, params), *rights.registering(params.service, _node(name)))

    @classmethod
    def leaves(cls, name: str, params: Any, run_id: str) -> Sequence[Left]:
        return (*super().leaves(name, params, run_id), Left(leftovers.SERVICE, leftovers.NODE, _node(name)))

    @classmethod
    def cost(cls, params: Params) -> LoadCost:
        return LoadCost(rate_per_s=params.clients / params.every)

    async def prepare(self, *, within_s: float = PREPARE_WITHIN_S) -> None:
        """Raises WaitTimeoutError."""
        await super().prepare(within_s=within_s)
        async with self.client() as http:
            await insist(http, self._agents, "PUT", "/v1/txn", _taken, within_s=within_s, body=self._weights(1.0))
        self._steered = 1.0

    async def run(self, emit: EmitOperation) -> None:
        async with self.client() as http, asyncio.TaskGroup() as tasks:

            async def read(n: int, key: str, value: str) -> Reply:  # noqa: ARG001 - a read has no value
                client = self._clients[n % len(self._clients)]
                if client.until_s <= asyncio.get_running_loop().time():
                    # as if it had resolved the name at some time before the load, not with all the others
                    age = 0.0 if client.until_s else self._random.random()
                    try:
                        client.site, client.until_s = await self._resolved(n, age)
                    except (OSError, EOFError, dns.exception.DNSException) as error:
                        said = str(error) or type(error).__name__
                        return Reply("fail", error=f"DNS: {said}", reason=Reason.NOT_SENT)
                if not client.site:
                    return _WAITS
                url, timeout_s = f"{client.site}/v1/kv/{key}?raw", float(self.params.timeout)
                return read_reply(await http.request("GET", url, timeout_s=timeout_s))

            tasks.create_task(self._steer(http))
            per_s, context = self.params.clients / self.params.every, self.context
            # the level changes the weights, not the rate
            loop = OpenLoop(self.name, per_s, self._plan, read, context.clock, lag=context.lag, waiting=context.waiting)
            await loop.run(lambda ended: None if ended.status == _WAITS.status else emit(ended))

    async def _resolved(self, n: int, age: float) -> tuple[str, float]:
        """Where a new answer leads, and when it expires; `age` is the part of its TTL that has passed. Raises OSError,
        EOFError, DNSException.
        """
        name = f"{self.params.service}.service.consul"
        question = dns.message.make_query(name, "SRV", use_edns=0, payload=_UDP_BYTES)
        agent = str(urlsplit(self.endpoint(n)).hostname)
        asked_s = asyncio.get_running_loop().time()
        answer, _ = await dns.asyncquery.udp_with_fallback(
            question, agent, timeout=_DNS_WITHIN_S, port=DNS_PORT, source=self.context.local_address
        )
        found = [one for one in answer.answer if one.rdtype == dns.rdatatype.SRV]
        if not found:
            raise OSError(f"{name} has no instance ({answer.rcode().name})")
        addresses = {one.name: one[0].to_text() for one in answer.additional if one.rdtype == dns.rdatatype.A}
        records = [record for one in found for record in one]
        [chosen] = self._random.choices(records, [record.weight for record in records])
        host = addresses.get(chosen.target, chosen.target.to_text(omit_final_dot=True))
        return self._sites.get((host, chosen.port), ""), asked_s + found[0].ttl * (1 - age)

    async def _steer(self, http: HttpClient) -> None:
        """Sets the weights to the level of the load, and samples where the clients are."""
        turn = 0
        while True:
            level, turn = min(1.0, self.context.course.at(self.context.clock.now_ns())), turn + 1
            if level != self._steered:
                answer = await http.request(
                    "PUT", f"{self.endpoint(turn)}/v1/txn", body=self._weights(level), timeout_s=_DNS_WITHIN_S
                )
                self._steered = level if answer.status == 200 else None
            if sites := [client.site for client in self._clients if client.until_s]:
                inside, steered = sum(map(bool, sites)) / len(sites), self._steered
                self.context.sample("inside", inside)
                self.context.sample("steered", steered, "" if steered is not None else "Consul took no new weights")
                self.context.sample("behind", None if steered is None else abs(steered - inside))
            await asyncio.sleep(_LOOK_EVERY_S)

    def _weights(self, level: float) -> bytes:
        """One transaction, so that no answer mixes two levels. An instance cannot have the weight 0: it is absent."""
        share, name, node = round(100 * level), self.params.service, _node(self.name)
        sites = [(f"in-{n}", host, port, share) for n, (host, port) in enumerate(self._sites)]
        changes: list[dict[str, Any]] = [{"Node": {"Verb": "set", "Node": {"Node": node, "Address": NOWHERE}}}]
        for key, host, port, weight in [*sites, ("out", NOWHERE, 80, (100 - share) * len(sites))]:
            service = {"ID": f"{name}-{key}", "Service": name, "Address": host, "Port": port}
            weights = {"Weights": {"Passing": max(1, weight), "Warning": 1}}
            verb = "set" if weight else "delete"
            changes.append({"Service": {"Verb": verb, "Node": node, "Service": {**service, **weights}}})
        return json.dumps(changes).encode()

    async def clean_up(self) -> None:
        """Removes the node of the instances. Gives up after 4 s, so that it does not wait for a sick agent."""
        body = json.dumps({"Node": _node(self.name)}).encode()
        try:
            async with asyncio.timeout(_LEAVE_WITHIN_S), self.client() as http:
                for agent in self._agents:
                    url = f"{agent}/v1/catalog/deregister"
                    if (await http.request("PUT", url, body=body, timeout_s=_LEAVE_WITHIN_S)).status == 200:
                        return
        except TimeoutError:
            pass
        self.context.sample("left", float(len(self._agents)), f"the node {_node(self.name)} was not removed")


def _node(name: str) -> str:
    return f"hashidrill-{name}"


def _taken(answer: Answer) -> bool | None:
    return True if answer.status == 200 else None
