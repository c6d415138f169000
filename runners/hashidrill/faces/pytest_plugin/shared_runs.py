"""The runs of one pytest session: each experiment is run once (or its recording is found), and judged once."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest

from hashidrill.core.compare.judged import ComparisonVerdict, Kept, judge_comparison, read_comparison
from hashidrill.core.errors import HashidrillError, RecordingError, UsageError
from hashidrill.core.experiment.loader import resolve, variant_of, variants_of
from hashidrill.core.experiment.model import Experiment
from hashidrill.core.experiment.resolved import ResolvedExperiment
from hashidrill.core.judging.comparison import differences
from hashidrill.core.judging.judge import judge
from hashidrill.core.judging.verdict import RunVerdict
from hashidrill.core.protocols.events import Bus, Change, Event, Phase, Proof
from hashidrill.core.recording.reader import Recording
from hashidrill.core.util.files import COMPARISON_NAME, JOURNAL_NAME, VERDICT_NAME
from hashidrill.reports.compared import judge_and_report_comparison

_SHOWN = 8
"""Lines of differences in one message."""


class NotJudgedError(Exception):
    """An experiment has no valid verdict. The user sees only the message."""


@dataclass(frozen=True)
class Run:
    """One experiment: its recording and verdict, or in `error` why they are missing."""

    experiment: str
    recording_: Recording | None = None
    judged_: RunVerdict | None = None
    error: str = ""
    turned: str = ""
    """A sentence that its verdict turned from PASS to FAIL, and when it last passed; or ""."""

    @property
    def recording(self) -> Recording:
        """Raises NotJudgedError."""
        if self.recording_ is None:
            raise NotJudgedError(self.error)
        return self.recording_

    @property
    def judged(self) -> RunVerdict:
        """Raises NotJudgedError."""
        if self.judged_ is None:
            raise NotJudgedError(self.error)
        return self.judged_

    @property
    def verdict(self) -> str:
        return str(self.judged_.verdict) if self.judged_ else "INVALID"

    @property
    def summary(self) -> str:
        where = self.recording_.path if self.recording_ else self.error.splitlines()[0]
        return f"{self.verdict:<7} {self.experiment}  {where}{f'  ({self.turned})' if self.turned else ''}"

    def invalid_text(self) -> str:
        reasons = "\n".join(f"  - {reason}" for reason in self.judged.invalid)
        return f"the run of {self.experiment} is INVALID:\n{reasons}\n{self.see_again()}"

    def see_again(self) -> str:
        path = self.recording.path
        return f"recording: {path}\nsee it again: hashidrill check {path}"


@dataclass(frozen=True)
class Compared:
    """The comparison of one experiment's variants, or the reason why there is none."""

    experiment: str
    verdict_: ComparisonVerdict | None = None
    folder: Path | None = None
    error: str = ""

    @property
    def verdict(self) -> ComparisonVerdict:
        """Raises NotJudgedError."""
        if self.verdict_ is None:
            raise NotJudgedError(self.error)
        return self.verdict_

    @property
    def summary(self) -> str:
        verdict = self.verdict_.verdict if self.verdict_ else "INVALID"
        return f"{verdict:<7} {self.experiment}  {self.folder or self.error.splitlines()[0]}"

    def invalid_text(self) -> str:
        reasons = "\n".join(f"  - {reason}" for reason in self.verdict.invalid)
        return f"the comparison of {self.experiment} is INVALID:\n{reasons}\n{self.see_again()}"

    def see_again(self) -> str:
        return f"comparison: {self.folder}\nsee it again: hashidrill check {self.folder}"


