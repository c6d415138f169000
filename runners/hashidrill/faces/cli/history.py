"""history: every run and game day, what changed since an experiment last passed, and whether it is flaky or broken."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from hashidrill.core.errors import HashidrillError, UsageError
from hashidrill.core.experiment.library import SUFFIXES
from hashidrill.core.judging.verdict import Verdict
from hashidrill.core.protocols.registry import near
from hashidrill.core.units import counted
from hashidrill.core.util.folders import project
from hashidrill.faces.cli.common import Json, examples, print_json, print_line, print_table, print_text
from hashidrill.gamedays.history import pages
from hashidrill.gamedays.history.changes import changed as changes_of
from hashidrill.gamedays.history.noise import MOST, trends
from hashidrill.gamedays.history.steadiness import WINDOW, Tried, steadiness
from hashidrill.gamedays.history.store import VARIABLE, Day, Run, Series, Store, history_file, opened
from hashidrill.reports.text import plain_line

Db = Annotated[
    Path | None,
    typer.Option(
        "--db",
        envvar=VARIABLE,
        metavar="FILE",
        help="File of the history (default: hashidrill/history.sqlite in the XDG state directory).",
    ),
]
_SPARK = 30
"""Columns of a sparkline."""
Everywhere = Annotated[
    bool,
    typer.Option(
        "--all",
        envvar="HASHIDRILL_ALL_PROJECTS",
        help="Include the runs of all projects, not only of this one (the folder with experiments/, or the "
        "repository).",
    ),
]
Experiment = Annotated[str, typer.Argument(metavar="EXPERIMENT", help="Name or path of an experiment that was run.")]
AnExperiment = Annotated[
    str | None, typer.Argument(metavar="EXPERIMENT", help="Name or path of an experiment (default: all).")
]


def register(app: typer.Typer) -> None:
    app.command("list", epilog=examples("history list", "history list raft/frozen-leader --json"))(list_)
    app.command("show", epilog=examples("history show last"))(show)
    app.command("trend", epilog=examples("history trend raft/slow-leader-disk --figure latency"))(trend)
    app.command("changed", epilog=examples("history changed raft/slow-leader-disk"))(changed)
    app.command("state", epilog=examples("history state", "history state raft/frozen-leader --json"))(state)
    calls = ("history coverage", "history coverage --days 30 --markdown", "history coverage --badge > drilled.json")
    app.command("coverage", epilog=examples(*calls))(coverage)
    app.command("add", epilog=examples("history add .hashidrill/runs/RUN"))(add)


@contextmanager
def _store(db: Path | None, *, everywhere: bool = False, must_exist: bool = True) -> Iterator[Store]:
    """Raises UsageError if there is no history, HistoryError for an unusable one."""
    file = db or history_file()
    if must_exist and not file.exists():
        raise UsageError(f"{file}: no history yet; `hashidrill run` begins one, `hashidrill history add` imports runs")
    with opened(file) as database:
        yield Store(database, None if everywhere else str(project()))


def _series(store: Store, name: str | None) -> list[Series]:
    """All series, or one experiment's series. The UsageError names similar experiments, or the several that fit."""
    if name is None:
        return store.series()
    known = sorted({each.experiment for each in store.series()})
    fitting = _fitting(name, known)
    if len(fitting) > 1:
        raise UsageError(f"{name!r} means several experiments in the history: write {' or '.join(fitting)}")
    if not fitting:
        where = "" if store.project is None else f" of {store.project} (--all searches all projects)"
        raise UsageError(f"no run of {name!r} in the history{where}: {near(name, known)}")
    return store.series(fitting[0])


def _fitting(name: str, known: list[str]) -> list[str]:
    """The known experiment that a name or path means: a full name, the end of a path, or a name without its folder.

    `nomad/slow-leader-disk` never means `raft/slow-leader-disk`.
    """
    path = Path(name)
    asked = (path.with_suffix("") if path.suffix in SUFFIXES else path).as_posix()
    if name in known or asked in known:
        return [name if name in known else asked]
    if within := [each for each in known if asked.endswith(f"/{each}")]:
        return [max(within, key=len)]
    return [each for each in known if each.endswith(f"/{asked}")]


def _tell(document: dict[str, Any], lines: Iterable[str], *, as_json: bool) -> None:
    if as_json:
        print_json(pages.document(**document))
        return
    print_text("".join(f"{plain_line(line)}\n" for line in lines))


