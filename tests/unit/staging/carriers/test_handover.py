"""What a fault is told where the program that waits for it stands in a job that others read."""

import json
import subprocess
import sys

import pytest

from hashidrill.staging.carriers.inside import agent, notes
from hashidrill.staging.carriers.inside.system import RefusedError, System
from hashidrill.staging.carriers.shell import NOTES, program

ARGS = {"table": "t", "script": "add table inet t\nadd rule inet t input drop\n"}


@pytest.fixture
def secrets(tmp_path, monkeypatch):
    """As Nomad makes it: everybody may write into it who gets there."""
    folder = tmp_path / "secrets"
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.setenv("NOMAD_SECRETS_DIR", str(folder))
    return folder


def handed():
    """By the program that exec starts."""
    done = subprocess.run(
        [sys.executable, "-c", program({"args": ARGS}, NOTES, "hand_over")], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_arguments_are_for_root_alone_and_gone_once_they_are_taken(secrets):
    assert handed() == {"event": "handed"}
    [file] = [path for path in secrets.rglob("*") if path.is_file()]
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert notes.take_arguments() == ARGS
    assert [*secrets.iterdir()] == []
    with pytest.raises(RefusedError, match="no arguments were handed over, so nothing was applied"):
        notes.take_arguments()


def of_others(secrets):
    (secrets / "hashidrill").mkdir()
    (secrets / "hashidrill").chmod(0o777)


def a_link(secrets):
    (secrets.parent / "elsewhere").mkdir(mode=0o700)
    (secrets / "hashidrill").symlink_to(secrets.parent / "elsewhere")


@pytest.mark.parametrize("plant", [of_others, a_link])
def test_arguments_go_into_no_folder_of_others_and_are_taken_from_none(secrets, plant):
    plant(secrets)
    assert handed()["event"] == "refused"
    assert list(secrets.parent.rglob("*.json")) == []
    (secrets / "hashidrill" / "arguments.json").write_text(json.dumps(ARGS))
    with pytest.raises(RefusedError):
        notes.take_arguments()


def test_without_a_folder_for_secrets_it_is_said(monkeypatch):
    monkeypatch.delenv("NOMAD_SECRETS_DIR", raising=False)
    assert handed()["name"] == "no-secrets"


class Host(System):
    """Its nft takes no rules, and says which."""

    def is_root(self):
        return True

    def run(self, command, text=""):
        return 1, "", f"no: {text}"


def refused(tmp_path, capfd, **more):
    """What an agent says that does not apply anything; its exit code is 2."""
    spec = {
        "id": "f",
        "kind": "packets",
        "args": {},
        "folder": str(tmp_path / "run"),
        "handed": True,
        "lease_s": 0.0,
        "deadline_s": 60,
        "renewals": "signal",
        **more,
    }
    assert agent.Agent(spec, Host()).run() == 2
    return json.loads(capfd.readouterr().out.splitlines()[-1])


@pytest.mark.usefixtures("signals_restored")
def test_an_agent_does_what_it_is_handed(tmp_path, secrets, capfd):
    assert handed() == {"event": "handed"}
    assert refused(tmp_path, capfd)["why"] == f"this host's nft does not accept the rules: no: {ARGS['script']}"
    assert [*secrets.iterdir()] == []


@pytest.mark.usefixtures("signals_restored", "secrets")
def test_an_agent_that_is_handed_nothing_applies_nothing(tmp_path, capfd):
    assert refused(tmp_path, capfd)["name"] == "no-arguments"


@pytest.mark.usefixtures("signals_restored")
def test_an_agent_that_nobody_asks_leaves_no_arguments_behind(tmp_path, secrets, capfd):
    assert handed() == {"event": "handed"}
    assert refused(tmp_path, capfd, waits=True)["name"] == "unasked"
    assert [*secrets.iterdir()] == []
