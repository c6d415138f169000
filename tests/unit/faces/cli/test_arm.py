"""`hashidrill staging arm`, `disarm` and `stop`: what is wrong is said before anybody is asked."""

import json

import pytest
from typer.testing import CliRunner

import virtual_time
from fake_kv import FakeKv
from hashidrill.core.errors import HashidrillError, UsageError
from hashidrill.faces.cli import interlocks
from hashidrill.faces.cli.app import app
from hashidrill.staging.interlocks import arming
from hashidrill.staging.interlocks.kv import Kv

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
    said = call("staging", "arm", "--new-key", str(path)).stdout
    assert f"public_key: {arming.public_of(path.read_bytes())}" in said
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(UsageError, match="no key was made: File exists"):
        call("staging", "arm", "--new-key", str(path))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say what to arm and where"),
        (["raft/slow-leader-disk"], "say what to arm and where"),
        (["--attach", "FILE"], "say what to arm and where"),
        (["raft/slow-leader-disk", "--attach", "FILE", "--for", "2 days"], "--for: "),
        (["raft/slow-leader-disk", "--attach", "FILE", "--for", "25h"], "the longest that the attach file allows"),
        (["raft/slow-leader-disk", "--attach", "FILE", "--key", "/nowhere"], "--key /nowhere: cannot be read"),
        (["raft/no-such", "--attach", "FILE"], "no-such"),
    ],
)
def test_an_arming_that_cannot_be_is_refused_with_exit_code_2(arguments, said, attach):
    with pytest.raises(HashidrillError) as wrong:
        call("staging", "arm", *[attach() if each == "FILE" else each for each in arguments])
    assert said in str(wrong.value)
    assert wrong.value.exit_code == 2


@pytest.mark.parametrize("command", [["arm", "raft/slow-leader-disk"], ["disarm"], ["stop"], ["stop", "--release"]])
def test_without_consul_there_is_nothing_to_say_it_to(command, attach):
    with pytest.raises(HashidrillError, match="Consul keeps the stop button") as wrong:
        call("staging", *command, "--attach", attach("nomad"))
    assert wrong.value.exit_code == 2


@pytest.fixture
def world(monkeypatch):
    """Consul's keys, that the commands write."""
    found = FakeKv()
    monkeypatch.setattr(interlocks, "_with_consul", lambda _, do: virtual_time.run(do(Kv(found))))
    return found


def armed_in(world):
    return {one.name: one for one in arming.read(world.value("hashidrill-interlocks/armed"), "x").experiments}


def test_what_is_armed_is_shown_with_its_digest(world, attach):
    said = call("staging", "arm", "raft/slow-leader-disk", "--attach", attach()).stdout
    [armed] = armed_in(world).values()
    assert f"slow-leader-disk {armed.digest[:19]}" in said
    assert "disk.latency on consul:leader" in said
    assert "armed slow-leader-disk in staging for 1h" in said
    assert not armed.breaks_quorum


def test_what_may_set_back_all_state_is_armed_for_that_only_when_it_is_said(world, attach):
    said = call("staging", "arm", "state/snapshot-reset", "--attach", attach()).stdout
    assert "not armed for breaking a quorum" in said
    assert not armed_in(world)["snapshot-reset"].breaks_quorum
    call("staging", "arm", "state/snapshot-reset", "raft/slow-leader-disk", "--attach", attach(), "--breaks-quorum")
    wide = {name: one.breaks_quorum for name, one in armed_in(world).items()}
    assert wide == {"snapshot-reset": True, "slow-leader-disk": False}, "one that does not ask for it rides on nothing"


def test_one_command_arms_all_of_a_game_day(world, attach, tmp_path):
    day = {
        "apiVersion": "hashidrill/v1",
        "kind": "GameDay",
        "metadata": {"name": "two", "title": "Two", "why": "To arm them"},
        "people": {"lead": {"role": "lead"}},
        "experiments": [{"experiment": "raft/slow-leader-disk"}, {"experiment": "state/snapshot-reset"}],
    }
    path = tmp_path / "two.yaml"
    path.write_text(json.dumps(day))
    call("staging", "arm", str(path), "--attach", attach())
    assert set(armed_in(world)) == {"slow-leader-disk", "snapshot-reset"}


def test_a_disarmed_arming_and_a_pressed_button_stay(world, attach):
    call("staging", "arm", "raft/slow-leader-disk", "--attach", attach())
    assert "disarmed staging" in call("staging", "disarm", "--attach", attach()).stdout
    assert "no run is in progress there" in call("staging", "stop", "--attach", attach()).stdout
    assert set(world.keys) == {f"hashidrill-interlocks/{name}" for name in ("anchor", "taken-back", "stop")}
    call("staging", "stop", "--attach", attach(), "--release")
    assert "hashidrill-interlocks/stop" not in world.keys


def test_settings_that_cannot_be_are_named(attach):
    with pytest.raises(HashidrillError, match=r"staging\.yaml: interlocks\.stop\.within"):
        call("staging", "stop", "--attach", attach(more="interlocks: {stop: {within: 1h}}\n"))
