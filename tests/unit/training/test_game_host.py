"""What listens on a host of a game is the same on each of them, whatever is broken and where."""

from __future__ import annotations

import pytest

import virtual_time
from hashidrill.abc import ExchangeRequest
from hashidrill.datacenter.local import hosts, toxiproxy
from hashidrill.datacenter.local.inside.canary import ECHO_PORT
from hashidrill.faults.links import BASELINE, FIRST_PORT, PORT_TRIPLES, Ports
from hashidrill.packets import Block, Redirect
from hashidrill.services.consul.faults.rpc import CANARY_PORT
from hashidrill.training import game_host
from hashidrill.training.game_host import LISTENED, MOST_LINKS, STOOD_IN, GameHost, Slots, guard

ALWAYS = {ECHO_PORT, *LISTENED, *STOOD_IN}
ANY = ExchangeRequest()


class Machine:
    """The kernel and the daemons of all hosts: who listens where, and what is redirected."""

    def __init__(self, monkeypatch, tmp_path):
        self.listens = {}
        """{host: {port: who}}."""
        self.redirects, self.exchanged, self.hangs = [], [], False
        slots = Slots()
        self.hosts = []
        for number in (1, 2, 3):
            host = GameHost(f"consul-{number}", f"10.73.0.1{number}", {"consul": "server"}, tmp_path, number,
                            toxiproxy=tmp_path / "toxiproxy-server")  # fmt: skip
            host.slots = slots
            self.listens[host.name] = {ECHO_PORT: "echo"}
            self.hosts.append(host)
        monkeypatch.setattr(game_host, "ask", self.ask)
        monkeypatch.setattr(hosts, "ask", self.ask)
        for name in ("create", "delete"):
            monkeypatch.setattr(toxiproxy, name, getattr(self, name))
        for name in ("_start_toxiproxy", "agent_process", "nft"):
            monkeypatch.setattr(GameHost, name, getattr(self, name))

    def of(self, address):
        return self.listens[f"consul-{address[-1]}"]

    def takes(self, host, port, who):
        assert self.listens[host].get(port, who) == who, f"{port} of {host} is {self.listens[host][port]}'s"
        self.listens[host][port] = who

    async def ask(self, path, request, **_):
        host, port = path.name.rpartition(".")[0], request.get("port")
        match request["op"]:
            case "listen":
                self.takes(host, port, "canary")
            case "stand_in":
                for each in request["ports"]:
                    self.takes(host, each, "stand-in")
            case "step_aside":
                for each in request["ports"]:
                    if self.listens[host].get(each) == "stand-in":
                        del self.listens[host][each]
            case "exchange":
                assert self.of(request["address"])[port] == "canary"
                self.exchanged.append((request["address"], port))
                return {"exchanges": []}
        return {}

    async def _start_toxiproxy(self):
        pass

    async def create(self, address, name, listen, port, toxics):
        for each, who in ((toxiproxy.API_PORT, "toxiproxy"), (listen, name)):
            self.takes(f"consul-{address[-1]}", each, who)

    async def delete(self, address, name):
        ports = self.of(address)
        gone = {*ports.values()} - {"echo", "canary", "stand-in"} if self.hangs else {name}
        for port in [port for port, who in ports.items() if who in gone]:
            del ports[port]

    async def agent_process(self, agent):
        return None if self.hangs_now() else object()

    def hangs_now(self):
        return self.hangs and "toxiproxy" not in self.listens["consul-1"].values()

    async def nft(self, script):
        self.redirects.append(script)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    found = Machine(monkeypatch, tmp_path)
    for host in found.hosts:
        virtual_time.run(host.look_alike())
    return found


async def slow_link(host, other, fault_id):
    """As a link fault does: the baseline, the proxies, the rules, and the proof."""
    none, ports = Ports.of(BASELINE), Ports.of(fault_id)
    await host.canary_listen(none.canary)
    await other.exchange(host.address, none.canary, ANY)
    await host.add_proxy(fault_id, ports.proxy, 8300, [])
    await host.add_proxy(f"{fault_id}_canary", ports.canary_proxy, ports.canary, [])
    await host.canary_listen(ports.canary)
    await other.exchange(host.address, ports.canary, ANY)