def list_(
    experiment: AnExperiment = None,
    last: Annotated[int, typer.Option(min=1, help="Show this many of the latest runs.")] = 30,
    everywhere: Everywhere = False,
    as_json: Json = False,
    db: Db = None,
) -> None:
    """List runs and game days of this project, the newest last.

    A run that Ctrl-C ended is `interrupted`. A run whose runner was killed is `crashed` once it is healed.
    """
    with _store(db, everywhere=everywhere) as store:
        chosen = _series(store, experiment) if experiment else [None]
        runs = [run for each in chosen for run in store.runs(each, last=last, brief=True)]
        days = [] if experiment else store.days(last=last)
    all_of_them: list[Run | Day] = [*runs, *days]
    entries = sorted(all_of_them, key=lambda each: each.ended_s)[-last:]
    if as_json:
        rows = [pages.run_data(each) if isinstance(each, Run) else pages.day_data(each) for each in entries]
        print_json(pages.document(entries=rows))
    elif entries:
        print_table((), pages.list_rows(entries, projects=everywhere), clip=True)
    else:
        print_text(f"no run of {store.project} yet; --all lists the runs of all projects\n")


def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's id, the beginning of an id, or `last`.")],
    as_json: Json = False,
    db: Db = None,
) -> None:
    """Show what the history knows of a run.

    Works even if the recording is gone.
    """
    with _store(db) as store:
        found = store.run(run)
    _tell({"run": pages.whole_run(found)}, pages.run_lines(found), as_json=as_json)


def trend(
    experiment: Experiment,
    *,
    figure: Annotated[str, typer.Option(help="Only figures with this in their names.")] = "",
    last: Annotated[int, typer.Option(min=2, help="How many of the last PASS or FAIL runs to use.")] = MOST,
    everywhere: Everywhere = False,
    as_json: Json = False,
    db: Db = None,
) -> None:
    """Show how the figures of an experiment changed from run to run.

    Says how noisy the figures are, which figures of the last run are outside the noise of earlier runs, and which ones
    drift.
    """
    with _store(db, everywhere=everywhere) as store:
        found = {each: store.runs(each, counting=True, last=last) for each in _series(store, experiment)}
    rows = {
        each: [one for one in trends(runs) if figure in one.name] for each, runs in found.items()
    }  # the significance level accounts for all figures, so selecting figures cannot make more of them significant
    if as_json:
        print_json(pages.document(series=[pages.trends_data(each, rows[each], found[each]) for each in found]))
        return
    for each, runs in found.items():
        print_line(f"{each}: {counted(len(runs), 'run')} that counted")
        print_table(pages.TREND, pages.trend_rows(rows[each], _SPARK))


def changed(
    experiment: Experiment,
    run: Annotated[
        str | None, typer.Option(metavar="RUN", help="The run to explain (default: the last PASS or FAIL).")
    ] = None,
    everywhere: Everywhere = False,
    as_json: Json = False,
    db: Db = None,
) -> None:
    """Show what changed since an experiment last passed.

    It compares versions, configuration, and figures with their noise.
    """
    with _store(db, everywhere=everywhere) as store:
        now = store.run(run) if run else None
        chosen = [now.series] if now else _series(store, experiment)
        if now and now.series not in _series(store, experiment):
            raise UsageError(f"{now.id} is a run of {now.series}, not of {experiment}")
        found = [changes_of(store.runs(each), now) for each in chosen]
    known = [each for each in found if each is not None]
    if not known:
        raise UsageError(f"no run of {experiment} counted yet: all were INVALID")
    lines = (line for each in known for line in pages.changed_lines(each))
    _tell({"series": [pages.changed_data(each) for each in known]}, lines, as_json=as_json)


def state(
    experiment: AnExperiment = None, everywhere: Everywhere = False, as_json: Json = False, db: Db = None
) -> None:
    """Say whether experiments are steady, broken or flaky.

    If there are too few runs to decide, it says so.

    Applies a statistical test to the PASS and FAIL runs; `playbooks/game-days-on-a-schedule.md` describes the test and
    its error rates.
    """
    with _store(db, everywhere=everywhere) as store:
        found = {
            each: steadiness([Tried(run.verdict is Verdict.PASS, run.conditions) for run in runs])
            for each in _series(store, experiment)
            if (runs := store.runs(each, counting=True, last=WINDOW, brief=True))
        }
    if not found and not as_json:
        raise UsageError(f"no run of {experiment or store.project or 'any project'} counted yet: all were INVALID")
    series = [pages.state_data(each, one) for each, one in found.items()]
    _tell({"series": series}, (f"{each}: {one}" for each, one in found.items()), as_json=as_json)


