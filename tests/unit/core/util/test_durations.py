"""What things took here before, and how that is said."""

import pytest

from hashidrill.core.util.durations import so_far, timed, usual_s
from hashidrill.core.util.folders import state_folder


@pytest.fixture(autouse=True)
def state(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def took(what, *seconds):
    for each in seconds:
        clock = iter([0.0, each])
        with timed(what, now_s=lambda clock=clock: next(clock)):
            pass


def test_what_was_never_timed_is_unknown_and_what_was_is_the_median_of_the_last_five():
    assert usual_s("build consul") is None
    took("build consul", 900.0, 100.0, 120.0, 110.0, 3000.0, 130.0)
    assert usual_s("build consul") == 120.0
    assert usual_s("build nomad") is None


@pytest.mark.lie
def test_what_failed_or_was_interrupted_is_not_how_long_it_takes():
    """A build that Ctrl-C ended after a second would make all later ones overdue."""
    with pytest.raises(KeyboardInterrupt), timed("build consul"):
        raise KeyboardInterrupt
    assert usual_s("build consul") is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"build consul": 3}', '{"build consul": ["x"]}'])
def test_a_damaged_file_is_no_knowledge_and_is_written_anew(text):
    state_folder().mkdir(parents=True)
    (state_folder() / "durations.json").write_text(text)
    assert usual_s("build consul") is None
    took("build consul", 5.0)
    assert usual_s("build consul") == 5.0


def test_a_state_folder_that_cannot_be_written_fails_nothing():
    state_folder().write_text("a file")
    took("build consul", 5.0)
    assert usual_s("build consul") is None


@pytest.mark.parametrize(
    ("took_s", "expected_s", "said"),
    [
        (0, None, "0 s"),
        (12.4, None, "12 s"),
        (125, 371, "2 min 5 s of about 6 min"),
        (120, 360, "2 min of about 6 min"),
        (3, 8.2, "3 s of about 8 s"),
        (10, 43, "10 s of about 45 s"),
        (10, 94, "10 s of about 1 min 30 s"),
        (3780, None, "1 h 3 min"),
        (400, 360, "6 min 40 s, expected: about 6 min"),
        (0.3, 0.2, "0 s of about 1 s"),
        (2, 0.2, "2 s, expected: about 1 s"),
        (362, 355, "6 min 2 s, expected: about 6 min"),
        (358, 355, "5 min 58 s of about 6 min"),
    ],
)
def test_elapsed_and_expected_in_words(took_s, expected_s, said):
    assert so_far(took_s, expected_s) == said
