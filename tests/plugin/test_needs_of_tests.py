"""A whole session with our own conftest: what cannot be got fails those that need it, and in CI nothing is skipped."""

from pathlib import Path

import pytest

import places

pytestmark = pytest.mark.long

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
    for source in (places.TESTS / "conftest.py", *places.SUPPORT.glob("*.py")):
        pytester.path.joinpath(source.name).write_text(source.read_text())
    pytester.makeini("[pytest]\nmarkers =\n    needs\n    may_skip\n")
    pytester.makepyfile(test_needs=SUITE)

    def run(*arguments, ci=False):
        monkeypatch.setenv("CI", "true" if ci else "")
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", "-rsf", *(arguments or ["-n0"]))

    return run


@pytest.mark.lie
def test_a_binary_that_cannot_be_had_is_told_before_the_first_test_and_fails_one(session):
    done = session()
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


WHO = """
import os

def test_who():
    with open({log!r}, "a") as log:
        print({name!r}, os.environ["PYTEST_XDIST_WORKER"], file=log)
"""


def test_units_share_the_cores_and_the_machine_is_one_process_s_at_the_end(session, pytester):
    log = str(pytester.path / "who")
    names = [
        *(f"tests/unit/test_{number}.py" for number in range(6)),
        "tests/contract/test_c.py",
        "tests/live/test_l.py",
    ]
    for name in names:
        path = pytester.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(WHO.format(log=log, name=name))
    session("-n2", "tests").assert_outcomes(passed=8)
    ran = [line.split() for line in Path(log).read_text().splitlines()]
    assert {name for name, _ in ran} == set(names)
    assert [name for name, _ in ran if "unit" not in name] == ["tests/contract/test_c.py", "tests/live/test_l.py"]
    assert len({worker for name, worker in ran if "unit" not in name}) == 1
    assert len({worker for _, worker in ran}) == 2


@pytest.mark.lie
@pytest.mark.parametrize(
    ("where", "said"),
    [("HASHIDRILL_WORK", "*directory *hashidrill-forgotten*"), ("TMPDIR", "*hashidrill-forgotten in TMPDIR*")],
)
def test_what_a_test_leaves_is_found_in_whichever_process_it_ran(session, pytester, where, said):
    for name in ("clean", "leaves"):
        path = pytester.path / f"tests/unit/test_{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"""
import os, pathlib
def test_it():
    if {name!r} == "leaves":
        pathlib.Path(os.environ[{where!r}], "hashidrill-forgotten").mkdir()
""")
    done = session("-n2", "tests")
    done.assert_outcomes(passed=2, errors=1)
    done.stdout.fnmatch_lines(["*the tests left on this machine:*", said])
