"""What is on a host of a game is the same on each of them, whatever is broken and where; a slow link is on its wire."""

import httpx2
import pytest

import virtual_time
from hashidrill.core.faults import toxiproxy
from hashidrill.core.faults.links import BASELINE, FIRST_PORT, PORT_TRIPLES, Ports
from hashidrill.core.protocols.abc import AgentProcess, ExchangeRequest, Toxic
from hashidrill.core.protocols.capabilities import ECHO_PORT
from hashidrill.core.protocols.packets import Block, Redirect
from hashidrill.gamedays.training.links import LISTENED, MOST_LINKS, TABLE, GameHost, Slots, Wire, base_rules
from hashidrill.lab.local import hosts
from hashidrill.lab.sandbox import nf_tables
from hashidrill.products.consul.faults.rpc import CANARY_PORT

ALWAYS = {ECHO_PORT, *LISTENED}
ANY = ExchangeRequest()
LOADS = "10.73.0.2"
SLOW = [Toxic("latency", {"latency": 20})]


class Machine:
    """The kernel, toxiproxies and the daemons of all hosts: who listens where, and the rules of each namespace."""

    def __init__(self, monkeypatch, tmp_path):
        self.listens, self.proxies, self.tables, self.exchanged = {}, {}, {}, []
        """{host: ports}; {API's address: {proxy: (listen, upstream, toxics)}}; {namespace: {table: what it holds}}."""
        self.hangs, self.killed = False, []
        slots, program = Slots(), tmp_path / "toxiproxy-server"
        addresses = [f"10.73.0.1{number}" for number in (1, 2, 3)]
        self.hosts = []
        for number, address in enumerate(addresses, 1):
            host = GameHost(f"consul-{number}", address, {"consul": "server"}, tmp_path, number, toxiproxy=program)
            others = [LOADS, *(other for other in addresses if other != address)]
            host.slots = slots
            host.wire = Wire(host, others, namespace=f"wire-{number}", root=tmp_path, program=program)
            self.listens[host.name] = {ECHO_PORT}
            self.hosts.append(host)
        monkeypatch.setattr(hosts, "ask", self.ask)
        for name in ("create", "delete", "toxics"):
            monkeypatch.setattr(toxiproxy, name, getattr(self, name))
        machine = self

        async def nothing(host):
            pass

        async def runs(host, agent):
            return AgentProcess(7, 1, "S") if machine.proxies.get(host.address) is not None else None

        async def signal(host, reference, number):
            machine.killed.append(host.address)
            machine.proxies.pop(host.address, None)

        monkeypatch.setattr(hosts.LocalHost, "_in_namespace", lambda host, work: machine.kernel(host.namespace, work))
        for name, done in (("_start_toxiproxy", nothing), ("agent_process", runs), ("signal", signal)):
            monkeypatch.setattr(Wire, name, done)

    async def kernel(self, namespace, work):
        tables = self.tables.setdefault(namespace, {})
        if work is nf_tables.tables:
            return [*tables]
        table, *held = work.args
        if work.func is nf_tables.remove:
            tables.pop(table, None)
        else:
            tables[table] = held if work.func is nf_tables.replace else [held, [(held[0], [("accept",)])]]
        return None

    async def ask(self, path, request, **_):
        host, port = path.name.rpartition(".")[0], request.get("port")
        if request["op"] == "listen":
            self.listens[host].add(port)
        else:
            assert port in self.listens[f"consul-{request['address'][-1]}"]
            self.exchanged.append((request["address"], port))
        return {"exchanges": []}

    async def create(self, address, name, listen, upstream, toxics):
        self.proxies.setdefault(address, {})[name] = listen, upstream, toxics

    async def delete(self, address, name):
        if self.hangs:
            raise httpx2.ReadTimeout("it hangs")
        del self.proxies[address][name]

    async def toxics(self, address, name):
        return self.proxies[address][name][2] if name in self.proxies[address] else None

    def words(self, namespace):
        """Those of each rule that is in force there."""
        return [words for _, held in self.tables.get(namespace, {}).values() for _, words in held]


