"""The `probes:` of an experiment: mistakes in the file, secrets, and what a whole run makes of them."""

import pytest
from typer.testing import CliRunner

from engine_game import ALWAYS, SLOW, Game
from hashidrill.core.errors import ExperimentError, UsageError
from hashidrill.core.experiment.loader import load_text, resolve
from hashidrill.core.probes.base import SickError
from hashidrill.core.probes.declared import DeclaredProbe, Look, ProbeContext, UnservedError, outside, read_secrets
from hashidrill.core.probes.http import HttpAsker, Reply
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import Sample
from hashidrill.faces.cli.app import app
from hashidrill.lab.runs.launch import prepare
from tasks import raising
from virtual_time import run

EXPERIMENT = """\
apiVersion: hashidrill/v1
kind: Experiment
metadata: {{name: mine, title: Mine, why: It shows}}
load: {{kv-writes: {{kind: consul.kv.write, rate: 50/s}}}}
probes:
  page: {page}
steady_state: {{require: ["{condition}"]}}
method: [{{fault: noop, on: "consul:leader", for: 20s}}]
recovery: {{for: 20s}}
expect: [{{{expect}}}]
"""
PAGE = '{kind: http, url: "http://client-1:8500/"}'


def more_of_it(count):
    """As many other probes that look ten times a second, below the page."""
    other = '{kind: tcp, address: "a:1", every: 100ms}'
    return "".join(f"\n  other-{n}: {other}" for n in range(count))


STAYS = 'signal_stays: {condition: "page.ok == 1"}'


def loaded(page=PAGE, condition="page.ok == 1", expect=STAYS):
    return load_text(EXPERIMENT.format(page=page, condition=condition, expect=expect))


def test_a_probe_is_a_signal_like_any_other():
    experiment = loaded(condition="page.latency < 300ms")
    assert experiment.declared_signals.keys() == {"page.ok", "page.latency", "page.status", "page.value"}
    [own] = [one for one in experiment.sampled(experiment.declared_signals) if "page.ok" in one.signals]
    assert own.silent_s == 5
    assert loaded('{kind: http, url: "http://a/", every: 10s}').probes["page"].silent_s == 31


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"page": "{kind: htpp}"}, "did you mean http?"),
        ({"page": "{kind: DNS}"}, "did you mean dns?"),
        ({"page": "{kind: http}"}, "url is missing"),
        ({"page": '{kind: http, url: "http://a/", every: 1ms}'}, "every is from 100ms to 10m"),
        ({"page": '{kind: http, url: "http://a/", timeout: 2m}'}, "timeout is from 10ms to 1m"),
        ({"page": '{kind: http, url: "ftp://a/"}'}, "is not a URL"),
        ({"page": '{kind: http, url: "http://a:x/"}'}, "ort"),
        ({"page": '{kind: http, url: "http://me:pw@a/"}'}, "would be recorded"),
        ({"page": '{kind: http, url: "http://a/?token=abc"}'}, "token is a secret"),
        ({"page": '{kind: prometheus, url: "http://a/?x=1", query: up}'}, "has a query"),
        ({"page": f"{PAGE}{more_of_it(11)}"}, "together they look 111 times a second"),
        ({"page": '{kind: http, url: "http://a/", headers: {X-Consul-Token: abc}}'}, "`{env: NAME}`"),
        ({"page": '{kind: http, url: "http://a/", headers: {Host: abc}}'}, "not a header that a probe can set"),
        ({"page": '{kind: http, url: "http://a/", headers: {A: {env: X, file: y}}}'}, "name either a variable"),
        ({"page": '{kind: http, url: "http://a/", regex: "("}'}, "not a regular expression"),
        ({"page": '{kind: http, url: "http://a/", regex: "(a+)+$"}'}, "a search may never end"),
        ({"page": '{kind: http, url: "http://a/", equals: x}'}, "say where it is"),
        ({"page": '{kind: http, url: "http://a/", json: a, regex: b}'}, "either at a place in JSON"),
        ({"page": '{kind: tcp, address: "a"}'}, "write HOST:PORT"),
        ({"expect": "metrics_exist: {probes: [page]}"}, "page is not a probe of the kind metrics"),
        ({"expect": "metrics_exist: {probes: []}"}, "name at least one probe"),
        (
            {
                "page": '{kind: metrics, source: page, url: "http://a/", series: [up]}',
                "expect": "telemetry_lag_below: {probe: page, lag: 5s}",
            },
            "does not say when samples were taken",
        ),
        ({"page": '{kind: tcp, address: "a:99999"}'}, "write HOST:PORT"),
        ({"page": '{kind: dns, name: a..b, server: "a:53"}'}, "not a DNS name"),
        ({"page": '{kind: dns, name: a, server: "a:53", type: ANY}'}, "ANY"),
        ({"page": "{kind: command, command: []}"}, "at least 1 entry"),
        ({"page": "{kind: command, command: [x], environment: {MY_TOKEN: x}}"}, "`{env: NAME}`"),
        ({"page": '{kind: prometheus, url: "http://a/", query: up, stale_after: 2h}'}, "stale_after is from 1s to 1h"),
        ({"condition": "page.okk == 1"}, "did you mean page.ok?"),
        ({"condition": "paeg.ok == 1"}, "did you mean page?"),
        ({"condition": "page.ok == 1s"}, "plain number"),
        ({"condition": "page.latency < 3"}, "has no unit"),
        ({"expect": 'signal_stays: {condition: "page.okk == 1"}'}, "nothing measures page.okk"),
        ({"expect": 'signal_stays: {condition: "page.ok == 1 for 5s"}'}, "leave it out"),
        ({"expect": 'signal_stays: {condition: "kv-writes.errors < 1%"}'}, "latency_stays"),
        ({"expect": 'signal_recovers: {condition: "page.ok == 1", within: 30s}'}, "make `recovery` longer"),
    ],
)
def test_each_mistake_has_one_message_with_its_place(wrong, said):
    with pytest.raises(ExperimentError) as error:
        loaded(**wrong)
    assert said in str(error.value)
    assert "experiment.yaml:" in str(error.value)


