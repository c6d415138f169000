"""`hashidrill doctor`: what this machine can do, what each missing piece prevents, and the command that installs it."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from hashidrill.core.errors import HashidrillError, MachineError
from hashidrill.faces.cli.common import Json, console
from hashidrill.lab.provision import machine
from hashidrill.reports.text import human_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from hashidrill.core.engine.machine_check import Fit
    from hashidrill.lab.provision.machine import Capability


_EXIT_POSSIBLE = 0


def report(
    console: Console, *, json: bool, found: Sequence[Capability] | None = None, fits: Sequence[Fit] | None = None
) -> int:
    """Print what was found; returns the exit code: 0 when local runs are possible on this machine, else 2.

    With `json`, prints one JSON object instead: `local_runs`, `capabilities` and `experiments`. `found` and `fits`
    default to looking; the library's experiments are looked at where local runs are possible.
    """
    looked = found is None
    found = machine.detect() if found is None else found
    possible = machine.local_runs_possible(found)
    if fits is None:
        fits = library_fits() if looked and possible else []
    if json:
        _print_json(console, found, fits, possible=possible)
    else:
        console.print(_table(found))
        _print_fixes(console, found)
        _print_fits(console, fits)
        if fits:
            _print_stack(console)
        _print_summary(console, found, possible=possible)
    return _EXIT_POSSIBLE if possible else MachineError.exit_code


def library_fits() -> list[Fit]:
    """Whether each experiment of the library fits this machine as it is now. One that does not load is left out."""
    from hashidrill.core import hypothesis  # noqa: PLC0415 - only what looks at experiments needs them
    from hashidrill.core.engine import machine_check  # noqa: PLC0415
    from hashidrill.core.engine.requirements import required_by  # noqa: PLC0415
    from hashidrill.core.experiment.library import experiments  # noqa: PLC0415
    from hashidrill.core.experiment.loader import load_experiment  # noqa: PLC0415
    from hashidrill.core.hypothesis.files import unrun  # noqa: PLC0415
    from hashidrill.lab.runs.launch import RUNS_DIR  # noqa: PLC0415

    found = []
    for name, path in experiments().items():
        try:
            with hypothesis.looking_up(unrun(path)):
                experiment = load_experiment(path)
            if experiment.datacenter.stands:
                continue  # this machine carries its load alone
            found.append((name, experiment, required_by(experiment)))
        except HashidrillError:
            continue  # `hashidrill validate` says what is wrong with it
    return machine_check.fits(found, machine_check.Machine.here(RUNS_DIR.absolute()))


def _print_fits(console: Console, fits: Sequence[Fit]) -> None:
    """Experiments that do not fit, with reasons; how many fit, and what the largest of them needs."""
    if not fits:
        return
    well = [fit for fit in fits if not fit.lacks]
    console.print(f"\n{len(well)} of {len(fits)} experiments fit this machine right now.", highlight=False)
    if well:
        most = max(well, key=lambda fit: fit.wants.memory_bytes)
        console.print(
            f"  The largest of them, {most.name}, needs {human_bytes(most.wants.memory_bytes)} of memory"
            f" ({most.wants.memory_reason}).",
            highlight=False,
            soft_wrap=True,
        )
    for fit in fits:
        for lack in fit.lacks:
            console.print(f"  {fit.name}: {lack}", highlight=False, soft_wrap=True)


def _print_stack(console: Console) -> None:
    from hashidrill.faces.cli.datacenter import stack_bytes  # noqa: PLC0415 - only a look at this machine needs it

    console.print(
        f"Consul, Nomad and Vault together, `hashidrill up --stack`, need {human_bytes(stack_bytes())} of memory.",
        highlight=False,
        soft_wrap=True,
    )


def _print_json(console: Console, found: Sequence[Capability], fits: Sequence[Fit], *, possible: bool) -> None:
    text = dumps(
        {
            "local_runs": possible,
            "capabilities": [capability.as_dict() for capability in found],
            "experiments": [fit.as_dict() for fit in fits],
        },
        indent=2,
    )
    # no wrapping, no colour, nothing that a script would trip over
    console.print(text, highlight=False, soft_wrap=True)


def _table(found: Sequence[Capability]) -> Table:
    table = Table(title="What this machine can do", title_justify="left", show_edge=False, pad_edge=False)
    table.add_column("")
    table.add_column("what", no_wrap=True)
    table.add_column("found", overflow="fold")
    table.add_column("without it", overflow="fold")
    for capability in found:
        table.add_row(_mark(capability), capability.name, capability.detail, "" if capability.ok else capability.cost)
    return table


def _mark(capability: Capability) -> Text:
    if capability.ok:
        return Text("OK", "green")
    return Text("missing", "bold red" if capability.required else "yellow")


def _print_fixes(console: Console, found: Sequence[Capability]) -> None:
    """Under the table and never wrapped, so that they can be copied."""
    fixes: dict[str, list[str]] = {}
    for capability in found:
        if not capability.ok and capability.fix:
            fixes.setdefault(capability.fix, []).append(capability.name)
    if fixes:
        console.print("\nTo install what is missing:")
    for fix, names in fixes.items():
        console.print(f"  {', '.join(names)}:", highlight=False, soft_wrap=True)
        console.print(f"    {fix}", highlight=False, soft_wrap=True)


def _print_summary(console: Console, found: Sequence[Capability], *, possible: bool) -> None:
    if possible:
        console.print("\nLocal runs are possible on this machine.", style="green")
        return
    lacking = [capability.name for capability in found if capability.required and not capability.ok]
    console.print(f"\nNo local runs on this machine: missing: {', '.join(lacking)}.", style="bold red")


def register(app: typer.Typer) -> None:
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
    raise typer.Exit(report(console(), json=as_json))
