"""The sandbox's network: one bridge, one veth pair a host. Runs inside the sandbox's network namespace."""

from __future__ import annotations

from collections.abc import Mapping

from hashidrill.errors import DatacenterError

BRIDGE = "hashidrill0"
PREFIX = 24
CONTROL_ADDRESS = "10.73.0.1"
"""Where probes and observers come from. No fault ever names it: what watches must not depend on what is broken."""
LOAD_ADDRESS = "10.73.0.2"
"""Where loads come from. Faults on `clients` and `all` do name it."""
_FIRST_SERVER, _FIRST_CLIENT = 11, 31


def server_address(number: int) -> str:
    """Address of `consul-NUMBER`, from 1."""
    return f"10.73.0.{_FIRST_SERVER + number - 1}"


def client_address(number: int) -> str:
    """Address of `client-NUMBER`, from 1."""
    return f"10.73.0.{_FIRST_CLIENT + number - 1}"


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