async def healed_link(host, fault_id):
    await host.remove_proxy(fault_id)
    await host.remove_proxy(f"{fault_id}_canary")


def heard(machine):
    return {name: set(ports) for name, ports in machine.listens.items()}


def test_every_host_listens_alike_before_a_link_is_slow_while_it_is_and_after(machine):
    sick, other, _ = machine.hosts
    alike = dict.fromkeys(machine.listens, ALWAYS)
    assert heard(machine) == alike
    virtual_time.run(slow_link(sick, other, "4-network.latency-consul-1"))
    assert heard(machine) == alike
    assert "toxiproxy" in machine.listens["consul-1"].values()
    virtual_time.run(healed_link(sick, "4-network.latency-consul-1"))
    assert heard(machine) == alike


def test_two_slow_links_of_a_host_and_one_of_another_are_not_to_be_seen_either(machine):
    sick, other, _ = machine.hosts
    for host, fault in ((sick, "a"), (sick, "b"), (other, "c")):
        virtual_time.run(slow_link(host, machine.hosts[2], fault))
        assert heard(machine) == dict.fromkeys(machine.listens, ALWAYS)


def test_the_baseline_of_a_second_link_does_not_go_through_the_proxies_of_the_first(machine):
    sick, other, _ = machine.hosts
    virtual_time.run(slow_link(sick, other, "a"))
    virtual_time.run(slow_link(sick, other, "b"))
    assert machine.exchanged[0] == machine.exchanged[2] != machine.exchanged[1] != machine.exchanged[3]


def test_a_toxiproxy_that_was_killed_leaves_no_port_that_nobody_listens_on(machine):
    sick, other, _ = machine.hosts
    virtual_time.run(slow_link(sick, other, "a"))
    machine.hangs = True
    virtual_time.run(sick.remove_proxy("a"))
    virtual_time.run(sick.remove_proxy("a_canary"))
    assert heard(machine) == dict.fromkeys(machine.listens, ALWAYS)


def test_what_is_redirected_goes_to_the_port_that_the_proxy_has(machine, monkeypatch):
    sick, ports, seen = machine.hosts[0], Ports.of("a"), []
    monkeypatch.setattr(hosts.packets, "script", lambda _, rules: seen.append(rules) or "")
    peers = ("10.73.0.12",)
    redirects = [Redirect(peers, 8300, ports.proxy, "link"), Redirect(peers, ports.canary, ports.canary_proxy)]
    virtual_time.run(sick.set_packet_rules("t", [*redirects, Block("input", peers, 8300)]))
    proxy, canary_proxy = game_host.proxied(0)
    assert [(rule.port, getattr(rule, "to", None)) for rule in seen[0]] == [
        (8300, proxy), (canary_proxy + 1, canary_proxy), (8300, None)
    ]  # fmt: skip


@pytest.mark.parametrize("port", [8300, 8500, FIRST_PORT - 1, FIRST_PORT + 3 * PORT_TRIPLES, CANARY_PORT, ECHO_PORT])
def test_a_port_that_is_no_link_faults_is_itself(port):
    assert Slots().of("10.73.0.11", port) == port


def test_a_third_slow_link_of_one_host_works_and_is_seen(machine):
    sick, other, _ = machine.hosts
    for number in range(MOST_LINKS + 1):
        virtual_time.run(slow_link(sick, other, f"fault-{number}"))
    assert heard(machine)["consul-1"] > ALWAYS


def test_no_host_can_ask_what_slows_links_down_but_by_the_link_itself():
    rules = guard(["10.73.0.11", "10.73.0.12"])
    assert f"ip saddr {{ 127.0.0.0/8, 10.73.0.11, 10.73.0.12 }} tcp dport {toxiproxy.API_PORT} drop" in rules
    for link in range(MOST_LINKS):
        assert all(str(port) in rules for port in game_host.proxied(link))
    assert rules.index("ct status dnat accept") < rules.rindex("drop")
