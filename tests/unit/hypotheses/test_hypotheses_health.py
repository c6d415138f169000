"""green_but_sick: health checks that cannot see what users suffer."""

import pytest

from hashidrill.core import hypothesis
from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.hypothesis import Broken
from hashidrill.testing.recordings import RecordingBuilder

LOAD = "kv-writes"


@pytest.fixture
def builder(tmp_path):
    return RecordingBuilder(tmp_path / "run").fault("disk.latency", "consul-1", at=10, until=30)


def sick(builder, start=12, end=28):
    return builder.load(LOAD, latency=lambda t: 3.0 if start <= t < end else 0.01)


def check(builder, **params):
    return hypothesis.get("green_but_sick").check(builder.build(), {"load": LOAD, **params})


def test_fires_when_everything_is_green_while_writes_take_seconds(builder):
    held = check(sick(builder).healthy())
    assert held.figures["green_but_sick_s"] == pytest.approx(16, abs=0.8)
    assert held.figures["worst_p50_s"] == 3.0
    assert "every health check was green for 1" in held.text
    assert "from 11.6s into the run" in held.text
    assert "under disk.latency on consul-1" in held.text


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("consul.config", "streaming-on", "under streaming-on (consul.config on consul-2)"),
        ("noop", "load-grows", "under load-grows"),
        ("noop", None, "under noop on consul-2"),
    ],
)
def test_what_goes_on_is_called_by_the_name_that_its_step_was_given(tmp_path, kind, name, said):
    builder = RecordingBuilder(tmp_path / "run").fault(kind, "consul-2", at=10, until=30, name=name)
    assert check(sick(builder).healthy()).text.split("\n")[0].endswith(said)


RED = {
    "autopilot unhealthy": {"autopilot": lambda t: 0.0 if t > 12 else 1.0},
    "members not alive": {"alive": lambda t: 3.0 if t > 12 else 4.0},
    "lastContact over 200ms": {"last_contact": lambda t: 0.9 if t > 12 else 0.02},
    "no leader known": {"leader": lambda t: "" if t > 12 else "consul-1"},
}


@pytest.mark.parametrize(("name", "signal"), RED.items(), ids=list(RED))
def test_does_not_fire_when_a_check_turned_red_and_names_it(builder, name, signal):
    with pytest.raises(Broken, match=f"health checks noticed \\({name}\\)") as broken:
        check(sick(builder).healthy(**signal))
    assert broken.value.figures["red"] == [name]


SILENT = "samples end before the load gets sick: nobody can say that health was green"


@pytest.mark.parametrize(
    ("build", "error", "said"),
    [
        pytest.param(lambda b: sick(b, 12, 14).healthy(), Broken, r"slow and green: [12]\.\ds", id="too short"),
        pytest.param(lambda b: sick(b, 35, 45).healthy(), Broken, "never got slow", id="sick without a fault"),
        pytest.param(lambda b: sick(b, 22, 30).healthy(end=11), Broken, "health checks noticed", id=SILENT),
        (lambda b: sick(b).leader(), HypothesisInvalidError, "autopilot_healthy"),
        (lambda b: sick(b).healthy(start=11), HypothesisInvalidError, "not sampled before the method"),
        (lambda b: b.load(LOAD, end=9).healthy(), HypothesisInvalidError, "no operation was due"),
    ],
)
def test_does_not_fire(builder, build, error, said):
    with pytest.raises(error, match=said):
        check(build(builder))
