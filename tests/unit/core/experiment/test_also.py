"""A load that asks the agents of two products: validate checks both selectors, and the load gets both."""

import asyncio

import pytest

from hashidrill.core.engine.run_state import load_specifications
from hashidrill.core.errors import ExperimentError
from hashidrill.core.experiment.loader import load_experiment

TEXT = """\
apiVersion: hashidrill/v1
kind: Experiment
metadata: {{name: two, title: Two products, why: It tests a load that asks two products}}
datacenter: {datacenter}
load:
  web: {load}
steady_state: {{for: 5s, require: ["nomad.leader >= 1"]}}
method:
  - {{fault: process.kill, on: "nomad:leader", for: 5s}}
expect:
  - available_during: {{load: web, success: 99%}}
"""
BOTH = "{nomad: {clients: 2}, consul: {servers: 3}}"


def written(tmp_path, datacenter=BOTH, load="{kind: nomad.services, count: 2}"):
    path = tmp_path / "two.yaml"
    path.write_text(TEXT.format(datacenter=datacenter, load=load))
    return path


def test_a_load_on_two_products_is_accepted_where_the_datacenter_has_both(tmp_path):
    load_experiment(written(tmp_path))


NO_CONSUL = "consul:servers never matches: the datacenter has no consul"
WRITES = '{kind: consul.kv.write, rate: 5/s, via: "consul:clients"}'


@pytest.mark.lie
@pytest.mark.parametrize(
    ("datacenter", "load", "message"),
    [
        ("{nomad: {}}", "{kind: nomad.services, count: 2}", f"load.web.consul: {NO_CONSUL}"),
        (BOTH, '{kind: nomad.services, count: 2, consul: "host:nowhere"}', "web.consul: there is no host 'nowhere'"),
        ("{nomad: {}}", WRITES, "load.web.via: consul:clients never matches: the datacenter has no consul"),
        (BOTH, '{kind: nomad.services, count: 2, consul: "nomad:servers"}', "load.web.consul"),
    ],
)
def test_what_has_no_such_agents_is_refused_before_anything_starts(tmp_path, datacenter, load, message):
    with pytest.raises(ExperimentError) as error:
        load_experiment(written(tmp_path, datacenter, load))
    assert message in " ".join(str(error.value).split())


class Reached:
    """A datacenter that hands out an address for each selector, and a token for each product."""

    def load_addresses(self):
        return ["10.73.0.2"]

    async def endpoints(self, via):
        return [f"http://{via}"]

    def access(self, via):
        return {f"{via.partition(':')[0].upper()}_TOKEN": "t"}


def test_a_load_is_told_the_agents_and_the_tokens_of_both(tmp_path):
    [web] = asyncio.run(load_specifications(load_experiment(written(tmp_path)), Reached()))
    assert web.endpoints == ["http://nomad:servers"]
    assert web.others == {"consul": ["http://consul:servers"]}
    assert set(web.access) == {"NOMAD_TOKEN", "CONSUL_TOKEN"}
