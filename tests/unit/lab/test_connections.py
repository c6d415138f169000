"""The kernel's list of connections, as this machine's kernel gives it for connections of this process."""

import socket
import struct

import pytest

from hashidrill.core.protocols.capabilities import Connection
from hashidrill.lab.sandbox import connections


@pytest.fixture
def server():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def test_connections_to_a_port_have_what_was_written_to_them_and_others_are_left_out(server):
    address, port = server.getsockname()
    assert connections.established(port) == []
    with socket.create_connection((address, port)) as one, socket.create_connection((address, port)) as other:
        before = {each.port: each.written_bytes for each in connections.established(port)}
        one.sendall(bytes(300))
        after = {each.port: each for each in connections.established(port)}
        ports = [each.getsockname()[1] for each in (one, other)]
        assert sorted(after) == sorted(before) == sorted(ports)
        assert [after[each].written_bytes - before[each] for each in ports] == [300, 0]
        assert {each.address for each in after.values()} == {"127.0.0.1"}
    assert connections.established(1) == []


def test_what_waits_to_be_acknowledged_counts_as_written(server):
    """An agent that asks a server that was cut off asks it all the same."""
    message = struct.pack(">BBBBHH", 2, 1, 0, 0, 40000, 8300) + bytes(16) + socket.inet_aton("10.73.0.12") + bytes(24)
    message += struct.pack("=IIIII", 0, 0, 70, 0, 0)
    message += struct.pack("=HH", 132, 2) + bytes(120) + struct.pack("=Q", 30)
    assert connections._connection(message, 8300) == Connection(40000, "10.73.0.12", 100)
    assert connections._connection(message, 8301) is None


@pytest.mark.lie
def test_a_kernel_that_refuses_is_no_host_without_connections(monkeypatch):
    class Refuses:
        def recv(self, _):
            return struct.pack("=IHHIIi", 20, 2, 0, 1, 0, -13)

    with pytest.raises(OSError, match="Permission denied"):
        next(connections._answers(Refuses()))
