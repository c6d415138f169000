"""One search from its question to its answer: runs, judges and logs candidates, and puts the answer in words.

The search does not print to a terminal itself. It resumes if its log already has runs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hashidrill.core.compare.judged import took_no_effect
from hashidrill.core.errors import HashidrillError, RevertError, UsageError
from hashidrill.core.experiment.resolved import ResolvedExperiment
from hashidrill.core.judging.comparison import hidden
from hashidrill.core.recording.reader import Recording
from hashidrill.rollouts.bisect.broken import REFERENCES, Limit, Rule, Worse
from hashidrill.rollouts.bisect.candidates import (
    Built,
    Candidates,
    ChangedKeys,
    Commits,
    Dependency,
    Listed,
    RefusedError,
)
from hashidrill.rollouts.bisect.ordered import TURN, CannotTell, Ordered, SmallestSet, WrongEnd, set_name
from hashidrill.rollouts.bisect.trials import AT_MOST, INVALID_IN_A_ROW, Log, Outcome, Trial, Trials

FOUND, WRONG_END, CANNOT_TELL = 0, 2, 3
SURE_BUILDS = 0.99
"""How sure a turn must be before another commit is built, because a build after a wrong turn is wasted."""


@dataclass(frozen=True)
class Answer:
    """`found`: the changed keys, or the first bad version or commit, followed by the first bad commit of each
    dependency in turn. It is empty without an answer. `text` says everything.
    """

    code: int
    text: str
    found: Sequence[str] = ()
    wrong: float | None = None
    takes: str = ""
    last_good: str = ""
    good_breaks: bool = False
    """Whether nothing was found because the good end is broken too."""

    def as_document(self) -> dict[str, Any]:
        """Plain data for the log and for --json."""
        return {
            "exit_code": self.code,
            "answer": self.text,
            "found": list(self.found),
            "wrong_at_most": self.wrong,
            "takes": self.takes,
        }


class _SameEndsError(Exception):
    """Both ends ran the same configuration or program. The text says how that is known."""


@dataclass
class Hunt:
    """One search. `run` runs an experiment and returns its recording."""

    candidates: ChangedKeys | Listed
    rule: Rule
    log: Log
    run: Callable[[ResolvedExperiment, str], Path]
    say: Callable[[str], None]
    at_most: int = AT_MOST
    turn: float = TURN
    _limit: Limit | None = None
    _ends_differ: bool = False

    def search(self) -> Answer:
        """Raises what a run raises; the log then has all earlier runs."""
        try:
            return self._search()
        except _SameEndsError as same:
            return _cannot(
                CannotTell(
                    f"between the good end and the bad end, {same}", "a change that affects what this experiment runs"
                )
            )

    def _search(self) -> Answer:
        if self.log.runs:
            self.say(f"{len(self.log.runs)} runs are in {self.log.path}: the search goes on from there")
        self._check_ends()
        if isinstance(self.rule, Worse):
            trouble = self._measure_good(self._ends()[0], self.rule)
            if trouble is not None:
                return _cannot(trouble)
        before = [(candidate, self._compared(trial)) for candidate, trial in self.log.telling]
        trials = Trials(self._play, at_most=self.at_most, before=before, shown=self.candidates.shown)
        if isinstance(self.candidates, ChangedKeys):
            return self._of_keys(self.candidates, trials)
        return self._of_list(self.candidates, trials)

    def _check_ends(self) -> None:
        """Raises UsageError for an end that cannot be run, because runs of other candidates would not help."""
        known = {candidate for candidate, _ in self.log.runs}
        for end, name in zip(("good", "bad"), self._ends(), strict=True):
            if name in known:
                continue
            try:
                self.candidates.resolved(name)
            except RefusedError as error:
                raise UsageError(f"the {end} end ({self.candidates.shown(name)}) cannot be run: {error}") from None
        alike = None if known & set(self._ends()) else self.candidates.alike(*self._ends())
        if alike is not None and alike.sure:
            raise UsageError(f"the good end and the bad end: {alike.why}: nothing to search")
        if alike is not None:
            self.say(f"warning: {alike.why}")

    def _ends(self) -> tuple[str, str]:
        if isinstance(self.candidates, ChangedKeys):
            return set_name([]), set_name(range(len(self.candidates.changes)))
        return self.candidates.names[0], self.candidates.names[-1]

    # runs

    def _play(self, candidate: str) -> Trial:
        shown = self.candidates.shown(candidate)
        try:
            resolved = self.candidates.resolved(candidate)
        except RefusedError as error:
            self.say(f"{shown}: cannot be run: {error}")
            return self._logged(candidate, Trial(Outcome.REFUSED, str(error)))
        number = len(self.log.runs) + 1
        recording = Recording(self.run(resolved, f"run {number}: {shown}"))
        if recording.outcome == "revert":
            raise RevertError(f"a fault could not be reverted: `hashidrill heal {recording.path}`")
        trial = self._logged(candidate, self._compared(self.rule.trial(recording, resolved.path)))
        self.say(f"run {number}: {shown}: {trial.outcome}: {trial.text}")
        if not self._ends_differ and candidate in self._ends():
            if why := self._ran_the_same(*self._ends()):
                raise _SameEndsError(why)
            self._ends_differ = all(map(self._recorded, self._ends()))
        return trial

    def _recorded(self, candidate: str) -> Recording | None:
        for name, trial in reversed(self.log.runs):
            if name == candidate and trial.outcome is not Outcome.INVALID and trial.recording:
                try:
                    return Recording(Path(trial.recording))
                except HashidrillError:
                    return None
        return None

    def _ran_the_same(self, one: str, other: str) -> str:
        """Why runs of these two cannot differ; "" if they can, or if it is unknown."""
        first, second = self._recorded(one), self._recorded(other)
        if first is None or second is None:
            return ""
        try:
            secrets = hidden(*(self.candidates.resolved(name).experiment for name in (one, other)))
        except RefusedError:
            return ""
        return took_no_effect(first, second, hidden=secrets)

    def _logged(self, candidate: str, trial: Trial) -> Trial:
        self.log.add_run(candidate, trial)
        return trial

    def _compared(self, trial: Trial) -> Trial:
        return trial if self._limit is None else self._limit.compared(trial)

    def _measure_good(self, good: str, rule: Worse) -> CannotTell | None:
        """Runs the good end until its figure, the reference for other candidates, is known."""
        while True:
            trials = [trial for candidate, trial in self.log.telling if candidate == good]
            measured = [trial for trial in trials if trial.value is not None and not trial.cut][:REFERENCES]
            if len(measured) == REFERENCES:
                self._limit = rule.limit(measured)
                figure = rule.figure
                self.say(f"{figure.name} of the good end: {figure.shown(self._limit.reference)}, the median of 3 runs")
                return None
            tail = trials[-INVALID_IN_A_ROW:]
            silent = len(tail) == INVALID_IN_A_ROW and all(trial.cut or trial.value is None for trial in tail)
            refused = any(trial.outcome is Outcome.REFUSED for trial in trials)
            if silent or refused:
                last = trials[-1]
                why = f"a guardrail ended the method; until then, {last.text}" if last.cut else last.text
                takes = "a good end that can be run" if refused else "a good end whose runs are valid and whole"
                return CannotTell(f"{self.candidates.shown(good)}: no figure: {why}", takes)
            self._play(good)

    # answers

    def _of_keys(self, keys: ChangedKeys, trials: Trials) -> Answer:
        answer = SmallestSet(len(keys.changes), trials).search()
        if isinstance(answer, CannotTell):
            return _cannot(answer)
        if isinstance(answer, WrongEnd):
            return self._wrong_end(trials, good=answer.good, wrong=answer.wrong)
        changes = [keys.changes[number] for number in answer.changes]
        if why := self._ran_the_same(set_name([]), set_name(answer.changes)):
            return _cannot(_noise(f"the good end and {keys.shown(set_name(answer.changes))}", why))
        lines = [f"  {change}" + (f"  ({change.place})" if change.place else "") for change in changes]
        these = "this change breaks" if len(changes) == 1 else f"these {len(changes)} changes together break"
        text = f"{these} it, of {len(keys.changes)}:\n" + "\n".join(lines)
        text += f"\nwith {_it(changes)} it {trials.tally(set_name(answer.changes))}"
        if not answer.apart and len(changes) > 1:
            text += "\nit is unknown whether all of them are needed: the agent refuses some of them without the others"
        return Answer(FOUND, f"{text}\n{_sure(answer.wrong)}", [change.key for change in changes], answer.wrong)

    def _of_list(self, listed: Listed, trials: Trials) -> Answer:
        answer = Ordered(listed.names, trials, turn=self.turn).search()
        if isinstance(answer, CannotTell):
            return _cannot(answer)
        names, shown = listed.names, listed.shown
        if answer.last_good < 0 or answer.first_bad >= len(names):
            return self._wrong_end(trials, good=answer.last_good < 0, wrong=answer.wrong)
        last, first = names[answer.last_good], names[answer.first_bad]
        between = list(names[answer.last_good + 1 : answer.first_bad])
        if why := self._ran_the_same(last, first):
            return _cannot(_noise(f"{shown(last)} and {shown(first)}", why))
        text = f"{shown(first)} is the first that breaks it"
        if between:
            text = f"one of {', '.join(shown(name) for name in [*between, first])} is the first that breaks it"
        for name in [*between, first, last]:
            text += f"\n  {shown(name)} {trials.tally(name)}"
        alike = listed.alike(last, first)
        if alike is not None and alike.sure and not between:
            return _cannot(_noise(f"{shown(last)} and {shown(first)}", alike.why))
        if alike is not None:
            text += f"\nwarning: {alike.why}"
        if isinstance(listed, Commits) and not between:
            text += _pins(listed, last, first)
        return Answer(FOUND, f"{text}\n{_sure(answer.wrong)}", [*between, first], answer.wrong, last_good=last)

    def _wrong_end(self, trials: Trials, *, good: bool, wrong: float) -> Answer:
        at, other = self._ends() if good else self._ends()[::-1]
        called, others = ("good", "bad") if good else ("bad", "good")
        theirs = trials.tally(other)
        if (theirs.held > theirs.broken) if good else (theirs.broken > theirs.held):
            what = f"the {others} end {theirs}: exchange them to find what fixed it"
        elif good:
            what = "name one that holds, or say with --expect or --figure what breaks"
        else:
            what = "name one that breaks, or an experiment that breaks with it"
        text = f"the {called} end is not {called}: {self.candidates.shown(at)} {trials.tally(at)}"
        unsearched = "nothing was searched: " if {*trials.candidates} <= {at, other} else ""
        return Answer(WRONG_END, f"{text}; {unsearched}{what}", wrong=wrong, good_breaks=good)


def _pins(commits: Commits, last: str, first: str) -> str:
    """The dependencies whose pin the first bad commit changes, and that the search does not know."""
    known = {new for _, _, new in commits.tree.moved(last, first)} if commits.tree is not None else ()
    return "".join(
        f"\nit pins a dependency to another commit ({line}): go on in its repository with --git {old}..{new}, or name"
        " it with --descend"
        for line, old, new in commits.repository.pins(last, first)
        if new not in known
    )


def descend(hunt: Hunt, answer: Answer, onward: Callable[[Built], Hunt]) -> Answer:
    """Searches the dependency whose new pin broke it, then its own dependencies, and so on; `onward` makes searches.

    If it breaks with the old commit of each dependency too, the commit itself is the cause.
    """
    commits = hunt.candidates
    if not isinstance(commits, Built) or commits.tree is None or answer.code != FOUND or len(answer.found) != 1:
        return answer
    for dependency, old, new in commits.tree.moved(answer.last_good, answer.found[0]):
        hunt.say(f"{commits.shown(answer.found[0])} pins {dependency.folder} to another commit: searching its commits")
        try:
            deeper = onward(commits.below(dependency, old, new, first_bad=answer.found[0]))
        except UsageError as error:
            return _joined(answer, dependency, _cannot(CannotTell(str(error), "a pin that moved forward")))
        try:
            below = deeper.search()
            deeper.log.add_answer(below.as_document())
            if below.good_breaks:
                text = f"{answer.text}\nit breaks with the old commit of {dependency.folder} too"
                answer = replace(answer, text=text)
                continue
            return _joined(answer, dependency, descend(deeper, below, onward))
        finally:
            deeper.log.close()
    return answer


def _joined(answer: Answer, dependency: Dependency, below: Answer) -> Answer:
    code = FOUND if below.code == FOUND else CANNOT_TELL
    text = f"{answer.text}\nin {dependency.folder}: {below.text}"
    wrong = None if below.wrong is None else max(below.wrong, answer.wrong or 0.0)
    return Answer(code, text, [*answer.found, *below.found], wrong, below.takes)


def _cannot(answer: CannotTell) -> Answer:
    text = f"cannot tell: {answer.why}\nwhat it takes: {answer.takes}"
    return Answer(CANNOT_TELL, text, takes=answer.takes)


def _noise(which: str, why: str) -> CannotTell:
    """The answer if runs of two equal candidates differed, so that the change is not the cause."""
    return CannotTell(
        f"runs of {which} had different results, but {why}", "a change that has an effect in this experiment"
    )


def _it(changes: Sequence[object]) -> str:
    return "it alone" if len(changes) == 1 else "them alone"


def _sure(wrong: float) -> str:
    return f"the chance that this answer is wrong is under {max(0.1, 100 * wrong):.1f}%, if runs stay this noisy"


def summary(candidates: Candidates, trials: Sequence[tuple[str, Trial]]) -> list[Mapping[str, Any]]:
    """The results of each candidate, in the order of its first run, for --json."""
    by_name: dict[str, list[Trial]] = {}
    for name, trial in trials:
        by_name.setdefault(name, []).append(trial)
    return [
        {
            "candidate": name,
            "shown": candidates.shown(name),
            "runs": [
                {"outcome": trial.outcome, "text": trial.text, "recording": trial.recording, "value": trial.plain_value}
                for trial in of
            ],
        }
        for name, of in by_name.items()
    ]
