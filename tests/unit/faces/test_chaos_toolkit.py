"""What Chaos Toolkit calls: a PASS is a PASS, and nothing else looks like one."""

import json

import pytest

from hashidrill.faces import chaos_toolkit
from hashidrill.faces.chaos_toolkit import NoPassError, after_experiment_control, run, verdict
from tasks import raising


@pytest.fixture(autouse=True)
def results():
    chaos_toolkit.configure_control()
    yield
    chaos_toolkit.configure_control()


def one(said="PASS", **more):
    expectations = [{"title": "writes recover", "finding": "broken", "text": "after 40s"}] if said == "FAIL" else []
    return {"experiment": "slow-leader-disk", "verdict": said, "expectations": expectations, "faults": [], **more}


@pytest.fixture
def ends(monkeypatch):
    """What hashidrill prints, and its exit code; returns the command line of the last call."""
    calls = []

    def ends(code, printed):
        def called(command):
            calls.append(command)
            return code, printed if isinstance(printed, str) else json.dumps(printed)

        monkeypatch.setattr(chaos_toolkit, "_called", called)
        return calls

    return ends


def journal():
    state = {"status": "completed", "deviated": False}
    after_experiment_control({}, state)
    return state


def test_a_pass_is_a_pass_and_its_proofs_are_in_the_journal(ends):
    calls = ends(0, [one(faults=[{"fault": "disk.latency", "proven": True}])])
    assert run("mine.yaml", attach="staging.yaml", program=["hashidrill"])["verdict"] == "PASS"
    assert calls == [["hashidrill", "run", "--json", "--plain", "--attach", "staging.yaml", "--", "mine.yaml"]]
    assert verdict("mine.yaml") == verdict("slow-leader-disk") == "PASS"
    state = journal()
    assert (state["status"], state["deviated"]) == ("completed", False)
    assert state["hashidrill"][0]["faults"] == [{"fault": "disk.latency", "proven": True}]


def test_a_fail_deviates(ends):
    ends(1, [one("FAIL")])
    with pytest.raises(NoPassError, match=r"mine: FAIL\nwrites recover: after 40s"):
        run("mine")
    assert verdict("mine") == "FAIL", "out of its tolerance, which is PASS"
    assert journal()["deviated"] is True


@pytest.mark.lie
@pytest.mark.parametrize(
    ("code", "printed", "why"),
    [
        (3, [one("INVALID", invalid=["no fault was proven"])], r"mine: INVALID\nno fault was proven"),
        (4, [one()], r"no verdict \(exit code 4\)\nits verdict is PASS, but its exit code is 4"),
        (0, [one("FAIL")], r"its verdict is FAIL, but its exit code is 0"),
        (0, [one("INVALID")], r"its verdict is INVALID, but its exit code is 0"),
        (0, [one("pass")], r"its verdict is pass, but its exit code is 0"),
        (0, [one(None)], r"its verdict is None"),
        (0, [], r"no verdict \(exit code 0\)"),
        (0, [one(), one()], r"no verdict"),
        (0, one(), r"no verdict"),
        (0, ["PASS"], r"no verdict"),
        (0, "PASS", r"no verdict"),
        (0, "", r"no verdict \(exit code 0\)\nit printed no result"),
        (2, "", r"no verdict \(exit code 2\)\nit printed no result; the reason is on standard error"),
        (-9, "[", r"no verdict \(exit code -9\)"),
        (130, [one()], r"but its exit code is 130"),
    ],
)
def test_what_is_no_pass_never_looks_like_one(ends, code, printed, why):
    """Chaos Toolkit goes on after a failed action: hypothesis and journal have to say it too."""
    ends(code, printed)
    with pytest.raises(NoPassError, match=why):
        run("mine")
    with pytest.raises(NoPassError, match=why):
        verdict("mine")
    assert journal()["status"] == "failed"


@pytest.mark.lie
def test_without_a_run_there_is_no_pass(ends):
    with pytest.raises(NoPassError, match="no action ran this experiment, so it has no verdict"):
        verdict("mine")
    assert journal()["status"] == "failed"
    ends(0, [one()])
    run("mine")
    with pytest.raises(NoPassError, match="other: no action ran this experiment"):
        verdict("other")
    chaos_toolkit.configure_control()
    with pytest.raises(NoPassError, match="mine: no action ran this experiment"):
        verdict("mine")


@pytest.mark.lie
def test_a_later_pass_does_not_hide_an_earlier_fail(ends):
    for code, said in ((1, "FAIL"), (3, "INVALID")):
        ends(code, [one(said)])
        with pytest.raises(NoPassError):
            run("mine")
    ends(0, [one()])
    run("mine")
    assert verdict("mine") == "FAIL"
    assert journal()["deviated"] is True


@pytest.mark.lie
def test_a_run_that_never_ended_is_no_pass(monkeypatch):
    monkeypatch.setattr(chaos_toolkit, "_called", raising(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run("mine")
    with pytest.raises(NoPassError, match=r"mine: no verdict .*\nit did not end"):
        verdict("mine")
    assert journal()["status"] == "failed"


@pytest.mark.parametrize("name", ["", " ", None, ["a"]])
def test_no_name_would_run_them_all(name):
    with pytest.raises(NoPassError, match="experiment: name one"):
        run(name)


def test_a_program_that_is_not_there_is_told():
    with pytest.raises(NoPassError, match=r"/no/such/program cannot be run: No such file"):
        run("mine", program=["/no/such/program"])