@pytest.fixture
def machine(monkeypatch, tmp_path):
    found = Machine(monkeypatch, tmp_path)
    for host in found.hosts:
        virtual_time.run(host.look_alike())
    return found


def rules_of(fault_id):
    ports, peers = Ports.of(fault_id), ("10.73.0.12",)
    redirects = [Redirect(peers, 8300, ports.proxy, "link"), Redirect(peers, ports.canary, ports.canary_proxy)]
    return [*redirects, Block("input", peers, 8300, refuse=True, resets_pass=True)]


async def slow_link(host, other, fault_id):
    """As a link fault does: the baseline, the proxies, the rules, and the proof."""
    none, ports = Ports.of(BASELINE), Ports.of(fault_id)
    await host.canary_listen(none.canary)
    await other.exchange(host.address, none.canary, ANY)
    await host.add_proxy(fault_id, ports.proxy, 8300, SLOW)
    await host.add_proxy(f"{fault_id}_canary", ports.canary_proxy, ports.canary, SLOW)
    await host.set_packet_rules(fault_id, rules_of(fault_id))
    await host.canary_listen(ports.canary)
    await other.exchange(host.address, ports.canary, ANY)


def made_slow(machine, *faults):
    """The first host, whose links to the second are slow."""
    sick, other, _ = machine.hosts
    for fault in faults or ("a",):
        virtual_time.run(slow_link(sick, other, fault))
    return sick


async def healed_link(host, fault_id):
    await host.suspend_packet_rules(fault_id)
    await host.remove_proxy(fault_id)
    await host.remove_proxy(f"{fault_id}_canary")
    await host.clear_packet_rules(fault_id)


@pytest.mark.lie
def test_every_host_listens_alike_before_a_link_is_slow_while_it_is_and_after(machine):
    sick, other, _ = machine.hosts
    alike = dict.fromkeys(machine.listens, ALWAYS)
    assert machine.listens == alike
    virtual_time.run(slow_link(sick, other, "a"))
    assert machine.listens == alike
    virtual_time.run(healed_link(sick, "a"))
    assert machine.listens == alike


def test_two_slow_links_of_a_host_and_one_of_another_are_not_to_be_seen_either(machine):
    sick, other, _ = machine.hosts
    for host, fault in ((sick, "a"), (sick, "b"), (other, "c")):
        virtual_time.run(slow_link(host, machine.hosts[2], fault))
        assert machine.listens == dict.fromkeys(machine.listens, ALWAYS)


def test_a_third_slow_link_of_one_host_works_and_is_seen(machine):
    made_slow(machine, *(f"fault-{number}" for number in range(MOST_LINKS + 1)))
    assert machine.listens["consul-1"] > ALWAYS


def test_the_baseline_of_a_second_link_does_not_go_through_the_proxies_of_the_first(machine):
    made_slow(machine, "a", "b")
    assert machine.exchanged[0] == machine.exchanged[2] != machine.exchanged[1] != machine.exchanged[3]


@pytest.mark.lie
def test_nothing_of_a_slow_link_is_on_the_host_itself(machine):
    """Neither rules nor connections: a toxiproxy there had some to itself, which `ss -tn` showed on no other host."""
    sick = made_slow(machine)
    assert machine.tables["wire-1"]
    assert not machine.tables.get(sick.namespace)
    virtual_time.run(healed_link(sick, "a"))
    assert [*machine.tables["wire-1"]] == [TABLE]
    ends = [end for proxies in machine.proxies.values() for each in proxies.values() for end in each[:2]]
    assert not [end for end in ends if end.startswith("10.73.0.")]
    assert not machine.tables.get(sick.namespace)


