"""An experiment is read, resolved and checked once; everybody else gets what came of it.
An experiment over a datacenter that stands already: hosts and selectors are those that were found.
Consul is not compulsory: an experiment that needs no host gets none, and one that does gets what it always got.
"""

import contextlib
import json
from collections import Counter
from types import SimpleNamespace

import anyio
import pytest

from folded import across_lines
from hashidrill.core.engine import machine_check
from hashidrill.core.engine.requirements import required_by
from hashidrill.core.engine.run_state import load_specifications
from hashidrill.core.errors import ExperimentError
from hashidrill.core.experiment import documents, library, loader, model
from hashidrill.core.experiment.attached import asked_of_ours, attached_to
from hashidrill.core.experiment.library import find_experiment, list_experiments, read_experiment
from hashidrill.core.experiment.loader import load_text, resolve
from hashidrill.core.experiment.model import DatacenterSpec, Experiment, Mark, make_fault, services_of
from hashidrill.core.experiment.resolved import ResolvedExperiment, sha256
from hashidrill.core.experiment.selectors import parse_selector
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.service import Standing
from hashidrill.core.recording.reader import Recording
from hashidrill.core.recording.writer import FORMAT
from hashidrill.core.util.files import JOURNAL_NAME
from hashidrill.lab.runs import in_sandbox, launch
from hashidrill.reports.write import judge_and_report
from places import GOOD


@pytest.fixture
def counted(monkeypatch):
    """How often YAML was read, and how often an Experiment was made of plain data."""
    counts = Counter()

    class Counted(documents.Document):
        def __init__(self, name, text):
            counts["YAML"] += 1
            super().__init__(name, text)

    def counting(method):
        def count(cls, *args, **kwargs):
            counts["model"] += cls is Experiment
            return method.__func__(cls, *args, **kwargs)

        return classmethod(count)

    monkeypatch.setattr(documents, "Document", Counted)
    monkeypatch.setattr(loader, "Document", Counted)
    monkeypatch.setattr(library, "Document", Counted)
    for name in ("model_validate", "model_validate_json"):
        monkeypatch.setattr(Experiment, name, counting(getattr(Experiment, name)))
    return counts


@pytest.fixture
def run(tmp_path):
    """A whole run but for the datacenter: launcher, the engine's process (here in this one), judge and report."""
    binary = SimpleNamespace(path="/bin/consul", version="1.22.2", sha256="0" * 64, source="PATH")

    async def engine(_experiment, _datacenter, recording, *_, **__):
        lines = [{"event": "run", "format": FORMAT}, {"event": "end", "outcome": "complete", "sealed": {}}]
        (recording / JOURNAL_NAME).write_text("".join(f"{json.dumps({'t_ns': 0, 'wall': 0.0, **e})}\n" for e in lines))
        return "complete"

    @contextlib.contextmanager
    def no_sandbox(_command, _environment, _log, *, given):
        async def inside():
            spec = json.loads(json.dumps(given))
            await in_sandbox.run_given(spec, tmp_path, datacenter=lambda *_, **__: None, run=engine)

        anyio.run(inside)
        process = SimpleNamespace(wait=lambda: 0, returncode=0, send_signal=lambda _: None)
        yield SimpleNamespace(process=process, output=SimpleNamespace(readline=lambda: b""))

    def go():
        resolved = resolve(GOOD)
        recording = Recording(
            launch.run_experiment(
                resolved,
                runs_dir=tmp_path / "runs",
                ensure_binary=lambda *_, **__: binary,
                start_sandbox=no_sandbox,
            )
        )
        judge_and_report(recording, near_to=resolved.path)
        return recording

    return go


@pytest.mark.lie
def test_one_run_reads_the_yaml_once_and_each_process_makes_the_model_once(run, counted):
    """Five or six times each, before. The model: when loading, in the engine's process, and from the recording."""
    run()
    assert counted == {"YAML": 1, "model": 3}


