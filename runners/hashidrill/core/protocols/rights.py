"""The rights of tokens: faults, loads and services declare them, products turn them into policies and check them.

Also names the data that a load leaves in a product, so that an attached datacenter can be cleaned.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Right:
    """One rule of a policy, in the product's own words: `Right("consul", "key_prefix", "hashidrill/", "write")`.

    `name` is empty for a resource that a product has only once, like Consul's `operator`.
    """

    service: str
    resource: str
    name: str = ""
    access: str = "read"

    def __str__(self) -> str:
        of = f' "{self.name}"' if self.name or self.resource.endswith("_prefix") else ""
        return f"{self.resource}{of}: {self.access}"


@dataclass(frozen=True)
class Left:
    """Data that a load leaves at a place of its own in a product, and that is useless once the run is over."""

    service: str
    what: str
    """In the product's words: `keys below`, `key`."""
    name: str
    """The place: `hashidrill/kv-writes/`."""

    def __str__(self) -> str:
        return f"{self.what} {self.name}"


def of_service(service: str, rights: Iterable[Right]) -> list[Right]:
    """The rights of one product, sorted, without duplicates."""
    return sorted({right for right in rights if right.service == service})
