"""A whole search over a list of commits whose runs and whose likeness are planted."""

from types import SimpleNamespace

import pytest

from hashidrill.core.errors import UsageError
from hashidrill.core.recording.reader import Recording
from hashidrill.rollouts.bisect.broken import Expectations
from hashidrill.rollouts.bisect.candidates import Alike
from hashidrill.rollouts.bisect.hunt import CANNOT_TELL, FOUND, WRONG_END, Hunt
from hashidrill.rollouts.bisect.trials import Log, Outcome, Trial
from hashidrill.testing.recordings import RecordingBuilder

SAME = "the configuration is the same at both commits"


@pytest.fixture
def hunt(tmp_path):
    """Searches commits a to e, of which d is the first that is slow; `alike` says which two are the same, and how."""
    paths = {}
    for name, latency in (("slow", 2.0), ("quick", 0.01)):
        built = RecordingBuilder(tmp_path / name, name=name).fault("noop", at=10, until=30)
        built.expect("latency_stays", load="kv-writes", p50_below="300ms")
        paths[name] = built.load("kv-writes", rate=5, latency=latency).build().path

    def hunt_(planted):
        class Commits:
            names = "abcde"
            question = {}  # noqa: RUF012 - of this one search
            shown = staticmethod(str)
            alike = staticmethod(planted)

            def resolved(self, name):
                return SimpleNamespace(
                    path=tmp_path / "x.yaml", name=name, experiment=Recording(paths["quick"]).experiment
                )

        log, said = Log.create(tmp_path / "log.jsonl", {}), []
        run = lambda resolved, _title: paths["slow" if resolved.name >= "d" else "quick"]  # noqa: E731 - used once
        found = Hunt(Commits(), Expectations(), log, run, said.append).search()
        log.close()
        return found, said

    return hunt_


@pytest.mark.lie
def test_a_commit_that_changes_nothing_that_is_run_is_no_culprit(hunt):
    """Whatever made its runs slow is not in the repository."""
    answer, _ = hunt(lambda one, other: Alike(SAME, sure=True) if one + other == "cd" else None)
    assert (answer.code, answer.found) == (CANNOT_TELL, ())
    assert f"runs of c and d had different results, but {SAME}" in answer.text


def test_one_that_may_have_changed_nothing_is_named_with_a_warning(hunt):
    answer, said = hunt(lambda *_: Alike("ingest: the same at both"))
    assert (answer.code, answer.found) == (FOUND, ["d"])
    assert answer.text.splitlines()[-2] == "warning: ingest: the same at both"
    assert said[0] == "warning: ingest: the same at both"


def test_ends_that_are_surely_the_same_are_not_run(hunt):
    with pytest.raises(UsageError, match=f"the good end and the bad end: {SAME}: nothing to search"):
        hunt(lambda *_: Alike(SAME, sure=True))


BROKEN, HELD, INVALID = Outcome.BROKEN, Outcome.HELD, Outcome.INVALID
FROM_D = dict(zip("abcde", [HELD, HELD, HELD, BROKEN, BROKEN], strict=True))
VALID = "valid runs of it: its recordings say what made them INVALID"


@pytest.fixture
def planted_hunt(tmp_path):
    """Searches commits a to e; `of(name, number)` is the outcome of that run of all."""
    path = RecordingBuilder(tmp_path / "run").fault("noop", at=10, until=30).load("kv-writes", rate=5).build().path

    def hunt_(of, at_most=60):
        ran = []

        class Commits:
            names = "abcde"
            shown = staticmethod(str)
            alike = staticmethod(lambda *_: None)
            resolved = staticmethod(
                lambda name: SimpleNamespace(path=path, name=name, experiment=Recording(path).experiment)
            )

        class Rule:
            trial = staticmethod(lambda *_: Trial(of(ran[-1], len(ran)), "as planted", str(path)))

        def run(resolved, _title):
            ran.append(resolved.name)
            return path

        log = Log.create(tmp_path / "log.jsonl", {})
        hunt = Hunt(Commits(), Rule(), log, run, lambda _: None, at_most=at_most)
        hunt._ends_differ = True
        answer = hunt.search()
        log.close()
        return answer

    return hunt_


@pytest.mark.lie
@pytest.mark.parametrize(
    ("of", "at_most", "code", "says"),
    [
        (lambda name, _: FROM_D[name], 60, FOUND, ["d is the first that breaks it"]),
        (
            lambda *_: BROKEN,
            60,
            WRONG_END,
            ["the good end is not good: a broke", "nothing was searched: name one that holds"],
        ),
        (
            lambda *_: HELD,
            60,
            WRONG_END,
            ["the bad end is not bad: e broke in 0", "nothing was searched: name one that breaks"],
        ),
        (
            lambda name, _: BROKEN if name < "c" else HELD,
            60,
            WRONG_END,
            ["is not good", "exchange them to find what fixed it"],
        ),
        (lambda *_: INVALID, 60, CANNOT_TELL, ["a broke in 0 of 0 runs, and 5 more were INVALID (as planted)", VALID]),
        (lambda name, _: INVALID if name == "c" else FROM_D[name], 60, FOUND, ["one of c, d is the first"]),
        (
            lambda name, at: INVALID if at > 4 else FROM_D[name],
            60,
            CANNOT_TELL,
            ["more were INVALID (as planted)", VALID],
        ),
        (
            lambda name, at: INVALID if at % 2 else FROM_D[name],
            7,
            CANNOT_TELL,
            ["after 7 runs (4 of them INVALID)", "resume with"],
        ),
        (
            lambda _, at: [HELD, BROKEN][at % 2],
            60,
            CANNOT_TELL,
            ["too alike: a broke in 30 of 59", "tells them better apart"],
        ),
        (
            lambda name, at: BROKEN if at > 6 else FROM_D[name],
            60,
            CANNOT_TELL,
            ["no longer answers good", "whose load does not change"],
        ),
    ],
)
def test_each_reason_is_that_of_what_was_planted(planted_hunt, of, at_most, code, says):
    answer = planted_hunt(of, at_most)
    assert (answer.code, answer.text.count("\nwhat it takes: ")) == (code, code == CANNOT_TELL)
    assert [said for said in says if said not in answer.text] == []