def test_the_recording_holds_what_was_resolved_and_where_it_came_from(run):
    recording = run()
    assert recording.experiment == resolve(GOOD).experiment
    assert recording.resolved.provenance.path == str(GOOD)
    assert recording.resolved.provenance.sha256 == sha256(GOOD.read_bytes())
    assert (recording.path / "experiment.yaml").read_text() == GOOD.read_text()


@pytest.mark.parametrize("path", list_experiments(), ids=lambda path: path.stem)
def test_the_parameters_are_those_of_each_kind_with_its_defaults(path):
    from hashidrill.core import hypothesis
    from hashidrill.core.protocols import registry

    resolved = resolve(path)
    experiment, parameters = resolved.experiment, resolved.parameters
    assert list(parameters.loads) == list(experiment.load)
    pairs = [
        (registry.load(load.kind).Params, load.params, parameters.loads[name]) for name, load in experiment.load.items()
    ]
    steps = list(zip(experiment.method, parameters.steps, strict=True))
    assert all(found == {} for step, found in steps if isinstance(step, Mark))
    pairs += [
        (registry.fault(step.fault).Params, step.with_, found) for step, found in steps if not isinstance(step, Mark)
    ]
    pairs += [
        (hypothesis.get(each.hypothesis, near_to=path).Params, each.params, found)
        for each, found in zip(experiment.expect, parameters.expectations, strict=True)
    ]
    for params, written, found in pairs:
        assert params.model_validate(found) == params.model_validate(written)
        assert set(params.model_validate(written).model_dump(by_alias=True)) == set(found)


@pytest.fixture
def fitted(monkeypatch):
    """How often the parameters of each kind were made of what the experiment says, after it was loaded."""
    counts = Counter()

    def counting(kind, written):
        counts[kind.kind] += 1
        return fit(kind, written)

    fit = model.fitted
    monkeypatch.setattr(model, "fitted", counting)
    return counts


async def all_that_needs_parameters(experiment):
    required = required_by(experiment)
    machine_check.wants(experiment, required)
    for step in experiment.faults:
        make_fault(step, None)
    await load_specifications(experiment, Anywhere())


class Anywhere:
    def load_addresses(self):
        return ["10.73.0.2"]

    async def endpoints(self, via):
        return ["http://10.73.0.11:8500"]

    def access(self, via):
        return {}


def test_parameters_are_validated_once_in_the_launcher_and_once_in_the_engine(fitted):
    resolved = resolve(GOOD)
    anyio.run(all_that_needs_parameters, resolved.experiment)
    assert fitted == {}, "the loader has left them with the experiment"
    there = ResolvedExperiment.from_data(json.loads(json.dumps(resolved.to_data()))).experiment
    anyio.run(all_that_needs_parameters, there)
    assert fitted == Counter([*(step.fault for step in there.faults), *(load.kind for load in there.load.values())])
    assert [step.parameters for step in there.faults] == [step.parameters for step in resolved.experiment.faults]


def test_parameters_that_are_there_are_no_part_of_what_is_compared_and_written_out():
    resolved = resolve(GOOD)
    there = ResolvedExperiment.from_data(resolved.to_data())
    assert there.experiment == resolved.experiment
    dumped = [each.experiment.model_dump(mode="json", by_alias=True) for each in (there, resolved)]
    assert dumped[0] == dumped[1]
    assert Experiment.model_validate(dumped[0]) == resolved.experiment


def test_a_plug_in_whose_parameters_changed_since_gets_one_message(monkeypatch):
    """An experiment that was resolved by another version of the package that has the fault."""

    class Changed(Strict):
        slowness: str

    there = ResolvedExperiment.from_data(resolve(GOOD).to_data()).experiment
    kind = registry.fault(there.faults[0].fault)
    monkeypatch.setattr(kind, "Params", Changed)
    with pytest.raises(
        ExperimentError, match=rf"^{kind.kind}: its parameters do not fit the {kind.kind}[^\n]+$"
    ) as said:
        required_by(there)
    assert "slowness: Field required" in str(said.value)


