"""heal: clean up after dead runs."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import anyio
import typer
from rich.console import Console

from hashidrill.core.errors import UsageError
from hashidrill.core.recording.journal import settled
from hashidrill.core.recording.signed_runs import open_recordings
from hashidrill.core.units import counted
from hashidrill.core.util.files import HEAL_NAME, JOURNAL_NAME
from hashidrill.core.util.folders import DAYS
from hashidrill.faces.cli.attached import AttachTo, attached
from hashidrill.faces.cli.common import (
    Json,
    RunsDir,
    console,
    examples,
    find_recording,
    print_json,
    print_text,
    recordings_below,
)
from hashidrill.lab.runs.heal import Healed, heal_local, sweep
from hashidrill.lab.runs.launch import RUNS_DIR
from hashidrill.reports.live import display as live

_NOT_REVERTED = 4


def register(app: typer.Typer) -> None:
    app.command(epilog=examples("heal", "heal --attach staging.yaml"))(heal)


def heal(
    run_: Annotated[str | None, typer.Argument(metavar="RUN", help="A recording (default: all recordings).")] = None,
    attach: AttachTo = None,
    yes: Annotated[
        list[str] | None,
        typer.Option(
            "--yes",
            metavar="HOST",
            help="With --attach: revert on this host what RUN, which another machine started, left there.",
        ),
    ] = None,
    as_json: Json = False,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Clean up after dead runs.

    Reverts faults that may be in force, and removes what is left of their sandboxes. Leaves alone active runs, and runs
    of another machine, container or user. With --attach, it also does this for runs against that datacenter, by
    their journals, with audit lines. A RUN that another machine recorded is reverted on the hosts that you confirm, on
    the terminal or with --yes, while the datacenter is armed for its experiment.

    Exit codes: 0 nothing is left, 2 bad usage, 4 a fault is still in force, or data of a load is still there.
    """
    if yes and (attach is None or run_ is None):
        raise UsageError("--yes confirms hosts of a recording from another machine: name RUN, with --attach FILE")
    paths = [find_recording(run_, runs_dir)] if run_ else [*_unsettled(runs_dir, attached=attach is not None)]
    heal_all = partial(_heal_all, named=run_ is not None)
    if attach is not None:
        confirm = partial(_confirmed, frozenset(yes or ())) if run_ else None
        heal_all = partial(attached(attach, undoing=True).heal, tell=_tell, confirm=confirm)
    healed = [done for done in anyio.run(heal_all, paths) if done is not None]
    for each in healed:
        if each.died and not each.refused:
            from hashidrill.gamedays.history.from_recording import record_run  # noqa: PLC0415 - few runners die

            record_run(each.run)
    removed = sweep()
    if run_ and healed and healed[0].refused:
        raise UsageError(f"{healed[0].run}: did nothing: {healed[0].refused}")
    if as_json:
        print_json({"healed": [_as_json(one) for one in healed], "removed": [str(path) for path in removed]})
    else:
        _print_healed(console(), healed, removed)
    stuck = [name for one in healed for name in one.stuck]
    left = [name for one in healed for name in one.left]
    if stuck:
        print_text(f"hashidrill: still in force: {', '.join(stuck)}; see the journal of the run\n", stderr=True)
    if left:
        print_text(f"hashidrill: still there: {'; '.join(left)}\n", stderr=True)
    if stuck or left:
        raise typer.Exit(_NOT_REVERTED)


def _unsettled(runs_dir: Path, *, attached: bool) -> Iterator[Path]:
    """The recordings whose runs may have left something. In an existing datacenter this includes data of their loads.

    Such runs are also found by their notes, wherever their recordings are.
    """
    found = [path for place in (runs_dir, runs_dir.parent / DAYS) for path in recordings_below(place)]
    if attached:
        known = {path.resolve() for path in found}
        found += [path for path in open_recordings() if path not in known and (path / JOURNAL_NAME).is_file()]
    for path in found:
        with contextlib.suppress(OSError):
            if not attached and not (path / HEAL_NAME).is_file() and settled(path / JOURNAL_NAME):
                continue
        yield path


async def _heal_all(paths: Sequence[Path], *, named: bool) -> list[Healed | None]:
    return [await heal_local(path, named=named) for path in paths]


def _confirmed(hosts: frozenset[str], host: str, what: str) -> bool:
    """Asks on the terminal about one host, unless the command names it."""
    if hosts or not sys.stdin.isatty():
        return host in hosts
    print_text(f"{what}\n", stderr=True)
    return input(f"Revert that on {host}? Type the host's name to say yes: ").strip() == host


def _tell(text: str) -> None:
    print_text(f"{text}\n", stderr=True)


def _as_json(one: Healed) -> dict[str, Any]:
    return {
        "run": str(one.run),
        "reverted": one.reverted,
        "ended": one.ended,
        "others": one.others,
        "stuck": one.stuck,
        "refused": one.refused,
        "cleaned": one.cleaned,
        "left": one.left,
    }


def _print_healed(say: Console, healed: list[Healed], removed: list[Path]) -> None:
    for one in healed:
        if one.refused:
            live.say(say, f"{one.run.name}: did nothing: {one.refused}")
            continue
        did = [
            f"{counted(len(names), 'fault')} {what}"
            for names, what in (
                (one.reverted, "reverted and proven gone"),
                (one.ended, "ended with the sandbox, which has no process left"),
                (one.others, "left nothing; another run has the same kind of fault in force there"),
                (one.stuck, "may still be in force"),
            )
            if names
        ] or ["no fault was in force"]
        did += [f"removed {text}" for text in one.cleaned]
        live.say(say, f"{one.run.name}: {_how(one)}; {'; '.join(did)}")
    for path in removed:
        live.say(say, f"removed {path}")
    if not healed and not removed:
        live.say(say, "nothing to heal")


def _how(one: Healed) -> str:
    if one.died:
        return "its runner died"
    open_ = one.reverted or one.stuck or one.ended or one.others
    return "it ended before a fault was proven gone" if open_ else "it ended, and left something"
