"""lab up, status, shell, down: a datacenter that keeps running."""

import os
import re
from typing import Annotated, Any

import typer

from hashidrill.core.engine import machine_check
from hashidrill.core.engine.requirements import available_bytes
from hashidrill.core.errors import UsageError
from hashidrill.core.experiment.library import find_experiment
from hashidrill.core.experiment.loader import load_experiment
from hashidrill.core.experiment.model import DatacenterSpec, services_of
from hashidrill.core.protocols.registry import near
from hashidrill.core.protocols.service import HasCommandLine, HasPage
from hashidrill.faces.cli.common import (
    Install,
    Json,
    console,
    examples,
    on_interrupt,
    options_given,
    print_json,
    print_table,
    print_text,
)
from hashidrill.faces.cli.train import game_shell
from hashidrill.gamedays.training import games
from hashidrill.lab.provision.packages import CHAOSD_PACKAGES, allow_installing, install_missing
from hashidrill.lab.provision.products import product_named
from hashidrill.lab.up import running
from hashidrill.reports.live import display as live
from hashidrill.reports.live.progress import Progress

_STACK_NOMAD, _STACK_VAULT = "3+2", "3"
_PARTS = {"--consul", "--servers", "--clients", "--nomad", "--vault", "--stack", "--kubernetes"}
"""Options that describe a datacenter."""
_MOST_SERVERS, _MOST_CLIENTS = 9, 20
_LAST_PORT = 65535
Name = Annotated[str, typer.Option("--name", help="Name of the datacenter, if there are several.")]
OneOfThem = Annotated[str | None, typer.Option("--name", help="Name of the datacenter (default: the only one).")]


def register(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "lab up",
            "lab up --stack --expose 8500",
            "lab up --nomad 1+2 --expose nomad=4646",
            "lab up --like raft/slow-leader-disk",
        )
    )(up)
    app.command(epilog=examples("lab status --json"))(status)
    app.command(
        epilog=examples("lab shell consul-1", "lab shell consul-1 -- consul members"),
        context_settings={"ignore_unknown_options": True},
    )(shell)
    app.command(epilog=examples("lab down"))(down)


