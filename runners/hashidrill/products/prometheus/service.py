"""Prometheus as a service of a datacenter: it scrapes the other products' agents and evaluates alerting rules.

It is light to import: the command line finds its roles here, and most commands start no datacenter.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from hashidrill.core.errors import DatacenterError
from hashidrill.core.experiment.library import FOLDER
from hashidrill.core.experiment.strict import VERSION_PATTERN, Strict
from hashidrill.core.protocols.abc import Hosts
from hashidrill.core.protocols.service import AgentPlace, AgentPlan, BaseService, Site, Wanted
from hashidrill.core.units import Duration
from hashidrill.core.util.folders import shipped
from hashidrill.core.util.wait import wait_until
from hashidrill.lab.provision.products import ALERTMANAGER_VERSION, PROMETHEUS_VERSION

if TYPE_CHECKING:
    from hashidrill.core.experiment.checks import Note
    from hashidrill.core.experiment.model import Experiment

PORT = 9090
PAGER, PAGER_PORT = "alertmanager-1", 9093
RULES = "alerts/rules.yml"
"""The shipped rules, below `experiments/`."""
_RULES_NAME = "rules.yml"
_ASKS_WITHIN_S = 2.0


class Scraped(NamedTuple):
    """Where a product serves its metrics, and the setting of its `telemetry` that it needs for that."""

    port: int
    path: str
    key: str
    value: str


_SCRAPED = {
    "consul": Scraped(8500, "/v1/agent/metrics", "prometheus_retention_time", "60s"),
    "nomad": Scraped(4646, "/v1/metrics", "prometheus_metrics", "true"),
    "vault": Scraped(8200, "/v1/sys/metrics", "prometheus_retention_time", "60s"),
}
_RUNS = frozenset({"server", "client"})
"""The roles of agents that run; a spare server waits for a fault to start it."""


class Prometheus(Strict):
    """A Prometheus on a host of its own, `prometheus-1`, for the alerting rules of a `rules` file.

    With two ways to `find` agents there are two of them; the host of the second is `prometheus-2`.
    """

    version: str = Field(default=PROMETHEUS_VERSION, pattern=VERSION_PATTERN, description="Prometheus version")
    binary: str | None = Field(default=None, description="Path of a prometheus binary to use instead")
    rules: str = Field(default=RULES, min_length=1, description="Path of a file of rules; default: the shipped file")
    scrape: list[Literal["consul", "nomad", "vault"]] = Field(
        default=["consul"], min_length=1, max_length=3, description="The products whose agents it scrapes"
    )
    every: Duration = Field(
        default=Duration("1s"), ge=1, le=60, description="Interval between scrapes, and between evaluations"
    )
    find: list[Literal["fixed", "consul"]] = Field(
        default=["fixed"],
        min_length=1,
        max_length=2,
        description="How it finds the agents: `fixed` knows their addresses, `consul` asks a Consul agent for the "
        "servers' addresses. With both, two Prometheus run, in this order, with the same rules",
    )
    alertmanager: bool = Field(
        default=False, description=f"Whether alerts go to an Alertmanager, on the host `{PAGER}`, which notifies no one"
    )


def rules_file(named: str) -> Path:
    """The file at that path, or the shipped file of that name. Raises DatacenterError."""
    for path in (Path(named).expanduser(), shipped(FOLDER) / named):
        if path.is_file():
            return path
    raise DatacenterError(f"there is no file of rules {named}; name a file from the working directory, or {RULES}")


class PrometheusService(BaseService):
    """Prometheus of a local datacenter (hashidrill.core.protocols.service.Service)."""

    name: ClassVar[str] = "prometheus"
    Spec: ClassVar[type[Prometheus]] = Prometheus
    roles: ClassVar[tuple[str, ...]] = ()
    after: ClassVar[tuple[str, ...]] = tuple(_SCRAPED)
    agent_bytes: ClassVar[int] = 120_000_000

    @property
    def _finds(self) -> dict[str, str]:
        """For each host with a Prometheus, how that Prometheus finds the agents."""
        return {f"prometheus-{n}": how for n, how in enumerate(dict.fromkeys(self.spec.find), start=1)}

    def places(self) -> Sequence[AgentPlace]:
        pager = [AgentPlace(PAGER, "pager")] if self.spec.alertmanager else []
        return [*pager, *(AgentPlace(host, "monitor") for host in self._finds)]

    def binaries(self) -> Sequence[Wanted]:
        pager = [Wanted("alertmanager", ALERTMANAGER_VERSION)] if self.spec.alertmanager else []
        return [Wanted("prometheus", self.spec.version, self.spec.binary), *pager]

    def check(self, experiment: Experiment, note: Note) -> None:
        services = experiment.datacenter.services
        try:
            rules_file(self.spec.rules)
        except DatacenterError as error:
            note(("datacenter", "prometheus", "rules"), str(error))
        if "consul" in self.spec.find and set(self.spec.scrape) != {"consul"}:
            note(("datacenter", "prometheus", "find"), "`consul` finds only Consul's servers: scrape only consul")
        for product in self.spec.scrape:
            if product not in services:
                note(("datacenter", "prometheus", "scrape"), f"the datacenter has no {product}: add `{product}: {{}}`")
                continue
            wanted, telemetry = _SCRAPED[product], getattr(services[product], "config", {}).get("telemetry")
            if not isinstance(telemetry, Mapping) or wanted.key not in telemetry:
                setting = f"telemetry: {{{wanted.key}: {wanted.value}, disable_hostname: true}}"
                note(("datacenter", product, "config"), f"Prometheus cannot scrape it without `{setting}`")

    def agent(self, site: Site) -> AgentPlan:
        """The configuration is JSON, which is also YAML. Raises DatacenterError if the rules are missing."""
        every = f"{self.spec.every:g}s"
        if site.host == PAGER:
            receiver = "no-one"
            command = _command(
                site,
                "alertmanager",
                PAGER_PORT,
                {"config.file": site.config_file, "storage.path": site.data / "alerts", "cluster.listen-address": ""},
            )
            config = {"route": {"receiver": receiver}, "receivers": [{"name": receiver}]}
            return AgentPlan(config, command, f"http://{site.address}:{PAGER_PORT}", "/-/ready")
        pager = f"{site.addresses[PAGER]}:{PAGER_PORT}" if self.spec.alertmanager else ""
        config = {
            "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
            "rule_files": [str(site.data / _RULES_NAME)],
            "scrape_configs": [
                {
                    "job_name": product,
                    "metrics_path": _SCRAPED[product].path,
                    "params": {"format": ["prometheus"]},
                    **_TARGETS[self._finds[site.host]](product, site),
                }
                for product in dict.fromkeys(self.spec.scrape)
            ],
            **({"alerting": {"alertmanagers": [{"static_configs": [{"targets": [pager]}]}]}} if pager else {}),
        }
        # Alertmanager ends an alert four resend delays after its last evaluation: 4 min by default
        options = {"config.file": site.config_file, "storage.tsdb.path": site.data / "tsdb"}
        command = _command(site, "prometheus", PORT, options | {"rules.alert.resend-delay": every})
        files = {_RULES_NAME: rules_file(self.spec.rules).read_text(encoding="utf-8")}
        return AgentPlan(config, command, f"http://{site.address}:{PORT}", "/-/ready", files=files)

    async def wait_ready(self, hosts: Hosts, *, within_s: float, agents_run: Callable[[], Awaitable[None]]) -> None:
        """Waits until each agent is scraped and each rule evaluated. Raises WaitTimeoutError with what was missing."""
        import httpx2  # noqa: PLC0415 - see above

        async with httpx2.AsyncClient(timeout=_ASKS_WITHIN_S, trust_env=False) as client:

            async def ready() -> tuple[bool | None, str]:
                await agents_run()
                lacking = list[str]()
                for host in self._finds:
                    base = f"http://{hosts.host(host).address}:{PORT}/api/v1"
                    try:
                        replies = [
                            (await client.get(f"{base}/{what}")).json()["data"]
                            for what in ("targets", "rules", "alertmanagers")
                        ]
                        lacking += missing(*replies, pager=self.spec.alertmanager)
                    except (httpx2.HTTPError, OSError, ValueError, KeyError, TypeError) as error:
                        lacking.append(f"{host}: {type(error).__name__}: {error}")
                return (None if lacking else True), "; ".join(lacking)

            await wait_until("Prometheus to scrape each agent", ready, within_s=within_s, gap_s=0.2)


def _command(site: Site, name: str, port: int, options: Mapping[str, object]) -> list[str]:
    every = {**options, "web.listen-address": f"0.0.0.0:{port}", "log.level": "warn"}
    return [str(site.binaries[name]), *(f"--{option}={value}" for option, value in every.items())]


def _known(product: str, site: Site) -> Mapping[str, Any]:
    hosts = [host for host, roles in site.agents.items() if roles.get(product) in _RUNS]
    port = _SCRAPED[product].port
    return {
        "static_configs": [{"targets": [f"{site.addresses[host]}:{port}"], "labels": {"host": host}} for host in hosts]
    }


def _discovered(product: str, site: Site) -> Mapping[str, Any]:
    """Consul's catalog has the port of the service's RPC, so the port is replaced by the HTTP port."""
    agents = [(of.get(product), host) for host, of in site.agents.items()]
    asked = next(host for role in ("client", "server") for of, host in agents if of == role)
    port = _SCRAPED[product].port
    return {
        "consul_sd_configs": [{"server": f"{site.addresses[asked]}:{port}", "services": [product]}],
        "relabel_configs": [
            {"source_labels": ["__meta_consul_address"], "replacement": f"$1:{port}", "target_label": "__address__"},
            {"source_labels": ["__meta_consul_node"], "target_label": "host"},
        ],
    }


_TARGETS = {"fixed": _known, "consul": _discovered}


def missing(
    targets: Mapping[str, Any], rules: Mapping[str, Any], pagers: Mapping[str, Any], *, pager: bool
) -> list[str]:
    """The targets that were not scraped, and the rules that were not evaluated, with Prometheus' own reasons."""
    return [
        *(["it found no agent"] if not targets["activeTargets"] else []),
        *(["it found no Alertmanager"] if pager and not pagers["activeAlertmanagers"] else []),
        *(
            f"{one['labels'].get('host')}: {one.get('lastError') or one['health']}"
            for one in targets["activeTargets"]
            if one["health"] != "up"
        ),
        *(
            f"the rule {rule['name']}: {rule.get('lastError') or rule['health']}"
            for group in rules["groups"]
            for rule in group["rules"]
            if rule["health"] != "ok"
        ),
    ]