def test_a_name_that_is_taken_is_refused():
    with pytest.raises(ExperimentError, match="give the probe another"):
        load_text(EXPERIMENT.replace("page:", "raft:").format(page=PAGE, condition="raft.leader == 1", expect=STAYS))


def test_secrets_are_read_from_their_places_and_each_that_is_missing_is_named(monkeypatch, tmp_path):
    (tmp_path / "token").write_text("from-a-file\n")
    page = (
        f'{{kind: http, url: "http://client-1/", headers: {{A: {{env: EVIDENCE_T}}, B: {{file: {tmp_path}/token}}}}}}'
    )
    experiment = loaded(page)
    with pytest.raises(UsageError, match=r"probes\.page: the variable EVIDENCE_T is not set"):
        read_secrets(experiment)
    monkeypatch.setenv("EVIDENCE_T", "two\nlines")
    with pytest.raises(UsageError, match="more than one line"):
        read_secrets(experiment)
    monkeypatch.setenv("EVIDENCE_T", "from-a-variable")
    assert set(read_secrets(experiment).values()) == {"from-a-variable", "from-a-file"}
    (tmp_path / "token").unlink()
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_secrets(experiment)


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ('{kind: http, url: "https://client-1/", tls: {ca_file: /nowhere.pem}}', "/nowhere.pem"),
        ("{kind: command, command: [no-such-program-here]}", "there is no program"),
    ],
)
def test_what_this_machine_lacks_is_said_before_anything_starts(page, said):
    with pytest.raises(UsageError, match=said):
        read_secrets(loaded(page))


def test_the_local_datacenter_has_no_way_to_the_world():
    hosts = {"client-1", "consul-1"}
    assert not list(outside(loaded(), hosts, "10.73.0.0/24"))
    assert not list(outside(loaded('{kind: tcp, address: "10.73.0.11:8300"}'), hosts, "10.73.0.0/24"))
    for other in ("http://prometheus:9090/", "http://127.0.0.1/", "http://[::1]/"):
        [(loc, text)] = outside(loaded(f'{{kind: http, url: "{other}"}}'), hosts, "10.73.0.0/24")
        assert loc == ("probes", "page", "url")
        assert "has only its own network" in text


