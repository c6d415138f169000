"""schedule: runs an experiment or a game day at fixed times."""

import datetime as dt
import os
import platform
import pwd
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo

import anyio
import typer

from hashidrill.core.errors import AttachError, UsageError
from hashidrill.core.experiment.attached import check_no_variants
from hashidrill.core.experiment.library import SUFFIXES, find_experiment, library_name, read_document, read_experiment
from hashidrill.core.experiment.loader import load_experiment, resolve
from hashidrill.core.experiment.resolved import ResolvedExperiment
from hashidrill.core.util.files import write_whole
from hashidrill.core.util.folders import PLAYBOOKS, located
from hashidrill.faces.cli.common import Json, examples, own_program, print_json, print_line
from hashidrill.gamedays.gameday.plan import Plan, is_game_day, plan_of
from hashidrill.gamedays.history.store import DEFAULT, history_file
from hashidrill.gamedays.history.store import VARIABLE as HISTORY
from hashidrill.gamedays.schedules import jobs
from hashidrill.gamedays.schedules.jobs import Job, next_times
from hashidrill.gamedays.schedules.jobs import cron as read_cron

_OURS = "# Written by `hashidrill schedule`"
_RUNS = re.compile(
    r'^ *(?:ExecStart=|WorkingDirectory=|command  = |args     = |work_dir = |value     = |run: ").*$', re.MULTILINE
)
"""The lines that say what runs and where, in the files of Nomad, GitHub and systemd."""
_NEEDS_HASHIDRILL = re.compile(r"""["']hashidrill(?![\w-])""")
"""In a pyproject.toml: hashidrill as a requirement, or as the project's own name."""
_SHOWN = 3
_WORKFLOWS = Path(".github/workflows")


def register(app: typer.Typer) -> None:
    calls = (
        "schedule raft/slow-leader-disk --cron '17 2 * * *' --nomad",
        "schedule raft/slow-leader-disk --cron '0 9 * * MON-FRI' --systemd --time-zone Europe/Berlin",
        "schedule raft/slow-leader-disk --cron '17 2 * * *' --github",
    )
    app.command(epilog=examples(*calls))(schedule)


