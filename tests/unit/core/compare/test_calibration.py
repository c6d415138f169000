"""What an experiment against itself says about a machine, and how it is kept."""

import datetime as dt
import math
from pathlib import Path

import pytest

from hashidrill.core.compare.figures import Figure, Measured
from hashidrill.core.errors import RecordingError
from hashidrill.core.experiment.library import find_experiment
from hashidrill.core.experiment.loader import resolve, varied
from hashidrill.lab.runs.rounds import Played, Round
from hashidrill.rollouts.gate.playing import calibrated, keep, kept, key_of

NOW = dt.datetime(2026, 11, 23, 5, tzinfo=dt.UTC)
P50 = Figure("kv-writes.latency.p50", "s", 5e-4, 1.2, True, lambda _: Measured(0.0))
SILENT = Figure("cpu", "CPU seconds", 0.5, 1.3, False, lambda _: Measured(0.0))


def rounds(*pairs: tuple[float, float]) -> list[Round]:
    return [
        Round(
            number,
            [
                Played(side, Path("x"), {"kv-writes.latency.p50": Measured(value), "cpu": Measured(math.nan)})
                for side, value in zip(("a", "b"), pair, strict=True)
            ],
            ("a", "b"),
        )
        for number, pair in enumerate(pairs)
    ]


EQUAL = rounds((0.50, 0.52), (0.49, 0.47), (0.53, 0.50), (0.48, 0.50))


@pytest.fixture(scope="module")
def resolved():
    return resolve(find_experiment("raft/slow-leader-disk"))


def test_the_noise_of_each_measured_figure_is_kept_and_read_again(tmp_path: Path, resolved) -> None:
    experiment = resolved.experiment
    found = calibrated(experiment, EQUAL, [P50, SILENT], now=NOW)
    assert list(found.priors) == ["kv-writes.latency.p50"]
    assert found.priors["kv-writes.latency.p50"].sd == pytest.approx(0.046, abs=0.005)
    keep(experiment, found, tmp_path)
    again = kept(experiment, tmp_path)
    assert again == found
    assert again.age_days(NOW + dt.timedelta(days=2)) == 2
    assert 1.0 < again.smallest(5)["kv-writes.latency.p50"] < again.smallest(3)["kv-writes.latency.p50"] < 1.3


def test_too_few_rounds_are_no_calibration(resolved) -> None:
    assert calibrated(resolved.experiment, EQUAL[:2], [P50], now=NOW).priors == {}


def test_a_file_that_does_not_read_is_none(tmp_path: Path, resolved) -> None:
    file = keep(resolved.experiment, calibrated(resolved.experiment, EQUAL, [P50], now=NOW), tmp_path)
    for text in ("{", "[]", '{"experiment": "x"}', '{"experiment": "x", "at": "then", "figures": {}}'):
        file.write_text(text)
        assert kept(resolved.experiment, tmp_path) is None
    file.unlink()
    assert kept(resolved.experiment, tmp_path) is None


def test_a_folder_that_cannot_be_written_is_one_message(tmp_path: Path, resolved) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordingError, match="cannot be kept"):
        keep(resolved.experiment, calibrated(resolved.experiment, EQUAL, [P50], now=NOW), tmp_path / "file")


def test_it_is_that_of_a_version_and_an_experiment_and_not_of_a_configuration(resolved) -> None:
    config = varied(resolved, {"datacenter": {"consul": {"config": {"performance": {"raft_multiplier": 5}}}}}, name="b")
    older = varied(resolved, {"datacenter": {"consul": {"version": "1.10.3"}}}, name="c")
    larger = varied(resolved, {"datacenter": {"consul": {"servers": 5}}}, name="e")
    smaller_disk = varied(resolved, {"datacenter": {"disk": {"size": "64MiB"}}}, name="f")
    busier = varied(resolved, {"load": {"kv-writes": {"rate": "100/s"}}}, name="d")
    mine = key_of(resolved.experiment)
    assert key_of(config.experiment) == mine
    assert mine not in {key_of(each.experiment) for each in (older, busier, larger, smaller_disk)}


@pytest.mark.lie
def test_a_calibration_of_three_servers_serves_no_five(tmp_path: Path, resolved) -> None:
    keep(resolved.experiment, calibrated(resolved.experiment, EQUAL, [P50], now=NOW), tmp_path)
    assert kept(varied(resolved, {"datacenter": {"consul": {"servers": 5}}}, name="e").experiment, tmp_path) is None
