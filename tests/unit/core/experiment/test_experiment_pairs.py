"""Experiments that are to be compared differ in what they compare, and in nothing else."""

from hashidrill.core.experiment.library import list_experiments, read_experiment


def read(name):
    [path] = [path for path in list_experiments() if path.as_posix().endswith(f"/experiments/{name}.yaml")]
    document = read_experiment(path).data
    for said in ("name", "title", "why"):
        del document["metadata"][said]
    return document


def test_a_lock_storm_with_limits_differs_in_the_limits_and_in_what_they_do():
    without, limited = read("locks/lock-storm"), read("locks/lock-storm-rate-limited")
    limits = limited["datacenter"]["consul"]["config"].pop("limits")
    assert limits["request_limits"]["mode"] == "enforcing"
    [shed] = [expected for expected in limited["expect"] if "load_is_shed" in expected]
    limited["expect"].remove(shed)
    assert limited == without


def test_the_sweeps_for_the_knee_are_those_of_two_versions():
    new, old = read("config/streaming-extreme"), read("config/streaming-extreme-1-10-3")
    versions = [document["datacenter"]["consul"].pop("version") for document in (new, old)]
    assert versions == ["1.22.2", "1.10.3"]
    # the old version must break, and only there can the streams be brought to one server
    gather, *method = old["method"]
    assert (gather["fault"], new["method"]) == ("consul.streams.gather", method)
    [holds], [breaks] = new["expect"], old["expect"]
    assert "known_issue" not in holds
    assert breaks["known_issue"]["issue"] == "hashicorp/consul#12080"
    for document in (new, old):
        del document["expect"], document["method"]
    assert new == old
