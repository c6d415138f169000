"""What `lab up` is asked for: which products, where their UIs are served, and one message for what cannot be."""

import pytest
import typer
from typer.testing import CliRunner

from hashidrill.core.errors import UsageError
from hashidrill.faces.cli import datacenter
from hashidrill.faces.cli.app import app
from hashidrill.faces.cli.datacenter import how_to_end
from hashidrill.lab.up.running import RunningDatacenter


@pytest.fixture
def up(monkeypatch):
    """`up(*arguments)`: the datacenter that would be started, and the ports for its UIs."""
    asked = []

    def start(name, spec, *, expose, say):
        asked.append((spec, dict(expose)))
        return RunningDatacenter(name, 1, 1, "/root", "", "", "", [{"name": "consul-1"}])

    monkeypatch.setattr(datacenter.running, "up", start)

    def go(*arguments):
        done = CliRunner().invoke(app, ["lab", "up", *arguments])
        if done.exception is not None:
            raise done.exception
        return asked[-1]

    return go


def test_a_product_whose_binary_has_no_ui_is_given_by_its_api_and_the_reason(monkeypatch, up):
    urls = {"consul": "http://127.0.0.1:1/ui/", "nomad": "http://127.0.0.1:2/ui/"}
    one = RunningDatacenter(
        "default",
        1,
        1,
        "/",
        "",
        "",
        "",
        [{"name": "consul-1", "role": "server", "address": ""}],
        urls=urls,
        without_ui=["nomad"],
    )
    monkeypatch.setattr(datacenter.running, "up", lambda *_, **__: one)
    monkeypatch.setattr(datacenter.running, "all_running", lambda: [one])
    for command in (["up", "--stack", "--expose", "0"], ["status"]):
        said = " ".join(CliRunner().invoke(app, ["lab", *command]).output.split())
        assert "Consul UI" in said
        assert "Nomad UI" not in said
        assert "http://127.0.0.1:2/v1/ (no UI: this nomad was built from source; for the vendor's binary, set" in said


def test_by_default_there_is_consul_alone_and_no_ui(up):
    spec, expose = up()
    assert set(spec.services) == {"consul"}
    assert expose == {}


def test_the_stack_is_three_servers_of_each_and_two_nodes(up):
    spec, _ = up("--stack", "--clients", "2")
    parts = spec.services
    assert (parts["consul"].servers, parts["consul"].clients) == (3, 2)
    assert (parts["nomad"].servers, parts["nomad"].clients) == (3, 2)
    assert (parts["vault"].servers, parts["vault"].storage) == (3, "raft")


@pytest.mark.parametrize(("text", "servers", "clients"), [("3+2", 3, 2), ("1", 1, 1), ("3+0", 3, 0)])
def test_nomads_servers_and_clients(up, text, servers, clients):
    spec, _ = up("--nomad", text)
    assert (spec.services["nomad"].servers, spec.services["nomad"].clients) == (servers, clients)


def test_vault_may_keep_its_data_in_consul(up):
    spec, _ = up("--vault", "3:consul")
    assert spec.services["vault"].storage == "consul"


def test_what_is_said_of_a_product_goes_before_the_stack(up):
    spec, _ = up("--stack", "--nomad", "1+1")
    assert spec.services["nomad"].servers == 1
    assert spec.services["vault"].servers == 3


@pytest.mark.parametrize(
    ("asked", "ports"),
    [
        (("8500",), {"consul": 8500, "nomad": 0, "vault": 0}),
        (("0",), {"consul": 0, "nomad": 0, "vault": 0}),
        (("nomad=4646",), {"nomad": 4646}),
        (("8500", "vault=8200"), {"consul": 8500, "nomad": 0, "vault": 8200}),
    ],
)
def test_each_ui_gets_its_port(up, asked, ports):
    _, expose = up("--stack", *(word for one in asked for word in ("--expose", one)))
    assert expose == ports


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--nomad", "99"), "--nomad '99': write servers and clients like 3+2, with 1 to 9 servers and at most 20 cl"),
        (("--nomad", "3+99"), "at most 20 clients"),
        (("--nomad", "0+3"), "1 to 9 servers"),
        (("--nomad", "three"), "like 3+2"),
        (("--vault", "0"), "1 to 9"),
        (("--vault", "3:etcd"), "3, 3:raft or 3:consul"),
        (("--consul", "latest"), "write it like 1.22.2"),
        (("--expose", "http"), "write a port"),
        (("--expose", "70000"), "0 to 65535"),
        (("--expose", "nomad=4646"), "this datacenter has no UI of nomad"),
        (("--like", "raft/slow-leader-disk", "--stack"), "leave out --stack"),
        (("--like", "raft/slow-leader-disk", "--servers", "3"), "leave out --servers"),
    ],
)
def test_what_cannot_be_is_one_message(up, arguments, message):
    with pytest.raises(UsageError) as error:
        up(*arguments)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["default", "old"])
def test_the_command_that_ends_a_datacenter_is_one_and_names_it(name):
    """It said `lab down --name old`, which is an error."""
    _, group, command, *arguments = how_to_end(name).split()
    down = typer.main.get_command(app).commands[group].commands[command]
    context = down.make_context(command, arguments)
    assert context.params["name"] == (name if name != "default" else None)
