"""bisect: finds the configuration change, the version or the commit that breaks an experiment."""

from __future__ import annotations

import datetime as dt
import platform
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from hashidrill.core.errors import UsageError
from hashidrill.core.experiment.library import find_experiment
from hashidrill.core.experiment.loader import resolve
from hashidrill.core.experiment.model import services_of
from hashidrill.core.experiment.resolved import ResolvedExperiment
from hashidrill.core.protocols.events import Bus
from hashidrill.core.units import counted
from hashidrill.core.util.cores import usable_cores
from hashidrill.faces.cli.common import Install, Json, Plain, RunsDir, console, examples, print_json
from hashidrill.faces.cli.remembering import cut_off
from hashidrill.lab.provision import binaries
from hashidrill.lab.provision.packages import allow_installing
from hashidrill.lab.runs.launch import RUNS_DIR, run_experiment
from hashidrill.lab.runs.rounds import expected_s
from hashidrill.reports.live import display as live
from hashidrill.reports.live.progress import Progress
from hashidrill.rollouts.bisect.broken import Expectations, PairedFigure, Rule, Worse
from hashidrill.rollouts.bisect.candidates import (
    Built,
    ChangedKeys,
    Dependency,
    Listed,
    Produced,
    Programs,
    Refusal,
    Repository,
    Tree,
    Versions,
    clients_of,
    configured,
)
from hashidrill.rollouts.bisect.hunt import SURE_BUILDS, Answer, Hunt, summary
from hashidrill.rollouts.bisect.hunt import descend as descend_from
from hashidrill.rollouts.bisect.ordered import TURN
from hashidrill.rollouts.bisect.trials import AT_MOST, Log
from hashidrill.rollouts.gate.configuration import refusal_of

_INTERRUPTED = 130
_FACTOR = 1.5
Asked = Mapping[str, Any]
"""The options that define the search, as plain data."""


def register(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "bisect --experiment raft/killed-leader --good good.hcl --bad bad.hcl",
            "bisect --experiment raft/killed-leader --versions 1.10.3 1.11.4 1.22.2",
            "bisect --experiment raft/killed-leader --git v1.4..HEAD --path consul.d",
            "bisect --resume .hashidrill/bisect/SEARCH.jsonl",
        )
    )(bisect)


