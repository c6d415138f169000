"""streaming_no_worse_than_long_poll and watchers_converge: knees, crossings, and watchers that stay behind."""

import pytest

from hashidrill.core import hypothesis
from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.hypothesis import Broken
from hashidrill.testing.recordings import RecordingBuilder
from streaming_runs import Stepped, stepped, watched


def check(built, **params):
    found = hypothesis.get("streaming_no_worse_than_long_poll")
    return found.check(built.build(), {"load": "kv-writes", "steps_of": "views", **params})


def test_streaming_that_bears_more_holds_and_reports_both_knees(tmp_path):
    built = stepped(tmp_path, lambda level: 0.01 * level, lambda level: 0.1 * level**2)
    held = check(built, find_knee=True, churn="churn")
    assert held.figures["streaming_knee_level"] == 4
    assert held.figures["long_poll_knee_level"] == 1
    assert held.figures["crossing_level"] == "none"
    assert "long polls kept the SLO up to 100%" in held.text
    assert "1.6s !" in held.text
    assert "10.0/s" in held.text


def test_of_equal_steps_in_a_row_the_last_one_counts(tmp_path):
    run = stepped(tmp_path, lambda _level: 0.01, lambda _level: 0.02)
    run.steps = ["100%", "100%", "400%", "400%", "0%", "100%", "100%", "400%", "400%"]
    # whatever it takes to get there is not what the level is like
    run.load("kv-writes", start=20, end=25, rate=100, latency=1.0)
    figures = check(run).figures
    assert figures["streaming_p50_at_400_percent_s"] == pytest.approx(0.01)
    assert figures["long_poll_knee_level"] == 4


def test_the_changes_of_several_loads_are_reported_as_one_figure(tmp_path):
    built = stepped(tmp_path, lambda _level: 0.01, lambda _level: 0.02)
    assert "30.0/s" in check(built, churn=["churn", "kv-writes"]).text


def test_streaming_that_wins_below_and_loses_above_is_broken_with_the_crossing(tmp_path):
    built = stepped(tmp_path, lambda level: 0.004 if level < 2 else 2.1, lambda level: 0.06 if level < 2 else 0.26)
    with pytest.raises(Broken) as broken:
        check(built, find_knee=True)
    assert broken.value.figures["streaming_knee_level"] == 1
    assert broken.value.figures["long_poll_knee_level"] == 4
    assert broken.value.figures["crossing_level"] == 2
    assert "streaming keeps the SLO at less load than long polls" in broken.value.text
    assert "they cross at 200%" in broken.value.text


def test_a_level_above_one_that_broke_is_no_knee(tmp_path):
    built = stepped(tmp_path, lambda level: 0.5 if level == 1 else 0.01, lambda level: 0.01)
    with pytest.raises(Broken) as broken:
        check(built)
    assert broken.value.figures["streaming_knee_level"] == 0.5


def test_failed_writes_keep_no_slo(tmp_path):
    built = stepped(tmp_path, lambda level: 0.01, lambda level: 0.01)
    failing = RecordingBuilder.load
    built._operations = []
    failing(built, "kv-writes", rate=20, end=65, outcome=lambda t: "unknown" if 15 <= t < 20 else "ok")
    with pytest.raises(Broken, match="streaming kept the SLO up to 50%"):
        check(built)


