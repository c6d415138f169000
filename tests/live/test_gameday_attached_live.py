"""A game day against a datacenter of somebody else: a real Consul with TLS, ACLs and gossip encryption."""

import json
import signal
import time

import pytest

from attached_consul import Staging
from drills import experiment, hashidrill, start
from hashidrill.core.recording.reader import Recording
from hashidrill.core.util.files import JOURNAL_NAME
from hashidrill.gamedays.gameday.journal import DAY_JOURNAL

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(400)]
LOAD = {"kv-writes": {"kind": "consul.kv.write", "rate": "20/s", "keys": 20, "value": "64B", "via": "consul:clients"}}
TRANSFER = {"fault": "consul.leader.transfer", "on": "consul:leader", "for": "3s"}
DAY = {
    "apiVersion": "hashidrill/v1",
    "kind": "GameDay",
    "metadata": {"name": "their-day", "title": "A day in staging"},
    "people": {"ada": {"role": "lead"}},
    "before": [{"check": "machine"}],
    "questions": {"leader": {"measure": "leader", "ask": "Who leads afterwards?"}},
    "experiments": [{"experiment": "one.yaml"}, {"experiment": "two.yaml"}],
}
_WITHIN_S = 60.0


@pytest.fixture(scope="module")
def staging(consul, tmp_path_factory):
    with Staging(consul.path, tmp_path_factory.mktemp("staging")).running() as estate:
        yield estate


@pytest.fixture
def day(tmp_path):
    paths = [experiment(tmp_path / f"{name}.yaml", method=[TRANSFER], load=LOAD, servers=3) for name in ("one", "two")]
    file = tmp_path / "day.yaml"
    file.write_text(json.dumps(DAY))
    return file, paths


def begins(folder, step, process):
    """Returns the day's folder once a fault of that step's run is in force."""
    deadline = time.monotonic() + _WITHIN_S
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        for path in folder.glob(f"*/{DAY_JOURNAL}"):
            name = step.split(":")[1]
            recordings = [each.parent for each in (path.parent / "runs").glob(f"*-{name}-*/{JOURNAL_NAME}")]
            if any(window.proven for each in recordings for window in Recording(each).faults):
                return path.parent
        time.sleep(0.1)
    raise AssertionError(f"{step} did not begin within {_WITHIN_S:g}s")


def test_what_is_not_armed_is_a_no_go(staging, day, tmp_path, home):
    file, _ = day
    staging.ask("DELETE", "/v1/kv/hashidrill-interlocks/armed")
    done = hashidrill(
        "gameday",
        "run",
        file,
        "--yes",
        "--json",
        "--attach",
        staging.attach_file(),
        "--runs",
        tmp_path / "runs",
        env=home,
        cwd=tmp_path,
    )
    found = json.loads(done.stdout)
    assert (done.returncode, found["outcome"]) == (3, "no-go"), done.stderr
    assert "armed" in found["checks"][0]["text"]


def test_a_day_there_is_interrupted_and_goes_on_there(staging, day, tmp_path, home):
    file, paths = day
    operator = staging.attach_file(name="operator.yaml", token="management")
    armed = hashidrill("staging", "arm", *paths, "--attach", operator, "--for", "20m", env=home)
    assert armed.returncode == 0, armed.stderr
    attach, runs = staging.attach_file(), tmp_path / "runs"
    process = start(
        "gameday", "run", file, "--yes", "--plain", "--attach", attach, "--runs", runs, env=home, cwd=tmp_path
    )
    try:
        folder = begins(tmp_path / "days", "run:two:1", process)
        process.send_signal(signal.SIGINT)
    finally:
        stdout, stderr = process.communicate(timeout=_WITHIN_S)
    assert process.returncode == 130, stdout + stderr
    done = hashidrill(
        "gameday",
        "resume",
        folder,
        "--yes",
        "--json",
        "--attach",
        attach,
        "--runs",
        runs,
        env=home,
        cwd=tmp_path,
        within_s=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert (found["outcome"], found["verdict"], found["attached"]) == ("done", "PASS", "staging-1")
    assert [entry["step"] for entry in found["interrupted"]] == ["run:two:1"]
    for each in found["runs"]:
        assert Recording(folder / each["recording"]).run["attached"]["addresses"] == {"consul": staging.url("stage-1")}
        assert [window.proven for window in Recording(folder / each["recording"]).faults] == [True]
    keys = json.loads(staging.ask("GET", "/v1/kv/?keys"))
    assert [key for key in keys if key.startswith(("hashidrill/", "hashidrill-once/"))] == [], "left by a load"
