"""A network fault needs somebody on the other side: it is refused, before anything starts, where there is nobody."""

from __future__ import annotations

import json

import pytest

from hashidrill.core.errors import ExperimentError
from hashidrill.core.experiment.loader import load_experiment


def written(tmp_path, step, *, servers=3, clients=1):
    path = tmp_path / "lonely.yaml"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "hashidrill/v1",
                "kind": "Experiment",
                "metadata": {"name": "lonely", "title": "Nobody is there", "why": "It tests validation"},
                "datacenter": {"consul": {"servers": servers, "clients": clients}},
                "load": {"kv-writes": {"kind": "consul.kv.write", "rate": "30/s"}},
                "steady_state": {"for": "2s", "require": ["kv-writes.errors < 1%"]},
                "method": [{"for": "2s", **step}],
                "expect": [{"no_acknowledged_write_lost": {"load": "kv-writes"}}],
            }
        )
    )
    return path


@pytest.mark.parametrize("kind", ["network.block", "network.timeout"])
@pytest.mark.parametrize(
    ("on", "peers", "clients"),
    [("host:client-1", "clients", 1), ("consul:leader", "clients", 0), ("host:consul-1", "host:consul-1", 1)],
)
def test_nobody_on_the_other_side_is_refused(tmp_path, kind, on, peers, clients):
    step = {"fault": kind, "on": on, "with": {"port": 8500, "from": peers}}
    with pytest.raises(ExperimentError, match=r"names no (other host than|host other than)\s+\S+"):
        load_experiment(written(tmp_path, step, clients=clients))


@pytest.mark.parametrize(
    ("on", "peers", "clients"),
    [("host:client-1", "clients", 2), ("consul:leader", "clients", 1), ("host:client-1", "all", 1)],
)
def test_somebody_on_the_other_side_is_enough(tmp_path, on, peers, clients):
    step = {"fault": "network.block", "on": on, "with": {"port": 8500, "from": peers}}
    assert load_experiment(written(tmp_path, step, clients=clients)).method