def schedule(
    what: Annotated[
        str, typer.Argument(metavar="WHAT", help="An experiment, by name or path, or the file of a game day.")
    ],
    *,
    cron: Annotated[str, typer.Option(metavar="FIELDS", help="When: minute, hour, day, month, day of the week.")],
    to_nomad: Annotated[bool, typer.Option("--nomad", help="Write a Nomad periodic batch job.")] = False,
    to_github: Annotated[bool, typer.Option("--github", help="Write a GitHub Actions workflow.")] = False,
    to_systemd: Annotated[bool, typer.Option("--systemd", help="Write a systemd service and its timer.")] = False,
    submit: Annotated[
        bool, typer.Option("--submit", help="Register the Nomad job too, at NOMAD_ADDR with NOMAD_TOKEN.")
    ] = False,
    time_zone: Annotated[str, typer.Option(help="The time zone of the schedule's fields.")] = "UTC",
    attach: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Run in this existing datacenter, as `run --attach` does.")
    ] = None,
    node: Annotated[
        str, typer.Option(help="Host that Nomad runs it on (default: this one; `any`: all have the same paths).")
    ] = "",
    user: Annotated[
        str | None, typer.Option(help="Account that runs it (default: yours; empty: Nomad's or systemd's).")
    ] = None,
    command: Annotated[
        str,
        typer.Option(metavar="WORDS", help="The command that starts hashidrill there (default: this hashidrill)."),
    ] = "",
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the files go (default: here, or .github/workflows).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run an experiment or a game day on a schedule.

    Nomad, GitHub Actions or systemd runs it. The history keeps each run. A run of a Nomad job does not begin before the
    last one has ended.
    """
    if [to_nomad, to_github, to_systemd].count(True) != 1:
        raise UsageError("say what runs it: exactly one of --nomad, --github and --systemd")
    if submit and not to_nomad:
        raise UsageError("--submit registers a Nomad job: use it with --nomad")
    if node and not to_nomad:
        raise UsageError("--node names a Nomad host: use it with --nomad")
    when = read_cron(cron)
    zone = _zone(time_zone)
    secrets = () if attach is None else _secrets(attach)
    name, words = _what(what, attach, relative=to_github)
    start = shlex.split(command) or (_in_a_checkout() if to_github else [_ourselves()])
    job = Job(
        name,
        [*start, *words],
        when,
        time_zone,
        Path.cwd(),
        {} if to_github else _environment(user),
        _user() if user is None else user,
        secrets,
    )
    files = _files(job, node, to_nomad=to_nomad, to_github=to_github)
    folder = output or (_WORKFLOWS if to_github else Path())
    for file, text in files.items():
        _check_writable(folder / file, text)
    for file, text in files.items():
        _write(folder / file, text)
    times = next_times(when, dt.datetime.now(zone), _SHOWN)
    registered = anyio.run(_submit, files[f"{job.name}.nomad.hcl"]) if submit else ""
    then = "" if submit else _next_step(folder, list(files), job, to_nomad=to_nomad, to_github=to_github)
    if as_json:
        wrote = [str(folder / file) for file in files]
        print_json({"wrote": wrote, "runs_at": [*map(str, times)], "registered": registered, "next": then})
        return
    for file in files:
        print_line(f"wrote {folder / file}")
    print_line(f"runs at {', '.join(f'{each:%a %Y-%m-%d %H:%M}' for each in times)} ({time_zone}), and so on")
    print_line(f"registered: {registered}" if submit else f"next: {then}")


def _files(job: Job, node: str, *, to_nomad: bool, to_github: bool) -> Mapping[str, str]:
    if to_nomad:
        on = "" if node == "any" else node or platform.node()
        return {f"{job.name}.nomad.hcl": jobs.job_file(job, node=on)}
    return {f"{job.name}.yml": jobs.workflow(job)} if to_github else jobs.unit_files(job)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        raise UsageError(f"--time-zone {name}: unknown time zone; write one like UTC or Europe/Berlin") from None


def _what(what: str, attach: Path | None, *, relative: bool) -> tuple[str, list[str]]:
    """(the name, the words after `hashidrill`) of a game day or an experiment.

    Raises HashidrillError if the file is neither, or is a day that cannot begin unattended.
    """
    path = located(Path(what), PLAYBOOKS, SUFFIXES) or Path(what)
    if path.is_file() and is_game_day(document := read_document(path)):
        plan = plan_of(document, folder=path.parent, over=resolve if attach is None else _over_another)
        _check_day(plan, path)
        named = what if relative and not Path(what).is_file() else _path(path, relative=relative)
        name, words = plan.day.metadata.name, ["gameday", "run", named, "--yes"]
    else:
        file = find_experiment(what)
        experiment = load_experiment(file) if attach is None else _over_another(file).experiment
        name = library_name(file) or experiment.metadata.name  # experiments of two folders may have one metadata.name
        named = what if relative and not Path(what).is_file() else _path(file, relative=relative)
        words = ["run", named, "--plain"]
    if attach is None:
        return name, words
    return f"{name}-{attach.stem}", [*words, "--attach", _path(attach, relative=relative)]


def _over_another(path: Path) -> ResolvedExperiment:
    """Checks what can be checked offline; the run itself asks the datacenter. Raises HashidrillError."""
    check_no_variants(read_experiment(path), path)
    return resolve(path)


def _secrets(attach: Path) -> tuple[str, ...]:
    """The environment variables for the tokens that the file omits.

    Raises UsageError if the file omits an address too: a scheduled run does not have our variables, and would use an
    agent on its own host if one answers there.
    """
    from hashidrill.staging.attach.target import left_out  # noqa: PLC0415 - most schedules need no attach file

    if not attach.is_file():
        raise UsageError(f"--attach {attach}: there is no such file")
    left = left_out(attach)
    if left.addresses:
        keys = ", ".join(f"datacenter.{name}.address" for name in left.addresses)
        raise UsageError(
            f"--attach {attach}: {keys} is missing, and a scheduled run lacks your variables: write it in the file"
        )
    return left.secrets


def _check_day(plan: Plan, path: Path) -> None:
    if missing := plan.needs_a_person():
        raise UsageError(
            f"{path}: a schedule runs unattended, but a person must confirm: {'; '.join(missing)}. Write"
            " `unattended: true` next to each `confirm` that a scheduled day may go without"
        )


def _path(path: Path, *, relative: bool) -> str:
    """The path by which the run finds the file. Raises UsageError for a file outside a workflow's repository."""
    whole = path.resolve()
    if not relative:
        return str(whole)
    try:
        return whole.relative_to(Path.cwd()).as_posix()
    except ValueError:
        raise UsageError(
            f"{path}: a workflow only sees the files of its repository: run this command in the repository's root"
        ) from None