def coverage(
    *,
    days: Annotated[float, typer.Option(min=0, help="Days for which a proof counts.")] = 90.0,
    attach: Annotated[
        Path | None,
        typer.Option(
            "--attach", metavar="FILE", help="Only count this existing datacenter's products, and the runs against it."
        ),
    ] = None,
    product: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only list experiments that need no other products. Repeatable."),
    ] = None,
    most: Annotated[int, typer.Option(min=1, help="List this many to drill next.")] = 10,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a table of what was drilled.")] = False,
    badge: Annotated[bool, typer.Option("--badge", help="Print one line of JSON for shields.io's endpoint.")] = False,
    everywhere: Everywhere = False,
    as_json: Json = False,
    db: Db = None,
) -> None:
    """Show which failure modes were drilled, and what to run next.

    A failure mode is a kind of fault on a role, such as `disk.latency on consul:leader`, in a shipped experiment or
    your own. It counts as drilled if a run was PASS or FAIL and an observer saw the fault in force. Modes never drilled
    come first, then those drilled longest ago.
    """
    from hashidrill.core.experiment.library import experiments  # noqa: PLC0415 - pydantic, which lists do not need
    from hashidrill.gamedays.history import coverage as drilled  # noqa: PLC0415 - as above

    if sum((markdown, badge, as_json)) > 1:
        raise UsageError("--markdown, --badge and --json each choose the output: use one")
    where, products = None, set(product) if product else None
    if attach is not None:
        from hashidrill.staging.attach.target import read_target  # noqa: PLC0415 - as above

        target = read_target(attach)
        where, products = target.name, set(target.logins) & (products or set(target.logins))
    with _store(db, everywhere=everywhere) as store:
        runs = [run for run in store.runs() if where is None or run.series.datacenter == where]
    now_s = time.time()
    found = drilled.coverage(experiments(), runs, now_s, days, products)
    if as_json:
        print_json(pages.document(**pages.coverage_data(found, now_s)))
    elif badge:
        print_json(drilled.badge(found))
    elif markdown:
        print_text("".join(f"{line}\n" for line in pages.coverage_markdown(found, now_s, days)))
    else:
        print_line(f"{found.text(days)}.")
        for headings, rows in (
            (pages.DRILLED, [*pages.drilled_rows(found)]),
            (pages.DUE, [*pages.due_rows(found, most)]),
        ):
            if rows:
                print_line("")
                print_table(headings, rows, clip=True)
        if (left := len([*pages.due_rows(found)]) - most) > 0:
            print_line(f"and {left} more: --most {left + most}, --product NAME, or --json")
    for name in found.unread:
        print_text(f"hashidrill: {name} has an error and is left out: hashidrill validate {name}\n", stderr=True)


def add(
    recordings: Annotated[list[Path], typer.Argument(metavar="RECORDING", help="Folders of recordings.")],
    as_json: Json = False,
    db: Db = None,
) -> None:
    """Import recordings of earlier runs.

    A run that the history already has is replaced. If a recording cannot be imported, the others still are, and the
    exit code is 2.
    """
    from hashidrill.core.recording.reader import Recording  # noqa: PLC0415 - numpy, which lists do not need
    from hashidrill.gamedays.history.from_recording import run_from  # noqa: PLC0415 - as above

    added: list[str] = []
    known: list[str] = []
    failed: dict[str, str] = {}
    with _store(db, must_exist=False) as store:
        for path in recordings:
            try:
                recording = Recording(path)
                if not recording.events("end"):
                    raise UsageError(
                        f"{path}: still running, or its runner died: run `hashidrill heal {path}`, then add it"
                    )  # a run in progress is stored at its end
                stored = store.add(run_from(recording))
                (added if stored.new else known).append(stored.id)
            except HashidrillError as error:
                failed[str(path)] = str(error)
    if as_json:
        print_json(pages.document(added=added, replaced=known, failed=failed))
    else:
        print_line(f"added {len(added)}, replaced {len(known)}, failed {len(failed)}")
    for text in failed.values():
        print_text(f"hashidrill: {text}\n", stderr=True)
    if failed:
        raise typer.Exit(2)
