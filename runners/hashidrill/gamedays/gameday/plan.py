"""Reads a file of `kind: GameDay` and every experiment that it names. One message lists everything to fix."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hashidrill.core.errors import HashidrillError, UnknownNameError, UsageError
from hashidrill.core.experiment.conditions import LOAD_STATISTICS, Condition, probe_signals
from hashidrill.core.experiment.documents import Document, Loc
from hashidrill.core.experiment.library import find_experiment, read_document
from hashidrill.core.experiment.loader import resolve
from hashidrill.core.experiment.model import services_of
from hashidrill.core.experiment.pydantic_messages import is_kind, validated_kind
from hashidrill.core.experiment.resolved import ResolvedExperiment, sha256
from hashidrill.core.experiment.variants import variant_of
from hashidrill.core.protocols.registry import near
from hashidrill.core.protocols.service import Drawn, lanes
from hashidrill.core.units import shown
from hashidrill.gamedays.gameday.model import KIND, GameDay, Question, RunSpec

_OF_ALL = "only the verdict of a comparison can be predicted: a question about a load has another answer in each run"
Resolve = Callable[[Path], "ResolvedExperiment"]
"""Resolves an experiment's file, for a local datacenter or for an attached one."""


@dataclass(frozen=True)
class PlannedRun:
    """One experiment of the day, resolved, with the questions that people answer before it."""

    name: str
    spec: RunSpec
    resolved: ResolvedExperiment
    questions: tuple[str, ...]
    alerts: tuple[str, ...]
    """The alerts whose load or signal this run has."""
    number: int = 1
    """Its position in the day, from 1."""

    @property
    def title(self) -> str:
        """The name that people see before the experiment has run."""
        return self.spec.title or f"experiment {self.number}"

    @property
    def title_after(self) -> str:
        """The experiment's real title, for people who have seen the run."""
        return self.spec.title_after or self.resolved.experiment.metadata.title

    @property
    def source(self) -> Mapping[str, object]:
        """The experiment's source, which identifies its version."""
        found = self.resolved.provenance
        return {"sha256": found.sha256, "extends": dict(found.extends), "variant": self.resolved.variant}


@dataclass(frozen=True)
class Plan:
    """A game day whose file has been checked: it can begin."""

    day: GameDay
    text: str
    folder: Path
    """The folder that relative paths start from."""
    runs: tuple[PlannedRun, ...]

    @property
    def sources(self) -> dict[str, Mapping[str, object]]:
        return {run.name: run.source for run in self.runs}

    @property
    def sha256(self) -> str:
        return sha256(self.text.encode())

    def run(self, name: str) -> PlannedRun:
        return next(run for run in self.runs if run.name == name)

    def needs_a_person(self) -> list[str]:
        """The confirmations that need a person; with any of them, the day cannot begin with --yes."""
        return [str(each.confirm) for each in self.day.before if each.confirm is not None and not each.unattended]


def is_game_day(document: Document) -> bool:
    """Whether the document's `kind` is GameDay."""
    return is_kind(document, KIND)


def read_plan(path: Path, *, folder: Path | None = None, over: Resolve = resolve) -> Plan:
    """Reads the day from a file. Its paths are relative to `folder` (default: the file's folder).

    `over` resolves its experiments. Raises ExperimentError, whose message gives the place of each problem.
    """
    return plan_of(read_document(path), folder=path.parent if folder is None else folder, over=over)


def plan_of(document: Document, *, folder: Path, over: Resolve = resolve) -> Plan:
    """Like `read_plan`, for a document that is already read."""
    day = validated_kind(document, GameDay, KIND, "a game day")
    _check_people(document, day)
    runs = [_run(document, index, spec, day, folder, over) for index, spec in enumerate(day.experiments)]
    _check_named(document, day, runs)
    _check_questions(document, day, runs)
    document.raise_problems()
    return Plan(day, document.text, folder.absolute(), tuple(run for run in runs if run is not None))