@dataclass
class Runs:
    """Runs by the file of their experiment (and variant), in the order in which tests requested them."""

    config: pytest.Config
    _runs: dict[tuple[Path, str], Run] = field(default_factory=dict)
    _compared: dict[Path, Compared] = field(default_factory=dict)
    _resolved: dict[Path, ResolvedExperiment] = field(default_factory=dict)
    _variants: dict[Path, dict[str, ResolvedExperiment]] = field(default_factory=dict)
    _told: list[str] = field(default_factory=list)

    def summaries(self) -> list[tuple[str, bool]]:
        """A line for each run and each comparison, and whether it passed."""
        found = [(run.summary, run.verdict == "PASS") for run in self._runs.values()]
        found += [(each.summary, each.summary.startswith("PASS")) for each in self._compared.values()]
        return found + [(f"note: {text}", False) for text in self._told]

    def resolved(self, path: Path) -> ResolvedExperiment:
        """The experiment in a file, read once in a session. Raises HashidrillError."""
        path = path.resolve()
        if path not in self._resolved:
            self._resolved[path] = resolve(path)
        return self._resolved[path]

    def variants(self, path: Path) -> dict[str, ResolvedExperiment]:
        """The variants of an experiment, by their names. Raises HashidrillError."""
        path = path.resolve()
        if path not in self._variants:
            self._variants[path] = variants_of(self.resolved(path))
        return self._variants[path]

    def get(self, path: Path, variant: str = "") -> Run:
        """The run of an experiment, or of one variant; the first call runs it, or finds its recording."""
        key = path.resolve(), variant
        if key not in self._runs:
            self._runs[key] = self._new(*key)
        return self._runs[key]

    def compared(self, path: Path) -> Compared:
        """The comparison of all variants; the first call runs them, or finds their recordings."""
        path = path.resolve()
        if path not in self._compared:
            self._compared[path] = self._new_comparison(path)
        return self._compared[path]

    def of_variant(self, path: Path, variant: str) -> list[Run]:
        """The runs of a variant in a comparison: one for each round that ran it. Raises NotJudgedError."""
        compared = self.compared(path)
        name = f"{compared.experiment} ({variant})"
        found = [
            Run(name, error=f"{name}: {each.path} {each.refused}")
            if each.refused
            else Run(name, each.recording, each.verdict)
            for each in compared.verdict.runs
            if each.variant == variant
        ]
        if refused := [each for each in found if each.error]:
            raise NotJudgedError(refused[0].error)
        if not found:
            raise NotJudgedError(compared.invalid_text())
        return found

    def valid(self, path: Path, variant: str = "") -> Run:
        """Like `get`, but raises NotJudgedError if there is no recording, or if the run is INVALID."""
        run = self.get(path, variant)
        if run.judged.invalid:
            raise NotJudgedError(run.invalid_text())
        return run

    def _new_comparison(self, path: Path) -> Compared:
        name = path.stem
        try:
            resolved = self.resolved(path)
            name = resolved.name
            if given := self.config.getoption("--hashidrill-recording"):
                kept = replace(_find_comparison(given, name), experiment=resolved, variants=self.variants(path))
                judged_by = partial(_judge_as_variant, variants=kept.variants, near_to=path)
                return Compared(name, judge_comparison(kept, near_to=path, judged_by=judged_by), kept.path)
            folder = self._play_now(resolved)
            verdict = judge_and_report_comparison(read_comparison(folder), near_to=path)[0]
            for run in verdict.runs:
                self._keep(run.recording, run.verdict)
            return Compared(name, verdict, folder)
        except HashidrillError as error:
            return Compared(name, error=f"{name} could not be compared: {error}")

    def _play_now(self, resolved: ResolvedExperiment) -> Path:
        from hashidrill.lab.runs.launch import prepare, run_experiment  # noqa: PLC0415 - as above
        from hashidrill.lab.runs.rounds import play_variants  # noqa: PLC0415 - judging a recording needs no runner

        events = Bus(lambda event: self._progress(resolved.name, event))
        return play_variants(resolved, runs_dir=self._runs_dir, events=events, run=run_experiment, prepare=prepare)

    @property
    def _runs_dir(self) -> Path:
        found: Path = self.config.getoption("--hashidrill-runs") or self.config.rootpath / ".hashidrill" / "runs"
        return found

    def _new(self, path: Path, variant: str) -> Run:
        name = path.stem
        try:
            resolved = self.resolved(path)
            if variant:
                resolved = variant_of(resolved, variant)
            name, experiment = resolved.name, resolved.experiment
            given = self.config.getoption("--hashidrill-recording")
            if given:
                recording = _find(given, experiment)
                return Run(name, recording, judge(recording, experiment, near_to=path))
            recording = Recording(self._run_now(resolved))
            if (recording.path / VERDICT_NAME).exists():
                return Run(name, recording, judge(recording, near_to=path))
            verdict = _report(recording, path)
            return Run(name, recording, verdict, turned=self._keep(recording, verdict))
        except HashidrillError as error:
            return Run(name, error=f"{name} could not be run: {error}")

    def _run_now(self, resolved: ResolvedExperiment) -> Path:
        from hashidrill.lab.runs.launch import run_experiment  # noqa: PLC0415 - judging a recording needs no runner

        events = Bus(lambda event: self._progress(resolved.name, event))
        return run_experiment(resolved, runs_dir=self._runs_dir, events=events)

    def _keep(self, recording: Recording, verdict: RunVerdict) -> str:
        """Stores the run in the history, like `hashidrill run`; prints and sends a changed verdict to the webhook."""
        from hashidrill.gamedays.history.on_turn_red import keep, webhook_url  # noqa: PLC0415 - a run is kept at its end
        from hashidrill.gamedays.history.pages import turn_line  # noqa: PLC0415 - as above

        try:
            webhook = webhook_url(None)
        except HashidrillError as error:
            webhook = None
            self._told.append(str(error))
        turn = keep(recording, verdict, webhook=webhook, tell=self._told.append)
        return turn_line(turn) if turn else ""

    def _progress(self, name: str, event: Event) -> None:
        """Prints a line for each phase and each fault, if pytest runs with -v."""
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None or self.config.get_verbosity() < 1:
            return
        match event:
            case Phase():
                text = event.phase
            case Proof() | Change():
                text = f"{event.fault_id} {event.event.removeprefix('fault.')}"
            case _:
                return
        reporter.ensure_newline()
        reporter.write_line(f"hashidrill: {name}: {event.t_ns / 1e9:6.1f}s {text}")


