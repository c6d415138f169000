"""Faults of Vault's servers: a seal, a step-down, a revoked token; each observed at the servers' own API."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from hashidrill.core.errors import FaultError
from hashidrill.core.faults.base import BaseFault, Cases, NoParams
from hashidrill.core.protocols.abc import Claim, Evidence, Host, Hosts, Observer, Place, Target, Trouble, Undo
from hashidrill.core.protocols.capabilities import AgentApi, ProcessControl
from hashidrill.core.protocols.claims import AGENT, ANSWERS, EVERYWHERE, START, needs, takes
from hashidrill.core.protocols.rights import Right
from hashidrill.core.util.wait import all_at_once, wait_until
from hashidrill.products.vault import rights
from hashidrill.products.vault.operator import LoadTokens, VaultKeys, VaultOperator
from hashidrill.products.vault.rights import PROBE_SECRET

VAULT = "vault"
ACTIVE = "Vault's active server"
"""Claimed by faults that make another server active."""
_TELLS_WITHIN_S = 2.0
_SEALED = "Vault is sealed"


@dataclass(frozen=True)
class Served:
    """A server's answer to a request for a secret without a token, which only an unsealed server refuses."""

    status: int
    """0 if no answer came."""
    words: str

    @property
    def sealed(self) -> bool:
        return _SEALED in self.words

    @property
    def refuses(self) -> bool:
        """Whether the server refuses as an unsealed server does, by itself or through the active server."""
        return self.status in {400, 403}


async def asked_for_a_secret(host: Host, path: str) -> Served:
    """The server's answer about the secret at `/v1/PATH`."""
    try:
        answer = await host.use(AgentApi).api("GET", f"/v1/{path}", timeout_s=_TELLS_WITHIN_S, agent=VAULT)
    except FaultError as error:
        return Served(0, str(error))
    return Served(answer.status, answer.body[:200].decode(errors="replace").strip())


async def find_reigns(hosts: Hosts) -> Mapping[str, str]:
    """For each server that answers, the time at which it says that it became active; "" if it is not active.

    A sealed or hanging server is left out. This time identifies the reign: a server that stepped down and became
    active again reports a later time.
    """
    found: dict[str, str] = {}

    async def ask(host: Host) -> None:
        try:
            answer = await host.use(AgentApi).api("GET", "/v1/sys/leader", timeout_s=_TELLS_WITHIN_S, agent=VAULT)
            said: Any = answer.json() if answer.status == 200 else None
        except (FaultError, ValueError):
            return
        if isinstance(said, dict):
            found[host.name] = str(said.get("active_time") or "an unknown time") if said.get("is_self") else ""

    await all_at_once(partial(ask, host) for host in servers_of(hosts))
    return found


async def knows_active(host: Host) -> tuple[bool | None, str]:
    """For `wait_until`: whether that server is active, or names the active server."""
    try:
        answer = await host.use(AgentApi).api("GET", "/v1/sys/leader", timeout_s=_TELLS_WITHIN_S, agent=VAULT)
        said: Any = answer.json() if answer.status == 200 else {}
    except (FaultError, ValueError) as error:
        return None, str(error)
    known = isinstance(said, dict) and bool(said.get("leader_address"))
    return (True if known else None), f"HTTP {answer.status}, {'a' if known else 'no'} server known to be active"


async def actives(hosts: Hosts) -> Sequence[str]:
    """The servers that report themselves as active."""
    return sorted(name for name, since in (await find_reigns(hosts)).items() if since)


def servers_of(hosts: Hosts) -> list[Host]:
    return [host for host in hosts.all_hosts() if host.roles.get(VAULT) == "server"]


def only_on_vault(kind: str, place: Place) -> Iterable[Trouble]:
    """Refuses hosts without a Vault server."""
    if place.hosts and not place.hosts <= {*place.having(VAULT, "server")}:
        yield ("on",), f"{kind} targets Vault's servers, but {place.on} has none; write vault:active or host:vault-1"


_SEALED_WITHIN_S = 20.0


