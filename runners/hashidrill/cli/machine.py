"""doctor: checks this machine."""

from __future__ import annotations

import typer

from hashidrill.cli import doctor as machine_doctor
from hashidrill.cli.common import Json, console


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Examples:\n\nhashidrill doctor\n\nhashidrill doctor --json")(doctor)


def doctor(as_json: Json = False) -> None:
    """Check this machine: what works, what is missing and how to get it, which experiments fit.

    Exits with 0 if local runs are possible, else with 2.
    """
    raise typer.Exit(machine_doctor.report(console(), json=as_json))