def _report(recording: Recording, path: Path) -> RunVerdict:
    from hashidrill.reports.write import judge_and_report  # noqa: PLC0415 - judging a recording needs no reports

    return judge_and_report(recording, near_to=path)[0]


def _folders(given: list[Path], name: str) -> Iterator[Path]:
    """The given folders, and the folders in them, that contain a file of this name. Raises UsageError."""
    for place in given:
        if not place.is_dir():
            raise UsageError(f"--hashidrill-recording {place}: there is no such directory")
        yield from [place] if (place / name).is_file() else [file.parent for file in place.glob(f"*/{name}")]


def _find(given: list[Path], experiment: Experiment) -> Recording:
    """The newest recording of exactly that experiment; only its expectations may differ.

    Raises UsageError that names the existing recordings, or how an experiment of the same name differs.
    """
    found = {path: _describe(path) for path in _folders(given, JOURNAL_NAME)}
    asked = experiment.metadata.name
    ours = sorted([(started, path) for path, (name, started) in found.items() if name == asked], reverse=True)
    if not ours:
        there = ", ".join(sorted({name for name, _ in found.values()})) or "none"
        where = ", ".join(map(str, given))
        raise UsageError(f"no recording of {asked} in {where} (--hashidrill-recording); recordings are of: {there}")
    others = []
    for _, path in ours:
        recording = Recording(path)
        differs = differences(experiment, recording.experiment)
        if not differs:
            return recording
        others.append((path, differs))
    path, differs = others[0]
    lines = "\n".join(f"  {line}" for line in differs[:_SHOWN])
    raise UsageError(
        f"{path} is a recording of another experiment named {asked}:\n{lines}\n"
        f"run the experiment without --hashidrill-recording, or judge that recording as it is: hashidrill check {path}"
    )


def _find_comparison(given: list[Path], asked: str) -> Kept:
    """The newest comparison of the experiment of that name. The UsageError names the comparisons that exist."""
    found = {path: read_comparison(path) for path in _folders(given, COMPARISON_NAME)}
    ours = sorted((path for path, kept in found.items() if kept.experiment.name == asked), key=lambda path: path.name)
    if not ours:
        there = ", ".join(sorted({kept.experiment.name for kept in found.values()})) or "none"
        where = ", ".join(map(str, given))
        raise UsageError(
            f"no comparison of {asked} in {where} (--hashidrill-recording); comparisons are of: {there}. Its "
            f"variants are judged together: name the folder of the comparison, or the folder above it"
        )
    return found[ours[-1]]


def _judge_as_variant(recording: Recording, *, variants: Mapping[str, ResolvedExperiment], near_to: Path) -> RunVerdict:
    """Judges a recording by what the experiment now expects of the recording's variant."""
    asked = variants.get(recording.variant)
    return judge(recording, asked.experiment if asked else None, near_to=near_to)


def _describe(path: Path) -> tuple[str, str]:
    """The experiment and the start of a recording, as text; the start is "" if the recording is unreadable."""
    recording = Recording(path)
    try:
        run = recording.run
        name = run.get("experiment") or recording.experiment.metadata.name
        return str(name), str(run.get("started_at") or path.name)
    except RecordingError:
        return "(unreadable)", ""
