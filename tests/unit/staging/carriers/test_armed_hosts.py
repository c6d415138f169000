"""A host that says who may arm it takes no fault of anybody else, whatever attach file and Consul they bring."""

import datetime as dt
import json
import time
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from hashidrill.staging.carriers.inside import armed
from hashidrill.staging.carriers.inside.agent import Agent
from hashidrill.staging.carriers.inside.system import RefusedError, System
from hashidrill.staging.interlocks.arming import Armed, Arming, new_key, public_of, sign

pytestmark = pytest.mark.lie

NOW = dt.datetime.now(dt.UTC).replace(microsecond=0)
HOUR = dt.timedelta(hours=1)
GOOD = Arming("ana", (Armed("slow-leader-disk", "sha256:aa11"),), "staging-1", NOW - HOUR, NOW + HOUR)
OURS, THEIRS = new_key(), new_key()


@pytest.fixture
def host(tmp_path):
    """Which tools ran on a host that ana may arm."""

    class Host(System):
        armed_by = tmp_path / "armed-by"

        def __init__(self):
            self.ran = []

        def run(self, command, text=""):
            self.ran.append(command)
            return 0, "", ""

        def is_root(self):
            return True

    Host.armed_by.write_text(f"# who may arm\n\n{public_of(OURS)} staging-1  # ana\n")
    return Host()


def refusal(host, envelope, now=None):
    try:
        armed.check(envelope, time.time() if now is None else now, host.armed_by)
    except RefusedError as error:
        said = f"{error.name}: {error}"
    else:
        return ""
    assert said.startswith(f"not-armed: {host.armed_by} says who may arm faults on this host: ")
    return said


ATTACKS = {
    "no arming": ("", "no signed arming"),
    "an arming that nobody signed": (GOOD.text(), "no signed arming"),
    "of an operator's own key": (sign(GOOD, THEIRS), "is not signed with a key of"),
    "for an own datacenter": (
        sign(replace(GOOD, datacenter="mine"), OURS),
        "but its key arms staging-1",
    ),
    "that is over": (sign(replace(GOOD, since=NOW - 3 * HOUR, until=NOW - 2 * HOUR), OURS), "the arming is from"),
    "that is to come": (sign(replace(GOOD, since=NOW + HOUR, until=NOW + 2 * HOUR), OURS), "the arming is from"),
    "whose text was changed": (sign(GOOD, OURS).replace("staging-1", "staging-2"), "is not signed with a key of"),
    "whose signature is long": (
        json.dumps({"arming": GOOD.text(), "signature": "AAAA" * 9000}),
        "is not signed with a key of",
    ),
    "that is nested": ("[" * 100_000, "no signed arming"),
}


@pytest.mark.usefixtures("signals_restored")
@pytest.mark.parametrize("attack", ATTACKS)
def test_an_operator_with_an_attach_file_and_a_consul_of_their_own_puts_no_fault_on_it(host, tmp_path, capfd, attack):
    envelope, why = ATTACKS[attack]
    assert why in refusal(host, envelope)
    spec = {"id": "f", "kind": "packets", "args": {"table": "t", "script": ""}, "folder": str(tmp_path / "run")}
    assert Agent(spec | {"armed": envelope}, host).run() == 2
    said = json.loads(capfd.readouterr().out)
    assert (said["event"], said["name"]) == ("refused", "not-armed")
    assert "nothing was applied" in said["why"]
    assert (host.ran, (tmp_path / "run").exists()) == ([], False)


@pytest.mark.parametrize("line", ["{key} staging-1", "{key}", "{other}\n{key} elsewhere\n{key} staging-1"])
def test_what_is_armed_by_one_of_its_keys_is_let_in(host, line):
    host.armed_by.write_text(line.format(key=public_of(OURS), other=public_of(THEIRS)))
    assert refusal(host, sign(GOOD, OURS)) == ""
    assert refusal(host, sign(GOOD, OURS), now=GOOD.since.timestamp() - 59) == "", "clocks differ a little"


@pytest.mark.usefixtures("signals_restored")
def test_a_host_that_says_nothing_takes_what_the_datacenter_armed(host, tmp_path, capfd):
    host.armed_by.unlink()
    assert refusal(host, "") == ""
    (tmp_path / "run").write_text("")
    spec = {"id": "f", "kind": "packets", "args": {"table": "t", "script": ""}, "folder": str(tmp_path / "run")}
    assert Agent(spec, host).run() == 2
    assert json.loads(capfd.readouterr().out)["name"] == "note", "it got as far as its note"


def written_by_all(path):
    path.chmod(0o666)


def a_link(path):
    path.symlink_to(path.rename(path.with_name("other")))
    path.parent.chmod(0o777)


def torn(path):
    path.write_text("ed25519:AAAA")


def of_four_words(path):
    path.write_text(f"{public_of(OURS)} staging-1 or staging-2")


def not_text(path):
    path.write_bytes(b"\xff\xfe")


def a_folder(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("plant", [written_by_all, a_link, torn, of_four_words, not_text, a_folder])
def test_a_file_that_does_not_say_it_for_sure_lets_nobody_in(host, plant):
    plant(host.armed_by)
    assert "it is not usable: " in refusal(host, sign(GOOD, OURS))


@pytest.mark.long
@given(message=st.binary(max_size=200), seed=st.binary(min_size=32, max_size=32), spoil=st.integers(0, 96 * 8 - 1))
def test_a_signature_is_verified_as_openssl_does_it(message, seed, spoil):
    key = Ed25519PrivateKey.from_private_bytes(seed)
    public, signature = key.public_key().public_bytes_raw(), key.sign(message)
    assert armed.verified(public, message, signature)
    spoilt = bytearray(public + signature)
    spoilt[spoil // 8] ^= 1 << spoil % 8
    assert not armed.verified(bytes(spoilt[:32]), message, bytes(spoilt[32:]))
    assert not armed.verified(public, message + b"x", signature)


def test_a_signature_counts_in_one_form_alone():
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    public, signature = key.public_key().public_bytes_raw(), key.sign(b"x")
    more = int.from_bytes(signature[32:], "little") + 2**252 + 27742317777372353535851937790883648493
    assert armed.verified(public, b"x", signature)
    assert not armed.verified(public, b"x", signature[:32] + more.to_bytes(32, "little"))
    assert not armed.verified(public, b"x", signature + b"\0")
    assert not armed.verified(b"", b"x", signature)
