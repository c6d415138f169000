"""Agents that are pods: one that is made again has another address, and is asked there from then on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import anyio

from hashidrill.core.errors import AttachError

if TYPE_CHECKING:
    from hashidrill.staging.attach.estate import Estate
    from hashidrill.staging.attach.target import AttachTarget

LookAtPods = Callable[[], Awaitable[Mapping[str, str]]]
"""The address of each pod by its name, of those that have one. Raises AttachError."""
_EVERY_S = 1.0
_MISSED_AFTER_S = 30.0
"""A StatefulSet makes a pod of the same name within seconds; a DaemonSet gives it another name."""


def pods_of(target: AttachTarget, estate: Estate) -> dict[str, str]:
    """By host, the pod that had its address when the datacenter was looked at."""
    named = {
        str(pod["address"]): name
        for roles in target.kubernetes.get("found", {}).values()
        for pods in roles.values()
        for name, pod in pods.items()
        if pod["address"]
    }
    return {host.name: named[host.address] for host in estate.hosts.values() if host.address in named}


async def followed(
    look: LookAtPods,
    pods: Mapping[str, str],
    addresses: Mapping[str, str],
    move: Callable[[str, str], None],
    tell: Callable[[str], None],
    *,
    every_s: float = _EVERY_S,
) -> None:
    """Looks until cancelled. `pods`: by host; `addresses`: by host, read again each time; `move`: (host, address)."""
    missed: dict[str, float] = {}
    told: set[str] = set()
    while True:
        try:
            there = await look()
        except AttachError as error:
            for text in _once(told, f"pods that come back with another address are not followed: {error}"):
                tell(text)
        else:
            for host, pod in pods.items():
                if pod not in there:
                    if anyio.current_time() - missed.setdefault(host, anyio.current_time()) > _MISSED_AFTER_S:
                        for text in _once(told, f"{host}: there is no pod {pod} any more: its old address is asked"):
                            tell(text)
                    continue
                missed.pop(host, None)
                if there[pod] != (before := addresses[host]):
                    move(host, there[pod])
                    tell(
                        f"{host}: pod {pod} came back at {there[pod]} (before: {before}), and is asked there from now"
                        " on; loads that were given its own address are not moved"
                    )
        await anyio.sleep(every_s)


def _once(told: set[str], text: str) -> Iterator[str]:
    if text not in told:
        told.add(text)
        yield text
