"""What the load generator is told about each load and client of an experiment: parameters, agents, sockets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from hashidrill.core.engine.load_generator import LoadSpecification
from hashidrill.core.experiment.model import Experiment
from hashidrill.core.protocols import registry


class Reached(Protocol):
    """What this asks of a datacenter."""

    def load_addresses(self) -> Sequence[str]: ...

    async def endpoints(self, via: str | None) -> Sequence[str]: ...

    def access(self, via: str | None) -> Mapping[str, str]: ...

    def tap_control(self, client: str) -> str: ...

    def namespace(self, host: str) -> str: ...


async def load_specifications(experiment: Experiment, datacenter: Reached) -> list[LoadSpecification]:
    """Each load and client with the agents of its `via`, as they are now. Raises SelectorError."""
    address = next(iter(datacenter.load_addresses()), None)
    specifications = []
    for name, load in experiment.load.items():
        params = load.parameters
        kind = registry.load(load.kind)
        via, also = kind.via(params), kind.also(params)
        specification = LoadSpecification(
            name,
            load.kind,
            params,
            await datacenter.endpoints(via),
            address,
            load.profile,
            access={key: token for each in (via, *also.values()) for key, token in datacenter.access(each).items()},
            others={name: await datacenter.endpoints(selector) for name, selector in also.items()},
        )
        specifications.append(specification)
    for name, client in experiment.clients.items():
        endpoints = await datacenter.endpoints(client.agents)
        specification = LoadSpecification(
            name,
            registry.CLIENT,
            client,
            endpoints,
            address,
            client.profile,
            datacenter.tap_control(name),
            None if client.on is None else datacenter.namespace(client.on.removeprefix("host:")),
            datacenter.access(client.agents),
        )
        specifications.append(specification)
    return specifications