def up(  # noqa: PLR0917 - each is an option of the command line
    ctx: typer.Context,
    name: Name = "default",
    consul: Annotated[str, typer.Option("--consul", help="Consul version.")] = "1.22.2",
    servers: Annotated[int, typer.Option(min=1, max=9, help="Number of Consul servers.")] = 3,
    clients: Annotated[int, typer.Option(min=0, max=20, help="Number of Consul client agents.")] = 1,
    nomad: Annotated[
        str, typer.Option("--nomad", metavar="SERVERS+CLIENTS", help="Add Nomad: servers and clients, like 3+2.")
    ] = "",
    vault: Annotated[
        str, typer.Option("--vault", metavar="SERVERS[:STORAGE]", help="Add Vault: servers, like 3, or 3:consul.")
    ] = "",
    stack: Annotated[
        bool, typer.Option("--stack", help=f"Add both: --nomad {_STACK_NOMAD} --vault {_STACK_VAULT}.")
    ] = False,
    kubernetes: Annotated[
        bool,
        typer.Option(
            "--kubernetes",
            help="Add Chaos Mesh: its controller, chaosd on each host, and a Kubernetes API server without nodes.",
        ),
    ] = False,
    like: Annotated[str, typer.Option("--like", help="Start the datacenter of this experiment.")] = "",
    expose: Annotated[
        list[str] | None,
        typer.Option(
            "--expose",
            metavar="[PRODUCT=]PORT",
            help="Serve a product's UI on this port of 127.0.0.1 (0: any free port). Without PRODUCT, the first "
            "product gets this port, and all others get free ports. Repeatable.",
        ),
    ] = None,
    as_json: Json = False,
    install: Install = False,
) -> None:
    """Start a datacenter that runs until `hashidrill lab down`."""
    say = console()
    allow_installing(install)
    if like:
        if given := [option for option in options_given(ctx) if option in _PARTS]:
            raise UsageError(f"--like starts the datacenter of an experiment as it is; leave out {', '.join(given)}")
        spec = load_experiment(find_experiment(like)).datacenter
        if spec.stands:
            raise UsageError(f"{like}: needs an existing datacenter, so there is nothing to start")
    else:
        own = {"version": consul, "servers": servers, "clients": clients}
        parts: dict[str, Any] = {"consul": {**own, "config": {"performance": {"raft_multiplier": 1}}}}
        if nomad or stack:
            parts["nomad"] = _nomad_part(nomad or _STACK_NOMAD)
        if vault or stack:
            parts["vault"] = _vault_part(vault or _STACK_VAULT)
        if kubernetes:
            install_missing(CHAOSD_PACKAGES, "chaosd", lambda text: live.say(say, text))
            parts["chaos_mesh"] = {}
        spec = _specified(parts)
    machine_check.require_agents(spec, available_bytes())
    exposed = _exposed(expose or [], [service.name for service in services_of(spec) if isinstance(service, HasPage)])
    again = "kept: binaries downloaded so far; again: the same command"
    with Progress(say) as progress, on_interrupt(lambda: f"{name} was not up yet and is removed; {again}"):
        one = running.up(name, spec, expose=exposed, say=progress.item)
    if as_json:
        print_json(one.shown())
        return
    live.say(say, f"{name} is up: {_runs(one)}, {', '.join(row['name'] for row in one.hosts)}")
    for what, where in _served(one):
        live.say(say, f"  {what:<11} {where}")
    for what, path in one.left.items():
        live.say(say, f"  {what:<11} {path}")
    flag = "" if name == "default" else f" --name {name}"
    looks = next((service.look for service in services_of(spec) if isinstance(service, HasCommandLine)), "")
    live.say(say, f"  look around hashidrill lab shell{flag} {one.hosts[0]['name']}{f' -- {looks}' if looks else ''}")
    live.say(say, f"  end it      {how_to_end(name)}")


def _specified(parts: dict[str, Any]) -> DatacenterSpec:
    try:
        return DatacenterSpec.model_validate(parts)
    except ValueError:
        raise UsageError(f"--consul {parts['consul']['version']!r} is not a version; write it like 1.22.2") from None


def how_to_end(name: str) -> str:
    """The command that stops the datacenter; unlike `shell`, `down` has the name as its argument."""
    return "hashidrill lab down" if name == "default" else f"hashidrill lab down {name}"


def stack_bytes() -> float:
    parts = {"consul": {}, "nomad": _nomad_part(_STACK_NOMAD), "vault": _vault_part(_STACK_VAULT)}
    return machine_check.datacenter_bytes(DatacenterSpec.model_validate(parts))


def _nomad_part(text: str) -> dict[str, int]:
    found = re.fullmatch(r"(\d+)(?:\+(\d+))?", text)
    servers, clients = (int(number or 1) for number in found.groups()) if found else (0, 0)
    if not 1 <= servers <= _MOST_SERVERS or clients > _MOST_CLIENTS:
        raise UsageError(
            f"--nomad {text!r}: write servers and clients like 3+2, with 1 to {_MOST_SERVERS} servers and at most"
            f" {_MOST_CLIENTS} clients"
        )
    return {"servers": servers, "clients": clients}


def _vault_part(text: str) -> dict[str, Any]:
    found = re.fullmatch(r"(\d+)(?::(raft|consul))?", text)
    servers = int(found[1]) if found else 0
    if found is None or not 1 <= servers <= _MOST_SERVERS:
        raise UsageError(
            f"--vault {text!r}: write the number of servers, 1 to {_MOST_SERVERS}, and their storage unless it is Raft:"
            " 3, 3:raft or 3:consul"
        )
    return {"servers": servers, "storage": found[2] or "raft"}