def test_the_host_sees_the_address_of_who_connects(machine):
    """A proxy for each of them: what comes from .12 leads to where the host is told that it is .12."""
    sick = made_slow(machine)
    listen, upstream, toxics = machine.proxies["10.73.1.11"]["a@10.73.0.12"]
    assert (listen, upstream, toxics) == (f"10.74.0.12:{Ports.of('a').proxy}", "10.75.0.12:8300", SLOW)
    assert [
        words[0] for words in machine.words("wire-1") if words[-1] == ("dnat", "10.74.0.12", Ports.of("a").proxy)
    ] == [("saddr", ("10.73.0.12",))]
    base = [words for _, words in base_rules(sick.address, [LOADS, "10.73.0.12"])]
    assert base == [
        [("to", "10.75.0.0/24"), ("dnat", "10.73.0.11")],
        *([("first to", f"10.75.0.{end}"), ("snat", f"10.73.0.{end}")] for end in (2, 12)),
    ]


def test_the_canary_behind_the_proxy_is_the_one_that_listens_in_every_game(machine):
    made_slow(machine)
    _, upstream, _ = machine.proxies["10.73.1.11"]["a_canary@10.73.0.12"]
    canary = machine.exchanged[-1][1]
    assert upstream == f"10.75.0.12:{canary}"
    assert canary in LISTENED
    assert ("dport", (canary,)) in [words[1] for words in machine.words("wire-1")]


def test_what_else_comes_along_a_slow_link_is_reset_on_its_way(machine):
    """On the host it was the input chain; on the wire such packets are forwarded."""
    sick = made_slow(machine)
    chains, statements = machine.tables["wire-1"]["a"]
    assert {chain.hook for chain in chains} == {"prerouting", "forward"}
    assert [chain.hook for chain, words in statements if words[-1] == ("reset",)] == ["forward"]
    assert not [words for _, words in statements if words[-1][0] == "redirect"]
    virtual_time.run(sick.suspend_packet_rules("a"))
    assert [chain.hook for chain in machine.tables["wire-1"]["a"][0]] == ["prerouting", "forward"]


def test_a_fresh_process_finds_and_removes_the_rules_of_a_slow_link_on_its_wire(machine, tmp_path):
    """By what the kernel says: which host it is in front of is all that a later process knows."""
    sick = made_slow(machine)
    later = GameHost(sick.name, sick.address, {"consul": "server"}, tmp_path, 1)
    later.wire = Wire(later, [], namespace="wire-1", root=tmp_path, program=None)
    assert virtual_time.run(later.packet_tables()) == ["a"]
    virtual_time.run(later.clear_packet_rules("a"))
    assert virtual_time.run(sick.packet_tables()) == []


def test_rules_that_are_no_slow_links_are_the_hosts_own(machine):
    sick = machine.hosts[0]
    virtual_time.run(sick.set_packet_rules("cut", [Block("input", ("10.73.0.12",))]))
    assert [*machine.tables] == [sick.namespace]
    virtual_time.run(sick.clear_packet_rules("cut"))
    assert not any(machine.tables.values())


def test_the_proxies_of_a_link_hold_its_toxics_where_all_of_them_do(machine):
    sick = made_slow(machine)
    assert virtual_time.run(sick.proxy_toxics("a")) == SLOW
    own = machine.proxies["10.73.1.11"]
    own["a@10.73.0.12"] = (*own["a@10.73.0.12"][:2], [])
    assert virtual_time.run(sick.proxy_toxics("a")) is None


def test_a_toxiproxy_that_hangs_is_killed_on_its_wire(machine):
    sick = made_slow(machine)
    machine.hangs = True
    virtual_time.run(sick.remove_proxy("a"))
    assert machine.killed == ["10.73.1.11"]
    assert virtual_time.run(sick.wire.agent_process(toxiproxy.AGENT)) is None


@pytest.mark.parametrize("port", [8300, 8500, FIRST_PORT - 1, FIRST_PORT + 3 * PORT_TRIPLES, CANARY_PORT, ECHO_PORT])
def test_a_port_that_is_no_canarys_is_itself(port):
    assert Slots().of("10.73.0.11", port) == port
