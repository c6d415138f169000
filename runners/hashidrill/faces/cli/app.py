"""All commands in one application."""

from typing import Annotated

import typer

from hashidrill import __version__
from hashidrill.faces.cli.commands import LazyGroup

app = typer.Typer(
    name="hashidrill",
    cls=LazyGroup,
    help="Chaos experiments for Consul, Nomad and Vault: real faults in a real datacenter, a verdict you can trust.",
    epilog="Start here: hashidrill demo. Then: hashidrill list, hashidrill run raft/frozen-leader.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    pretty_exceptions_enable=False,
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"hashidrill {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options before the command."""
