"""`hashidrill retry` as a user types it: good and bad commands, a real Consul, and nothing left afterwards."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from hashidrill.core.util.processes import is_machine_root
from polled import wait

pytestmark = pytest.mark.long

curl = pytest.mark.needs("curl")


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-c", "from hashidrill.faces.cli import main; main()", "retry", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def retry(*arguments):
    """(exit code, JSON or output, standard error) of a whole battery."""
    with start(*arguments) as process:
        out, err = process.communicate(timeout=240)
    assert "Traceback" not in out + err
    with contextlib.suppress(ValueError):
        out = json.loads(out)
    return process.returncode, out, err


def verdicts(out):
    return {(one["name"], one["fault"]): one["verdict"] for one in out["verdicts"]}


def alive(mark):
    """Processes (but zombies) whose command line has this."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if mark in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def gone(mark):
    return wait(f"the end of {mark}", lambda: not alive(mark), 5.0)


def said(err):
    """What is on standard error but progress."""
    return [line for line in err.splitlines() if not re.match(r"\[\d+ s", line)]


@curl
def test_a_bare_curl_is_not_said_to_retry():
    code, out, _ = retry("--json", "--no-upstream", "--timeout", "2s", "--", "curl", "-sf", "{url}/v1/kv/x")
    found = verdicts(out)
    assert code == 1
    present = {fault: verdict for (name, fault), verdict in found.items() if name == "present"}
    unseen = [] if is_machine_root() else ["dns", "refused"]  # what only root can observe
    assert [present.pop(fault, "INVALID") for fault in unseen] == ["INVALID"] * len(unseen)
    assert set(present.values()) == {"FAIL"}
    assert found["bounded", "503"] == "n/a"
    assert found["timeout_present", "hang"] == "FAIL"
    assert out["command"] == ["curl", "-sf", "{url}/v1/kv/x"]


@curl
def test_over_tls_a_command_is_told_whom_to_trust():
    options = ["--json", "--no-upstream", "--tls", "--timeout", "20s", "--fault", "503", "--fault", "reset-after-fresh"]
    _, out, err = retry(*options, "--", "curl", "-sf", "--retry", "2", "{url}/v1/kv/x")
    found = verdicts(out)
    assert said(err) == []
    assert (found["present", "503"], found["present", "reset-after-fresh"]) == ("PASS", "FAIL")
    assert found["backoff", "503"] == "PASS"


@curl
def test_curl_with_retries_in_front_of_a_real_consul_whose_key_is_put_there(consul):
    """`curl --fail` on a key that does not exist would fail without any fault."""
    options = ["--json", "--fault", "503", "--fault", "503-retry-after"]
    code, out, _ = retry(*options, "--", "curl", "-sf", "--retry", "3", "{url}/v1/kv/hashidrill/seeded")
    found = verdicts(out)
    assert found["present", "503"] == found["bounded", "503"] == found["backoff", "503"] == "PASS"
    assert found["retry_after_honoured", "503-retry-after"] == "PASS"
    assert found["jitter", "503"] in {"FAIL", "INVALID"}  # the latter on a machine that is too busy to tell
    assert code in {1, 3}
    assert gone("behind-the-tap")


UNMEASURABLE = {
    "no-command": (["no-such-command-here"], 2, "no-such-command-here: there is no such command"),
    "no-request": (["sh", "-c", "exit 0 # without a request"], 3, "exit status 0, but it made no request to the tap"),
    "broken": (["sh", "-c", "echo broken >&2; exit 7"], 3, "exit status 7, but it made no request"),
    "hangs": (["sleep", "86397"], 3, "stopped after 1s, but it made no request"),
    "floods": (["sh", "-c", "yes hashidrill"], 3, "more than 8 MiB of output"),
    "fails": (
        ["python3", "-c", "import urllib.request as u; u.urlopen('{url}').read(); raise SystemExit(5)"],
        3,
        "it fails even without a fault (exit status 5; the answers were 200)",
    ),
    "does-not-end": (
        ["python3", "-c", "import time, urllib.request as u; u.urlopen('{url}').read(); time.sleep(86397)"],
        3,
        "without any fault it was stopped after 1s",
    ),
}
"""Name: a command, the exit code and what is said."""


@pytest.fixture(scope="module")
def said_of_the_unmeasurable():
    """{name: what `retry` said}, some at a time: each waits for its sandbox, and for the second that it has."""

    def said(name):
        return retry("--no-upstream", "--timeout", "1s", "--", *UNMEASURABLE[name][0])

    with ThreadPoolExecutor(3) as few:
        return dict(zip(UNMEASURABLE, few.map(said, UNMEASURABLE), strict=True))


@pytest.mark.parametrize("name", UNMEASURABLE)
def test_a_command_that_cannot_be_measured_gets_a_message_and_leaves_nothing(name, said_of_the_unmeasurable):
    got, _, err = said_of_the_unmeasurable[name]
    _, code, message = UNMEASURABLE[name]
    assert got == code
    assert message in err
    assert len(said(err)) <= 2
    assert gone("86397")
    assert gone("yes hashidrill")


def test_an_upstream_that_is_not_there_is_named():
    code, _, err = retry(
        "--upstream", "http://127.0.0.1:9", "--", "python3", "-c", "import urllib.request as u; u.urlopen('{url}')"
    )
    assert code == 3
    assert "the upstream http://127.0.0.1:9 did not answer" in err


def test_ctrl_c_leaves_nothing(consul):
    client = "import time, urllib.request as u; u.urlopen('{url}').read(); time.sleep(86398)"
    with start("--", "python3", "-c", client) as run:
        wait("the client", lambda: alive("86398") not in ([], [run.pid]), 60)
        os.kill(run.pid, signal.SIGINT)
        _, err = run.communicate(timeout=30)
    assert run.returncode == 130
    assert "Traceback" not in err
    assert gone("86398")
    assert gone("behind-the-tap")
