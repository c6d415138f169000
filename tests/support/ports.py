"""Ports for agents that listen on the loopback."""

import socket


def free_ports(count, addresses=("127.0.0.1",)):
    """Ports that are free on all addresses just now."""
    found = []
    while len(found) < count:
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        if port not in found and all(is_free(address, port) for address in addresses):
            found.append(port)
    return found


def is_free(address, port):
    """By TCP and by UDP."""
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(type=kind) as probe:
            try:
                probe.bind((address, port))
            except OSError:
                return False
    return True
