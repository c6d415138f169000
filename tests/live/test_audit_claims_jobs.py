"""What the audit says of Nomad's jobs, shown on Nomad 1.10.5: a server and client on the loopback that runs real jobs,
each claim beside its opposite. Where a claim is on a default that takes hours, it is what the server fills in, and
the behaviour is shown with smaller figures.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest

from claims_nomad import FAILS, SLEEPS, both, job, nomad  # noqa: F401 - `nomad` is a fixture
from http_scripts import Answer, Scripted, failing
from polled import wait

pytestmark = [pytest.mark.nomad, pytest.mark.may_skip("Nomad's clients run as root here")]

SECOND = 10**9
WITHIN_S = 120
NEVER = {"Attempts": 0, "Unlimited": False}
ONCE = {"Attempts": 0, "Interval": 5 * SECOND, "Delay": 0, "Mode": "fail"}


def soon(attempts, mode="fail", interval_s=5):
    return {"Attempts": attempts, "Interval": interval_s * SECOND, "Delay": 0, "Mode": mode}


def again(attempts):
    return {
        "Attempts": attempts,
        "Interval": 3600 * SECOND,
        "Delay": 5 * SECOND,
        "DelayFunction": "constant",
        "Unlimited": False,
    }


SCENARIOS = []


def claim(*cases):
    """A test on an agent that all of this module share. All of them begin with the first: Nomad's own pauses, of
    seconds each, are what they wait for. `cases` are the arguments of each after `agent`; none is one test without.
    """

    def of(scenario):
        numbers = range(len(SCENARIOS), len(SCENARIOS) + max(len(cases), 1))
        SCENARIOS.extend((scenario, case) for case in cases or ((),))

        @pytest.mark.parametrize("number", numbers, ids=[str(case[0]) if case else "" for case in cases or ((),)])
        def shown(under_way, number):
            under_way[number].result()

        shown.__name__, shown.__doc__ = scenario.__name__, scenario.__doc__
        return shown

    return of


@pytest.fixture(scope="module")
def under_way(nomad, tmp_path_factory):  # noqa: F811
    """What is to come of each scenario; their jobs have names of their own."""
    agent = both(nomad, tmp_path_factory.mktemp("nomad"), "both")
    try:
        with ThreadPoolExecutor(len(SCENARIOS)) as all_at_once:
            yield [all_at_once.submit(scenario, agent, *case) for scenario, case in SCENARIOS]
    finally:
        agent.stop()


def ended(agent, name):
    """The status of the newest allocation, once that is one that stays."""

    def status():
        found = agent.allocs(name)
        return found[-1]["ClientStatus"] if found and found[-1]["ClientStatus"] in {"failed", "complete"} else None

    return wait(f"the allocation of {name} to end", status, within_s=WITHIN_S)


@claim()
def test_an_artifact_is_downloaded_once_unless_the_task_is_restarted(agent):
    """HD211: the same short fault of the same server; restart.attempts is all the difference."""
    unavailable = Answer(503, b"")
    for name, restarts, status, downloads in (("no-restart", 0, "failed", 1), ("restarts", 3, "complete", 3)):
        with Scripted(failing(2, unavailable, Answer(body=b"built"))) as server:
            task = {"Artifacts": [{"GetterSource": f"{server.url}/build.bin"}], "Config": {"command": "/bin/true"}}
            agent.run(job(name, task, kind="batch", restart=soon(restarts), ReschedulePolicy=NEVER))
            assert ended(agent, name) == status
            assert agent.events(name).count("Downloading Artifacts") == downloads
            assert len(agent.allocs(name)) == 1
            assert len([one for one in server.seen if one.method == "GET"]) == downloads
    assert agent.events("no-restart").count("Failed Artifact Download") == 1


@claim()
def test_restart_defaults_are_two_in_half_an_hour_and_three_in_a_day(agent):
    """HD211: what the server fills in for a service and for a batch job."""
    agent.run(job("service", {"Config": SLEEPS}))
    agent.run(job("batch", {"Config": SLEEPS}, kind="batch"))
    said = {name: agent.group(name)["RestartPolicy"] for name in ("service", "batch")}
    figures = {name: (policy["Attempts"], policy["Interval"], policy["Mode"]) for name, policy in said.items()}
    assert figures == {"service": (2, 1800 * SECOND, "fail"), "batch": (3, 86400 * SECOND, "fail")}


@claim(("delay", False), ("fail", True))
def test_a_task_with_restart_mode_delay_never_leaves_its_node(agent, mode, leaves):
    """HD212: the task fails always. In mode fail its allocation does too, and is placed anew: its attempts are used up
    however long the machine takes for each.
    """
    name = f"mode-{mode}"
    restart = soon(1, mode, interval_s=WITHIN_S if leaves else 5)
    agent.run(job(name, {"Config": FAILS}, restart=restart, ReschedulePolicy=again(1)))
    if leaves:
        wait("a second allocation", lambda: len(agent.allocs(name)) == 2, within_s=WITHIN_S)
        assert agent.allocs(name)[0]["ClientStatus"] == "failed"
    else:
        # three intervals: by then the other is placed anew
        wait("the restarts of three intervals", lambda: agent.task(name).get("Restarts", 0) >= 4, WITHIN_S)
        assert [each["ClientStatus"] for each in agent.allocs(name)] != ["failed"]
        assert len(agent.allocs(name)) == 1


@claim()
def test_a_batch_job_is_rescheduled_once_a_day_by_default(agent):
    """HD213: both tasks fail always; the one that says so is placed anew more often."""
    agent.run(job("default", {"Config": FAILS}, kind="batch", restart=ONCE))
    agent.run(job("says-so", {"Config": FAILS}, kind="batch", restart=ONCE, ReschedulePolicy=again(3)))
    policy = agent.group("default")["ReschedulePolicy"]
    assert (policy["Attempts"], policy["Interval"], policy["Unlimited"]) == (1, 86400 * SECOND, False)
    assert (policy["Delay"], policy["DelayFunction"]) == (5 * SECOND, "constant")
    wait("the fourth allocation", lambda: len(agent.allocs("says-so")) == 4, within_s=WITHIN_S)
    wait("the job to be over", lambda: agent.get("job/default")["Status"] == "dead", within_s=WITHIN_S)
    assert [each["ClientStatus"] for each in agent.allocs("default")] == ["failed", "failed"]


def checked(name, server, **check):
    """A service whose HTTP check asks that server for the job's name."""
    probe = {"Type": "http", "Path": f"/{name}", "Interval": SECOND, "Timeout": SECOND, **check}
    network = {"Mode": "host", "ReservedPorts": [{"Label": "http", "Value": server.port}]}
    service = {"Name": name, "Provider": "nomad", "PortLabel": "http", "AddressMode": "host", "Checks": [probe]}
    return job(name, {"Config": SLEEPS}, restart=soon(100), Networks=[network], Services=[service])