def _exposed(asked: list[str], products: list[str]) -> dict[str, int]:
    """The port for the UI of each product. Raises UsageError."""
    ports: dict[str, int] = {}
    named: dict[str, int] = {}
    for text in asked:
        product, _, port = text.rpartition("=")
        if not port.isdecimal() or int(port) > _LAST_PORT:
            raise UsageError(f"--expose {text}: write a port, 0 to {_LAST_PORT}, or PRODUCT=PORT like nomad=4646")
        if product and product not in products:
            raise UsageError(f"--expose {text}: this datacenter has no UI of {product}: {near(product, products)}")
        if product:
            named[product] = int(port)
        else:
            ports = {one: 0 if number else int(port) for number, one in enumerate(products)}
    return ports | named


def _runs(one: running.RunningDatacenter) -> str:
    """`Consul 1.22.2, Vault 1.21.0`."""
    versions = one.versions or {"consul": one.version}
    programs = {name: version for name, version in versions.items() if not product_named(name).files}
    return ", ".join(f"{name.capitalize()} {version}" for name, version in programs.items() if version) or "no binary"


def _served(one: running.RunningDatacenter) -> list[tuple[str, str]]:
    """(what, where) for people: the UIs, and the APIs of products whose binary has no UI."""
    rows = []
    for service, url in (one.urls or ({"consul": one.url} if one.url else {})).items():
        name = service.capitalize()
        if service not in one.without_ui:
            rows.append((f"{name} UI", url))
            continue
        variable = f"HASHIDRILL_{service.upper().replace('-', '_')}"
        why = f"no UI: this {service} was built from source; for the vendor's binary, set {variable}=/path/to/{service}"
        rows.append((f"{name} API", f"{url.removesuffix('ui/')}v1/ ({why})"))
    return rows


def status(as_json: Json = False) -> None:
    """Show the datacenters that are up."""
    found = running.all_running()
    if as_json:
        print_json([one.shown() for one in found])
        return
    if not found:
        live.say(console(), "no datacenter is up; start one with `hashidrill lab up`")
        return
    rows = [(one.name, _runs(one), row["name"], row["role"], row["address"]) for one in found for row in one.hosts]
    print_table(("name", "runs", "host", "role", "address"), rows)
    for one in found:
        for what, path in one.left.items():
            live.say(console(), f"{one.name}: {what} {path}")
        for what, where in _served(one):
            live.say(console(), f"{one.name}: {what} at {where}")


def shell(
    host: Annotated[
        str | None, typer.Argument(help="The host, like consul-1 (default in a training game: one near the users).")
    ] = None,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND", help="A command, after `--` (default: a shell).")
    ] = None,
    name: OneOfThem = None,
    trainee: Annotated[
        str | None,
        typer.Option("--trainee", metavar="NAME", help="Choose one player's training game if several are running."),
    ] = None,
) -> None:
    """Open a shell, or run a command, on a host.

    The shell is in the host's network namespace. Sets CONSUL_HTTP_ADDR and similar variables.

    While a training game is on and no datacenter of that name is up, the shell is in the game.
    """
    up_now = {one.name for one in running.all_running()}
    if trainee is not None or (games.all_games() and (name or running.DEFAULT) not in up_now):
        raise typer.Exit(game_shell(host, command or [], trainee))
    if host is None:
        raise UsageError("name a host, like `hashidrill lab shell consul-1`; `hashidrill lab status` shows them")
    words, environment = running.shell_command(_the_one(name), host, command or [])
    os.execvpe(words[0], words, environment)  # noqa: S606 - we and the user wrote the words


def _the_one(name: str | None) -> running.RunningDatacenter:
    """The datacenter of that name; without a name, the only one, whose name is then printed. Raises UsageError."""
    one = running.get(name)
    if name is None and one.name != running.DEFAULT:
        live.say(console(stderr=True), f"the only datacenter that is up is {one.name}")
    return one


def down(
    name: Annotated[str | None, typer.Argument(help="Name of the datacenter (default: the only one).")] = None,
    as_json: Json = False,
) -> None:
    """Stop a datacenter and remove its processes, namespaces and data."""
    one = _the_one(name)
    running.down(one)
    print_json({"down": one.name}) if as_json else print_text(f"{one.name} is down; nothing is left\n")