def _check_people(document: Document, day: GameDay) -> None:
    leads = [key for key, person in day.people.items() if person.role == "lead"]
    if not leads:
        document.problem(("people",), "no person is the lead: give one person `role: lead`", key=True)
    for key in leads[1:]:
        document.problem(
            ("people", key, "role"), f"{leads[0]} is already the lead: a game day has one person who decides"
        )
    owner = day.on_failure.owner if day.on_failure else None
    if owner is not None and owner not in day.people:
        document.problem(("on_failure", "owner"), f"`people` has no key {owner}: {near(owner, day.people)}")


def _run(  # noqa: PLR0917 - all arguments describe one entry
    document: Document, index: int, spec: RunSpec, day: GameDay, folder: Path, over: Resolve
) -> PlannedRun | None:
    """One experiment of the day; None if it has problems, which are noted in the document."""
    loc = ("experiments", index)
    try:
        resolved = over(_found(spec.experiment, folder).absolute())
        if spec.variant is not None:
            resolved = variant_of(resolved, spec.variant)
    except HashidrillError as error:
        key = "variant" if spec.variant is not None and "variant" in str(error) else "experiment"
        document.problem((*loc, key), _first_line(error, spec))
        return None
    if spec.compare and spec.variant is not None:
        document.problem((*loc, "compare"), "all of its variants are compared: leave out `variant`")
        return None
    if spec.compare and not (resolved.experiment.variants and resolved.experiment.compare):
        document.problem((*loc, "compare"), f"{resolved.name} lacks `variants` or `compare`: leave this out")
        return None
    if resolved.experiment.variants and not spec.compare:
        names = ", ".join(resolved.experiment.variants)
        document.problem(
            (*loc, "experiment"),
            f"{resolved.name} has variants ({names}): name one with `variant`, or write `compare: true`",
        )
        return None
    traffic, own = resolved.experiment.traffic, resolved.experiment.declared_signals
    drawn = [one for one in services_of(resolved.experiment.datacenter) if isinstance(one, Drawn)]
    signals = {lane.signal for each in drawn for lane in each.lanes}
    fitting = [
        name
        for name, each in day.questions.items()
        if (each.measure == "verdict" if spec.compare else _fits(each, traffic, signals))
    ]
    for at, name in enumerate(spec.predict or ()):
        if name not in day.questions:
            document.problem((*loc, "predict", at), f"there is no question {name}: {near(name, day.questions)}")
        elif name not in fitting:
            why = _OF_ALL if spec.compare else _why_not(day.questions[name], resolved.name, traffic)
            document.problem((*loc, "predict", at), why)
    asked = fitting if spec.predict is None else [name for name in spec.predict if name in fitting]
    alerts = tuple(
        name
        for name, alert in ({} if spec.compare else day.alerts).items()
        if alert.source in traffic or _signal(alert) in {*probe_signals(alert.source), *own}
    )
    name = spec.name or "-".join(filter(None, [resolved.name, spec.variant]))
    return PlannedRun(name, spec, resolved, tuple(asked), alerts, index + 1)


def _signal(alert: Condition) -> str:
    return f"{alert.source}.{alert.what}"


def _fits(question: Question, traffic: Mapping[str, object], signals: set[str]) -> bool:
    """Whether a recording of the experiment can contain the answer."""
    if question.measure == "leader":
        return question.signal in signals
    return question.load is None or question.load in traffic


def _why_not(question: Question, name: str, traffic: Mapping[str, object]) -> str:
    if question.load is None:
        return f"{name} does not sample {question.signal}"
    return f"{name} has no load {question.load}: {near(question.load, traffic)}"


def _found(name: str, folder: Path) -> Path:
    try:
        near_by = folder / name
        if near_by.is_file():
            return near_by
    except (OSError, ValueError):  # a name that no file can have
        raise UsageError(f"there is no experiment {shown(name)}") from None
    return find_experiment(name)


