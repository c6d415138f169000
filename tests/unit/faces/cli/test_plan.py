"""`hashidrill run --plan` says what would be touched, in order, and touches nothing.
`hashidrill staging proxies` prints a populate file, and nothing else.
"""

import datetime as dt
import json
from dataclasses import replace
from types import SimpleNamespace

import anyio
import pytest
from typer.testing import CliRunner

from attached_estates import FakeEstate, consul_target, of_nomad
from hashidrill.core.errors import UsageError
from hashidrill.core.experiment.attached import attached_to
from hashidrill.core.experiment.documents import Document
from hashidrill.faces.cli import toxiproxy as command
from hashidrill.faces.cli.app import app
from hashidrill.faces.cli.plan import show
from hashidrill.staging.attach.http import Login
from hashidrill.staging.attach.interlocks import open_interlocks
from hashidrill.staging.attach.plan import plan_of
from hashidrill.staging.interlocks.arming import Arming
from virtual_time import run

METHOD = [
    {"fault": "consul.leader.transfer", "on": "consul:leader", "for": "5s", "at": "10s"},
    {"fault": "consul.kv.bloat", "on": "host:consul-1", "for": "5s", "with": {"keys": 10, "value": "1kB"}},
]


class There:
    """An attached datacenter whose agents are fakes."""

    def __init__(self, folder, method=METHOD, *, armed=True):
        self.fake, self.target = FakeEstate(), consul_target(folder)
        self.estate = anyio.run(self.fake.found, self.target)
        document = {
            "apiVersion": "hashidrill/v1",
            "kind": "Experiment",
            "metadata": {"name": "short", "title": "A short one", "why": "It tests plans"},
            "load": {"kv-writes": {"kind": "consul.kv.write", "rate": "5/s"}},
            "steady_state": {"for": "2s", "within": "5s", "require": ["raft.leader >= 0"]},
            "recovery": {"for": "1s"},
            "method": method,
            "expect": [{"no_acknowledged_write_lost": {"load": "kv-writes"}}],
        }
        found, path = self.estate.as_datacenter(), folder / "x.yaml"
        self.resolved = attached_to(Document("x.yaml", json.dumps(document)), found, name="staging", path=path)
        if armed:
            now = dt.datetime.now(dt.UTC)
            arming = Arming("ana", ("short",), "staging", now - dt.timedelta(minutes=1), now + dt.timedelta(hours=1))
            self.fake.world.consul.kv.answer("PUT", "/v1/kv/hashidrill-interlocks/armed", {}, arming.text().encode())
        self.fake.asked.clear()

    def plan(self, resolved):
        return plan_of(resolved.experiment, self.target, self.estate)

    def allowed(self, resolved):
        async def check():
            wires = self.fake.wires(self.target)
            try:
                await open_interlocks(self.target, self.estate, wires).check(self.plan(resolved))
            finally:
                for wire in wires.values():
                    await wire.aclose()

        anyio.run(check)

    @property
    def writes(self):
        questions = {"/v1/internal/acl/authorize"}
        return [one for one in self.fake.asked if one.method != "GET" and one.url.path not in questions]


def planned(there, capsys, **more):
    code = show([there], [there.resolved], **{"as_json": False, **more})
    return code, capsys.readouterr().out


def test_a_plan_is_in_order_and_says_where_what_how_long_how_reverted_and_which_rights(tmp_path, capsys):
    there = There(tmp_path)
    _, out = planned(there, capsys)
    lines = out.splitlines()
    assert lines[0] == "short in staging would touch, in this order:"
    begins = [line for line in lines if line[:1].isdigit()]
    assert begins == [
        "1. from the steady state to 16s: consul.kv.write through consul:clients (client-1), as kv-writes",
        "2. 0s to 5s of the method: consul.kv.bloat on host:consul-1",
        "3. 10s to 15s of the method: consul.leader.transfer on consul:leader (one of consul-1, consul-2, consul-3)",
    ]
    bloat = out[out.index("2. ") : out.index("3. ")]
    assert "with keys: 10, value: 1kB" in bloat
    assert "reverted: " in bloat
    assert 'needs consul: agent_prefix "": read' in bloat
    assert 'consul: key_prefix "hashidrill/obsolete/": write' in bloat
    assert "consul: operator: write" in out[out.index("3. ") :]


@pytest.mark.lie
@pytest.mark.parametrize("armed", [True, False])
def test_it_touches_nothing(armed, tmp_path, capsys):
    there = There(tmp_path, armed=armed)
    before = dict(there.fake.world.consul.kv.entries)
    planned(there, capsys)
    assert there.fake.asked, "the interlocks looked"
    assert there.writes == []
    assert there.fake.world.consul.kv.entries == before
    assert not there.fake.world.consul.sessions


def test_it_ends_with_what_the_interlocks_say(tmp_path, capsys):
    code, out = planned(There(tmp_path, armed=False), capsys)
    assert code == 2
    assert out.splitlines()[-1].startswith("The interlocks refuse it: not armed")


def test_scripts_get_it_as_json(tmp_path, capsys):
    _, out = planned(There(tmp_path, armed=False), capsys, as_json=True)
    [plan] = json.loads(out)
    assert [one["what"] for one in plan["actions"]] == ["consul.kv.write", "consul.kv.bloat", "consul.leader.transfer"]
    assert plan["actions"][2]["hosts"] == ["consul-1", "consul-2", "consul-3"]
    assert plan["refused"].startswith("not armed")
    assert plan["digest"].startswith("sha256:")


def test_the_job_of_the_workers_is_in_it_before_their_loads(tmp_path, capsys):
    there = There(tmp_path)
    there.fake.answers |= of_nomad()
    login = Login("nomad", "http://10.73.0.21:4646", params={"namespace": "drills"})
    logins = {**there.target.logins, "nomad": login}
    there.target = replace(there.target, logins=logins, engine={"nomad": {"workers": 2, "lease": "20s"}})
    there.estate = anyio.run(there.fake.found, there.target)
    _, out = planned(there, capsys)
    lines = out[: out.index("2. ")].splitlines()
    assert lines[1:3] == [
        "1. before the loads: nomad job hashidrill-generators-RUN, 2 workers on as many of client-1, node-1",
        "   with lease: 20s",
    ]
    assert 'nomad: namespace "drills": submit-job' in lines[-1]
    assert "2. from the steady state" in out


@pytest.mark.parametrize("option", ["--plan", "--breaks-quorum"])
def test_both_options_are_about_an_existing_datacenter(option):
    with pytest.raises(UsageError, match="name it with --attach"):
        CliRunner().invoke(app, ["run", "raft/slow-leader-disk", option], catch_exceptions=False)


@pytest.fixture
def there(tmp_path, monkeypatch):
    target = consul_target(tmp_path)
    estate = run(FakeEstate().found(target))
    monkeypatch.setattr(command, "attached", lambda _: SimpleNamespace(estate=estate))
    return tmp_path / "staging.yaml"


def test_it_is_what_toxiproxy_takes_as_its_config(there, capsys):
    command.proxies(attach=there, listen="127.0.0.1", first_port=30000)
    proxies = json.loads(capsys.readouterr().out)
    assert [sorted(one) for one in proxies] == [["enabled", "listen", "name", "upstream"]] * 7
    assert proxies[0]["listen"] == "127.0.0.1:30000"


@pytest.mark.parametrize("port", [65_535, 0])
def test_what_cannot_be_is_refused(there, capsys, port):
    with pytest.raises(UsageError, match="proxies need as many ports"):
        command.proxies(attach=there, listen="127.0.0.1", first_port=port)
    assert capsys.readouterr().out == ""