class Seal(BaseFault[NoParams]):
    """Seals the server, and keeps it sealed. Vault seals only its active server on request: a standby is restarted.

    Limits: on `vault:active`, another server takes over, so the fault is also a failover. A sealed server has no vote
    in integrated storage: sealing two of three is an outage.
    """

    kind: ClassVar[str] = "vault.seal"
    cases: ClassVar[Cases] = Cases(on=(("vault:one-standby", {}), ("vault:active", {})))
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({AgentApi, ProcessControl, VaultKeys, VaultOperator})
    observer: ClassVar[Observer] = Observer("how the server answers a request for a secret", "Vault's HTTP API")

    def rights(self) -> Sequence[Right]:
        return rights.path("sys/seal", "update", "sudo")

    @property
    def observed_within_s(self) -> float:
        """An unsealed server must still find the active server before it can forward a request."""
        return 30.0

    def uses(self, place: Place) -> Sequence[Claim]:
        return (*super().uses(place), takes(AGENT), needs(START))

    def troubles(self, place: Place) -> Iterable[Trouble]:
        return only_on_vault(self.kind, place)

    async def prior(self, target: Target) -> Mapping[str, Any]:
        host = self.hosts.host(target.host)
        seal = await host.use(VaultOperator).seal_status()
        if not seal.open:
            raise FaultError(f"{target.host}: its vault cannot be sealed: {seal}")
        return {"active": target.host in await actives(self.hosts)}

    async def apply(self, undo: Undo) -> None:
        host = self._host(undo)
        operator = host.use(VaultOperator)
        await host.use(VaultKeys).keep_sealed(undo["fault_id"])
        if undo["prior"]["active"]:
            said = await operator.ask("PUT", "sys/seal", timeout_s=_SEALED_WITHIN_S)
            if not said.ok:
                raise FaultError(f"{host.name}: it was not sealed: {said.text}")
            return
        process = host.use(ProcessControl)
        await process.stop_agent(VAULT)
        await process.start_agent(VAULT)

        async def answers() -> tuple[bool | None, str]:
            seal = await operator.seal_status()
            return (True if seal.answered and seal.initialized else None), str(seal)

        await wait_until(f"vault on {host.name} to start again", answers, within_s=_SEALED_WITHIN_S)

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        served = await asked_for_a_secret(self._host(undo), PROBE_SECRET)
        asked = "a request for a secret gets: Vault is sealed" if present else "a request without a token is refused"
        return Evidence(
            served.sealed if present else served.refuses,
            asked,
            f"HTTP {served.status} {served.words}" if served.status else served.words,
            {"status": served.status},
        )

    async def revert(self, undo: Undo) -> None:
        operator = self._host(undo).use(VaultKeys)
        await operator.leave(undo["fault_id"])
        await operator.unseal()


_STEPPED_WITHIN_S = 20.0


