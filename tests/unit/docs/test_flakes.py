"""The flake report counts what changed its verdict, and nothing else."""

import pytest

import flakes

OK, BAD, GONE = ("passed", 1.0), ("failed", 3.0), ("skipped", 0.0)


@pytest.mark.lie
def test_a_test_that_ends_otherwise_is_counted_each_time():
    tests = flakes.summary([{"a": OK, "b": OK}, {"a": BAD, "b": OK}, {"a": OK, "b": OK}])
    assert tests["a"] == {
        "runs": 3,
        "passed": 2,
        "failed": 1,
        "skipped": 0,
        "missing": 0,
        "flips": 2,
        "seconds": 1.0,
    }
    assert tests["b"]["flips"] == 0
    assert flakes.exit_code(tests) == 1
    assert "a" in flakes.table(tests)
    assert "\n    0" not in flakes.table(tests)


def test_a_test_that_always_fails_is_broken_and_not_flaky():
    tests = flakes.summary([{"a": BAD}, {"a": BAD}])
    assert (tests["a"]["flips"], flakes.exit_code(tests)) == (0, 2)


def test_a_test_that_is_not_collected_every_time_is_flaky():
    assert flakes.exit_code(flakes.summary([{"a": OK, "b": OK}, {"a": OK}])) == 1


def test_all_well_is_zero_and_nothing_at_all_is_not():
    assert flakes.exit_code(flakes.summary([{"a": OK}, {"a": OK}])) == 0
    assert flakes.table(flakes.summary([{"a": OK}, {"a": OK}])) == "no test changed its verdict"
    assert flakes.exit_code(flakes.summary([])) == 2


def test_the_worst_of_what_junit_says_of_a_test_counts(tmp_path):
    report = tmp_path / "r.xml"
    report.write_text(
        "<testsuites><testsuite>"
        '<testcase classname="t" name="ok" time="1.5"/>'
        '<testcase classname="t" name="bad" time="1"><failure/></testcase>'
        '<testcase classname="t" name="bad" time="1"/>'
        '<testcase classname="t" name="left" time="0"><skipped/></testcase>'
        '<testcase classname="t" name="torn" time="0"><error/></testcase>'
        "</testsuite></testsuites>"
    )
    assert {name: outcome for name, (outcome, _) in flakes.outcomes_of(report).items()} == {
        "t::ok": "passed",
        "t::bad": "failed",
        "t::left": "skipped",
        "t::torn": "failed",
    }
