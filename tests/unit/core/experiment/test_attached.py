"""An experiment over a datacenter that stands already: hosts and selectors are those that were found."""

import json

import pytest

from folded import across_lines
from hashidrill.core.errors import ExperimentError
from hashidrill.core.experiment.attached import asked_of_ours, attached_to
from hashidrill.core.experiment.library import find_experiment, read_experiment
from hashidrill.core.experiment.model import DatacenterSpec, services_of
from hashidrill.core.experiment.resolved import ResolvedExperiment
from hashidrill.core.experiment.selectors import parse_selector
from hashidrill.core.protocols.service import Standing


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
