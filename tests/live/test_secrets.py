"""Marked secrets go in by every door there is; none is found in what a run leaves, says, or shows to other users."""

import base64
import contextlib
import json
import os
import sqlite3
import threading
from pathlib import Path
from urllib.parse import quote

import pytest
from ruamel.yaml import YAML

from drills import environment, experiment, hashidrill, start
from hashidrill.core.recording.journal import read_journal
from hashidrill.core.recording.reader import ARTIFACTS_NAME
from hashidrill.core.util.files import JOURNAL_NAME
from leaks import VARIABLE

GOSSIP = base64.b64encode(b"marked gossip key of 32 bytes ..").decode()
AGENT, NEXT, OPTION, HEADER = (f"marked-{word}/t+k=n-4711" for word in ("agent", "next", "option", "header"))
SHELL, IDEMPOTENCY, EVIDENCE = "marked-shell-token-4711", "marked-idempotency-4711", "marked evidence 4711"
IN_YAML = (GOSSIP, AGENT, NEXT, OPTION, HEADER)
ALL = (*IN_YAML, SHELL, IDEMPOTENCY, EVIDENCE)

CLIENT = f"""
import os, sys, urllib.request
url, token = sys.argv[1], os.environ["CONSUL_HTTP_TOKEN"]
headers = {{"X-Consul-Token": token, "Idempotency-Key": "{IDEMPOTENCY}"}}
request = urllib.request.Request(url + "/v1/kv/app?token=" + urllib.parse.quote(token), b"x", headers, method="PUT")
try:
    urllib.request.urlopen(request, timeout=2).read()
except OSError as error:
    sys.exit(f"{{error}}: PUT with {{token}} and {{sys.argv[3]}} and {{sys.argv[5]}}")
"""


def forms(secret):
    """How it might stand in a file."""
    yield from (secret, quote(secret), quote(secret, safe=""), json.dumps(secret)[1:-1], secret.replace("/", "\\/"))
    for offset in range(3):
        coded = base64.b64encode(bytes(offset) + secret.encode()).decode()
        yield coded[(0, 2, 3)[offset] : 8 * (offset + len(secret)) // 6]


def found(secrets, content):
    return [secret for secret in secrets if any(form.encode() in content for form in forms(secret))]


class Watch:
    """Looks at every command line, and at the environment of what runs for us, while a block goes on."""

    def __init__(self, *, except_for):
        self._except_for = str(except_for).encode()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.seen: dict[str, set[str]] = {}
        self.agents = 0

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()

    def _look(self):
        while not self._ended.wait(0.1):
            for process in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):  # it has just ended, or is another user's
                    command = (process / "cmdline").read_bytes()
                    if self._except_for in command:  # the user's own command line is theirs to guard
                        continue
                    self._note(command, found(ALL, command))
                    is_agent = b"\0agent\0" in command or b"datacenter.inside.hostd" in command
                    self.agents += is_agent
                    # only what runs for the user has the user's own tokens, and nobody has those of the experiment
                    secrets = (*IN_YAML, SHELL) if is_agent else IN_YAML
                    self._note(command, found(secrets, (process / "environ").read_bytes()))

    def _note(self, command, secrets):
        for secret in secrets:
            self.seen.setdefault(secret, set()).add(command.decode(errors="replace"))


@pytest.fixture
def program(tmp_path):
    file = tmp_path / "marked_client.py"
    file.write_text(CLIENT)
    return file


@pytest.fixture
def drilled(tmp_path, program):
    """An experiment with a secret behind every door: its file."""
    changed = {"set": {"acl": {"tokens": {"agent": NEXT}}}}
    method = [
        {"fault": "consul.config", "on": "host:consul-1", "with": changed, "for": "2s"},
        {"fault": "tap.fail", "on": "client:app", "with": {"fault": "503", "percent": "100%"}, "at": "4s", "for": "2s"},
    ]
    path = experiment(tmp_path / "marked.yaml", method=method, recovery="2s")
    document = json.loads(path.read_text())
    document["datacenter"]["consul"]["config"] |= {
        "encrypt": GOSSIP,
        "acl": {"enabled": False, "tokens": {"agent": AGENT}},
    }
    words = ["{python}", str(program), "{url}", "--token", OPTION, "-H", f"X-Consul-Token: {HEADER}"]
    # a variable whose name tells nothing
    page = {"kind": "http", "url": "http://consul-1:8500/v1/status/leader", "headers": {"Marked": {"env": "EVIDENCE"}}}
    document["probes"] = {"page": page | {"keep": True}}
    document["clients"] = {"app": {"command": words, "rate": "4/s", "timeout": "5s"}}
    path.write_text(f"# the key is {GOSSIP}\n{json.dumps(document, indent=2)}")
    return path


def user(**more):
    return environment(CONSUL_HTTP_TOKEN=SHELL, **more)