class StepDown(BaseFault[NoParams]):
    """Ends the active server's reign, once. The server does not compete for 10 s, and becomes active again if the
    handover fails.

    Only the end of the reign is proven, because Vault answers before it steps down; `vault_serves_within` measures
    which server is active afterwards, and how long no server was.

    Limits: refused if no other server is unsealed. With integrated storage, Vault tries once to transfer Raft's
    leadership to another server. If that fails (its log says `unlocking HA lock failed`), no server is active for 10 s,
    and then the same server is active again; the proof says so. A server that stepped down less than 10 s before takes
    over only when its own 10 s are over. A server that got its key twice while it joined Raft may stay active (its log
    says `entering standby mode` twice; 1.21.0), and then the fault is not proven.
    """

    kind: ClassVar[str] = "vault.step_down"
    cases: ClassVar[Cases] = Cases(on=(("vault:active", {}),), momentary=True)
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({AgentApi, VaultOperator})
    observer: ClassVar[Observer] = Observer(
        "what each server reports about itself at sys/leader: whether it is active, and since when",
        "Vault's HTTP API",
    )
    once: ClassVar[bool] = True

    def rights(self) -> Sequence[Right]:
        return rights.path("sys/step-down", "update", "sudo")

    @property
    def observed_within_s(self) -> float:
        """The time until a server is active: 1 s with integrated storage, 2 s on Consul, measured.

        If the handover fails, Raft waits for an election timeout, and Vault for 10 s more (manualStepDownSleepPeriod
        of vault/core.go), before the same server is active again.
        """
        return 30.0

    def uses(self, place: Place) -> Sequence[Claim]:
        alone = takes(ACTIVE, "both decide which server is active", where=EVERYWHERE, local=False)
        return (*super().uses(place), needs(ANSWERS), alone)

    def troubles(self, place: Place) -> Iterable[Trouble]:
        yield from only_on_vault(self.kind, place)
        if place.many and len(place.hosts) > 1:
            yield ("on",), f"{self.kind} needs one server, but {place.on} may be several; write vault:active"

    async def prior(self, target: Target) -> Mapping[str, Any]:
        reigns = await find_reigns(self.hosts)
        active = sorted(name for name, since in reigns.items() if since)
        if active != [target.host]:
            raise FaultError(f"{target.host} is not active; {', '.join(active) or 'none'} is; use on: vault:active")
        others = [host for host in servers_of(self.hosts) if host.name != target.host]
        able = [host.name for host in others if (await host.use(VaultOperator).seal_status()).open]
        if not able:
            raise FaultError(f"{target.host}: no other server is unsealed, so no server could take over")
        return {"standbys": able, "since": reigns[target.host]}

    async def apply(self, undo: Undo) -> None:
        said = await self._host(undo).use(VaultOperator).ask("PUT", "sys/step-down", timeout_s=_STEPPED_WITHIN_S)
        if not said.ok:
            raise FaultError(f"{undo['host']}: it did not step down: {said.text}")

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        """In force: the reign of the server that stepped down has ended. Gone: exactly one server is active."""
        host, since = undo["host"], undo["prior"]["since"]
        reigns = await find_reigns(self.hosts)
        active = sorted(name for name, began in reigns.items() if began)
        again = " again (no other server took over)" if active == [host] and reigns[host] != since else ""
        measured = f"active: {', '.join(active) or 'none'}{again}"
        if not present:
            return Evidence(len(active) == 1, "one server is active", measured)
        over = len(active) <= 1 and reigns.get(host) != since and (host in reigns or bool(active))
        return Evidence(over, f"{host} is no longer active; it had been since {since}", measured)

    async def revert(self, undo: Undo) -> None:
        """Does nothing: any server may be active."""


_TOKEN = "the token of hashidrill's loads"  # noqa: S105 - what the claim is about


class TokenRevoke(BaseFault[NoParams]):
    """Revokes the token of the loads: all their requests are refused with 403. Reverting creates the same token again.

    Limits: Vault also revokes every token that was created with this token. The tokens of `vault.token.churn` are then
    gone for good, and `no_acknowledged_write_lost` on that load reports it.
    """

    kind: ClassVar[str] = "vault.token.revoke"
    cases: ClassVar[Cases] = Cases(on=(("vault:active", {}),))
    at_a_time: ClassVar[int | None] = 0
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({AgentApi, LoadTokens})
    observer: ClassVar[Observer] = Observer(
        "what another server answers to a look-up with that token",
        "Vault's HTTP API; a standby asks the active server",
    )

    def uses(self, place: Place) -> Sequence[Claim]:
        alone = takes(_TOKEN, "both revoke the same token", where=EVERYWHERE, local=False)
        return (*super().uses(place), needs(ANSWERS), alone)

    def troubles(self, place: Place) -> Iterable[Trouble]:
        yield from only_on_vault(self.kind, place)
        if place.many and len(place.hosts) > 1:
            yield ("on",), f"{self.kind} needs one server, but {place.on} may be several; write vault:active"

    def rights(self) -> Sequence[Right]:
        return rights.path("auth/token/revoke", "update")

    async def prior(self, target: Target) -> Mapping[str, Any]:
        said = await self.hosts.host(target.host).use(LoadTokens).loads_are_allowed()
        if not said.ok:
            raise FaultError(f"{target.host}: the token of hashidrill's loads is already refused: {said.text}")
        return {}

    async def apply(self, undo: Undo) -> None:
        await self._host(undo).use(LoadTokens).revoke_loads()

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        servers = servers_of(self.hosts)
        other = next((host for host in servers if host.name != undo["host"]), self._host(undo))
        said = await other.use(LoadTokens).loads_are_allowed()
        return Evidence(
            said.status == 403 if present else said.ok,
            "the token is refused (403)" if present else "the token is known (200)",
            f"{other.name}: {said.text}",
            {"status": said.status},
        )

    async def revert(self, undo: Undo) -> None:
        await self._host(undo).use(LoadTokens).allow_loads()
