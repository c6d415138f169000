"""The addresses of hosts, read at each access."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol


class Addressed(Protocol):
    """The part of a host that this module needs."""

    name: str

    @property
    def address(self) -> str: ...


class Addresses(Mapping[str, str]):
    """The hosts' addresses by name, read at each access: a recreated pod has a new address."""

    def __init__(self, hosts: Iterable[Addressed]) -> None:
        self._hosts = {host.name: host for host in hosts}

    def __getitem__(self, name: str) -> str:
        return self._hosts[name].address

    def __iter__(self) -> Iterator[str]:
        return iter(self._hosts)

    def __len__(self) -> int:
        return len(self._hosts)
