"""A whole search over a list of commits whose runs and whose likeness are planted."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hashidrill.core.errors import UsageError
from hashidrill.core.recording.reader import Recording
from hashidrill.rollouts.bisect.broken import Expectations
from hashidrill.rollouts.bisect.candidates import Alike
from hashidrill.rollouts.bisect.hunt import CANNOT_TELL, FOUND, Hunt
from hashidrill.rollouts.bisect.trials import Log
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
    assert f"runs of c and d came out differently, and {SAME}" in answer.text


def test_one_that_may_have_changed_nothing_is_named_with_a_warning(hunt):
    answer, said = hunt(lambda *_: Alike("ingest: the same at both"))
    assert (answer.code, answer.found) == (FOUND, ["d"])
    assert answer.text.splitlines()[-2] == "warning: ingest: the same at both"
    assert said[0] == "warning: ingest: the same at both"


def test_ends_that_are_surely_the_same_are_not_run(hunt):
    with pytest.raises(UsageError, match=f"the good end and the bad end: {SAME}: nothing to search"):
        hunt(lambda *_: Alike(SAME, sure=True))
