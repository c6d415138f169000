"""pytest's view of an experiment: a file with one item per expectation, and one for its guardrails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hashidrill.errors import HashidrillError
from hashidrill.judging.judge import GUARDRAIL
from hashidrill.pytest_plugin.session import runs
from hashidrill.pytest_plugin.shared_runs import NotJudgedError, Run
from hashidrill.verdict import Finding, Judgement

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from hashidrill.experiment.model import Expectation, Experiment

_PYTEST_MARKS = {"filterwarnings", "parametrize", "skip", "skipif", "usefixtures", "xfail"}


class ExperimentFile(pytest.File):
    """One experiment: it is run when the first of its items is set up, and shared by all of them."""

    def collect(self) -> Iterator[pytest.Item]:
        """Raises CollectError with the loader's own message for bad YAML."""
        try:
            experiment = runs(self.config).resolved(self.path).experiment
        except HashidrillError as error:
            raise self.CollectError(str(error)) from None
        self._mark(experiment)
        names: dict[str, int] = {}
        for index, expectation in enumerate(experiment.expect):
            name = _name(expectation)
            names[name] = names.get(name, 0) + 1
            unique = name if names[name] == 1 else f"{name}#{names[name]}"
            yield ExpectationItem.from_parent(self, name=unique, index=index)
        if experiment.guardrails:
            yield GuardrailsItem.from_parent(self, name="guardrails")

    def _mark(self, experiment: Experiment) -> None:
        """Tags are markers (`-m gate`) and keywords (`-k gate`), and so is the experiment's name."""
        self.extra_keyword_matches.update([experiment.metadata.name, *experiment.metadata.tags])
        for tag in experiment.metadata.tags:
            if tag not in _PYTEST_MARKS:  # a tag `skip` describes; it does not command
                self.config.addinivalue_line("markers", f"{tag}: experiments with the tag {tag}")
                self.add_marker(getattr(pytest.mark, tag))


class _ExperimentItem(pytest.Item):
    """What both sorts of items have in common."""

    def setup(self) -> None:
        """Fails, which is pytest's ERROR here, where there is nothing that counts."""
        why = ""
        try:
            self.judgeable(self.run())
        except NotJudgedError as error:
            why = str(error)
        if why:  # outside of the handler: pytest would print the reason twice, as one error during another
            pytest.fail(why, pytrace=False)

    def judgeable(self, run: Run) -> None:
        """Note what was found. Raises NotJudgedError when it does not count."""
        raise NotImplementedError

    def run(self) -> Run:
        return runs(self.config).get(self.path)

    def note(self, run: Run, judgement: Judgement | None) -> None:
        """What JUnit and other reports carry as properties of this test."""
        self.user_properties.append(("experiment", run.experiment))
        self.user_properties.append(("recording", str(run.recording.path)))
        if judgement is not None:
            self.user_properties.append(("finding", str(judgement.finding)))
            self.user_properties.append(("evidence", judgement.text))
            self.user_properties += [(f"figure.{name}", _property(value)) for name, value in judgement.figures.items()]

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        return self.path, None, f"{self.path.stem}: {self.name}"


class ExpectationItem(_ExperimentItem):
    """One expectation of one experiment."""

    def __init__(self, *, index: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._index = index

    def judgeable(self, run: Run) -> None:
        """In an INVALID run, report only what is broken anyway: FAIL outranks INVALID."""
        judgement = self._judgement(run)
        self.note(run, judgement)
        if judgement is None or (run.judged.invalid and judgement.finding is not Finding.BROKEN):
            raise NotJudgedError(run.invalid_text())
        if judgement.finding is Finding.INVALID:
            raise NotJudgedError(f"{judgement.title} cannot be judged: {judgement.text}\n{run.see_again()}")

    def runtest(self) -> None:
        run = self.run()
        judgement = self._judgement(run)
        if judgement is None or judgement.finding is Finding.HELD:
            return
        if judgement.finding is Finding.KNOWN:
            pytest.xfail(f"{judgement.known_issue}: {judgement.text}")
        pytest.fail(_broken_text(run, judgement), pytrace=False)

    def _judgement(self, run: Run) -> Judgement | None:
        """None where the experiment of the recording could not even be read: the run's reasons say so."""
        judgements = run.judged.judgements
        return judgements[self._index] if self._index < len(judgements) else None


class GuardrailsItem(_ExperimentItem):
    """Fails when a guardrail tripped: the datacenter went past the limit that was set for the blast radius."""

    def judgeable(self, run: Run) -> None:
        tripped = self._tripped(run)
        self.note(run, tripped[0] if tripped else None)
        if run.judged.invalid and not tripped:
            raise NotJudgedError(run.invalid_text())

    def runtest(self) -> None:
        run = self.run()
        if tripped := self._tripped(run):
            pytest.fail("\n\n".join(_broken_text(run, judgement) for judgement in tripped), pytrace=False)

    @staticmethod
    def _tripped(run: Run) -> list[Judgement]:
        return [judgement for judgement in run.judged.judgements if judgement.hypothesis == GUARDRAIL]


def _name(expectation: Expectation) -> str:
    params = ",".join(f"{key}={value}" for key, value in expectation.params.items())
    return f"{expectation.hypothesis}[{params}]" if params else expectation.hypothesis


def _property(value: object) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)


def _broken_text(run: Run, judgement: Judgement) -> str:
    """Title, why, figures, and where to look."""
    figures = [f"  {name} = {_property(value)}" for name, value in judgement.figures.items()]
    lines = [f"{run.experiment}: {judgement.title}", judgement.text]
    if figures:
        lines += ["figures:", *figures]
    return "\n".join([*lines, run.see_again()])
