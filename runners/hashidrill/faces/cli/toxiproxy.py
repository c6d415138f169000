"""staging proxies: the proxies that a toxiproxy in front of an existing datacenter's agents needs."""

from typing import Annotated

import typer

from hashidrill.core.errors import UsageError
from hashidrill.faces.cli.attached import attached
from hashidrill.faces.cli.common import AttachFile, examples, print_json

_PORTS = 65_535


def register(app: typer.Typer) -> None:
    app.command(epilog=examples("staging proxies --attach staging.yaml > toxiproxy.json"))(proxies)


def proxies(
    *,
    attach: AttachFile,
    listen: Annotated[str, typer.Option(metavar="ADDRESS", help="Where its proxies listen.")] = "0.0.0.0",  # noqa: S104 - as toxiproxy's own examples
    first_port: Annotated[int, typer.Option(metavar="PORT", help="The port of the first proxy.")] = 21_000,
) -> None:
    """Print the proxies that a toxiproxy in front of the agents needs.

    Prints a file for toxiproxy's `-config`, with a proxy for each agent of an existing datacenter.

    Only reads that datacenter. Clients that use a proxy can have network faults: give them, and `agents` of the attach
    file, the address on which the proxy listens.
    """
    from hashidrill.staging.attach.discovery import populate  # noqa: PLC0415 - httpx2, which help does not need

    estate = attached(attach).estate
    populated = populate(estate, listen=listen, first_port=first_port)
    if first_port < 1 or first_port + len(populated) - 1 > _PORTS:
        raise UsageError(f"--first-port {first_port}: {len(populated)} proxies need as many ports, up to {_PORTS}")
    print_json(populated)
