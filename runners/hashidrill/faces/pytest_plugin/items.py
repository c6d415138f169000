"""pytest's view of an experiment: a file with one item per expectation, and one for its guardrails."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from hashidrill.core.errors import HashidrillError
from hashidrill.core.experiment.model import Expectation, Experiment
from hashidrill.core.judging.judge import GUARDRAIL
from hashidrill.core.judging.verdict import Finding, Judgement
from hashidrill.faces.pytest_plugin.session import runs
from hashidrill.faces.pytest_plugin.shared_runs import NotJudgedError, Run

_FAILED = (Finding.BROKEN, Finding.FIXED)
_PYTEST_MARKS = {"filterwarnings", "parametrize", "skip", "skipif", "usefixtures", "xfail"}


class ExperimentFile(pytest.File):
    """One experiment: it runs when the first of its items is set up, and all items share the run."""

    def collect(self) -> Iterator[pytest.Item]:
        """Raises CollectError with the loader's message for bad YAML."""
        try:
            experiment = runs(self.config).resolved(self.path).experiment
        except HashidrillError as error:
            raise self.CollectError(str(error)) from None
        self._mark(experiment)
        if not experiment.variants:
            yield from self._items(experiment, "")
            return
        for name, variant in runs(self.config).variants(self.path).items():
            yield from self._items(variant.experiment, name)
        for index, name in enumerate(_names(experiment.compare)):
            yield ComparisonItem.from_parent(self, name=name, index=index)

    def _items(self, experiment: Experiment, variant: str) -> Iterator[pytest.Item]:
        """The items of an experiment or of a variant: `old.writes_recover[load=kv-writes]`, which `-k old.` selects."""
        of = f"{variant}." if variant else ""
        for index, name in enumerate(_names(experiment.expect)):
            yield ExpectationItem.from_parent(self, name=f"{of}{name}", index=index, variant=variant)
        if experiment.guardrails:
            yield GuardrailsItem.from_parent(self, name=f"{of}guardrails", variant=variant)

    def _mark(self, experiment: Experiment) -> None:
        """Makes tags markers (`-m gate`) and keywords (`-k gate`); makes the experiment's name a keyword."""
        self.extra_keyword_matches.update([experiment.metadata.name, *experiment.metadata.tags])
        for tag in experiment.metadata.tags:
            if tag not in _PYTEST_MARKS:  # a tag named `skip` must not skip anything
                self.config.addinivalue_line("markers", f"{tag}: experiments with the tag {tag}")
                self.add_marker(getattr(pytest.mark, tag))


class _Item(pytest.Item):
    def setup(self) -> None:
        """Fails (pytest shows ERROR) if there is no valid run."""
        why = ""
        try:
            self.check()
        except NotJudgedError as error:
            why = str(error)
        if why:  # inside the handler, pytest would print the reason twice, as an error during another error
            pytest.fail(why, pytrace=False)

    def check(self) -> None:
        """Records the findings. Raises NotJudgedError if the run or comparison does not count."""
        raise NotImplementedError

    def note_judgement(self, judgement: Judgement) -> None:
        self.user_properties += [("finding", str(judgement.finding)), ("evidence", judgement.text)]
        self.user_properties += [(f"figure.{name}", _property(value)) for name, value in judgement.figures.items()]

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        return self.path, None, f"{self.path.stem}: {self.name}"


