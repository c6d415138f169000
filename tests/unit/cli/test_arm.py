"""`hashidrill arm`, `disarm` and `stop`: what is wrong is said before anybody is asked."""

import pytest
from typer.testing import CliRunner

from hashidrill.cli.app import app
from hashidrill.datacenter.interlocks import arming
from hashidrill.errors import HashidrillError, UsageError

ATTACH = """\
apiVersion: hashidrill/v1
kind: Attach
metadata: {name: staging}
datacenter: {PRODUCT: {address: "http://127.0.0.1:1"}}
"""


@pytest.fixture
def attach(tmp_path, monkeypatch):
    for name in ("CONSUL_HTTP_TOKEN", "CONSUL_HTTP_TOKEN_FILE", "CONSUL_CACERT", "CONSUL_HTTP_SSL", "NOMAD_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    def written(product="consul", more=""):
        path = tmp_path / "staging.yaml"
        path.write_text(ATTACH.replace("PRODUCT", product) + more)
        return str(path)

    return written


def call(*arguments):
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def test_a_new_key_is_its_owners_alone_and_its_public_half_is_printed(tmp_path):
    path = tmp_path / "me.pem"
    said = call("arm", "--new-key", str(path)).stdout
    assert f"public_key: {arming.public_of(path.read_bytes())}" in said
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(UsageError, match="no key was made: File exists"):
        call("arm", "--new-key", str(path))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say what is armed and where"),
        (["raft/slow-leader-disk"], "say what is armed and where"),
        (["--attach", "FILE"], "say what is armed and where"),
        (["raft/slow-leader-disk", "--attach", "FILE", "--for", "2 days"], "--for: "),
        (["raft/slow-leader-disk", "--attach", "FILE", "--for", "25h"], "the longest that the attach file allows"),
        (["raft/slow-leader-disk", "--attach", "FILE", "--key", "/nowhere"], "--key /nowhere: cannot be read"),
        (["raft/no-such", "--attach", "FILE"], "no-such"),
    ],
)
def test_an_arming_that_cannot_be_is_refused_with_exit_code_2(arguments, said, attach):
    with pytest.raises(HashidrillError) as wrong:
        call("arm", *[attach() if each == "FILE" else each for each in arguments])
    assert said in str(wrong.value)
    assert wrong.value.exit_code == 2


@pytest.mark.parametrize("command", [["arm", "raft/slow-leader-disk"], ["disarm"], ["stop"], ["stop", "--release"]])
def test_without_consul_there_is_nothing_to_say_it_to(command, attach):
    with pytest.raises(HashidrillError, match="are kept in Consul") as wrong:
        call(*command, "--attach", attach("nomad"))
    assert wrong.value.exit_code == 2


def test_settings_that_cannot_be_are_named(attach):
    with pytest.raises(HashidrillError, match=r"staging\.yaml: interlocks\.stop\.within"):
        call("stop", "--attach", attach(more="interlocks: {stop: {within: 1h}}\n"))
