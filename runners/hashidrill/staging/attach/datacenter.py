"""An attached datacenter for the engine, faults and loads: hosts that have an API, and the capabilities of carriers.

Agents are reached by their URLs, with the TLS files and tokens of the target. Disks, packets and processes can be
changed only if a carrier reaches the host (hashidrill.staging.carriers): a fault that needs more is refused before
anything begins.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self
from urllib.parse import urlsplit

import anyio
import httpx2

from hashidrill.core.errors import AttachError, FaultError, SelectorError
from hashidrill.core.experiment.model import DatacenterSpec, services_of
from hashidrill.core.protocols.abc import ApiAnswer, ClientTap, Probe
from hashidrill.core.protocols.capabilities import AgentApi, Capable, EstateLinks
from hashidrill.core.protocols.service import Reachable, Service, Watched
from hashidrill.core.util.addresses import Addresses
from hashidrill.core.util.files import private_folder, write_whole
from hashidrill.core.util.wait import wait_until
from hashidrill.lab.host_selection import HostSelection
from hashidrill.staging.attach.discovery import Estate, FoundHost, LookAtPods, discover, followed, pods_of, unanswered
from hashidrill.staging.attach.http import AgentTransport, Login, Place, Wire
from hashidrill.staging.attach.links import TOXIPROXY, HostLinks, hello_of_http
from hashidrill.staging.attach.product import attachables
from hashidrill.staging.attach.target import AttachTarget

_NO_LOGS = """\
The logs of an attached datacenter are not collected: it was reached by the addresses of its APIs alone.
"""
_MOST_READY_S = 60.0


class AttachedHost(Capable):
    """One host: its agents' APIs, and the capabilities that products and carriers add."""

    def __init__(
        self,
        found: FoundHost,
        logins: Mapping[str, Login],
        wires: Mapping[str, Wire] = MappingProxyType({}),
        *,
        run: str = "",
        carried: Mapping[type[Any], Any] = MappingProxyType({}),
    ) -> None:
        """`run` is part of the names of everything put there; `carried` has the carriers' capabilities.

        If `wires` is empty, its API cannot be called.
        """
        super().__init__()
        self.name, self.address, self.urls = found.name, found.address, dict(found.urls)
        self._logins = logins
        self.roles |= found.roles
        self._wires = wires
        self.parts[AgentApi] = self
        for service, product in attachables(found.roles).items():
            self.parts |= product.parts(self, logins[service])
        if found.links:
            self.parts[EstateLinks] = HostLinks(self.name, found.links, wires.get(TOXIPROXY), run, self._hello)
        self.parts |= carried

    def move(self, address: str) -> None:
        """Sets a new address. URLs from the target's file, and those forwarded to the pod by its name, stay."""
        self.address = address
        for service, old in self.urls.items():
            if old in self._logins[service].forwards.values():
                continue
            self.urls[service] = new = self._logins[service].url_of(self.name, address)
            if service in self._wires:
                self._wires[service].move(old, new)

    def _hello(self, port: int) -> bytes:
        """A request that the agent on that port answers at once; b"" if none is known."""
        for service, product in attachables(self.roles).items():
            url = self.urls[service]
            if port == urlsplit(url).port:
                return hello_of_http(url, product.health)
            if hello := product.hello(port):
                return hello
        return b""

    async def api(
        self,
        method: str,
        path: str,
        *,
        agent: str,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        timeout_s: float = 5.0,
    ) -> ApiAnswer:
        """Sends one request to that agent's own URL. Raises FaultError."""
        if agent not in self.urls:
            raise FaultError(f"{self.name}: there is no {agent} to ask for {path}")
        wire = self._wires[agent]
        try:
            return await wire.request(
                method, path, url=self.urls[agent], params=params, headers=headers, body=body, timeout_s=timeout_s
            )
        except FaultError as error:
            raise FaultError(f"{self.name}: {error}") from None


