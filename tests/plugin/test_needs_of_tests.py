"""A whole session with our own conftest: what cannot be got fails those that need it, and in CI nothing is skipped."""

from __future__ import annotations

import pytest

import places

pytest_plugins = ["pytester"]

SUITE = """
import pytest

def test_nothing_is_needed():
    pass

@pytest.mark.needs("bbolt")
def test_bbolt_is_needed():
    raise AssertionError("it must not begin")

def test_it_is_not_there():
    pytest.skip("no luck")

@pytest.mark.may_skip("known")
def test_it_may_be_left_out():
    pytest.skip("no luck")

def test_nobody_said_so(binary):
    binary("vault")
"""


@pytest.fixture
def session(pytester, monkeypatch):
    """A session that has our conftest, on a machine that cannot build anything."""
    monkeypatch.setenv("HASHIDRILL_BBOLT", "/nowhere/bbolt")
    for source in (places.TESTS / "conftest.py", places.SUPPORT / "provision.py", places.SUPPORT / "leaks.py"):
        pytester.path.joinpath(source.name).write_text(source.read_text())
    pytester.makeini("[pytest]\nmarkers =\n    needs\n    may_skip\n")
    pytester.makepyfile(test_needs=SUITE)

    def run(*, ci):
        monkeypatch.setenv("CI", "true" if ci else "")
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", "-rsf")

    return run


@pytest.mark.lie
def test_a_binary_that_cannot_be_had_is_told_before_the_first_test_and_fails_one(session):
    done = session(ci=False)
    done.assert_outcomes(passed=1, failed=1, errors=1, skipped=2)
    said = done.stdout.str()
    assert said.index("cannot get bbolt 1.4.3") < said.index("test_needs.py")
    assert "it must not begin" not in said
    assert "nothing said that vault 1.21.0 is needed" in said


@pytest.mark.lie
def test_in_ci_a_skip_is_a_failure_but_for_those_that_say_why(session):
    done = session(ci=True)
    done.assert_outcomes(passed=1, failed=2, errors=1, skipped=1)
    done.stdout.fnmatch_lines(["*skipped in CI, where nothing may be skipped: no luck*"])
