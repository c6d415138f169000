"""What the audit says of consul-template, shown on consul-template 0.41.0 against scripted Consuls and Vaults."""

import json
import os
import signal

import pytest

from claims import Naps, run  # noqa: F401 - `run` is a fixture
from hashidrill.core.util.syscalls import process_state
from http_scripts import Answer, Scripted, failing
from polled import wait

pytestmark = pytest.mark.long

LEADERLESS = Answer(500, b"No cluster leader")
UNAVAILABLE = Answer(500, b'{"errors": ["error performing token check"]}')
KEY = Answer(body=b'[{"Key": "key", "Value": "eA==", "Flags": 0}]', headers={"X-Consul-Index": "7"})
PAUSE = r'retry attempt \d+ after "([^"]+)"'
AT_ONCE = {"backoff": "1us", "max_backoff": "1ms"}


@pytest.fixture(scope="module")
def consul_template(binary):
    return binary("consul-template")


@pytest.fixture
def render(consul_template, run, tmp_path):  # noqa: F811
    """Starts consul-template with one template, told to ask that server with that retry block."""

    def start(server, *, service="consul", retry=None, template='{{ key "key" }}', config=None, **environment):
        retried = {"retry": retry} if retry is not None else {}
        vault = {"token": "t", "renew_token": False} if service == "vault" else {}
        address = server.url if service == "vault" else server.url.removeprefix("http://")
        document = {
            service: {"address": address, **vault, **retried},
            "template": [{"contents": template, "destination": str(tmp_path / "rendered")}],
            "log_level": "DEBUG",
            **(config or {}),
        }
        file = tmp_path / "template.json"
        file.write_text(json.dumps(document))
        return run("consul-template", consul_template.path, "-config", file, **environment)

    return start


def test_with_retry_disabled_the_first_error_ends_it(render):
    """HD401: by default the same fault is tried again, twelve times, and only then is that the end."""
    with Scripted(failing(99, LEADERLESS)) as server:
        disabled = render(server, retry={"enabled": False})
        assert disabled.ended() != 0
        assert len(server.seen) == 1
    with Scripted(failing(99, LEADERLESS)) as server:
        default = render(server, retry=AT_ONCE)
        assert default.ended() != 0
        assert len(server.seen) == 13
        assert default.said("exceeded maximum retries")
    with Scripted(failing(12, LEADERLESS, KEY)) as server:
        patient = render(server, retry=AT_ONCE)
        wait("the key", lambda: patient.said(r"\(runner\) rendered"))
        assert patient.alive
        patient.process.kill()  # asked to end, it would wait for Consul's answer


def child_of(folder):
    file = folder / "pid"
    return int(file.read_text()) if file.exists() and file.read_text().endswith("\n") else None


@pytest.fixture
def child(tmp_path):
    """`child()` is the process id of the child that writes it, once it has; it ends with the test."""
    file = tmp_path / "pid"

    def pid():
        return int(file.read_text()) if file.exists() and file.read_text().endswith("\n") else None

    yield pid
    if pid() is not None and runs(pid()):
        os.kill(pid(), signal.SIGKILL)
        wait("the child to end", lambda: not runs(pid()))


def runs(pid):
    """A zombie that nobody has reaped yet has ended."""
    return (process_state(pid) or ("Z", 0))[0] != "Z"


@pytest.mark.parametrize(("retry", "ends"), [({"enabled": False}, True), (AT_ONCE, False)])
def test_with_retry_disabled_nobody_is_left_to_look_after_its_child(render, tmp_path, child, retry, ends):
    """HD401: the key is rendered and the child runs, when one watch of the key fails. It is not stopped: it is left."""
    script = {1: KEY, 2: LEADERLESS}

    def answer(number, _request):
        """The second watch fails once the child is there, and the one after it waits for news, as Consul does."""
        if number == 2:
            wait("the child", child)
        return script.get(number, Answer(then="hang"))

    with Scripted(answer) as server:
        command = ["sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 600"]
        program = render(server, retry=retry, config={"exec": {"command": command}})
        if ends:
            assert program.ended() != 0
            assert len(server.seen) == 2
        else:
            wait("the watch after the failed one", lambda: len(server.seen) == 3)
            assert program.alive
        assert runs(child())


def pauses(render, attempts, **retry):
    with Scripted(failing(99, LEADERLESS)) as server:
        program = render(server, retry=retry)
        wait(f"{attempts} retries", lambda: len(program.said(PAUSE)) >= attempts)
        said = program.said(PAUSE)[:attempts]
        program.process.kill()  # asked to end, it would wait out a pause
    return said


def test_without_a_cap_the_pauses_double_for_ever(render):
    """HD402: max_backoff = 0 is no cap, and so is the way to a pause of hours; any other value is kept to."""
    doubled = [f"{2**number}µs" if number < 10 else f"{2**number / 1000:g}ms" for number in range(12)]
    assert pauses(render, 12, backoff="1us", max_backoff="0s") == doubled
    assert pauses(render, 12, backoff="1us", max_backoff="8us") == doubled[:3] + ["8µs"] * 9


def test_by_default_the_pauses_are_from_a_quarter_of_a_second_up_to_a_minute(render):
    """HD402: only the first of them is waited for."""
    assert pauses(render, 2) == ["250ms", "500ms"]
    assert pauses(render, 1, backoff="1h") == ["1m0s"]
    assert pauses(render, 1, backoff="1h", max_backoff="0s") == ["1h0m0s"]


@pytest.mark.parametrize(
    ("environment", "attempts", "each"), [({}, {"attempts": 1}, 3), ({"VAULT_MAX_RETRIES": "0"}, {}, 1)]
)
def test_the_retries_of_consul_template_and_of_vaults_client_multiply(render, environment, attempts, each):
    """HD403 and HD302: one read of a secret that fails is 13 x 3 = 39 requests by default, and 13 when Vault's client
    repeats none. With one retry in place of twelve it is 2 x 3 = 6: the pauses of Vault's client are seconds.
    """
    with Naps() as naps, Scripted(failing(999, UNAVAILABLE)) as server:
        secret = '{{ with secret "secret/key" }}{{ .Data.key }}{{ end }}'
        program = render(server, service="vault", retry=AT_ONCE | attempts, template=secret, **environment)
        assert program.ended(within_s=120) != 0
        reads = [one.at for one in server.seen if one.path == "/v1/secret/key"]
    retries = attempts.get("attempts", 12)
    assert len(reads) == (retries + 1) * each
    assert len(program.said(PAUSE)) == retries
    if each == 3:
        first, second = reads[1] - reads[0], reads[2] - reads[1]
        assert 1 <= first < 2 + naps.late_s(reads[0], reads[1])
        assert 2 <= second < 3.5 + naps.late_s(reads[1], reads[2])
