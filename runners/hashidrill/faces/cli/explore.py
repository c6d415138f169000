"""explore: searches the faults, their order and moments that break a promise of an experiment."""

import datetime as dt
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from hashidrill import __version__
from hashidrill.core.errors import UsageError
from hashidrill.core.experiment.library import complete, find_experiment, read_experiment
from hashidrill.core.experiment.resolved import sha256
from hashidrill.faces.cli.common import Install, Json, RunsDir, console, duration_s, examples, print_json
from hashidrill.faces.cli.remembering import cut_off
from hashidrill.lab.provision.packages import allow_installing
from hashidrill.lab.runs.launch import RUNS_DIR
from hashidrill.reports.live import display as live
from hashidrill.rollouts.explore import report
from hashidrill.rollouts.explore.lab_trials import LOG, Kept, LabTrials, Trials, write_finding
from hashidrill.rollouts.explore.search import BaselineError, BrokenWithoutFaultError, Found, Result, Search, TrialLog
from hashidrill.rollouts.explore.space import Space

_FOUND, _USAGE, _CANNOT_TELL, _INTERRUPTED = 1, 2, 3, 130
_STRATEGIES = ("guided", "random")


def register(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "explore raft/killed-leader --time-budget 30m",
            "explore raft/killed-leader --faults process.kill,network.partition --most 2 --seed 7",
            "explore raft/killed-leader --report",
            "explore --resume .hashidrill/explore/SEARCH",
        )
    )(explore)


