"""`hashidrill doctor`: this machine's abilities, the cost of each missing one, and the command that installs it."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hashidrill.core.errors import HashidrillError, MachineError
from hashidrill.faces.cli.common import Json, examples, print_json, print_table, print_text
from hashidrill.lab.provision import machine
from hashidrill.reports.text import human_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hashidrill.core.engine.machine_check import Fit
    from hashidrill.lab.provision.machine import Capability


_EXIT_POSSIBLE = 0
_MOST_LINES, _COLUMNS = 25, 80
"""The size of a screen, for output without -v."""
_MOST_NAMED = 3
_LATER = "not here yet: "
"""The detail of a program begins with this until a run first needs the program and downloads it."""


def report(
    *, json: bool, verbose: bool = False, found: Sequence[Capability] | None = None, fits: Sequence[Fit] | None = None
) -> int:
    """Prints the results of the checks; returns the exit code: 0 if local runs are possible on this machine, else 2.

    With `json`, prints one JSON object instead: `local_runs`, `capabilities` and `experiments`. By default, it computes
    `found`, and, if local runs are possible, `fits` from the library's experiments.
    """
    looked = found is None
    found = machine.detect() if found is None else found
    possible = machine.local_runs_possible(found)
    if fits is None:
        fits = library_fits() if looked and possible else []
    if json:
        told = {"capabilities": [each.as_dict() for each in found], "experiments": [each.as_dict() for each in fits]}
        print_json({"local_runs": possible, **told})
    elif verbose:
        print_table((), [(_mark(each), each.name, each.detail) for each in found])
        print_text("\n".join(["", *_lacking(found), *_fixes(found), *_of_library(fits, all_of_them=True), _end(found)]))
    else:
        print_text("\n".join(_screen(found, fits)))
    return _EXIT_POSSIBLE if possible else MachineError.exit_code


def _screen(found: Sequence[Capability], fits: Sequence[Fit]) -> list[str]:
    """Missing items first, each with its cost, then the present ones. At most one screen; never wraps a command."""
    first = [*_lacking(found), *_fixes(found)]
    later = [each.name for each in found if each.ok and each.detail.startswith(_LATER)]
    well = [each.name for each in found if each.ok and each.name not in later]
    rest = [
        *_named("OK", well),
        *_named("on first use", later),
        *_of_library(fits, all_of_them=False),
        _end(found),
    ]
    room = _MOST_LINES - len(rest) - 1
    if len(first) > room:
        first[room - 1 :] = [f"({len(first) - room + 1} more lines: hashidrill doctor -v)"]
    return [*first, *rest]


def _lacking(found: Sequence[Capability]) -> list[str]:
    missing = sorted((each for each in found if not each.ok), key=lambda each: not each.required)
    wide = max((len(each.name) for each in missing), default=0)
    lines = [f"{_mark(each)}  {each.name:<{wide}}  {each.cost or each.detail}" for each in missing]
    return [line if len(line) <= _COLUMNS else f"{line[: _COLUMNS - 1]}…" for line in lines]


def _fixes(found: Sequence[Capability]) -> Iterator[str]:
    fixes: dict[str, list[str]] = {}
    for each in found:
        if not each.ok and each.fix:
            fixes.setdefault(each.fix, []).append(each.name)
    for fix, names in fixes.items():
        yield f"to get {', '.join(names)}:"
        yield f"    {fix}"


def _named(title: str, names: Sequence[str]) -> list[str]:
    text = f"{title}: {', '.join(names)}"
    return textwrap.wrap(text, _COLUMNS, subsequent_indent="  ", break_on_hyphens=False) if names else []


def _mark(each: Capability) -> str:
    return "OK     " if each.ok else "MISSING" if each.required else "missing"


def _end(found: Sequence[Capability]) -> str:
    lacking = [each.name for each in found if each.required and not each.ok]
    if lacking:
        return f"No local runs on this machine: missing: {', '.join(lacking)}.\n"
    return "Local runs are possible on this machine.\n"


def library_fits() -> list[Fit]:
    """Whether each of the library's experiments fits this machine right now. A file that does not load is left out."""
    from hashidrill.core import hypothesis  # noqa: PLC0415 - only checks of experiments need them
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
                continue  # this machine only runs its load
            found.append((name, experiment, required_by(experiment)))
        except HashidrillError:
            continue  # `hashidrill validate` reports the problem
    return machine_check.fits(found, machine_check.Machine.here(RUNS_DIR.absolute()))


def _of_library(fits: Sequence[Fit], *, all_of_them: bool) -> Iterator[str]:
    """The number of experiments that fit, those that do not fit (with reasons), and the needs of the largest ones."""
    if not fits:
        return
    well = [fit for fit in fits if not fit.lacks]
    lacks = [f"  {fit.name}: {lack}" for fit in fits for lack in fit.lacks]
    yield f"{len(well)} of {len(fits)} experiments fit this machine right now."
    yield from lacks if all_of_them else lacks[:_MOST_NAMED]
    if len(lacks) > _MOST_NAMED and not all_of_them:
        yield f"  ({len(lacks) - _MOST_NAMED} more: hashidrill doctor -v)"
    if all_of_them:
        from hashidrill.faces.cli.datacenter import stack_bytes  # noqa: PLC0415 - only this needs it

        if well:
            most = max(well, key=lambda fit: fit.wants.memory_bytes)
            memory = f"{human_bytes(most.wants.memory_bytes)} of memory ({most.wants.memory_reason})"
            yield f"  The largest of them, {most.name}, needs {memory}."
        stack = human_bytes(stack_bytes())
        yield f"Consul, Nomad and Vault together, `hashidrill lab up --stack`, need {stack} of memory."


def register(app: typer.Typer) -> None:
    app.command(epilog=examples("doctor", "doctor -v", "doctor --attach staging.yaml"))(doctor)


def doctor(
    as_json: Json = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show every check with its result.")] = False,
    attach: Annotated[
        Path | None,
        typer.Option(
            "--attach", metavar="FILE", help="Check this datacenter instead: which experiments can run against it."
        ),
    ] = None,
) -> None:
    """List what this machine lacks, what that costs, and how to get it.

    Also says which experiments fit. With --attach, checks an existing datacenter instead, and lists the experiments,
    faults, loads and hypotheses that can run there, and why the others cannot. It only reads. Exits with 0 if runs are
    possible, else with 2.
    """
    if attach is not None:
        from hashidrill.faces.cli import doctor_attach  # noqa: PLC0415 - httpx2, and every kind

        raise typer.Exit(doctor_attach.report(attach, json=as_json))
    raise typer.Exit(report(json=as_json, verbose=verbose))
