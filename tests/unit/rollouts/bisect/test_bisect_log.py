"""The log of a search: whatever was written before the search died, its end is the same and no run is made twice."""

import json
import math

import pytest

from hashidrill.core.errors import UsageError
from hashidrill.rollouts.bisect.ordered import Smallest, SmallestSet, members_of
from hashidrill.rollouts.bisect.trials import Log, Outcome, Trial, Trials
from noisy_runs import Planted

QUESTION = {"experiment": "raft/slow-leader-disk", "good": "abc", "bad": "def"}


class KilledError(BaseException):
    """What a run ends with when somebody kills the search in it."""


def play(log: Log, *, dies_in_run: int | None = None) -> tuple[Smallest, list[str]]:
    """A search that logs its runs, and the runs that it made. The noise of a run depends on its number alone."""
    made = []

    def run(candidate: str) -> Trial:
        made.append(candidate)
        if len(log.runs) == dies_in_run:
            raise KilledError
        noise = Planted(lambda name: {3, 9} <= set(members_of(name)), 0.1, 0.1, invalid=0.1, seed=len(log.runs))
        trial = noise(candidate)
        log.add_run(candidate, trial)
        return trial

    answer = SmallestSet(12, Trials(run, at_most=300, before=log.runs)).search()
    return answer, made


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "whole.jsonl"
    log = Log.create(path, QUESTION)
    answer, made = play(log)
    log.close()
    assert answer.changes == (3, 9)
    assert len(made) > 20
    return path.read_bytes(), answer, made


def test_a_search_that_dies_in_any_run_goes_on_where_it_was(whole, tmp_path):
    _, answer, made = whole
    for number in range(0, len(made), 4):
        path = tmp_path / f"{number}.jsonl"
        log = Log.create(path, QUESTION)
        with pytest.raises(KilledError):
            play(log, dies_in_run=number)
        log.close()

        resumed = Log.resume(path)
        resumed.check(QUESTION)
        assert play(resumed) == (answer, made[number:])
        resumed.close()


def test_a_log_that_is_torn_at_any_byte_leads_to_the_same_answer(whole, tmp_path):
    text, answer, made = whole
    first = text.index(b"\n") + 1
    path = tmp_path / "torn.jsonl"
    for size in (*range(first, first + 300, 37), *range(len(text) - 500, len(text), 53)):
        path.write_bytes(text[:size])

        log = Log.resume(path)
        kept = text[:size].count(b"\n") - 1
        assert play(log) == (answer, made[kept:])
        log.close()
        assert path.read_bytes() == text


def test_a_log_of_which_not_even_the_question_is_whole_says_to_start_again(whole, tmp_path):
    text, _, _ = whole
    path = tmp_path / "torn.jsonl"
    path.write_bytes(text[:20])

    with pytest.raises(UsageError, match="ended before it logged its question: start it again"):
        Log.resume(path)


def test_runs_count_for_their_own_question_only(tmp_path):
    path = tmp_path / "log.jsonl"
    Log.create(path, QUESTION).close()

    log = Log.resume(path)
    with pytest.raises(UsageError, match=r"answer another question: bad changed since then"):
        log.check(QUESTION | {"bad": "xyz"})
    log.check(dict(reversed(QUESTION.items())))
    log.close()


def test_a_question_that_was_edited_in_the_log_is_found_out(tmp_path):
    path = tmp_path / "log.jsonl"
    Log.create(path, QUESTION).close()
    path.write_text(path.read_text().replace('"def"', '"xyz"'))

    with pytest.raises(UsageError, match="line 1 is damaged"):
        Log.resume(path)


@pytest.mark.parametrize("line", ["{", "[]", '{"kind": "run"}', '{"kind": "else"}', '{"kind": "run", "candidate": "1"'])
def test_a_damaged_line_before_the_last_is_named(tmp_path, line):
    path = tmp_path / "log.jsonl"
    log = Log.create(path, QUESTION)
    log.close()
    path.write_text(path.read_text() + line + "\n" + '{"kind": "answer"}\n')

    with pytest.raises(UsageError, match="line 2 is damaged"):
        Log.resume(path)


def test_another_file_is_no_log(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_text('{"event": "start"}\n')
    with pytest.raises(UsageError, match="not a log of `hashidrill bisect`"):
        Log.resume(path)
    path.write_text('{"kind": "question", "version": 2, "question": {}}\n')
    with pytest.raises(UsageError, match="another version"):
        Log.resume(path)
    with pytest.raises(UsageError, match=r"none\.jsonl: this log cannot be read: No such file"):
        Log.resume(tmp_path / "none.jsonl")


def test_a_log_is_never_overwritten(tmp_path):
    path = tmp_path / "log.jsonl"
    Log.create(path, QUESTION).close()

    with pytest.raises(UsageError, match=r"continue it with --resume .*log\.jsonl"):
        Log.create(path, QUESTION)


def test_one_search_at_a_time_writes_a_log(tmp_path):
    path = tmp_path / "log.jsonl"
    log = Log.create(path, QUESTION)
    with pytest.raises(UsageError, match="another `hashidrill bisect` writes to this log"):
        Log.resume(path)
    log.close()


def test_a_place_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write a log here"):
        Log.create(tmp_path / "file" / "log.jsonl", QUESTION)


def test_each_line_is_one_json_object_that_says_what_it_is(tmp_path):
    path = tmp_path / "log.jsonl"
    log = Log.create(path, QUESTION)
    log.add_run("1-3", Trial(Outcome.BROKEN, "p99 1.2 s", "runs/a", 1.2))
    log.add_answer({"found": ["performance.raft_multiplier"]})
    log.close()

    lines = [json.loads(line) for line in path.read_text().splitlines()]

    assert [line["kind"] for line in lines] == ["question", "run", "answer"]
    assert lines[1] | {"candidate": "1-3", "outcome": "broken", "recording": "runs/a", "value": 1.2} == lines[1]
    assert Log.resume(path).answer == {"found": ["performance.raft_multiplier"]}


def test_what_never_came_is_in_the_log_as_such(tmp_path):
    log = Log.create(tmp_path / "log.jsonl", QUESTION)
    log.add_run("1", Trial(Outcome.MEASURED, "kv.recovery never", "runs/a", math.inf))
    log.close()
    again = Log.resume(tmp_path / "log.jsonl")
    again.close()
    assert again.runs[0][1].value == math.inf
