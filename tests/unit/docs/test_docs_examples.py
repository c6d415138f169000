"""The examples of the docs are run, as they stand on the page."""

import asyncio
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from docs_pages import PARSED, ROOT, page
from hashidrill.core.experiment.load_levels import Course
from hashidrill.core.loads.context import LoadContext
from hashidrill.core.protocols.abc import LoadCost, cost_of, selectors_of
from hashidrill.testing.recordings import RecordingBuilder
from tasks import running
from virtual_time import VirtualClock, run


@pytest.fixture
def examples(tmp_path, monkeypatch):
    """Writes the runnable blocks of a page under the paths in their first lines; imports one of them by its path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def write(path: str) -> Callable[[str], Any]:
        for block in page(path).runnable():
            file = tmp_path / block.splitlines()[0].removeprefix("# ")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block)
        return load

    def load(name: str) -> Any:
        spec = importlib.util.spec_from_file_location(Path(name).stem, tmp_path / name)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    yield write
    for name in set(sys.modules) - before:
        if (file := getattr(sys.modules[name], "__file__", None)) and Path(file).is_relative_to(tmp_path):
            del sys.modules[name]


def cases_of(module: Any) -> list[Callable[..., None]]:
    found = [value for name, value in vars(module).items() if name.startswith("test_")]
    assert found
    return found


def test_every_runnable_example_is_run_by_a_test_here():
    source = Path(__file__).read_text()
    of_the_tap = (ROOT / "tests/plugin/test_tap_fixture.py").read_text()
    for each in PARSED:
        for block in each.runnable():
            if each.path.rpartition("/")[2] in of_the_tap:  # that file runs every example on its page, in pytest
                continue
            name = block.splitlines()[0].removeprefix("# ")
            assert f'"{name}"' in source or name == "readonly_disk.py", f"{each.path}: {name}"


def test_the_example_of_a_fault_keeps_the_contract(examples, monkeypatch):
    monkeypatch.setattr("hashidrill.testing.faults.PROVEN_WITHIN_S", 0.1)
    for test in cases_of(examples("playbooks/extend.md")("test_readonly_disk.py")):
        test()


def test_the_example_of_a_load_offers_its_rate_and_has_all_that_is_asked_of_one(examples):
    ticker = examples("playbooks/extend.md")("ticker.py").Ticker
    operations: list[Any] = []

    async def main():
        params = ticker.Params.model_validate({"rate": "50/s"})
        load = ticker("ticks", params, LoadContext([], clock=VirtualClock(), course=Course()))
        async with running(load.run(operations.append)):
            await asyncio.sleep(1.999)

    run(main())
    assert [operation.outcome for operation in operations] == ["ok"] * 100
    assert (selectors_of(ticker, None), cost_of(ticker, None)) == ({}, LoadCost())


def test_the_example_of_a_hypothesis_judges_as_its_tests_say(examples, tmp_path):
    load = examples("playbooks/extend.md")
    assert load("hypotheses/patience.py").nobody_waits_longer_than
    for index, test in enumerate(cases_of(load("test_patience.py"))):
        (tmp_path / str(index)).mkdir()
        test(tmp_path / str(index))


@pytest.mark.parametrize("slowest_s", [3.0, 11.0])
def test_the_example_of_a_hand_written_assertion_can_hold_and_break(examples, tmp_path, slowest_s):
    [test] = cases_of(examples("README.md")("tests/test_our_consul.py"))
    run = RecordingBuilder(tmp_path / "run").fault("disk.latency", at=10, until=30)
    recording = run.load("kv-writes", latency=lambda t: slowest_s if 10 <= t < 30 else 0.01).build()
    if slowest_s < 10:
        test(recording)
    else:
        with pytest.raises(AssertionError):
            test(recording)
    [mark] = test.pytestmark
    assert (ROOT / "tests" / mark.args[0]).resolve().is_file()
