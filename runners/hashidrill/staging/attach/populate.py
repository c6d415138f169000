"""The proxies that a toxiproxy in front of an estate's agents would have: its populate file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from hashidrill.staging.attach.product import attachables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hashidrill.staging.attach.estate import Estate


def populate(estate: Estate, *, listen: str, first_port: int) -> list[dict[str, Any]]:
    """For each agent a proxy to its API, and to the other ports that agents connect to, in the order of the hosts."""
    return [
        {"name": name, "listen": f"{listen}:{first_port + number}", "upstream": upstream, "enabled": True}
        for number, (name, upstream) in enumerate(_links(estate))
    ]


def _links(estate: Estate) -> Iterator[tuple[str, str]]:
    for host in estate.hosts.values():
        for service, product in attachables(host.roles).items():
            api = urlsplit(host.urls[service])
            ports = [(api.hostname or host.address, api.port or 80)]
            ports += [(host.address, port) for port in product.ports(host.roles[service])]
            for address, port in ports:
                name = re.sub(r"[^A-Za-z0-9_.-]", "-", f"{host.name}-{service}-{port}")
                yield name, f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