def _first_line(error: HashidrillError, spec: RunSpec) -> str:
    """The first line of another file's message, to be quoted in this file's message; `validate` shows the rest."""
    lines = str(error).splitlines() or [""]
    whole = isinstance(error, UnknownNameError) or not lines[1:]
    return lines[0] if whole else f"{lines[0]} (`hashidrill validate {spec.experiment}` shows all)"


def _check_named(document: Document, day: GameDay, runs: list[PlannedRun | None]) -> None:
    seen: dict[str, int] = {}
    for index, run in enumerate(runs):
        if run is None:
            continue
        if run.name in seen:
            document.problem(
                ("experiments", index),
                f"experiments[{seen[run.name]}] is called {run.name} too: give one of them another `name`",
            )
        seen.setdefault(run.name, index)
    if None in runs:
        return  # a name that only the broken part defines cannot be checked
    loads = {load for run in runs if run is not None for load in run.resolved.experiment.traffic}
    named: list[tuple[Loc, str]] = [
        (("abort", "measured", n, "load"), limit.load) for n, limit in enumerate(day.abort.measured)
    ]
    named += [(("alerts", name), alert.source) for name, alert in day.alerts.items() if alert.what in LOAD_STATISTICS]
    for loc, load in named:
        if load not in loads:
            document.problem(loc, f"no experiment of the day has a load {load}: {near(load, loads)}")
    for index, message in enumerate(day.messages):
        moment, _, name = message.when.partition(" ")
        if name and name not in seen:
            text = f"no experiment of the day is called {name}: {near(name, seen)}"
            document.problem(("messages", index, "when"), f"{moment} {name}: {text}")


_TELL_NOTHING = frozenset(
    {"agent", "all", "any", "client", "consul", "each", "host", "nomad", "one", "server", "vault"}
)
"""Words that are in most faults' kinds and targets, and so reveal nothing."""


def giveaways(run: PlannedRun) -> dict[str, str]:
    """The words that would reveal before the run what it breaks (its faults and targets), by the key of the entry that
    contains them: `title` or `watch`.
    """
    steps = run.resolved.experiment.faults
    words = {word.rstrip("s") for step in steps for word in _words(f"{step.fault} {step.on.rpartition(':')[2]}")}
    telling = tuple(word for word in words - _TELL_NOTHING if len(word) > 2)
    found = {
        key: ", ".join(dict.fromkeys(word for word in _words(text) if telling and word.startswith(telling)))
        for key, text in (("title", run.spec.title), ("watch", run.spec.watch))
    }
    return {key: words for key, words in found.items() if words}


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def note_giveaways(document: Document, plan: Plan) -> None:
    """Notes each giveaway as a problem of the document, for a warning: the day can still be played."""
    for run in plan.runs:
        for key, words in giveaways(run).items():
            text = f"this reveals before the run what breaks ({words}): write it in `title_after`"
            document.problem(("experiments", run.number - 1, key), text)


def _check_questions(document: Document, day: GameDay, runs: list[PlannedRun | None]) -> None:
    own = {signal for run in runs if run is not None for signal in run.resolved.experiment.declared_signals}
    leaders = [lane.signal for lane in lanes() if lane.names]
    for name, question in day.questions.items():
        if question.measure == "alerts" and not day.alerts:
            text = "asks which alert fires, but the day has no `alerts`: add them as conditions"
            document.problem(("questions", name, "measure"), text)
        if question.measure == "leader" and question.signal not in leaders:
            text = f"{shown(question.signal)} names no leader: {near(question.signal, leaders)}"
            document.problem(("questions", name, "signal"), text)
    for name, alert in day.alerts.items():
        of_a_load = alert.what in LOAD_STATISTICS
        if not of_a_load and None not in runs and _signal(alert) not in {*probe_signals(alert.source), *own}:
            known = near(_signal(alert), [*probe_signals(), *own, *LOAD_STATISTICS])
            document.problem(("alerts", name), f"{_signal(alert)} is not a signal: {known}")