@pytest.mark.parametrize("data", [None, [], {}, {"experiment": {}}, {"experiment": 3, "parameters": 4}])
def test_what_nobody_wrote_is_refused_in_one_line(data):
    with pytest.raises(ExperimentError, match=r"^[^\n]+$"):
        ResolvedExperiment.from_data(data)


def found(servers=3, clients=2, **more):
    """Five hosts with names of their own; `more` are further agents, by host."""
    roles = {**{f"ip-10-0-0-{n}": "server" for n in range(1, servers + 1)}}
    roles |= {f"worker-{n}": "client" for n in range(1, clients + 1)}
    hosts = {
        name: {"address": f"10.0.0.{n}", "agents": {"consul": role}} for n, (name, role) in enumerate(roles.items())
    }
    for host, agents in more.items():
        hosts[host.replace("_", "-")]["agents"] |= agents
    return {
        "attached": {"name": "staging", "hosts": hosts},
        "consul": {"version": "1.20.1", "servers": servers, "clients": clients},
    }


def attached(name="raft/slow-leader-disk", **estate):
    return attached_to(read_experiment(find_experiment(name)), found(**estate), name="staging")


def candidates(resolved, selector):
    return parse_selector(selector).candidates(services_of(resolved.experiment.datacenter))


def test_selectors_mean_the_hosts_that_were_found():
    resolved = attached()
    assert candidates(resolved, "consul:leader") == {"ip-10-0-0-1", "ip-10-0-0-2", "ip-10-0-0-3"}
    assert candidates(resolved, "consul:clients") == {"worker-1", "worker-2"}
    assert candidates(resolved, "host:worker-1") == {"worker-1"}
    assert candidates(resolved, "host:consul-1") == set()


def test_no_binary_is_started_and_the_version_is_that_which_runs():
    [consul] = services_of(attached().experiment.datacenter)
    assert (list(consul.binaries()), consul.spec.version, isinstance(consul, Standing)) == ([], "1.20.1", True)


def test_a_datacenter_of_ours_is_as_before():
    [consul] = services_of(DatacenterSpec())
    assert (isinstance(consul, Standing), len(consul.places())) == (False, 4)
    assert "attached" not in DatacenterSpec().model_dump()


def test_a_host_that_only_our_datacenter_has_is_the_usual_error():
    with pytest.raises(ExperimentError, match=across_lines("there is no host 'consul-1': there are: ip-10-0-0-1")):
        attached("raft/bloated-leader-avoided")


def test_a_role_that_nobody_has_is_the_usual_error():
    with pytest.raises(ExperimentError, match=across_lines("never matches: no host of the attached datacenter is")):
        attached("raft/slow-follower-disk", servers=1)


def test_an_agent_that_another_brings_along_is_a_guest_of_its_host():
    estate = found(clients=1, worker_1={"nomad": "client"})
    estate["nomad"] = {"servers": 1, "clients": 1}
    resolved = attached_to(read_experiment(find_experiment("raft/killed-leader")), estate, name="staging")
    by_name = {service.name: service for service in services_of(resolved.experiment.datacenter)}
    assert [place.guest for place in by_name["consul"].places()] == [False, False, False, True]
    assert [place.guest for place in by_name["nomad"].places()] == [False]


def test_it_is_the_same_experiment_after_it_was_written_into_a_recording():
    resolved = attached()
    again = ResolvedExperiment.from_data(json.loads(json.dumps(resolved.to_data())))
    assert again.experiment.datacenter == resolved.experiment.datacenter
    assert candidates(again, "consul:clients") == {"worker-1", "worker-2"}


