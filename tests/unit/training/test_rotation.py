"""Which agents users ask: one nftables script, and a small file that all shells of a game share."""

from types import SimpleNamespace

import pytest

from hashidrill.datacenter.local.network import LOAD_ADDRESS
from hashidrill.training.inside import rotation
from hashidrill.training.inside.rotation import RefusedError

HOSTS = {
    "consul-1": {"address": "10.73.0.11", "agents": {"consul": "server"}},
    "consul-2": {"address": "10.73.0.12", "agents": {"consul": "server"}},
    "consul-3": {"address": "10.73.0.13", "agents": {"consul": "server"}},
    "client-1": {"address": "10.73.0.31", "agents": {"consul": "client"}},
    "client-2": {"address": "10.73.0.32", "agents": {"consul": "client"}},
}


class FakeNft:
    """Takes scripts, or refuses them."""

    def __init__(self, refuses=""):
        self.refuses, self.scripts = refuses, []

    def __call__(self, words, *, input, **_):  # noqa: A002 - as subprocess.run's
        self.scripts.append((words, input))
        return SimpleNamespace(returncode=1 if self.refuses else 0, stderr=self.refuses)


def test_loads_come_from_where_the_datacenter_says():
    assert rotation.LOADS_COME_FROM == LOAD_ADDRESS


def test_with_everybody_in_there_are_no_rules():
    assert rotation.script([], HOSTS) == "table ip rotation\ndelete table ip rotation\n"


def test_users_of_a_server_that_is_out_go_to_the_other_servers_in_turn():
    said = rotation.script(["consul-2"], HOSTS)
    met = "ip saddr 10.73.0.2 ip daddr 10.73.0.12 meta l4proto tcp"
    assert f"{met} dnat to numgen inc mod 2 map {{ 0 : 10.73.0.11, 1 : 10.73.0.13 }}" in said
    assert f"{met} reject with tcp reset" in said


def test_users_of_a_client_agent_go_to_client_agents_alone():
    assert "ip daddr 10.73.0.31 meta l4proto tcp dnat to 10.73.0.32\n" in rotation.script(["client-1"], HOSTS)


def test_two_that_are_out_share_those_that_are_left():
    said = rotation.script(["consul-1", "consul-3"], HOSTS)
    assert said.count("dnat to 10.73.0.12\n") == 2


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
    nft = FakeNft()
    assert rotation.answer(["out", "consul-2"], HOSTS, tmp_path / "out", nft)["code"] == 0
    assert "consul-2     out" in rotation.answer([], HOSTS, tmp_path / "out", nft)["text"]
    assert rotation.answer(["in", "consul-2"], HOSTS, tmp_path / "out", nft)["code"] == 0
    assert " out" not in rotation.answer([], HOSTS, tmp_path / "out", nft)["text"]
    (words, first), (_, second) = nft.scripts
    assert words[-3:] == ["nft", "-f", "-"]
    assert "10.73.0.12" in first
    assert "10.73.0.12" not in second


def test_rules_that_the_kernel_refuses_change_nothing(tmp_path):
    told = rotation.answer(["out", "consul-2"], HOSTS, tmp_path / "out", FakeNft("Operation not permitted"))
    assert told == {"error": "the rotation could not be changed: Operation not permitted", "code": 1}
    assert " out" not in rotation.answer([], HOSTS, tmp_path / "out", FakeNft())["text"]


def test_what_is_refused_is_said_and_changes_nothing(tmp_path):
    nft = FakeNft()
    assert "there is no host" in rotation.answer(["out", "x"], HOSTS, tmp_path / "out", nft)["error"]
    assert not nft.scripts
