"""Where a block runs: `on=consul-1`, `on=consul:server`, `on=consul:servers`, `on={leader}`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol

from hashidrill.gamedays.runbooks.conditions import Seen

_HOST = re.compile(r"[a-z][a-z0-9.-]*")
_ROLE = re.compile(r"(?P<agent>[a-z]+):(?P<role>server|client)(?P<all>s?)")
_SEEN = re.compile(r"\{(?P<name>[a-z][a-z0-9_]*)\}")


class PlaceError(Exception):
    """Nobody could go there: the message says why."""


class Machine(Protocol):
    """What is known of a host without a login."""

    @property
    def name(self) -> str: ...

    @property
    def address(self) -> str: ...

    @property
    def roles(self) -> Mapping[str, str]: ...


def check_place(on: str) -> None:
    """Raises ValueError for what is no place."""
    if not on:
        raise ValueError("it does not say where it runs: on=consul:server, on=consul-1 or on={leader}")
    if not (_ROLE.fullmatch(on) or _SEEN.fullmatch(on) or _HOST.fullmatch(on)):
        raise ValueError(
            f"on={on} is no place: a host (consul-1), consul:server (one), consul:servers (each), or {{NAME}} for"
            " what an observation of that name said"
        )


def named_in(on: str) -> str:
    """The observation that a place needs; "" for none."""
    found = _SEEN.fullmatch(on)
    return found["name"] if found else ""


def hosts_of(on: str, machines: Sequence[Machine], seen: Seen, runs: Mapping[str, bool]) -> list[str]:
    """The names of the hosts that `on` means; `runs` says of HOST/AGENT whether it runs. Raises PlaceError.

    A person logs in to a server that is up: of a role, the first by name is taken whose agent runs.
    """
    by_name = {machine.name: machine for machine in machines}
    if name := named_in(on):
        said = str(seen.get(name) or "").strip()
        if not said:
            raise PlaceError(f"on={on}: {name} is missing, so nobody knows where that is")
        found = _found(said, machines)
        if found is None:
            raise PlaceError(f"on={on}: {name} said {said!r}, which is no host: {', '.join(by_name)}")
        return [found]
    if role := _ROLE.fullmatch(on):
        having = sorted(m.name for m in machines if m.roles.get(role["agent"]) == role["role"])
        if not having:
            raise PlaceError(f"on={on}: there is no such host here")
        up = [host for host in having if runs.get(f"{host}/{role['agent']}")]
        return having if role["all"] else (up or having)[:1]
    if on not in by_name:
        raise PlaceError(f"on={on}: there is no such host; there are {', '.join(by_name)}")
    return [on]


def _found(said: str, machines: Sequence[Machine]) -> str | None:
    """By its name or its address, with or without a port or what a product adds to the name (`nomad-1.global`)."""
    words = {said, said.rpartition(":")[0], said.removeprefix("http://").partition(":")[0], said.partition(".")[0]}
    return next((machine.name for machine in machines if machine.name in words or machine.address in words), None)
