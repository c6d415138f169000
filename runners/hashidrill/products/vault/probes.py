"""Probes of Vault: sealed servers, the active one, storage times, leases.

Paths, names and units are those of Vault 1.21.0. No path needs a token.
"""

import contextlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, ClassVar

import anyio
import httpx2
from pydantic import TypeAdapter, ValidationError

from hashidrill.core.probes.agents import Interval, Metrics, merged
from hashidrill.core.probes.base import BaseProbe, SickError
from hashidrill.core.protocols.abc import Probe, Sample
from hashidrill.core.protocols.service import LEADS
from hashidrill.core.util.wait import all_at_once
from hashidrill.products.vault.api import VaultApi

STORAGE_TIMES = {"vault.barrier.put": "vault.storage_put", "vault.barrier.get": "vault.storage_get"}
"""Vault's timers (milliseconds) and hashidrill's signals (seconds): how long Vault's barrier waited for its storage,
which is Raft or Consul.
"""
_LEASES = "vault.expire.num_leases"


_METRICS = TypeAdapter(Metrics)


class _VaultProbe(BaseProbe):
    def __init__(self, hosts: Mapping[str, str], api: VaultApi, *, host: str = "") -> None:
        self.hosts, self.host, self._api = hosts, host, api

    async def aclose(self) -> None:
        await self._api.aclose()


class ActiveProbe(_VaultProbe):
    """`vault.active`: 1, and as text the server that reports itself as active; 0 if no server or several servers do.

    `vault.is_active` of each server: 1 or 0, by its own report. The probe fails for a server that is sealed or does not
    answer. `vault.active_since` of the active server: the start of its reign, in seconds since 1970.
    """

    signals: ClassVar = ("vault.active",)
    interval_s = 0.5

    async def measure(self) -> Sequence[Sample]:
        said: dict[str, Sample] = {}
        reigns: list[Sample] = []

        async def ask(name: str, address: str) -> None:
            answer = await self._api.call(address, "GET", "sys/leader", timeout_s=self.timeout_s * 0.9)
            value = float(bool(answer.data.get("is_self"))) if answer.ok else None
            said[name] = Sample("vault.is_active", value, "" if answer.ok else answer.text, name, ok=answer.ok)
            with contextlib.suppress(ValueError):  # if a server does not report the time, its reign is unknown
                if value:
                    since_s = datetime.fromisoformat(str(answer.data.get("active_time"))).timestamp()
                    reigns.append(Sample("vault.active_since", since_s, LEADS, name))

        await all_at_once(partial(ask, name, address) for name, address in self.hosts.items())
        active = sorted(name for name, sample in said.items() if sample.value)
        words = ", ".join(active) or "none"
        one = Sample("vault.active", float(len(active) == 1), words, ok=len(active) == 1)
        return [one, *(said[name] for name in self.hosts), *reigns]

    def failed(self, reason: str) -> Sequence[Sample]:
        return [Sample("vault.active", 0.0, reason, ok=False)]


class SealProbe(_VaultProbe):
    """`vault.sealed` of each server: 1 or 0, failed if it does not answer; `vault.unsealed`: how many are unsealed."""

    signals: ClassVar = ("vault.unsealed",)
    interval_s = 0.5

    async def measure(self) -> Sequence[Sample]:
        said: dict[str, Sample] = {}

        async def ask(name: str, address: str) -> None:
            seal = await self._api.seal(address, timeout_s=self.timeout_s * 0.9)
            value = float(not seal.open) if seal.answered else None
            said[name] = Sample("vault.sealed", value, str(seal), name, ok=seal.answered)

        await all_at_once(partial(ask, name, address) for name, address in self.hosts.items())
        unsealed = sorted(name for name, sample in said.items() if sample.value == 0)
        return [Sample("vault.unsealed", float(len(unsealed)), ", ".join(unsealed)), *(said[n] for n in self.hosts)]


class MetricsProbe(_VaultProbe):
    """One server's own figures: each timer's mean in the last 10 s interval (text: max and count), and its leases.

    A timer that did not run in that interval has no sample. Only the active server writes, and counts leases.
    """

    signals: ClassVar = (*STORAGE_TIMES.values(), "vault.leases")
    interval_s = 2.0
    timeout_s = 2.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._interval = Interval()

    async def measure(self) -> Sequence[Sample]:
        said = await self._api.call(self.hosts[self.host], "GET", "sys/metrics", timeout_s=self.timeout_s * 0.9)
        if not said.ok:
            raise SickError(said.text)
        try:
            metrics = _METRICS.validate_python(dict(said.data))
        except ValidationError:
            raise SickError(f"{said.text} with an unexpected body") from None
        self._interval.goes_on(metrics, anyio.current_time())
        times = [
            merged(STORAGE_TIMES[timer.name], [timer], metrics.timestamp, self.host)
            for timer in metrics.samples
            if timer.count and timer.name in STORAGE_TIMES
        ]
        leases = [
            Sample("vault.leases", gauge.value, "", self.host) for gauge in metrics.gauges if gauge.name == _LEASES
        ]
        return [*times, *leases]


def vault_probes(servers: Mapping[str, str], transport: httpx2.AsyncBaseTransport | None = None) -> list[Probe]:
    """All probes of Vault for servers by host name and address. `run_probes` closes what they hold open."""
    api = VaultApi(transport=transport)
    whole: list[Probe] = [ActiveProbe(servers, api), SealProbe(servers, api)]
    return [*whole, *(MetricsProbe(servers, api, host=host) for host in servers)]