def _in_a_checkout() -> list[str]:
    """The command that starts hashidrill in a fresh checkout of this project. Raises UsageError if it would not be
    found there.
    """
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / "pyproject.toml").is_file():
            if _NEEDS_HASHIDRILL.search((folder / "pyproject.toml").read_text(encoding="utf-8", errors="replace")):
                return ["uv", "run", "hashidrill"]
            break
    raise UsageError(
        "--github: no pyproject.toml here requires hashidrill, so `uv run hashidrill` would fail in the workflow: add"
        " it (`uv add --dev hashidrill`, from your source of it), or say how the workflow starts it, as in"
        " --command 'uvx --from git+https://github.com/OWNER/hashidrill@COMMIT hashidrill'"
    )


def _ourselves() -> str:
    """The path of the running hashidrill. Raises UsageError if it is not installed as a program."""
    if (found := own_program()) is None:
        raise UsageError("--command: say how to start hashidrill: its program is neither next to Python nor on PATH")
    return found


def _environment(user: str | None) -> Mapping[str, str]:
    """The environment variables that a run needs: the home (for caches) and the history of the account that runs it.

    A history that HASHIDRILL_HISTORY names serves all accounts. Raises UsageError for an account that this machine
    lacks.
    """
    named = {HISTORY: str(history_file().absolute())} if os.environ.get(HISTORY) else {}
    if not user and user is not None:  # the user who starts it has a home directory that this machine does not know
        return named
    if user is None or user == _user():
        home = os.environ.get("HOME")
        return {**({"HOME": home} if home else {}), HISTORY: str(history_file().absolute())}
    try:
        home = pwd.getpwnam(user).pw_dir
    except (KeyError, ValueError):
        raise UsageError(
            f"--user {user}: this machine has no such account, so its home and history are unknown: create the account,"
            " or name another one"
        ) from None
    return {"HOME": home, HISTORY: str(Path(home) / DEFAULT), **named}


def _user() -> str:
    """The current user; "" for root, and for a user without a name, as in some containers."""
    try:
        return "" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return ""


def _check_writable(path: Path, text: str) -> None:
    """Raises UsageError if another tool wrote the file, or if it holds another schedule: writing would end that
    schedule.
    """
    try:
        there = path.read_text(errors="replace") if path.exists() else None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    if there is None:
        return
    if not there.startswith(_OURS):
        raise UsageError(f"{path}: exists, and this command did not write it: move it, or name another --output")
    before, now = ([line.strip() for line in _RUNS.findall(each)] for each in (there, text))
    if before != now:
        raise UsageError(
            f"{path}: exists, and runs something else: {'; '.join(before)}. Remove it to replace it, or name another"
            " --output"
        )


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
        path.chmod(0o644)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None


async def _submit(text: str) -> str:
    from hashidrill.staging.attach.http import UnansweredError, Wire  # noqa: PLC0415 - as above

    # writing a file does not need HTTP
    from hashidrill.staging.attach.product import attachables, login_of_environment  # noqa: PLC0415 - as above

    product = attachables(["nomad"]).get("nomad")
    if product is None:
        raise UsageError("--submit: this hashidrill does not know Nomad")
    login = login_of_environment(product, os.environ)
    try:
        async with Wire(login) as wire:
            return await jobs.submit(wire, text)
    except (UnansweredError, AttachError) as error:
        raise UsageError(f"--submit: {error}; is NOMAD_ADDR right?") from None


def _next_step(folder: Path, names: Sequence[str], job: Job, *, to_nomad: bool, to_github: bool) -> str:
    paths = [shlex.quote(str(folder / name)) for name in names]
    if to_nomad:
        return f"nomad job run {paths[0]}"
    if to_github:
        return f"git add {paths[0]}, commit it, and set the secret HASHIDRILL_NOTIFY for a webhook"
    return f"cp {' '.join(paths)} /etc/systemd/system/ && systemctl enable --now {job.name}.timer"