def explore(
    experiment: Annotated[
        str | None, typer.Argument(metavar="EXPERIMENT", help="Name or path: its datacenter, loads and promises.")
    ] = None,
    *,
    faults: Annotated[
        str, typer.Option(metavar="KIND,...", help="Kinds of faults to try (default: all that fit).")
    ] = "",
    most: Annotated[int, typer.Option(min=1, max=5, help="Most faults of a trial.")] = 3,
    at_once: Annotated[
        int | None, typer.Option(min=1, help="Most hosts with a fault at the same time (default: any number).")
    ] = None,
    beat: Annotated[
        str | None,
        typer.Option(help="The unit of a trial's times (default: as long as elections take, 1s to 4s)."),
    ] = None,
    time_budget: Annotated[str, typer.Option(help="How long all trials together may take.")] = "2h",
    trials: Annotated[int | None, typer.Option(min=1, help="Most trials.")] = None,
    seed: Annotated[int | None, typer.Option(help="Repeats a search's choices (default: a new one).")] = None,
    strategy: Annotated[str, typer.Option(help="guided, or random: the baseline.")] = "guided",
    resume: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Go on with a search that ended early.")] = None,
    all_of_them: Annotated[
        bool, typer.Option("--report", help="What all explorations of it covered; runs nothing.")
    ] = False,
    attach: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Refused: it searches in a local datacenter.")
    ] = None,
    as_json: Json = False,
    install: Install = False,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Search for faults that break a promise of an experiment.

    Chooses their order and moments too. Plays short trials, first each fault alone, then pairs, guided by the states
    that trials reach. What breaks an
    expectation of a valid trial is repeated, shrunk to the fewest and weakest faults, and written as an experiment.

    Exit codes: 0 nothing found, 1 found, 2 bad usage, or a promise breaks without faults, 3 trials without faults are
    not valid, 4 a fault could not be reverted, 130 interrupted (--resume goes on).
    """
    if attach is not None:
        raise UsageError(
            f"--attach {attach}: explore searches in a local datacenter alone: it chooses the faults itself, and no"
            " arming names it; run what it finds with `hashidrill run FINDING --attach FILE`"
        )
    if strategy not in _STRATEGIES:
        raise UsageError(f"--strategy {strategy}: it is one of {', '.join(_STRATEGIES)}")
    home = runs_dir.parent / "explore"
    given = {
        "experiment": experiment,
        "faults": [each for each in faults.split(",") if each],
        "most": most,
        "at_once": at_once,
        "beat_s": None if beat is None else duration_s("--beat", beat),
        "seed": seed,
    }
    question, folder = _asked(given, strategy, resume, home)
    allow_installing(install)
    say = console()
    path = find_experiment(str(question["experiment"]))
    of = Trials.of(path, at_once=question["at_once"])
    space = of.space(question["faults"])
    if all_of_them:
        _report(home, str(question["experiment"]), space, as_json=as_json)
        return
    question = {**question, "sha256": sha256(complete(read_experiment(path)).encode()), "hashidrill": __version__}
    log = _open(folder, question, resumed=resume is not None)
    budget_s = duration_s("--time-budget", time_budget)
    code = _search(of, space, log, say, budget_s=budget_s, most_trials=trials, as_json=as_json)
    raise typer.Exit(code)


def _asked(given: Mapping[str, Any], strategy: str, resume: Path | None, home: Path) -> tuple[dict[str, Any], Path]:
    """The question of a new search, or of the resumed one; and its folder."""
    if resume is None:
        if given["experiment"] is None:
            raise UsageError("name the experiment whose promises are to be broken; `hashidrill list` shows all")
        seed = secrets.randbelow(10**6) if given["seed"] is None else given["seed"]
        stamp = dt.datetime.now(dt.UTC).strftime("%Y%m%d-%H%M%S")
        folder = home / f"{stamp}-{Path(given['experiment']).stem}-{secrets.token_hex(2)}"
        return {**given, "seed": seed, "strategy": strategy}, folder
    if given["experiment"] is not None:
        raise UsageError("--resume takes the experiment from its log: leave it out, or start a new search")
    log = TrialLog.resume(resume / LOG)
    log.close()
    return {key: log.question.get(key) for key in (*given, "strategy")}, resume


def _open(folder: Path, question: Mapping[str, Any], *, resumed: bool) -> TrialLog:
    if not resumed:
        return TrialLog.create(folder / LOG, question)
    log = TrialLog.resume(folder / LOG)
    log.check(question)
    return log


def _search(
    of: Trials, space: Space, log: TrialLog, say: Console, *, budget_s: float, most_trials: int | None, as_json: bool
) -> int:
    folder, question = log.path.parent, log.question
    files: dict[str, Path] = {}
    kept = Kept(folder)
    kept.begin(log.trials)

    def tell(found: Found) -> None:
        kept.of_finding(found.best)
        files[found.signature] = write_finding(found, of, folder, len(files) + 1, question)

    def speak(text: str) -> None:
        live.say(say, text)

    speak(f"log: {log.path}; seed {question['seed']}; {len(space.arms)} kinds on roles")
    interrupted = False
    with LabTrials(of, folder, sorted(space.arms), speak) as play:
        search = Search(
            space,
            play,
            log,
            most=int(question["most"]),
            seed=int(question["seed"]),
            budget_s=budget_s,
            most_trials=most_trials,
            strategy=str(question["strategy"]),
            given_beat_s=question["beat_s"],
            say=speak,
            keep=kept.keep,
            tell=tell,
        )
        try:
            result = search.search()
        except BaselineError as error:
            speak(str(error))
            return _USAGE if isinstance(error, BrokenWithoutFaultError) else _CANNOT_TELL
        except KeyboardInterrupt:
            interrupted, result = True, search.result
            speak(cut_off(f"{len(log.trials)} trials in {log.path}", f"hashidrill explore --resume {folder}"))
    code = _INTERRUPTED if interrupted else _FOUND if result.found else 0
    return _tell(result, log, files, code, speak, as_json=as_json)


def _tell(result: Result, log: TrialLog, files: Mapping[str, Path], code: int, speak: Any, *, as_json: bool) -> int:
    for line in report.lines(result, files):
        speak(line)
    if as_json:
        print_json(report.as_document(result, log.path, files, code))
    log.close()
    return code


def _report(home: Path, experiment: str, space: Space, *, as_json: bool) -> None:
    found = report.all_explorations(home, experiment)
    said = report.coverage(found, space)
    if as_json:
        print_json({"explorations": [str(path) for path, _ in found], "coverage": said})
        return
    for line in said:
        live.say(console(), line)