def test_a_level_at_which_views_could_not_be_opened_was_not_kept(tmp_path):
    """Writes stay quick when what would slow them down is not there."""
    built = stepped(tmp_path, lambda level: 0.01, lambda level: 0.01, opened=None)
    levels = dict(zip(range(10, 55, 5), (0.5, 1, 1, 1, 1, 0.5, 1, 2, 4), strict=True))
    built.series("views.open", lambda t: 100 * levels.get(int(t // 5 * 5), 1), end=65)
    with pytest.raises(Broken) as broken:
        check(built)
    assert broken.value.figures["streaming_knee_level"] == 1
    assert broken.value.figures["long_poll_knee_level"] == 4
    assert "10ms !   50%" in broken.value.text


def test_a_search_for_the_knee_that_broke_nothing_is_invalid(tmp_path):
    built = stepped(tmp_path, lambda level: 0.01, lambda level: 0.01)
    with pytest.raises(
        HypothesisInvalidError,
        match="no knee was found: both arms kept kv-writes under 300ms up to 400% of views; give views higher steps",
    ):
        check(built, find_knee=True)
    assert check(built).figures["streaming_broke"] == "no"


@pytest.mark.parametrize(("at_most", "holds"), [("100%", False), ("300%", True)])
def test_streaming_may_be_asked_to_be_the_quicker_one(tmp_path, at_most, holds):
    built = stepped(tmp_path, lambda level: 0.02, lambda level: 0.01)
    if holds:
        check(built, p50_at_most=at_most)
    else:
        with pytest.raises(Broken, match="at 50% of views the p50 was 20ms with streaming and 10ms with long polls"):
            check(built, p50_at_most=at_most)


def test_steps_in_which_agents_were_being_restarted_count_for_no_arm(tmp_path):
    """The last host was proven 4 s into the first step of the second arm: that step is nobody's."""
    built = stepped(tmp_path, lambda level: 0.01, lambda level: 9 if level == 0.5 else 0.01, host_lag=3.0)
    assert "streaming_p50_at_50_percent_s" not in check(built).figures


def test_a_run_with_one_arm_is_invalid(tmp_path):
    built = Stepped(tmp_path / "run").fault("noop", at=10, until=60).load("kv-writes", end=65)
    with pytest.raises(HypothesisInvalidError, match=r"no fault 'consul\.config'"):
        check(built)


def test_a_load_without_steps_is_invalid(tmp_path):
    built = stepped(tmp_path, lambda level: 0.01, lambda level: 0.01)
    with pytest.raises(HypothesisInvalidError, match="'kv-writes' has no profile with steps"):
        check(built, steps_of="kv-writes")


def test_arms_without_a_common_level_are_invalid(tmp_path):
    built = stepped(tmp_path, lambda level: 0.01, lambda level: 0.01, host_lag=11.0)
    with pytest.raises(HypothesisInvalidError, match="no level of views was measured in both arms"):
        check(built)


# watchers


def converge(built, **params):
    return hypothesis.get("watchers_converge").check(built.build(), {"load": "watch", "within": "5s", **params})


def test_watchers_that_see_the_final_state_in_time_have_converged(tmp_path):
    held = converge(watched(tmp_path, sees=lambda n: 30 + n / 10), writes="kv-writes")
    assert held.figures["watchers"] == 20
    assert held.figures["slowest_s"] == pytest.approx(1.9)


def test_a_watcher_that_had_it_before_is_not_late(tmp_path):
    assert converge(watched(tmp_path, sees=lambda n: 29.5)).figures["slowest_s"] == 0


@pytest.mark.parametrize("late", [None, 36.0])
def test_a_watcher_that_did_not_reset_its_index_is_named(tmp_path, late):
    with pytest.raises(Broken) as broken:
        converge(watched(tmp_path, sees=lambda n: late if n == 7 else 31.0))
    assert broken.value.text.startswith("1 of 20 watchers of watch did not see the final state within 5s")
    assert "k/3#7" in broken.value.text
    assert broken.value.figures["slowest_s"] == ("never" if late is None else 6.0)


def test_a_watcher_that_saw_it_and_then_something_else_has_not_converged(tmp_path):
    built = watched(tmp_path)
    built.write("watch", "k/0#0", "old", start=33, end=33)
    with pytest.raises(Broken, match="1 of 20"):
        converge(built)


def test_what_changed_right_before_the_end_is_not_judged(tmp_path):
    with pytest.raises(HypothesisInvalidError, match="no watcher of watch had 5s"):
        converge(watched(tmp_path, last_write=47.0), writes="kv-writes")
    built = watched(tmp_path / "one-key")
    built.write("kv-writes", "k/0", "new", start=47, end=47)
    assert converge(built, writes="kv-writes").figures["not_judged"] == 5


def test_without_final_reads_nothing_can_be_said(tmp_path):
    built = watched(tmp_path)
    built._finals.clear()
    with pytest.raises(HypothesisInvalidError, match="final reads of watch are missing"):
        converge(built)


@pytest.mark.lie
def test_watchers_of_what_never_changed_had_nothing_to_learn(tmp_path):
    """The lie: a deaf watcher of a key that is in the end what it was at the beginning."""
    built = watched(tmp_path, sees=lambda _: None)
    with pytest.raises(HypothesisInvalidError, match="20 watchers of watch saw no change in the whole run"):
        converge(built.only_final_reads("watch", {f"k/{n}": "old" for n in range(4)}))
    one = watched(tmp_path / "one").only_final_reads("watch", {"k/0": "old", "k/1": "new", "k/2": "new", "k/3": "new"})
    with pytest.raises(Broken, match="5 of 20 watchers"):
        converge(one)
    deaf = watched(tmp_path / "deaf", sees=lambda n: None if n == 0 else 31.0)
    with pytest.raises(Broken, match="1 of 20 watchers"):
        converge(deaf)
