"""Which agents users ask: one set of packet rules, and a small file that all shells of a game share."""

import errno
import os

import pytest

from hashidrill.gamedays.training.inside import rotation
from hashidrill.gamedays.training.inside.rotation import RefusedError
from hashidrill.lab.local.datacenter import LOAD_ADDRESS

HOSTS = {
    "consul-1": {"address": "10.73.0.11", "agents": {"consul": "server"}},
    "consul-2": {"address": "10.73.0.12", "agents": {"consul": "server"}},
    "consul-3": {"address": "10.73.0.13", "agents": {"consul": "server"}},
    "client-1": {"address": "10.73.0.31", "agents": {"consul": "client"}},
    "client-2": {"address": "10.73.0.32", "agents": {"consul": "client"}},
}


class FakeKernel:
    """Takes rules, or refuses them."""

    def __init__(self, refuses=0):
        self.refuses, self.taken = refuses, []

    def __call__(self, out, hosts):
        if self.refuses:
            raise OSError(self.refuses, os.strerror(self.refuses))
        self.taken.append(rotation.statements(out, hosts))


def shares(statements, address):
    """The share of new connections to that address that each host gets."""
    left, found = 1.0, {}
    for chain, (_, source, met, *what) in statements:
        if chain.kind == "nat" and (source, met) == (("saddr", ("10.73.0.2",)), ("daddr", (address,))):
            (_, turns), (_, to) = what
            found[to] = left / turns
            left -= found[to]
    return found


def test_loads_come_from_where_the_datacenter_says():
    assert rotation.LOADS_COME_FROM == LOAD_ADDRESS


def test_with_everybody_in_there_are_no_rules():
    assert rotation.statements([], HOSTS) == []


def test_users_of_a_server_that_is_out_go_to_the_other_servers_in_equal_shares():
    said = rotation.statements(["consul-2"], HOSTS)
    assert shares(said, "10.73.0.12") == {"10.73.0.11": 0.5, "10.73.0.13": 0.5}
    assert [words[-1] for chain, words in said if chain.kind == "filter"] == [("reset",)]


def test_three_that_are_left_get_a_third_each():
    more = HOSTS | {"consul-4": {"address": "10.73.0.14", "agents": {"consul": "server"}}}
    assert shares(rotation.statements(["consul-2"], more), "10.73.0.12") == pytest.approx(
        dict.fromkeys(["10.73.0.11", "10.73.0.13", "10.73.0.14"], 1 / 3)
    )


def test_users_of_a_client_agent_go_to_client_agents_alone():
    assert shares(rotation.statements(["client-1"], HOSTS), "10.73.0.31") == {"10.73.0.32": 1}


def test_two_that_are_out_share_those_that_are_left():
    said = rotation.statements(["consul-1", "consul-3"], HOSTS)
    assert [shares(said, address) for address in ("10.73.0.11", "10.73.0.13")] == [{"10.73.0.12": 1}] * 2


def test_the_last_of_a_role_stays_in():
    with pytest.raises(RefusedError, match="client-2 is the last consul client in the rotation"):
        rotation.changed(["client-1"], ["out", "client-2"], HOSTS)


@pytest.mark.parametrize("words", [["out"], ["away", "consul-1"], ["out", "consul-1", "consul-2"]])
def test_other_words_are_answered_with_how_to_write_it(words):
    with pytest.raises(RefusedError, match="rotation out HOST"):
        rotation.changed([], words, HOSTS)


def test_a_host_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(RefusedError, match="there is no host consul-9; there are consul-1"):
        rotation.changed([], ["out", "consul-9"], HOSTS)


def test_every_shell_of_the_game_knows_who_is_out(tmp_path):
    kernel = FakeKernel()
    assert rotation.answer(["out", "consul-2"], HOSTS, tmp_path / "out", kernel)["code"] == 0
    assert "consul-2     out" in rotation.answer([], HOSTS, tmp_path / "out", kernel)["text"]
    assert rotation.answer(["in", "consul-2"], HOSTS, tmp_path / "out", kernel)["code"] == 0
    assert " out" not in rotation.answer([], HOSTS, tmp_path / "out", kernel)["text"]
    first, second = kernel.taken
    assert shares(first, "10.73.0.12")
    assert second == []


def test_rules_that_the_kernel_refuses_change_nothing(tmp_path):
    told = rotation.answer(["out", "consul-2"], HOSTS, tmp_path / "out", FakeKernel(errno.EPERM))
    assert told == {"error": "the rotation could not be changed: Operation not permitted", "code": 1}
    assert " out" not in rotation.answer([], HOSTS, tmp_path / "out", FakeKernel())["text"]


def test_what_is_refused_is_said_and_changes_nothing(tmp_path):
    kernel = FakeKernel()
    assert "there is no host" in rotation.answer(["out", "x"], HOSTS, tmp_path / "out", kernel)["error"]
    assert not kernel.taken