@pytest.mark.lie
def test_a_run_with_secrets_in_every_place_leaves_and_shows_none_of_them(drilled, program, tmp_path):
    runs = tmp_path / "runs"
    with Watch(except_for=program) as watch:
        process = start("run", drilled, "--json", "--runs", runs, env=user(EVIDENCE=EVIDENCE))
        said = process.communicate(timeout=110)
    assert process.returncode in {0, 1}, said
    assert watch.agents
    assert watch.seen == {}
    [run] = runs.iterdir()
    assert {entry.event for entry in read_journal(run / JOURNAL_NAME)} >= {"fault.gone"}
    assert json.loads((run / "run.json").read_text())["outcome"] == "complete"
    files = [file for file in run.rglob("*") if file.is_file()]
    assert {file.name for file in files} >= {
        JOURNAL_NAME,
        "run.json",
        "report.html",
        "summary.md",
        "verdict.json",
        "experiment.yaml",
        "resolved.json",
        "recording.sqlite",
        "consul.log",
    }
    assert {str(file.relative_to(run)): found(ALL, file.read_bytes()) for file in files} == {
        str(file.relative_to(run)): [] for file in files
    }
    assert found(ALL, "".join(said).encode()) == []
    modes = {str(path.relative_to(run)): oct(path.stat().st_mode & 0o777) for path in (run, *run.rglob("*"))}
    assert set(modes.values()) == {"0o700", "0o600"}, modes

    # and what is no secret is there: who asked for what, and what came of it
    [intent] = [e.data for e in read_journal(run / JOURNAL_NAME) if e.data.get("kind") == "consul.config"]
    assert intent["undo"]["prior"]["config"]["node_name"] == "consul-1"
    assert intent["undo"]["prior"]["config"]["acl"]["tokens"] == {"agent": "[redacted]"}
    asked = YAML(typ="safe").load((run / "experiment.yaml").read_text())
    assert asked["datacenter"]["consul"]["config"]["encrypt"] == "[redacted]"
    assert asked["clients"]["app"]["command"][:4] == ["{python}", str(program), "{url}", "--token"]
    database = sqlite3.connect(run / "recording.sqlite")
    paths = {key for (key,) in database.execute("SELECT key FROM operations WHERE load = 'app.attempts'")}
    errors = {error for (error,) in database.execute("SELECT error FROM operations WHERE load = 'app'")}
    database.close()
    assert paths == {"PUT /v1/kv/app?token=[redacted]"}
    assert any("503" in error and "[redacted]" in error for error in errors)

    again = hashidrill("check", run, "--json", env=user())
    assert again.returncode == process.returncode, again.stderr
    assert found(ALL, (again.stdout + again.stderr).encode() + (run / "report.html").read_bytes()) == []


def test_a_datacenter_that_stands_shows_none_of_its_secrets(drilled, program, tmp_path):
    work = Path(os.environ[VARIABLE]) / "marked"
    work.mkdir()
    env = user(XDG_STATE_HOME=tmp_path / "state", **{VARIABLE: work})
    with Watch(except_for=program) as watch:
        try:
            said = hashidrill("lab", "up", "--like", drilled, "--json", env=env)
            assert said.returncode == 0, said.stderr
            files = [file for file in (tmp_path / "state").rglob("*") if file.is_file()]
            assert files
            assert [found(ALL, file.read_bytes()) for file in files] == [[]] * len(files)
            assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
            status = hashidrill("lab", "status", "--json", env=env)
        finally:
            hashidrill("lab", "down", env=env)
    assert watch.agents
    assert watch.seen == {}
    assert found(ALL, (said.stdout + said.stderr + status.stdout).encode()) == []
    work.rmdir()


def test_a_retry_card_shows_no_secret_of_the_command_or_the_environment(program):
    words = [
        "python3",
        program,
        "{url}",
        "--token",
        OPTION,
        "-H",
        f"X-Consul-Token: {HEADER}",
    ]
    with Watch(except_for=program) as watch:
        done = hashidrill("retry", "--no-upstream", "--json", "--fault", "503", "--", *words, env=user())
    assert done.returncode in {0, 1, 3}, done.stderr
    assert json.loads(done.stdout)["verdicts"]
    assert found(ALL, (done.stdout + done.stderr).encode()) == []
    assert watch.seen == {}


@pytest.mark.nightly
def test_a_search_for_capacity_leaves_no_secret(drilled, program, tmp_path):
    until = "kv-writes.latency.p50 < 900ms"
    with Watch(except_for=program) as watch:
        done = hashidrill(
            "capacity",
            drilled,
            "--vary",
            "load.kv-writes.rate",
            "--until",
            until,
            "--tries",
            "1",
            "--json",
            "--runs",
            tmp_path / "runs",
            env=user(),
            within_s=200,
        )
    assert done.returncode == 0, done.stderr
    files = [file for file in (tmp_path / "runs").rglob("*") if file.is_file() and ARTIFACTS_NAME not in file.parts]
    assert files
    assert [(file.name, found(ALL, file.read_bytes())) for file in files] == [(file.name, []) for file in files]
    assert found(ALL, (done.stdout + done.stderr).encode()) == []
    assert watch.seen == {}
