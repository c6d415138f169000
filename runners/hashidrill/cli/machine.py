"""doctor: what this machine can do."""

from __future__ import annotations

import typer

from hashidrill.cli import doctor as machine_doctor
from hashidrill.cli.common import Json, console


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Examples:\n\nhashidrill doctor\n\nhashidrill doctor --json")(doctor)


def doctor(as_json: Json = False) -> None:
    """Say what this machine can do, what each missing thing costs and the command that gets it, and what fits.

    Exit code 0 when local runs are possible, 2 when they are not.
    """
    raise typer.Exit(machine_doctor.report(console(), json=as_json))
