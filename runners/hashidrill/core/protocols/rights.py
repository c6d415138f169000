"""What a token must be allowed: faults, loads and services declare it, products turn it into policies and check it.

And what a load leaves in a product: it declares that too, and an attached datacenter gets rid of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Right:
    """One rule of a policy, in the words of its product: `Right("consul", "key_prefix", "hashidrill/", "write")`.

    `name` is empty for what a product has only once, like Consul's `operator`.
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
    """Something that a load puts into a product, in a place of its own, and that nobody needs once the run is over."""

    service: str
    what: str
    """In the product's words: `keys below`, `key`."""
    name: str
    """The place: `hashidrill/kv-writes/`."""

    def __str__(self) -> str:
        return f"{self.what} {self.name}"


def of_service(service: str, rights: Iterable[Right]) -> list[Right]:
    """Those that are one product's, each once, in order."""
    return sorted({right for right in rights if right.service == service})
