"""An experiment is read, resolved and checked once; everybody else gets what came of it."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from types import SimpleNamespace

import anyio
import pytest

from hashidrill.engine import in_sandbox, launch
from hashidrill.errors import ExperimentError
from hashidrill.experiment import documents, loader, reading
from hashidrill.experiment.library import list_experiments
from hashidrill.experiment.loader import resolve
from hashidrill.experiment.model import Experiment, Mark
from hashidrill.experiment.resolved import ResolvedExperiment, sha256
from hashidrill.recording.reader import Recording
from hashidrill.recording.writer import FORMAT
from hashidrill.reports.write import judge_and_report
from hashidrill.util.files import JOURNAL_NAME
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
    monkeypatch.setattr(reading, "Document", Counted)
    for name in ("model_validate", "model_validate_json"):
        monkeypatch.setattr(Experiment, name, counting(getattr(Experiment, name)))
    return counts


@pytest.fixture
def run(monkeypatch, tmp_path):
    """A whole run but for the datacenter: launcher, the engine's process (here in this one), judge and report."""
    binary = SimpleNamespace(path="/bin/consul", version="1.22.2", sha256="0" * 64, source="PATH")
    monkeypatch.setattr(launch.binaries, "ensure", lambda *_, **__: binary)
    monkeypatch.setattr(in_sandbox, "LocalDatacenter", lambda *_, **__: None)

    async def engine(_experiment, _datacenter, recording, *_, **__):
        lines = [{"event": "run", "format": FORMAT}, {"event": "end", "outcome": "complete", "sealed": {}}]
        (recording / JOURNAL_NAME).write_text("".join(f"{json.dumps({'t_ns': 0, 'wall': 0.0, **e})}\n" for e in lines))
        return "complete"

    monkeypatch.setattr(in_sandbox.engine, "run", engine)

    @contextlib.contextmanager
    def no_sandbox(_command, _environment, _log, *, given):
        async def inside():
            await in_sandbox._run(json.loads(json.dumps(given)), tmp_path)

        anyio.run(inside)
        process = SimpleNamespace(wait=lambda: 0, returncode=0, send_signal=lambda _: None)
        yield SimpleNamespace(process=process, output=SimpleNamespace(readline=lambda: b""))

    monkeypatch.setattr(launch, "sandbox", no_sandbox)

    def go():
        resolved = resolve(GOOD)
        recording = Recording(launch.run_experiment(resolved, runs_dir=tmp_path / "runs"))
        judge_and_report(recording, near_to=resolved.path)
        return recording

    return go


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
    from hashidrill import hypothesis, registry

    resolved = resolve(path)
    experiment, parameters = resolved.experiment, resolved.parameters
    assert list(parameters.loads) == list(experiment.load)
    pairs = [(registry.load(load.kind).Params, load.params, parameters.loads[name])
             for name, load in experiment.load.items()]  # fmt: skip
    steps = list(zip(experiment.method, parameters.steps, strict=True))
    assert all(found == {} for step, found in steps if isinstance(step, Mark))
    pairs += [(registry.fault(step.fault).Params, step.with_, found)
              for step, found in steps if not isinstance(step, Mark)]  # fmt: skip
    pairs += [(hypothesis.get(each.hypothesis, near_to=path).Params, each.params, found)
              for each, found in zip(experiment.expect, parameters.expectations, strict=True)]  # fmt: skip
    for model, written, found in pairs:
        assert model.model_validate(found) == model.model_validate(written)
        assert set(model.model_validate(written).model_dump(by_alias=True)) == set(found)


@pytest.mark.parametrize("data", [None, [], {}, {"experiment": {}}, {"experiment": 3, "parameters": 4}])
def test_what_nobody_wrote_is_refused_in_one_line(data):
    with pytest.raises(ExperimentError, match=r"^[^\n]+$"):
        ResolvedExperiment.from_data(data)
