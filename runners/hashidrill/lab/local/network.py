"""The sandbox's network: one bridge, one veth pair a host. Runs inside the sandbox's network namespace."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from hashidrill.core.errors import DatacenterError

BRIDGE = "hashidrill0"
PREFIX = 24
CONTROL_ADDRESS = "10.73.0.1"
"""Where probes and observers come from. No fault ever names it: what watches must not depend on what is broken."""
LOAD_ADDRESS = "10.73.0.2"
"""Where loads come from. Faults on `clients` and `all` do name it."""
_BLOCKS = {"server": range(11, 31), "spare": range(11, 31), "client": range(31, 61)}
"""The last numbers of the addresses of each role; servers and spare servers share theirs."""
_OTHERS = range(61, 251)
"""For every other role, and for those that find no room in the block of theirs."""


def addresses(roles: Mapping[str, str]) -> dict[str, str]:
    """The address of each host, from its role: hosts of one role follow each other. Raises DatacenterError."""
    left = {block: iter(block) for block in (*_BLOCKS.values(), _OTHERS)}
    given = {}
    for host, role in roles.items():
        numbers = itertools.chain(left[_BLOCKS.get(role, _OTHERS)], left[_OTHERS])
        number = next(numbers, None)
        if number is None:
            raise DatacenterError(f"{len(roles)} hosts are too many for the sandbox's network; ask for fewer")
        given[host] = f"10.73.0.{number}"
    return given


def preload() -> None:
    """Import what `build` needs. For a thread, beside other work."""
    import pyroute2  # noqa: F401, PLC0415 - see build


def build(hosts: Mapping[str, int]) -> None:
    """The bridge, and for each host (name -> pid of its hostd) an `eth0` in its namespace.

    Raises DatacenterError when the kernel refuses; nothing needs undoing, as it all ends with the sandbox.
    """
    from pyroute2 import IPRoute  # noqa: PLC0415 - it takes 0.4 s, which `preload` spends while the hosts start

    try:
        with IPRoute() as route:
            route.link("add", ifname=BRIDGE, kind="bridge")
            bridge = route.link_lookup(ifname=BRIDGE)[0]
            for address in (CONTROL_ADDRESS, LOAD_ADDRESS):
                route.addr("add", index=bridge, address=address, prefixlen=PREFIX)
            route.link("set", index=bridge, state="up")
            for number, pid in enumerate(hosts.values()):
                near = f"veth{number}"
                route.link("add", ifname=near, kind="veth", peer={"ifname": "eth0", "net_ns_pid": pid})
                route.link("set", index=route.link_lookup(ifname=near)[0], master=bridge, state="up")
    except Exception as error:
        raise DatacenterError(f"the sandbox's network could not be built: {error}") from error
