"""A link fault through the estate's own proxies: its toxics on each proxy that leads to the port, and looks through it.

Nothing is redirected, so only clients that go through these proxies are affected, whoever they are: there is neither
`from` nor `direction`. Both ends of a link belong to somebody else, so what is measured is how a plain connection
through it is answered. That shows toxics that delay, withhold or break an answer, and no others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hashidrill.core.errors import FaultError, SelectorError
from hashidrill.core.faults.trials import Sampling, median
from hashidrill.core.protocols.abc import Evidence, Exchange, Observer, Target, Toxic, Undo
from hashidrill.core.protocols.capabilities import EstateLinks
from hashidrill.core.util.wait import all_at_once

PROVABLE = frozenset({"latency", "timeout", "reset_peer"})
"""The types of toxics that a connection to somebody else's agent shows."""
BY_PROXY: frozenset[type[Any]] = frozenset({EstateLinks})
"""What a host must be able to do for it."""
OBSERVER = Observer(
    "our own connections through the same proxies to the agent behind them",
    "the proxies; toxiproxy's API confirms the toxics",
)


@dataclass(frozen=True)
class ByProxy:
    """One link fault, on a host that has EstateLinks."""

    kind: str
    port: int
    toxics: Sequence[Toxic]
    hosts: Any

    def _links(self, host: str) -> EstateLinks:
        links: EstateLinks = self.hosts.host(host).use(EstateLinks)
        return links

    def plan(self, target: Target, fault_id: str) -> Undo:
        """Raises SelectorError where no proxy leads to the port."""
        links = self._links(target.host)
        proxies = list(links.proxies_to(self.port))
        if not proxies:
            raise SelectorError(
                f"{self.kind} on {target.host}: no proxy of the toxiproxy leads to its port {self.port}; `hashidrill"
                " toxiproxy plan --attach FILE` writes some"
            )
        if not links.provable(self.port):
            raise SelectorError(
                f"{self.kind} on {target.host}: hashidrill does not know what the agent on port {self.port} answers, so"
                " the fault could not be proven; name the port of an agent's API"
            )
        return {"proxies": proxies, "toxics": list(links.toxic_names(fault_id, len(self.toxics)))}

    async def apply(self, undo: Undo) -> None:
        links = self._links(undo["host"])
        await all_at_once(partial(links.add_toxics, proxy, undo["toxics"], self.toxics) for proxy in undo["proxies"])

    async def revert(self, undo: Undo) -> None:
        links = self._links(undo["host"])
        await all_at_once(partial(links.remove_toxics, proxy, undo["toxics"]) for proxy in undo["proxies"])

    async def prior(self, undo: Undo, sampling: Sampling) -> Mapping[str, Any]:
        """Raises FaultError if the links, as they are, could not prove the toxics."""
        baseline: dict[str, Any] = {}
        for proxy, exchanges in (await self._through(undo, sampling)).items():
            if sampling.counts(sampling.near(exchanges)) is None:
                raise FaultError(f"the proxy {proxy}: {sampling.refused(exchanges)}")
            baseline[proxy] = {"struck": sampling.struck(exchanges), "typical_s": median(exchanges).seconds}
        return {"baseline": baseline, "exchanges": sampling.exchanges}

    async def verify(self, undo: Undo, sampling: Sampling, *, present: bool) -> Evidence:
        links = self._links(undo["host"])
        seen = await self._through(undo, sampling)
        held = {proxy: len(await links.held_toxics(proxy, undo["toxics"])) for proxy in undo["proxies"]}
        judge = _shown if present else _free
        wrong = [
            proxy
            for proxy in seen
            if not judge(sampling, _before(undo, proxy), seen[proxy]) or bool(held[proxy]) is not present
        ]
        told = (wrong or list(seen))[0]
        hits = sampling.hits(seen[told])
        of_them = median(hits if hits and present else seen[told])
        trial = sampling.trial
        figures: dict[str, float | str] = {"links": len(seen), "exchanges": sampling.exchanges, "proxy": told}
        if trial.unit and sampling.toxicity == 1:
            figures |= {f"asked_{trial.unit}": trial.asked_figure, f"measured_{trial.unit}": trial.figure(of_them)}
            figures["own_s"] = _before(undo, told).get("typical_s", 0.0)
        return Evidence(
            not wrong,
            f"{trial.asked} through {', '.join(undo['proxies'])}" if present else "no sign of it, and no toxic of ours",
            f"{trial.measured(of_them)} through {told}, toxics in {sum(map(bool, held.values()))} of {len(held)}",
            figures,
        )

    async def _through(self, undo: Undo, sampling: Sampling) -> dict[str, Sequence[Exchange]]:
        links = self._links(undo["host"])
        found: dict[str, Sequence[Exchange]] = {}

        async def look(proxy: str) -> None:
            found[proxy] = await links.exchange_through(proxy, sampling.request)

        await all_at_once(partial(look, proxy) for proxy in undo["proxies"])
        return {proxy: found[proxy] for proxy in undo["proxies"]}


def _before(undo: Undo, proxy: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = undo.get("prior", {}).get("baseline", {}).get(proxy, {})
    return found


def _shown(sampling: Sampling, before: Mapping[str, Any], exchanges: Sequence[Exchange]) -> bool:
    """Enough exchanges were hit, and the median as asked."""
    needed, hits = sampling.counts(before.get("struck", 0)), sampling.hits(exchanges)
    shown = needed is not None and needed.shows(len(hits))
    return shown and sampling.trial.fits(median(hits), 2 * before.get("typical_s", 0.0))


def _free(sampling: Sampling, before: Mapping[str, Any], exchanges: Sequence[Exchange]) -> bool:
    needed = sampling.counts(before.get("struck", 0))
    return needed is not None and needed.is_free(sampling.struck(exchanges))