def test_hosts_beyond_what_a_datacenter_of_ours_may_have_are_all_there():
    resolved = attached_to(
        read_experiment(find_experiment("raft/killed-leader")),
        {**found(clients=60), "consul": {"version": "1.20.1", "servers": 3, "clients": 20}},
        name="staging",
    )
    assert len(candidates(resolved, "consul:clients")) == 60


def test_what_the_experiment_asks_of_its_own_datacenter_is_told():
    document = read_experiment(find_experiment("config/streaming-moderate"))
    asked = list(asked_of_ours(document))
    assert all(each.startswith("consul.") for each in asked)
    assert asked


SCRIPTED = {"command": ["true"], "rate": "1/s", "via": "script"}
TAP = {"fault": "tap.fail", "on": "client:alone", "with": {"fault": "503"}, "for": "2s"}


def written(**changes):
    return {
        "apiVersion": "hashidrill/v1",
        "kind": "Experiment",
        "metadata": {"name": "bare", "title": "Nobody is there", "why": "It tests validation"},
        "datacenter": {},
        "clients": {"alone": SCRIPTED},
        "steady_state": {"for": "2s", "require": ["alone.errors < 1%"]},
        "method": [TAP],
        "expect": [{"available_during": {"load": "alone", "success": "99%"}}],
    } | changes


def services(document):
    return [service.name for service in services_of(load_text(json.dumps(document)).datacenter)]


@pytest.mark.parametrize("datacenter", [{}, {"ready_within": "90s"}, {"disk": {"size": "64MB"}}, {"consul": None}])
def test_clients_whose_taps_answer_by_themselves_need_no_datacenter(datacenter):
    assert services(written(datacenter=datacenter)) == []


def test_no_datacenter_at_all_is_an_empty_one():
    document = written()
    del document["datacenter"]
    assert services(document) == []


@pytest.mark.lie
@pytest.mark.parametrize(
    "changes",
    [
        {"datacenter": {"consul": {}}},
        {"clients": {"alone": {"command": ["true"], "rate": "1/s"}}},
        {"clients": {"alone": SCRIPTED | {"on": "host:client-1"}}},
        {"load": {"kv-writes": {"kind": "consul.kv.write", "rate": "30/s"}}},
        {"method": [{"fault": "process.kill", "on": "consul:leader", "for": "2s"}]},
        {"method": [{"fault": "process.kill", "on": "host:consul-1", "for": "2s"}]},
        {"steady_state": {"for": "2s", "require": ["raft.leader >= 1"]}},
        {"guardrails": ["consul.members_alive < 1 for 5s"]},
        {
            "clients": {
                "alone": SCRIPTED | {"profile": {"ramp": {"by": "10%", "every": "1s", "while": ["raft.leader >= 1"]}}}
            }
        },
    ],
    ids=["named", "agents behind a tap", "a host", "a load", "a role", "a target", "a signal", "a guardrail", "a ramp"],
)
def test_whatever_asks_for_a_host_or_for_what_a_probe_measures_has_consul_as_ever(changes):
    assert services(written(**changes)) == ["consul"]


def test_without_consul_nothing_can_be_asked_of_it():
    with pytest.raises(ExperimentError, match=r"the datacenter has\s+no consul; add\s+datacenter.consul"):
        load_text(
            json.dumps(
                written(
                    datacenter={"consul": None}, method=[{"fault": "process.kill", "on": "consul:leader", "for": "2s"}]
                )
            )
        )


def test_a_bare_datacenter_is_still_bare_when_it_was_written_out_and_read_again():
    experiment = load_text(json.dumps(written()))
    again = Experiment.model_validate_json(experiment.model_dump_json(by_alias=True))
    spec = DatacenterSpec.model_validate(experiment.datacenter.model_dump(mode="json", by_alias=True))
    assert again.datacenter.services == spec.services == {}


def test_a_mistake_in_such_an_experiment_is_told_with_its_place():
    with pytest.raises(ExperimentError, match=r"datacenter: unknown key 'dsik'"):
        load_text(json.dumps(written(datacenter={"dsik": {}})))
