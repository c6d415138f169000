"""Whether a host is the one that the catalog means: by the addresses that it has, and by nothing else."""

import errno
import socket

import pytest

from hashidrill.staging.carriers.inside import observers
from hashidrill.staging.carriers.inside.system import System

OWN = {"10.73.0.11", "fd00::11"}
NAMES = {
    "consul-1": ["10.73.0.11"],
    "both": ["10.73.0.11", "fd00::11"],
    "vip": ["10.73.0.11", "10.73.0.12"],
    "debian": ["127.0.1.1"],
}


class Socket:
    """Of a host with the addresses of OWN. `anything`: it binds to others too (ip_nonlocal_bind)."""

    anything = False

    def __init__(self, kind, what):
        assert what == socket.SOCK_DGRAM
        self.kind = kind

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def bind(self, place):
        assert (self.kind == socket.AF_INET6) == (":" in place[0])
        if place[0] not in OWN and not self.anything:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")

    def connect(self, place):
        self.name = place[0] if place[0] in OWN else "10.73.0.11"

    def getsockname(self):
        return self.name, 4711


@pytest.fixture
def own(monkeypatch, tmp_path):
    """What a host says of an address."""

    def named(name, port, *, type):  # noqa: A002 - as socket has it
        if name not in NAMES and not any(mark in name for mark in ".:"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(0, 0, 0, "", (one, 0)) for one in NAMES.get(name, [name])]

    monkeypatch.setattr(Socket, "anything", False)
    monkeypatch.setattr(observers.socket, "socket", Socket)
    monkeypatch.setattr(observers.socket, "getaddrinfo", named)
    monkeypatch.setattr(observers, "_SYSCTL", tmp_path)
    for protocol in ("ipv4", "ipv6"):
        (tmp_path / protocol).mkdir()
        (tmp_path / protocol / "ip_nonlocal_bind").write_text("0\n")
    return lambda address: observers.Observers("", System()).do_own(address)["why"]


WORDS = {
    "10.73.0.11": "",
    "fd00::11": "",
    "consul-1": "",
    "both": "",
    "10.73.0.12": "it does not have 10.73.0.12",
    "fd00::12": "it does not have fd00::12",
    "vip": "it does not have 10.73.0.12, which vip means there",
    "127.0.0.1": "127.0.0.1 belongs to every host",
    "::1": "::1 belongs to every host",
    "debian": "127.0.1.1, which debian means there, belongs to every host",
    "nobody": "nobody cannot be resolved there: Name or service not known",
}


@pytest.mark.parametrize("address", WORDS)
def test_a_host_is_the_catalogs_by_its_own_address_alone(own, address):
    assert own(address) == WORDS[address]


@pytest.mark.lie
def test_a_host_that_binds_to_addresses_of_others_does_not_have_them(own, monkeypatch, tmp_path):
    """Behind a load balancer's virtual address every bind succeeds."""
    monkeypatch.setattr(Socket, "anything", True)
    assert own("10.73.0.12") == "", "planted: the sysctl says that nothing else binds"
    for protocol in ("ipv4", "ipv6"):
        (tmp_path / protocol / "ip_nonlocal_bind").write_text("1\n")
    assert (own("10.73.0.11"), own("fd00::11")) == ("", "")
    assert own("10.73.0.12") == "it does not have 10.73.0.12"