class AttachedDatacenter(HostSelection):
    """The experiment's `spec` on the discovered `estate`; an async context manager. Probes do not use `wires`."""

    def __init__(
        self,
        spec: DatacenterSpec,
        target: AttachTarget,
        estate: Estate,
        wires: Mapping[str, Wire],
        *,
        artifacts: Path = Path("artifacts"),
        run: str = "",
        make_transport: Callable[[Any], httpx2.AsyncBaseTransport] | None = None,
        carried: Mapping[str, Mapping[type[Any], Any]] = MappingProxyType({}),
        pods: LookAtPods | None = None,
    ) -> None:
        """`pods`: the current addresses of the agents' pods."""
        self._pods = pods
        self._former: dict[str, AttachedHost] = {}
        self.called = target.name
        self.target, self.estate, self._wires, self._artifacts = target, estate, wires, artifacts
        self._turns: dict[str, anyio.Lock] = {}
        self._left_out = [] if spec.attached is None else spec.attached.left_out
        self.silent: Mapping[str, str] = {}
        """The agents that did not answer at their own URL when the run began, by `HOST/SERVICE`, with the reason."""
        self.hosts = {
            name: AttachedHost(one, target.logins, wires, run=run, carried=carried.get(name, {}))
            for name, one in estate.hosts.items()
        }
        self._transport = AgentTransport(self._place_of, make_transport)
        self._ports = {product.port: service for service, product in attachables(target.logins).items()}
        self.services: list[Service] = services_of(spec)
        for service in self.services:
            if isinstance(service, Reachable):
                service.transport = self._transport

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._transport.close()

    def _place_of(self, address: str, port: int) -> Place | None:
        service = self._ports.get(port, "")
        host = next((one for one in self.hosts.values() if one.address == address and service in one.urls), None)
        host = host or self._former.get(address)  # callers that used the old address mean the same agent
        return (
            None if host is None or service not in host.urls else Place(host.urls[service], self.target.logins[service])
        )

    @property
    def entrances(self) -> dict[str, dict[str, Any]]:
        """The loads' credentials for agents, by the start of the agent's URL."""
        logins = self.target.logins
        urls = [(url, service) for host in self.hosts.values() for service, url in host.urls.items()]
        urls += [(login.address, service) for service, login in logins.items()]
        return {url: logins[service].entrance() for url, service in urls}

    # for faults

    def tap(self, client: str) -> ClientTap:
        raise FaultError(f"{client}: an attached datacenter has no taps")

    def load_addresses(self) -> Sequence[str]:
        """Unknown: the kernel chooses the source address."""
        return []

    def tool(self, name: str) -> Path:
        raise FaultError(f"{name} cannot be used on an attached datacenter")

    @property
    def artifacts(self) -> Path:
        return self._artifacts

    def keep_artifacts(self, folder: Path) -> None:
        """Sets the folder of artifacts, so that a revert finds the artifacts of its run."""
        self._artifacts = folder

    # for the engine

    async def start(self) -> None:
        """Starts nothing."""

    async def wait_ready(self) -> None:
        """Waits until every product that elects has elected. Raises WaitTimeoutError."""

        async def led() -> tuple[bool | None, str]:
            try:
                now = await discover(self.target, self._wires)
            except AttachError as error:
                return None, str(error)
            without = [service for service, leader in now.leaders.items() if not leader]
            return (None if without else True), f"no leader of {', '.join(without)}"

        await wait_until(f"{self.target.name} to have leaders", led, within_s=_MOST_READY_S, gap_s=1.0)
        self.silent = await unanswered(self.estate, self._wires)

    async def endpoints(self, via: str | None) -> Sequence[str]:
        """The URLs of the agents that a load goes through; no URLs for None. Raises SelectorError.

        Agents that did not answer when the run began are left out. If no agent answered, the login's address is used,
        because many agents listen only on their own machine. A product in pods is called at its address in the file, if
        there is one, because a new pod gets another address.
        """
        if via is None:
            return []
        meant = await self.agents(via)
        for host, service in meant:
            if service not in host.urls:
                raise SelectorError(f"{host.name}: there is no {service}")
        kind = via.partition("/")[0].partition(":")[0]
        if kind != "host" and kind in self.target.kubernetes.get("entrances", ()):
            return [self.target.logins[kind].address]
        answering = [host.urls[service] for host, service in meant if f"{host.name}/{service}" not in self.silent]
        return answering or [self.target.logins[service].address for _, service in meant[:1]]

    def access(self, via: str | None) -> Mapping[str, str]:
        """The token, under the name of its product's variable. Raises SelectorError."""
        if via is None:
            return {}
        service = self.service_of(via)
        if service not in self.target.logins:
            raise SelectorError(f"{self.target.name} has no {service}")
        token = self.target.logins[service].token
        return {attachables([service])[service].variables["token"]: token.reveal()} if token else {}

    def tap_control(self, client: str) -> str:
        raise SelectorError(f"{client}: an attached datacenter has no taps")

    def namespace(self, host: str) -> str:
        raise SelectorError(f"{host}: no command can be run on a host of an attached datacenter")

    async def keep(self, tell: Callable[[str], None]) -> None:
        """Notes once what is not measured, and follows pods; its own operators keep the datacenter running."""
        tell(
            f"{self.target.name} is attached: no logs, and no figures of disks, processes and connections, are recorded"
        )
        for note in self._not_followed():
            tell(note)
        if self.silent:
            tell(f"no load goes to agents that do not answer at their own addresses: {', '.join(self.silent)}")
        if self._pods is not None and (pods := pods_of(self.target, self.estate)):
            await followed(self._pods, pods, Addresses(list(self.hosts.values())), self._move, tell)

    def _move(self, name: str, address: str) -> bool:
        host = self.hosts[name]
        self._former[host.address] = host
        self._former.pop(address, None)
        before = dict(host.urls)
        host.move(address)
        return bool(host.urls != before)

    def probes(self) -> Sequence[Probe]:
        """The probes of the products."""
        return [probe for one in self.services if isinstance(one, Watched) for probe in one.probes(self)]

    def describe(self) -> Mapping[str, Any]:
        """For run.json: the hosts, and the attached datacenter, without tokens."""
        silent = [f"does not answer: {agent}: {why}" for agent, why in self.silent.items()]
        said = described(self.target, self.estate)
        return {
            "hosts": self.described_hosts(),
            "attached": {**said, "notes": [*said["notes"], *self._not_followed(), *silent]},
        }

    def _not_followed(self) -> list[str]:
        """Notes for the verdict's reader: the experiment may have been written for another version."""
        if not self._left_out:
            return []
        return [f"the experiment's settings for its own datacenter do not count: {', '.join(self._left_out)}"]

    async def collect_logs(self, into: Path) -> None:
        """Collects no logs; the recording says so."""
        private_folder(into)
        write_whole(into / "README", _NO_LOGS)


def described(target: AttachTarget, estate: Estate) -> dict[str, Any]:
    """The attached datacenter, for run.json and for reports."""
    return {
        "name": target.name,
        "title": target.title,
        "file": target.path,
        "addresses": {service: _shown(login.address) for service, login in target.logins.items()},
        "versions": dict(estate.versions),
        "datacenters": dict(estate.datacenters),
        "notes": list(estate.notes),
    }


def _shown(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


async def attach(target: AttachTarget, stack: AsyncExitStack) -> tuple[Estate, dict[str, Wire]]:
    """Discovers the datacenter. The wires close with `stack`. Raises AttachError."""
    logins = dict(target.logins)
    if target.toxiproxy:
        logins[TOXIPROXY] = Login(TOXIPROXY, target.toxiproxy)
    wires = {name: await stack.enter_async_context(Wire(login)) for name, login in logins.items()}
    return await discover(target, wires), wires
