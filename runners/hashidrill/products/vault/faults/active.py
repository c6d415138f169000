"""Has the active server step down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from hashidrill.core.errors import FaultError
from hashidrill.core.faults.base import BaseFault, Cases, NoParams
from hashidrill.core.protocols.abc import Claim, Evidence, Observer, Place, Target, Trouble, Undo
from hashidrill.core.protocols.capabilities import AgentApi
from hashidrill.core.protocols.claims import ANSWERS, EVERYWHERE, needs, takes
from hashidrill.core.protocols.rights import Right
from hashidrill.products.vault import rights
from hashidrill.products.vault.faults import seen
from hashidrill.products.vault.operator import VaultOperator

_STEPPED_WITHIN_S = 20.0


class StepDown(BaseFault[NoParams]):
    """Ends the active server's reign, once. It does not compete for 10 s, and is active again if the handover fails.

    Vault answers before it steps down, and tells nobody but its log whether another server took over. So what is proven
    is the end of the reign; who is active afterwards, and how long nobody was, is measured (`vault_serves_within`).

    Limits: it is refused if no other server is unsealed. Vault answers 204 before it steps down. With integrated
    storage it hands Raft's leadership to one other server, once. If that fails (the log says `unlocking HA lock
    failed`), nobody is active until the 10 s are over, and then the same server is again: that is proven as what it is,
    and the proof says who is active. Handing over to a server that stepped down less than 10 s before takes as long as
    it still waits: with two step-downs 5 s apart, nobody was active for 5 s. A server that was given its key a second
    time while it joined Raft answers 204 and may stay active: it waits for leadership twice, and the step-down reaches
    the other wait (its log says `entering standby mode` twice; 1.21.0, Core.unsealWithRaft). Then the fault is not
    proven. hashidrill gives each joining server its key once; a script that unseals in a loop should, too.
    """

    kind: ClassVar[str] = "vault.step_down"
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({AgentApi, VaultOperator})
    observer: ClassVar[Observer] = Observer(
        "what each server says of itself at sys/leader: whether it is active, and since when",
        "Vault's HTTP API, which also takes the request to step down",
    )
    once: ClassVar[bool] = True
    cases: ClassVar[Cases] = Cases(on=(("vault:active", {}),), momentary=True)

    def rights(self) -> Sequence[Right]:
        return rights.path("sys/step-down", "update", "sudo")

    @property
    def observed_within_s(self) -> float:
        """Until somebody is active: 1 s with integrated storage, 2 s on Consul, measured.

        Where the handover fails, Raft waits for it (an election timeout), and Vault for 10 s more
        (manualStepDownSleepPeriod of vault/core.go) before the same server is active again.
        """
        return 30.0

    def uses(self, place: Place) -> Sequence[Claim]:
        alone = takes(seen.ACTIVE, "both are about which server is active", where=EVERYWHERE, local=False)
        return (*super().uses(place), needs(ANSWERS), alone)

    def troubles(self, place: Place) -> Iterable[Trouble]:
        yield from seen.only_on_vault(self.kind, place)
        if place.many and len(place.hosts) > 1:
            yield ("on",), f"{self.kind} is put on one server, and {place.on} may be several; write vault:active"

    async def prior(self, target: Target) -> Mapping[str, Any]:
        """Raises FaultError for a server that is not active, and where no other could take over."""
        reigns = await seen.reigns(self.hosts)
        active = sorted(name for name, since in reigns.items() if since)
        if active != [target.host]:
            raise FaultError(f"{target.host} is not active, {', '.join(active) or 'nobody'} is; put it on vault:active")
        others = [host for host in seen.servers_of(self.hosts) if host.name != target.host]
        able = [host.name for host in others if (await host.use(VaultOperator).seal_status()).open]
        if not able:
            raise FaultError(f"{target.host}: no other server is unsealed, so that none could take over")
        return {"standbys": able, "since": reigns[target.host]}

    async def apply(self, undo: Undo) -> None:
        said = await self._host(undo).use(VaultOperator).ask("PUT", "sys/step-down", timeout_s=_STEPPED_WITHIN_S)
        if not said.ok:
            raise FaultError(f"{undo['host']}: it did not step down: {said.text}")

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        """In force: the reign that was going on is over. Gone: one server is active."""
        host, since = undo["host"], undo["prior"]["since"]
        reigns = await seen.reigns(self.hosts)
        active = sorted(name for name, began in reigns.items() if began)
        again = " again (no other server took over)" if active == [host] and reigns[host] != since else ""
        measured = f"active: {', '.join(active) or 'none'}{again}"
        if not present:
            return Evidence(len(active) == 1, "one server is active", measured)
        over = len(active) <= 1 and reigns.get(host) != since and (host in reigns or bool(active))
        return Evidence(over, f"{host} is no longer active as it was since {since}", measured)

    async def revert(self, undo: Undo) -> None:
        """Nothing: which server is active is nobody's right."""