def bisect(
    version: Annotated[
        list[str] | None, typer.Argument(metavar="VERSION", help="With --versions: the versions, the good one first.")
    ] = None,
    *,
    experiment: Annotated[str | None, typer.Option(help="Name or path of the experiment that breaks.")] = None,
    good: Annotated[list[Path] | None, typer.Option(help="Configuration (file or directory) that passes.")] = None,
    bad: Annotated[list[Path] | None, typer.Option(help="Configuration that breaks the experiment.")] = None,
    versions: Annotated[bool, typer.Option("--versions", help="Search the versions that follow.")] = False,
    git: Annotated[str | None, typer.Option(metavar="BASE..HEAD", help="Search these commits.")] = None,
    path: Annotated[list[str] | None, typer.Option(help="With --git: the configuration's path at each commit.")] = None,
    command: Annotated[str | None, typer.Option(help="With --git: a command that prints the configuration.")] = None,
    build: Annotated[str | None, typer.Option(help="With --git: command that builds a program at each commit.")] = None,
    client: Annotated[
        list[str] | None, typer.Option(metavar="NAME=COMMAND", help="Client that runs the build in {checkout}.")
    ] = None,
    descend: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FOLDER=REPOSITORY",
            help="With --git: dependency whose files are in FOLDER; search its commits too, if a new pin is the cause.",
        ),
    ] = None,
    product: Annotated[str | None, typer.Option(help="consul, nomad or vault, if it is unclear which one.")] = None,
    expect: Annotated[str | None, typer.Option(help="The expectation that breaks (default: any).")] = None,
    figure: Annotated[str | None, typer.Option(help="A figure that gets worse instead, like LOAD.latency.p99")] = None,
    factor: Annotated[float, typer.Option(help="With --figure: how many times worse counts as broken.")] = _FACTOR,
    duet: Annotated[
        bool, typer.Option("--duet", help="With --build and --figure: run the good end together with each candidate.")
    ] = False,
    tries: Annotated[int, typer.Option(min=1, max=1000, help="The most runs to make.")] = AT_MOST,
    resume: Annotated[Path | None, typer.Option(metavar="LOG", help="Go on with a search that ended early.")] = None,
    log: Annotated[Path | None, typer.Option(help="Where to log (default: .hashidrill/bisect/).")] = None,
    plain: Plain = False,
    as_json: Json = False,
    install: Install = False,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Find the change, version or commit that breaks an experiment.

    Runs both ends first, then about log2 of the candidates between them. Repeats runs until a wrong answer is less
    likely than 1 in 100, provided that at most one run in five is wrong.

    Exit codes: 0 found, 2 bad usage, or an end is not as declared (good or bad), 3 cannot tell, 4 a fault could not be
    reverted, 130 interrupted (--resume goes on).
    """
    given: dict[str, Any] = {
        "experiment": experiment,
        "good": _texts(good),
        "bad": _texts(bad),
        "git": git,
        "path": path or [],
        "versions": (version or []) if versions else None,
        "command": command,
        "build": build,
        "client": client or [],
        "product": product,
        "expect": expect,
        "figure": figure,
        "factor": factor if figure else None,
        **({"duet": True} if duet else {}),
        **({"descend": descend} if descend else {}),
    }
    if version and not versions:
        raise UsageError(f"what is {version[0]!r}? Versions come after --versions, the experiment after --experiment")
    if factor != _FACTOR and not figure:
        raise UsageError("--factor says how much worse a figure may get: name the figure with --figure")
    say = console()
    asked = given if resume is None else _resumed(resume, given, log)
    work = _log_path(asked, log, runs_dir) if resume is None else resume
    question = _Question.of(asked, work.with_suffix(".builds"), lambda text: live.say(say, text))
    allow_installing(install)

    def hunt(of: _Question, log: Path, *, resumed: bool) -> Hunt:
        book = _open(log, of, resumed)
        live.say(say, f"log: {book.path}")
        return Hunt(
            of.candidates,
            of.rule,
            book,
            _runner(runs_dir, say, plain=plain),
            lambda text: live.say(say, text),
            at_most=tries,
            turn=SURE_BUILDS if asked["build"] else TURN,
        )

    def onward(commits: Built) -> Hunt:
        """The search in a dependency, logged next to the first one."""
        below = question.below(commits)
        inner = commits.work.relative_to(work.with_suffix(".builds"))
        log = work.with_suffix(f".{'.'.join(inner.parts)}.jsonl")
        return hunt(below, log, resumed=log.exists())

    code = _search(hunt(question, work, resumed=resume is not None), onward, say, as_json=as_json)
    raise typer.Exit(code)


def _search(hunt: Hunt, onward: Callable[[Built], Hunt], say: Console, *, as_json: bool) -> int:
    interrupted = False
    try:
        answer = descend_from(hunt, hunt.search(), onward)
    except KeyboardInterrupt:
        interrupted, answer = True, Answer(_INTERRUPTED, "interrupted")
    if interrupted:
        kept = f"{counted(len(hunt.log.runs), 'run')} in {hunt.log.path}"
        live.say(say, cut_off(kept, f"hashidrill bisect --resume {hunt.log.path}"))
    else:
        hunt.log.add_answer(answer.as_document())
        live.say(say, "")
        for line in answer.text.splitlines():
            live.say(say, line)
    if as_json:
        runs = summary(hunt.candidates, hunt.log.runs)
        print_json({**answer.as_document(), "log": str(hunt.log.path), "candidates": runs})
    hunt.log.close()
    return answer.code


def _texts(paths: list[Path] | None) -> list[str]:
    return [str(path) for path in paths or ()]


def _resumed(resume: Path, given: Asked, log: Path | None) -> Asked:
    """The options of the resumed search. Raises UsageError if --resume is combined with any of these options."""
    more = [name for name, value in given.items() if value]
    if more or log is not None:
        name = more[0] if more else "log"
        raise UsageError(f"--resume takes the question from its log: leave out --{name}, or start a new search")
    book = Log.resume(resume)
    book.close()
    asked = book.question.get("asked")
    if not isinstance(asked, dict):
        raise UsageError(f"{resume}: not a log of `hashidrill bisect`")
    return asked


def _log_path(asked: Asked, log: Path | None, runs_dir: Path) -> Path:
    if log is not None:
        return log
    stamp = dt.datetime.now(dt.UTC).strftime("%Y%m%d-%H%M%S")
    name = Path(str(asked["experiment"])).stem
    return runs_dir.parent / "bisect" / f"{stamp}-{name}-{secrets.token_hex(2)}.jsonl"


def _open(path: Path, question: _Question, resumed: bool) -> Log:
    if not resumed:
        return Log.create(path, question.data)
    book = Log.resume(path)
    book.check(question.data)
    return book


class _Question:
    """What is searched, with everything that the answer depends on."""

    def __init__(self, candidates: ChangedKeys | Listed, rule: Rule, data: Mapping[str, Any]) -> None:
        self.candidates, self.rule, self.data = candidates, rule, data

    @classmethod
    def of(cls, asked: Asked, work: Path, say: Callable[[str], None]) -> _Question:
        """Raises UsageError and ExperimentError if the options do not define a search."""
        _check_modes(asked)
        given = resolve(find_experiment(str(asked["experiment"])))
        rule: Rule
        if asked.get("duet"):
            rule = PairedFigure.of(asked["figure"], float(asked["factor"]), given.experiment)
        elif asked["figure"]:
            rule = Worse.of(asked["figure"], float(asked["factor"]), given.experiment)
        else:
            rule = Expectations.of(asked["expect"], given.experiment)
        candidates = _candidates(asked, given, work, say)
        source = {"sha256": given.provenance.sha256, "extends": dict(given.provenance.extends)}
        judges = {name: each["sha256"] for name, each in given.hypotheses.get("hypotheses", {}).items()}
        machine = {"machine": platform.machine(), "cpus": usable_cores()}  # a host name changes with each container
        about = {"asked": dict(asked), "source": source, "hypotheses": judges, "runs_on": machine}
        if own := _own_binaries(given):
            about["binaries"] = own
        return cls(candidates, rule, {**about, **candidates.question})

    def below(self, commits: Built) -> _Question:
        """The same question about the commits of a dependency."""
        assert commits.tree is not None
        return _Question(commits, self.rule, {**self.data, **commits.question, "at": dict(commits.tree.at)})


def _own_binaries(given: ResolvedExperiment) -> dict[str, str]:
    """The checksums of binaries that the user names, because a binary can be rebuilt under the same version."""
    found = {}
    for each in (each for service in services_of(given.experiment.datacenter) for each in service.binaries()):
        named = each.explicit or binaries.explicit_path(each.name)
        if named and (path := Path(named).expanduser()).is_file():
            found[each.name] = binaries.file_sha256(path)
    return found


def _check_modes(asked: Asked) -> None:
    if not asked["experiment"]:
        raise UsageError(
            "name the experiment that breaks: --experiment raft/killed-leader; `hashidrill list` shows all"
        )
    keys, versions, git = bool(asked["good"] or asked["bad"]), asked["versions"] is not None, bool(asked["git"])
    if keys + versions + git != 1:
        raise UsageError("say what to search, one of: --good FILE --bad FILE, --versions A B C, or --git BASE..HEAD")
    if keys and not (asked["good"] and asked["bad"]):
        raise UsageError(f"a search needs both ends: --{'bad' if asked['good'] else 'good'} is missing")
    of_git = [name for name in ("path", "command", "build", "client", "descend") if asked.get(name)]
    if of_git and not git:
        raise UsageError(f"--{of_git[0]} needs --git BASE..HEAD")
    _check_paths(asked["path"])
    if git and asked["build"] and (asked["path"] or asked["command"]):
        raise UsageError("--build makes a program, --path and --command a configuration: use one of them")
    if git and asked["client"] and not asked["build"]:
        raise UsageError("--client names the client that runs the result of --build: give --build too")
    if git and not {"path", "command", "build"} & {*of_git}:
        raise UsageError("--git needs to know what to test of each commit: --path, --command or --build")
    if asked.get("duet") and not (asked["build"] and asked["figure"]):
        raise UsageError("--duet runs the good end together with each candidate: it needs --build and --figure")
    if asked["expect"] and asked["figure"]:
        raise UsageError("--expect and --figure both define a broken run: use one of them")


def _check_paths(paths: Sequence[str]) -> None:
    for each in map(Path, paths):
        if each.is_absolute() or ".." in each.parts:
            raise UsageError(f"--path {each}: write it from the top of the repository, like --path consul.d")


def _candidates(
    asked: Asked, given: ResolvedExperiment, work: Path, say: Callable[[str], None]
) -> ChangedKeys | Listed:
    product = asked["product"]
    ensure = lambda name, version: binaries.ensure(name, version, progress=say)  # noqa: E731 - one line, used twice
    refusal = _asking(given, say)
    if asked["good"]:
        ends = [[Path(each) for each in asked[end]] for end in ("good", "bad")]
        return ChangedKeys.of(given, *ends, product=product, refusal=refusal)
    if asked["versions"] is not None:
        return Versions.of(given, asked["versions"], product=product, ensure=ensure)
    repository = Repository.here()
    names = repository.between(asked["git"])
    clones = work.with_suffix(".repositories")
    depends = [Dependency.of(each, clones, say) for each in asked.get("descend", ())]
    tree = Tree(repository, depends) if depends else None
    if tree is not None:
        tree.commits(names[-1])  # reports a dependency that nothing pins before any run
    if asked["build"]:
        clients = clients_of(asked["client"], given)
        if asked.get("duet") and (client := asked["figure"].partition(".")[0]) not in clients:
            raise UsageError(f"--duet compares the results of --build: give --client {client} the command that runs it")
        duet = bool(asked.get("duet"))
        return Programs(
            given, repository, names, work, say, tree=tree, build=asked["build"], clients=clients, duet=duet
        )
    make = lambda files, ends: configured(given, files, product=product, refusal=refusal, ends=ends)  # noqa: E731
    printed, paths = asked["command"] or "", asked["path"]
    return Produced(given, repository, names, work, say, tree=tree, configured=make, command=printed, paths=paths)


def _asking(given: ResolvedExperiment, say: Callable[[str], None]) -> Callable[[str], Refusal]:
    """Has a product's own agent check a configuration, before any datacenter starts."""

    @cache
    def binary(product: str) -> Path:
        services = services_of(given.experiment.datacenter)
        each = next(each for service in services for each in service.binaries() if each.name == product)
        return binaries.ensure(product, each.version, explicit=each.explicit, progress=say).path

    def of(product: str) -> Refusal:
        return lambda file, work, settings: refusal_of(product)(binary(product), [file], settings, work)

    return of


def _runner(runs_dir: Path, say: Console, *, plain: bool) -> Callable[[ResolvedExperiment, str], Path]:
    whole = Progress(say)

    def run(resolved: ResolvedExperiment, title: str) -> Path:
        of_it = expected_s(resolved.experiment)
        with live.LiveView(say, title, plain=plain, expected_s=of_it, whole=whole) as view:
            return run_experiment(resolved, runs_dir=runs_dir, events=Bus(view.event))

    return run