@claim(("bare", {}, False), ("watched", {"CheckRestart": {"Limit": 2, "Grace": 0}}, True))
def test_a_failing_check_restarts_nothing_by_itself(agent, name, check, restarted):
    """HD215: the same check fails for two tasks; the one with check_restart is restarted."""
    with Scripted(failing(10**6, Answer(500, b""))) as server:
        agent.run(checked(name, server, **check))
        wait("eight failed checks", lambda: len(server.seen) >= 8, within_s=WITHIN_S)
        if restarted:  # the server of Nomad is told after that
            wait("a restart", lambda: agent.task(name)["Restarts"], within_s=WITHIN_S)
        else:
            assert agent.task(name)["Restarts"] == 0
        assert len(agent.allocs(name)) == 1


def update(deadline_s, *, reverts):
    """A version has until then to become well: to run for longer than one takes to fail on a busy machine. One that
    fails is given up at once.
    """
    policy = {
        "MaxParallel": 1,
        "HealthCheck": "task_states",
        "MinHealthyTime": 4 * SECOND,
        "HealthyDeadline": deadline_s * SECOND,
        "ProgressDeadline": (deadline_s + 1) * SECOND,
    }
    return policy | ({"AutoRevert": True} if reverts else {})


@claim((False,), (True,))
def test_a_failed_deployment_stays_unless_auto_revert_is_on(agent, reverts):
    """HD217: two instances of the first version run; the second fails at once, and takes one of them."""
    name = f"reverts-{reverts}".lower()
    agent.run(job(name, {"Config": SLEEPS}, Count=2, Update=update(WITHIN_S, reverts=reverts)))
    deployed(agent, name, "successful")
    agent.run(job(name, {"Config": FAILS}, Count=2, restart=ONCE, Update=update(30, reverts=reverts)))
    failed = deployed(agent, name, "failed", version=1)
    if reverts:
        assert "rolling back to job version 0" in failed["StatusDescription"]
        wait("the old version anew", lambda: agent.get(f"job/{name}")["Version"] == 2, within_s=WITHIN_S)
        deployed(agent, name, "successful", version=2)
        wait("both instances", lambda: running(agent, name) == 2, within_s=WITHIN_S)
    else:
        assert agent.group(name)["Update"]["AutoRevert"] is False
        wait("one instance", lambda: running(agent, name) == 1, within_s=WITHIN_S)
        assert agent.get(f"job/{name}")["Version"] == 1


def running(agent, name):
    return sum(each["ClientStatus"] == "running" for each in agent.allocs(name))


def deployed(agent, name, status, version=0):
    """The deployment of that version, once it has that status."""

    def look():
        found = agent.get(f"job/{name}/deployments") or ()
        return next((one for one in found if (one["JobVersion"], one["Status"]) == (version, status)), None)

    return wait(f"the deployment of version {version} to be {status}", look, within_s=WITHIN_S)
