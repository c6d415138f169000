"""doctor: checks this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hashidrill.faces.cli import doctor as machine_doctor
from hashidrill.faces.cli.common import Json, console


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog="Examples:\n\nhashidrill doctor\n\nhashidrill doctor --json\n\nhashidrill doctor --attach staging.yaml"
    )(doctor)


def doctor(
    as_json: Json = False,
    attach: Annotated[
        Path | None,
        typer.Option("--attach", metavar="FILE", help="Look at this datacenter instead: what can run against it."),
    ] = None,
) -> None:
    """Check this machine: what works, what is missing and how to get it, which experiments fit.

    With --attach, looks at an existing datacenter and says which experiments, faults, loads and hypotheses can be had
    there, and why the others cannot. It only reads. Exits with 0 if runs are possible, else with 2.
    """
    if attach is not None:
        from hashidrill.faces.cli import doctor_attach  # noqa: PLC0415 - httpx, and every kind

        raise typer.Exit(doctor_attach.report(attach, json=as_json))
    raise typer.Exit(machine_doctor.report(console(), json=as_json))
