"""An experiment is read, resolved and checked once; everybody else gets what came of it."""

import contextlib
import json
from collections import Counter
from types import SimpleNamespace

import anyio
import pytest

from hashidrill.core.engine import machine_check
from hashidrill.core.engine.requirements import required_by
from hashidrill.core.engine.run_state import load_specifications
from hashidrill.core.errors import ExperimentError
from hashidrill.core.experiment import documents, library, loader, model
from hashidrill.core.experiment.library import list_experiments
from hashidrill.core.experiment.loader import resolve
from hashidrill.core.experiment.model import Experiment, Mark, make_fault
from hashidrill.core.experiment.resolved import ResolvedExperiment, sha256
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.protocols import registry
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