class _ExperimentItem(_Item):
    """An item of one run, or of the rounds of one variant."""

    def __init__(self, *, variant: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._variant = variant

    def check(self) -> None:
        self.judgeable(self.run())

    def judgeable(self, run: Run) -> None:
        """Records the findings. Raises NotJudgedError if the run does not count."""
        raise NotImplementedError

    def run(self) -> Run:
        """The run for this item; the worst one if the variant has several rounds."""
        if not self._variant:
            return runs(self.config).get(self.path)
        return max(runs(self.config).of_variant(self.path, self._variant), key=self.worth)

    def worth(self, run: Run) -> int:
        """How bad a run is for this item: a higher number is worse."""
        raise NotImplementedError

    def note(self, run: Run, judgement: Judgement | None) -> None:
        """Records the properties of this test that JUnit and other reports include."""
        self.user_properties.append(("experiment", run.experiment))
        self.user_properties.append(("recording", str(run.recording.path)))
        if run.turned:
            self.user_properties.append(("turned", run.turned))
        if judgement is not None:
            self.note_judgement(judgement)


class ExpectationItem(_ExperimentItem):
    def __init__(self, *, index: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._index = index

    def judgeable(self, run: Run) -> None:
        """In an INVALID run, reports only expectations that are surely broken: FAIL outranks INVALID."""
        judgement = self._judgement(run)
        self.note(run, judgement)
        if judgement is None or (run.judged.invalid and judgement.finding is not Finding.BROKEN):
            raise NotJudgedError(run.invalid_text())
        if judgement.finding is Finding.INVALID:
            raise NotJudgedError(f"{judgement.title} cannot be judged: {judgement.text}\n{run.see_again()}")

    def worth(self, run: Run) -> int:
        judgement = self._judgement(run)
        if judgement is not None and judgement.finding in _FAILED:
            return 2
        return int(judgement is None or judgement.finding is Finding.INVALID or bool(run.judged.invalid))

    def runtest(self) -> None:
        run = self.run()
        judgement = self._judgement(run)
        if judgement is None or judgement.finding is Finding.HELD:
            return
        if judgement.finding is Finding.KNOWN:
            pytest.xfail(f"{judgement.known_issue}: {judgement.text}")
        pytest.fail(_broken_text(run, judgement), pytrace=False)

    def _judgement(self, run: Run) -> Judgement | None:
        """None if the recording's experiment could not be read; the run's reasons say so."""
        judgements = run.judged.judgements
        return judgements[self._index] if self._index < len(judgements) else None


class GuardrailsItem(_ExperimentItem):
    """Fails if a guardrail tripped: the datacenter exceeded the limit of the blast radius."""

    def judgeable(self, run: Run) -> None:
        tripped = self._tripped(run)
        self.note(run, tripped[0] if tripped else None)
        if run.judged.invalid and not tripped:
            raise NotJudgedError(run.invalid_text())

    def worth(self, run: Run) -> int:
        return 2 if self._tripped(run) else int(bool(run.judged.invalid))

    def runtest(self) -> None:
        run = self.run()
        if tripped := self._tripped(run):
            pytest.fail("\n\n".join(_broken_text(run, judgement) for judgement in tripped), pytrace=False)

    @staticmethod
    def _tripped(run: Run) -> list[Judgement]:
        return [judgement for judgement in run.judged.judgements if judgement.hypothesis == GUARDRAIL]


class ComparisonItem(_Item):
    def __init__(self, *, index: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._index = index

    def check(self) -> None:
        compared = runs(self.config).compared(self.path)
        verdict = compared.verdict
        judgement = verdict.comparisons[self._index]
        self.user_properties += [("experiment", compared.experiment), ("comparison", str(compared.folder))]
        self.note_judgement(judgement)
        if verdict.invalid and judgement.finding not in _FAILED:
            raise NotJudgedError(compared.invalid_text())
        if judgement.finding is Finding.INVALID:
            raise NotJudgedError(f"{judgement.title} cannot be judged: {judgement.text}\n{compared.see_again()}")

    def runtest(self) -> None:
        compared = runs(self.config).compared(self.path)
        judgement = compared.verdict.comparisons[self._index]
        if judgement.finding is Finding.KNOWN:
            pytest.xfail(f"{judgement.known_issue}: {judgement.text}")
        if judgement.finding in _FAILED:
            pytest.fail(_broken(compared.experiment, judgement, compared.see_again()), pytrace=False)


def _names(expectations: list[Expectation]) -> Iterator[str]:
    """One name for each; equal names get numbers."""
    seen: dict[str, int] = {}
    for expectation in expectations:
        name = _name(expectation)
        seen[name] = seen.get(name, 0) + 1
        yield name if seen[name] == 1 else f"{name}#{seen[name]}"


def _name(expectation: Expectation) -> str:
    params = ",".join(f"{key}={value}" for key, value in expectation.params.items())
    return f"{expectation.hypothesis}[{params}]" if params else expectation.hypothesis


def _property(value: object) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)


def _broken_text(run: Run, judgement: Judgement) -> str:
    return _broken(run.experiment, judgement, run.see_again())


def _broken(experiment: str, judgement: Judgement, see_again: str) -> str:
    """The title, the reason, the figures, and where to look."""
    figures = [f"  {name} = {_property(value)}" for name, value in judgement.figures.items()]
    lines = [f"{experiment}: {judgement.title}", judgement.text]
    if figures:
        lines += ["figures:", *figures]
    return "\n".join([*lines, see_again])
