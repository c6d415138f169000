"""What an Attach file says wrong is told by `validate`, and by `run` before anything is contacted."""

import anyio
import pytest
from typer.testing import CliRunner

from hashidrill.core.errors import HashidrillError
from hashidrill.faces.cli.app import app

HEAD = "apiVersion: hashidrill/v1\nkind: Attach\nmetadata: {name: staging}\n"
EXPERIMENT = """\
apiVersion: hashidrill/v1
kind: Experiment
metadata: {name: mine, title: Mine, why: to see}
datacenter: {attach: good.yaml}
load: {writes: {kind: consul.kv.write, rate: 5/s}}
steady_state: {for: 2s, require: ["writes.errors < 1%"]}
method: [{fault: noop, on: "consul:leader", for: 2s}]
expect: [{no_acknowledged_write_lost: {load: writes}}]
"""


@pytest.fixture
def said(tmp_path, monkeypatch):
    """What a command says in a folder of its own; it fails the test by looking at a datacenter."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(anyio, "run", lambda *_: pytest.fail("something was contacted"))
    (tmp_path / "good.yaml").write_text(f"{HEAD}datacenter: {{consul: {{address: 'consul.example:8500'}}}}\n")

    def go(*words):
        result = CliRunner().invoke(app, words)
        assert result.exception is None or isinstance(result.exception, HashidrillError | SystemExit)
        return getattr(result.exception, "exit_code", result.exit_code), f"{result.stderr}{result.exception or ''}"

    return go


@pytest.mark.parametrize(
    ("written", "place", "why"),
    [
        ("datacenter: {consul: {address: 'http://h:abc'}}", "4:32", "Port could not be cast"),
        ("datacenter: {consul: {address: 'http://h:99999'}}", "4:32", "Port out of range"),
        ("datacenter: {consul: {address: 'http://h:0'}}", "4:32", "expected a URL like"),
        ("datacenter: {consul: {address: 'ftp://h'}}", "4:32", "must start with http:// or https://"),
        ("datacenter: {consul: {address: ''}}", "4:32", "expected a URL like"),
        ("datacenter: {consul: {address: 'http://:8500'}}", "4:32", "expected a URL like"),
        ("datacenter: {consul: {address: 'http://[::1'}}", "4:32", "Invalid IPv6 URL"),
        ("datacenter: {consul: {address: 'http://me:secret@h'}}", "4:32", "without a name or password"),
        ("datacenter: {consul: {address: 'http://h:8500/v1'}}", "4:32", "has a path, which would be left out"),
        ("datacenter: {nomad: {agents: {one: 'h:4646'}}}", "4:36", "must start with http:// or https://"),
        ("datacenter: {consul: {}}\nservices: {toxiproxy: {address: 'toxi'}}", "5:33", "must start with http://"),
        (
            "datacenter: {consul: {}}\nservices: {kubernetes: {chaosd: {h: 'tcp://h'}}}",
            "5:37",
            "must start with http://",
        ),
        ("datacenter: {consul: {}}\nengine: {nomad: {workers: 3}}", "", "engine.nomad: Nomad is not attached"),
        ("datacenter: {consul: {}}\nengine: {nomad: {workers: 0}}", "", "engine.nomad.workers"),
        ("datacenter: {consul: {}}\ncarriers: {nomad: {}}", "", "carriers.nomad: Nomad is not attached"),
        ("datacenter: {consul: {}}\ncarriers: {shh: {}}", "", "carriers.shh"),
        ("datacenter: {consul: {}}\ninterlocks: {armmed: {}}", "", "interlocks.armmed"),
    ],
)
def test_what_run_refuses_validate_refuses(said, tmp_path, written, place, why):
    (tmp_path / "bad.yaml").write_text(f"{HEAD}{written}\n")
    (tmp_path / "mine.yaml").write_text(EXPERIMENT.replace("good.yaml", "bad.yaml"))
    for words in (
        ["validate", "bad.yaml"],
        ["validate", "mine.yaml"],
        ["run", "mine.yaml", "--plan"],
        ["run", "raft/killed-leader", "--attach", "bad.yaml", "--plan"],
    ):
        code, text = said(*words)
        text = " ".join(text.split())
        assert code == 2, words
        assert why in text, words
        assert f"bad.yaml:{place}" in text, words


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        (
            "load:",
            'clients: {app: {command: ["true"], rate: 1/s}}\nload:',
            "client app: an attached datacenter has no taps",
        ),
        ("require: [", 'require: ["disk.fsync < 5ms", ', "an attached datacenter has no figures of disks"),
    ],
)
def test_what_no_existing_datacenter_has_is_told_of_an_experiment_that_attaches(said, tmp_path, key, value, why):
    (tmp_path / "mine.yaml").write_text(EXPERIMENT.replace(key, value, 1))
    code, text = said("validate", "mine.yaml")
    assert (code, why in " ".join(text.split())) == (2, True), text


def test_a_good_one_is_good(said, tmp_path):
    (tmp_path / "mine.yaml").write_text(EXPERIMENT)
    assert said("validate", "good.yaml")[0] == said("validate", "mine.yaml")[0] == 0
