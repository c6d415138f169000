"""The kernel's list of connections, as this machine's kernel gives it for connections of this process."""

import contextlib
import socket
import struct
import time

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
    message += struct.pack("=HH", 188, 2) + bytes(120) + struct.pack("=Q", 30) + bytes(48) + struct.pack("=Q", 250_000)
    assert connections._connection(message, 8300) == Connection(40000, "10.73.0.12", 100, 0.25)
    assert connections._connection(message, 8301) is None


@pytest.mark.lie
def test_data_that_waits_for_its_receivers_window_is_told_from_a_link_that_is_merely_silent(server):
    """Planted: a connection as old, with nothing to send, and one that sent much to a receiver that reads."""
    address, port = server.getsockname()
    with contextlib.ExitStack() as stack:
        senders = [stack.enter_context(socket.create_connection((address, port))) for _ in range(3)]
        receivers = [stack.enter_context(server.accept()[0]) for _ in senders]
        full, _, busy = (each.getsockname()[1] for each in senders)
        senders[2].sendall(bytes(100_000))
        receivers[2].recv(100_000, socket.MSG_WAITALL)
        senders[0].setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                senders[0].send(bytes(65536))
        before = {each.port: each.window_limited_s for each in connections.established(port)}
        time.sleep(0.2)
        waited = {each.port: each.window_limited_s - before[each.port] for each in connections.established(port)}
    assert 0.18 <= waited.pop(full) <= 1
    assert busy in waited
    assert set(waited.values()) == {0.0}


@pytest.mark.lie
def test_a_kernel_that_refuses_is_no_host_without_connections(monkeypatch):
    class Refuses:
        def recv(self, _):
            return struct.pack("=IHHIIi", 20, 2, 0, 1, 0, -13)

    with pytest.raises(OSError, match="Permission denied"):
        next(connections._answers(Refuses()))
