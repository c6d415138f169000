"""What faults of Vault see of its servers through each server's own HTTP API, without a token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hashidrill.core.errors import FaultError
from hashidrill.core.protocols.abc import Host, Hosts, Place, Trouble
from hashidrill.core.protocols.capabilities import AgentApi
from hashidrill.core.util.wait import all_at_once

AGENT = "vault"
ACTIVE = "Vault's active server"
"""Taken by what makes another server active."""
_TELLS_WITHIN_S = 2.0
_SEALED = "Vault is sealed"


@dataclass(frozen=True)
class Served:
    """How a server answers somebody without a token who asks for a secret: a sealed one does not even refuse."""

    status: int
    """0 without an answer."""
    words: str

    @property
    def sealed(self) -> bool:
        return _SEALED in self.words

    @property
    def refuses(self) -> bool:
        """As an unsealed server does, by itself or through the active one."""
        return self.status in {400, 403}


async def asked_for_a_secret(host: Host, path: str) -> Served:
    """What that server answers about the secret at `/v1/PATH`."""
    try:
        answer = await host.use(AgentApi).api("GET", f"/v1/{path}", timeout_s=_TELLS_WITHIN_S, agent=AGENT)
    except FaultError as error:
        return Served(0, str(error))
    return Served(answer.status, answer.body[:200].decode(errors="replace").strip())


async def reigns(hosts: Hosts) -> Mapping[str, str]:
    """Of each server that answers: since when it is active, in its own words; "" for one that is not.

    A sealed server, or one that hangs, is not among them. The moment is that of the reign: a server that stepped down
    and is active again has a later one.
    """
    found: dict[str, str] = {}

    async def ask(host: Host) -> None:
        try:
            answer = await host.use(AgentApi).api("GET", "/v1/sys/leader", timeout_s=_TELLS_WITHIN_S, agent=AGENT)
            said: Any = answer.json() if answer.status == 200 else None
        except (FaultError, ValueError):
            return
        if isinstance(said, dict):
            found[host.name] = str(said.get("active_time") or "an unknown time") if said.get("is_self") else ""

    await all_at_once(partial(ask, host) for host in servers_of(hosts))
    return found


async def knows_active(host: Host) -> tuple[bool | None, str]:
    """For `wait_until`: whether that server is active, or says which one is."""
    try:
        answer = await host.use(AgentApi).api("GET", "/v1/sys/leader", timeout_s=_TELLS_WITHIN_S, agent=AGENT)
        said: Any = answer.json() if answer.status == 200 else {}
    except (FaultError, ValueError) as error:
        return None, str(error)
    known = isinstance(said, dict) and bool(said.get("leader_address"))
    return (True if known else None), f"HTTP {answer.status}, {'a' if known else 'no'} server known to be active"


async def actives(hosts: Hosts) -> Sequence[str]:
    """The servers that say of themselves that they are active."""
    return sorted(name for name, since in (await reigns(hosts)).items() if since)


def servers_of(hosts: Hosts) -> list[Host]:
    return [host for host in hosts.all_hosts() if host.roles.get(AGENT) == "server"]


def only_on_vault(kind: str, place: Place) -> Iterable[Trouble]:
    """For a fault that a host without a Vault server cannot have."""
    if place.hosts and not place.hosts <= {*place.having(AGENT, "server")}:
        yield ("on",), f"{kind} is about Vault's servers, and {place.on} are none; write vault:active or host:vault-1"