@pytest.mark.lie
@pytest.mark.parametrize(
    ("page", "said"),
    [
        ('{kind: http, url: "http://payments.example.com/"}', "mine.yaml:6:27: probes.page.url: payments.example.com"),
        ('{kind: dns, server: "client-2:8600", name: a}', "did you mean client-1"),
    ],
)
def test_validate_warns_of_an_address_that_a_local_run_refuses_and_the_run_says_the_same(tmp_path, page, said):
    file = tmp_path / "mine.yaml"
    file.write_text(EXPERIMENT.format(page=page, condition="page.ok == 1", expect=STAYS))
    done = CliRunner().invoke(app, ["validate", str(file)])
    assert done.exit_code == 0, done.output
    assert said in " ".join(done.output.split())
    assert "`hashidrill run` refuses this unless it is given `--attach FILE`" in done.output
    with pytest.raises(ExperimentError) as refused:
        prepare(resolve(file), print, ensure_binary=lambda name, *_, **__: name)
    assert str(refused.value) in done.output


class Careless(DeclaredProbe):
    """What somebody wrote without a thought for what is not known."""

    kind = "careless"
    signals = {"ok": None, "value": None, "other": None}  # noqa: RUF012 - as a stranger writes it

    async def look(self):
        return Look({"ok": float("nan"), "value": float("inf")})


@pytest.mark.lie
def test_a_kind_that_is_written_without_care_says_nothing_that_compares_well():

    samples = run(Careless("it", None, ProbeContext()).sample())
    assert [(one.value, one.ok) for one in samples] == [(None, False)] * 3
    assert all(one.text for one in samples)


def game(path, monkeypatch, send, **more):
    """A run with a page, whose server is `send(method, url, headers)`: a status, or an error."""

    async def sent(asker, method, url, **_):
        return Reply(send(asker, url), {}, b"", 0.01)

    monkeypatch.setattr(HttpAsker, "send", sent)
    probes = {"page": {"kind": "http", "url": "http://consul-1:8500/", "headers": {"T": {"env": "X"}}}}
    return Game(path, [SLOW], probes=probes, **more)


def test_a_run_samples_every_signal_and_hands_over_addresses_and_secrets(tmp_path, monkeypatch):
    asked = set()

    def send(asker, url):
        asked.add((url, asker._headers["T"], asker._context.address("consul-1")))
        return 200

    steady = {**ALWAYS, "require": [*ALWAYS["require"], "page.ok == 1"]}
    played = game(tmp_path, monkeypatch, send, steady_state=steady)
    assert played.run(probe_secrets={"the variable X": "s3cret"}) == "complete"
    assert asked == {("http://consul-1:8500/", "s3cret", played.world.hosts["consul-1"].address)}
    samples = {one.signal: one.value for one in played.writer.rows if isinstance(one, Sample)}
    assert (samples["page.ok"], samples["page.status"], samples["page.value"]) == (1, 200, None)


@pytest.mark.lie
def test_a_guardrail_on_a_probe_that_sees_nothing_trips(tmp_path, monkeypatch):
    """From the method on, nothing is known of the page, which is not the same as well."""

    def send(_asker, _url):
        if "method" in played.phases_s():
            raise SickError("a body that is too large")
        return 200

    played = game(tmp_path, monkeypatch, send, guardrails=["page.ok < 1 for 3s"])
    assert played.run(probe_secrets={"the variable X": "s3cret"}) == "guardrail"
    assert "no look at page.ok succeeded for 5s" in str(played.journal)


def test_every_kind_says_what_it_measures_and_how():
    for kind, cls in registry.probes().items():
        assert cls.kind == kind
        assert cls.__doc__
        assert "Signal" in cls.__doc__, f"{kind} has to say what its signals are"
        assert all(f"`{signal}`" in cls.__doc__ for signal in cls.signals)


@pytest.mark.lie
def test_a_steady_state_that_waits_for_a_probe_says_why_in_each_tick_and_at_its_end(tmp_path, monkeypatch):
    steady = {**ALWAYS, "within": "10s", "require": [*ALWAYS["require"], "page.ok == 1"]}
    played = game(tmp_path, monkeypatch, raising(UnservedError("connection refused")), steady_state=steady)
    assert played.run(probe_secrets={"the variable X": "s3cret"}) == "steady-state"
    waits = "page.ok == 1 (measured 0; last look: connection refused)"
    [evidence] = [entry.data["evidence"] for entry in played.journal if entry.event == "steady"]
    assert waits in evidence
    assert [one.unmet for one in played.ticks if one.phase == "steady"][-1] == (waits,)
