"""up, status, shell, down: a datacenter that keeps running."""

from __future__ import annotations

import os
from typing import Annotated

import typer
from rich.table import Table

from hashidrill.cli.common import Install, Json, console, examples, print_json
from hashidrill.datacenter.up import running
from hashidrill.errors import UsageError
from hashidrill.experiment.library import find_experiment
from hashidrill.experiment.loader import load_experiment
from hashidrill.experiment.model import DatacenterSpec, services_of
from hashidrill.live import display as live
from hashidrill.provision.packages import ensure_system_packages

_CONSUL_UI_PORT = 8500
Name = Annotated[str, typer.Option("--name", help="Name of the datacenter, if there are several.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog=examples("up", "up --expose 8500", "up --like raft/slow-leader-disk"))(up)
    app.command(epilog=examples("status --json"))(status)
    app.command(
        epilog=examples("shell consul-1", "shell consul-1 -- consul members"),
        context_settings={"ignore_unknown_options": True},
    )(shell)
    app.command(epilog=examples("down"))(down)


def up(  # noqa: PLR0917 - each is an option of the command line
    name: Name = "default",
    consul: Annotated[str, typer.Option("--consul", help="Consul version.")] = "1.22.2",
    servers: Annotated[int, typer.Option(min=1, max=9, help="Number of servers.")] = 3,
    clients: Annotated[int, typer.Option(min=0, max=20, help="Number of client agents.")] = 1,
    like: Annotated[str, typer.Option("--like", help="Start the datacenter of this experiment.")] = "",
    expose: Annotated[
        int | None,
        typer.Option(
            "--expose",
            help="Serve the UI on this port of 127.0.0.1; 0 picks a free one.",
        ),
    ] = None,
    as_json: Json = False,
    install: Install = False,
) -> None:
    """Start a datacenter that runs until `hashidrill down`."""
    say = console(stderr=as_json)
    if like:
        spec = load_experiment(find_experiment(like)).datacenter
    else:
        config = {"performance": {"raft_multiplier": 1}}
        part = {"version": consul, "servers": servers, "clients": clients, "config": config}
        try:
            spec = DatacenterSpec.model_validate({"consul": part})
        except ValueError:
            raise UsageError(f"--consul {consul!r} is not a version; write it like 1.22.2") from None
    wanted = [
        (one.name, one.version) for service in services_of(spec) for one in service.binaries() if not one.explicit
    ]
    ensure_system_packages(lambda text: live.say(say, text), wanted=wanted, install=install)
    one = running.up(name, spec, expose_port=expose, say=lambda text: live.say(say, text))
    if as_json:
        print_json(one.shown())
        return
    live.say(say, f"{name} is up: {_runs(one)}, {', '.join(row['name'] for row in one.hosts)}")
    for service, url in one.urls.items():
        live.say(say, f"  {f'{service.capitalize()} UI':<11} {url}")
    flag = "" if name == "default" else f" --name {name}"
    looks = next((service.look for service in services_of(spec) if service.look), "")
    live.say(say, f"  look around hashidrill shell{flag} {one.hosts[0]['name']}{f' -- {looks}' if looks else ''}")
    live.say(say, f"  end it      hashidrill down{flag}")


def _runs(one: running.RunningDatacenter) -> str:
    """`Consul 1.22.2, Vault 1.21.0`."""
    versions = one.versions or {"consul": one.version}
    return ", ".join(f"{name.capitalize()} {version}" for name, version in versions.items() if version) or "no binary"


def status(as_json: Json = False) -> None:
    """Show the datacenters that are up."""
    found = running.all_running()
    if as_json:
        print_json([one.shown() for one in found])
        return
    if not found:
        live.say(console(), "no datacenter is up; start one with `hashidrill up`")
        return
    table = Table(box=None, pad_edge=False)
    for column in ("name", "runs", "host", "role", "address"):
        table.add_column(column)
    for one in found:
        for row in one.hosts:
            table.add_row(one.name, _runs(one), row["name"], row["role"], row["address"])
    console().print(table)
    for one in found:
        for service, url in (one.urls or {"consul": one.url}).items():
            if url:
                live.say(console(), f"{one.name}: {service.capitalize()} UI at {url}")


def shell(
    host: Annotated[str, typer.Argument(help="The host, like consul-1.")],
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND...]", help="A command (default: a shell).")
    ] = None,
    name: Name = "default",
) -> None:
    """Open a shell, or run a command, in a host's network namespace. Sets CONSUL_HTTP_ADDR and the like."""
    words, environment = running.shell_command(running.get(name), host, command or [])
    os.execvpe(words[0], words, environment)  # noqa: S606 - the words are ours and the user's own


def down(name: Annotated[str, typer.Argument(help="Name of the datacenter.")] = "default") -> None:
    """Stop a datacenter and remove its processes, namespaces, rules and data."""
    one = running.get(name)
    running.down(one)
    live.say(console(), f"{name} is down; nothing is left")
