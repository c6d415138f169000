"""The sample as a service of a datacenter: its hosts, agents, readiness and load."""

import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from hashidrill.core.errors import DatacenterError
from hashidrill.core.protocols.abc import Hosts
from hashidrill.core.protocols.capabilities import Processes
from hashidrill.core.protocols.service import AgentPlace, AgentPlan, BaseService, Site, Wanted
from hashidrill.core.util.processes import is_machine_root
from hashidrill.core.util.wait import wait_until
from hashidrill.products.sample.model import Logs, Sample

PORT = 8080
_STORE = "store-1"
_BACKENDS = ("backend-1", "backend-2")
_ANSWERS_WITHIN_S = 1.0
_OTHERS_PASS = 0o001
_SYSTEM = Path("/usr/bin/python3")
_NO_PYTHON = (
    "the programs of datacenter.sample run as an ordinary user, who can reach neither this Python ({ours}) nor"
    " {system}; install it with: apt install python3"
)


def python() -> Path:
    """A Python that agents can run: this one, unless they run as another user that cannot reach its library.

    Raises DatacenterError.
    """
    ours = Path(sys.base_prefix)
    if not is_machine_root() or all(folder.stat().st_mode & _OTHERS_PASS for folder in (ours, *ours.parents)):
        return Path(os.path.realpath(sys.executable))
    if _SYSTEM.exists():
        return _SYSTEM
    raise DatacenterError(_NO_PYTHON.format(ours=ours, system=_SYSTEM))


def _url(site: Site, host: str) -> str:
    return f"http://{site.addresses[host]}:{PORT}"


def _number(site: Site) -> int:
    return int(site.host.rpartition("-")[2]) - 1


class SampleService(BaseService):
    """The sample programs as a service (hashidrill.core.protocols.service.Service)."""

    name: ClassVar[str] = "sample"
    Spec: ClassVar[type[Sample]] = Sample
    roles: ClassVar[tuple[str, ...]] = (
        "stores",
        "databases",
        "caches",
        "pools",
        "nodes",
        "tiers",
        "searchers",
        "archives",
        "backends",
        "checkers",
    )

    def places(self) -> Sequence[AgentPlace]:
        """`store-1`; `database-1`, ..., `cache-1`, ..., `pool-1`, ..., in the order written; parts of the pipeline."""
        return [
            AgentPlace(_STORE, "store"),
            *(AgentPlace(f"database-{n}", "database") for n, _ in enumerate(self.spec.databases, 1)),
            *(AgentPlace(f"cache-{n}", "cache") for n, _ in enumerate(self.spec.caches, 1)),
            *(AgentPlace(f"pool-{n}", "pool") for n, _ in enumerate(self.spec.pools, 1)),
            *(AgentPlace(f"{role}-1", role) for role in self._of_logs()),
            *(AgentPlace(host, "backend") for host in _BACKENDS if self.spec.checkers),
            *(AgentPlace(f"checker-{n}", "checker") for n, _ in enumerate(self.spec.checkers, 1)),
        ]

    def _of_logs(self) -> Sequence[str]:
        if self.spec.logs is None:
            return ()
        return ("node", "searcher") if self.spec.logs.parse == "node" else ("node", "tier", "archive", "searcher")

    def binaries(self) -> Sequence[Wanted]:
        return []

    def agent(self, site: Site) -> AgentPlan:
        """Raises DatacenterError if agents have no Python to run the program."""
        from hashidrill.products.sample import program  # noqa: PLC0415 - the command line needs only the kinds

        config = {"program": site.role, "address": site.address, "port": PORT, **self._told(site)}
        source = Path(program.__file__).read_text()
        command = [str(python()), "-c", source, str(site.config_file)]
        return AgentPlan(config, command, f"http://{site.address}:{PORT}", program.HEALTH)

    def _told(self, site: Site) -> dict[str, Any]:
        if self.spec.logs is not None and site.role in self._of_logs():
            return self._told_of_logs(self.spec.logs, site)
        return self._told_of_checks(site) if site.role in {"backend", "checker"} else self._told_of_store(site)

    def _told_of_store(self, site: Site) -> dict[str, Any]:
        takes_s = float(self.spec.store_takes)
        if site.role == "store":
            return {"takes_s": takes_s}
        number = _number(site)
        if site.role == "database":
            database = self.spec.databases[number]
            return {"takes_s": takes_s, "at_once": database.at_once, "of_one_tenant": database.of_one_tenant}
        if site.role == "cache":
            cache = self.spec.caches[number]
            store = _url(site, f"database-{cache.database}" if cache.database else _STORE)
            if cache.memory:
                return {"program": "memory", "store": store}
            after_s = None if cache.bypass_after is None else float(cache.bypass_after)
            return {
                "store": store,
                "data": str(site.data),
                "bypass_after_s": after_s,
                "off_for_s": float(cache.off_for),
            }
        pool = self.spec.pools[number]
        return {
            "store": _url(site, _STORE),
            "at_least": pool.at_least,
            "most": pool.most,
            "grows_every_s": float(pool.grows_every),
            "calls": pool.calls,
            "leaks": int(pool.leaks),
        }

    def _told_of_logs(self, logs: Logs, site: Site) -> dict[str, Any]:
        if site.role == logs.parse:
            archive = _url(site, "archive-1") if "archive" in self._of_logs() else None
            behind = {"searcher": _url(site, "searcher-1"), "archive": archive}
            return {"program": "parser", **behind, "takes_s": float(logs.parse_takes), "room": logs.room}
        if site.role == "searcher":
            return {"takes_s": float(logs.search_takes), "room": logs.room}
        if site.role == "archive":
            return {"data": str(site.data)}
        return {"tier": _url(site, "tier-1"), "at_once": logs.room}

    def _told_of_checks(self, site: Site) -> dict[str, Any]:
        if site.role == "backend":
            return {"listens": (site.address, PORT + 1)}
        checker = self.spec.checkers[_number(site)]
        return {
            "targets": [(site.addresses[host], PORT + 1) for host in _BACKENDS],
            "every_s": float(checker.every),
            "timeout_s": float(checker.timeout),
            "report_takes_s": float(checker.report_takes),
            **checker.model_dump(include={"workers", "reports", "most"}),
        }

    async def wait_ready(self, hosts: Hosts, *, within_s: float, agents_run: Callable[[], Awaitable[None]]) -> None:
        ours = [host for host in hosts.all_hosts() if self.name in host.roles]

        async def ready() -> tuple[bool | None, str]:
            await agents_run()
            silent = [
                host.name for host in ours if not await host.use(Processes).agent_answers(self.name, _ANSWERS_WITHIN_S)
            ]
            return (None if silent else True), f"no answer from {', '.join(silent)}"

        await wait_until("the programs of the sample to answer", ready, within_s=within_s, gap_s=0.1)
