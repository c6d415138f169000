"""Faults of Consul keep their contract on real datacenters, of a current version and of the incident's."""

import pytest

from consul_fault_cases import RUNS, WHOLE, cases_of, disarmed_of

pytestmark = pytest.mark.live


def marks_of(run):
    needs = pytest.mark.needs("datacenter", f"consul {run.partition(' ')[0]}")
    return [needs, pytest.mark.nightly] if "long" in run else [needs]


VERSIONS = [pytest.param(run, marks=marks_of(run)) for run in WHOLE]


@pytest.fixture(scope="session")
def reported(consul_reports):
    """What the script says of each version."""

    def of(version):
        lines, log_text = consul_reports.of(version)
        assert len([line for line in lines if "kind" in line]) == len(cases_of(version)), log_text
        return lines

    return of


def the(lines, key):
    [line] = [line for line in lines if key in line]
    assert "error" not in line, line["error"]
    return line["result"]


def marked(version, *values, name):
    return pytest.param(version, *values, id=f"{version}-{name}", marks=marks_of(version))


CASES = [
    marked(run, number, name=f"{number}-{kind}-{on}")
    for run in RUNS
    for number, (kind, _, on) in enumerate(cases_of(run))
]


@pytest.mark.parametrize(("version", "number"), CASES)
def test_a_fault_keeps_its_contract_on_the_real_thing(reported, version, number):
    line = [line for line in reported(version) if "kind" in line][number]
    assert (line["kind"], line["params"], line["on"]) == cases_of(version)[number]
    assert "error" not in line, line["error"]


DISARMED = [marked(run, kind, by, name=f"{kind}-{by}") for run in RUNS for kind, _, _, by in disarmed_of(run)]


@pytest.mark.parametrize(("version", "kind", "by"), DISARMED)
def test_the_proof_fails_when_the_fault_is_disarmed_behind_its_back(reported, version, kind, by):
    [line] = [line for line in reported(version) if line.get("disarmed") == kind and line["by"] == by]
    assert "error" not in line, line["error"]
    assert line["result"]["armed"], "it was not in force to begin with"
    assert not line["result"]["disarmed"], line["result"]["measured"]


@pytest.mark.parametrize("version", VERSIONS)
def test_bad_configuration_and_a_lost_majority_are_refused_before_anything_is_touched(reported, version):
    said = the(reported(version), "refused")
    assert "invalid config key raft_snapshot_thresold" in said["key"]
    assert "'raft_snapshot_threshold' expected type 'int'" in said["value"]
    for kind in ("consul.config", "consul.leader.avoid"):
        assert "1 of 3 voters remain" in said[f"{kind} without a majority"]
    assert said["untouched"]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_avoided_server_wins_no_election(reported, version):
    result = the(reported(version), "elections")
    assert sum(result["wins"].values()) >= 6
    assert result["avoided"] not in result["wins"]


@pytest.mark.parametrize("version", [one for one in VERSIONS if "1.10.3" not in one.values[0]])
def test_streams_are_not_gathered_where_agents_would_stay_without(reported, version):
    assert "agents since 1.11 may stay with a server that they cannot reach" in the(reported(version), "too new")


@pytest.mark.needs("datacenter", "consul 1.10.3")
def test_streams_go_to_the_one_server_and_old_ones_follow(reported):
    gathered = the(reported("1.10.3"), "gathered")
    assert len(gathered) == 3
    opened = [streams[server] for server, streams in gathered.items()]
    assert opened == sorted(opened), "each time five more, with all from before"
    assert opened[0] >= 5
    for server, streams in gathered.items():
        assert not any(count for name, count in streams.items() if name != server), (server, streams)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_was_asked_for_beside_what_was_measured(reported, version, capsys):
    with capsys.disabled():
        print(f"\n\nConsul {version}: fault, asked for, measured in force, measured afterwards, seconds in all")
        for line in [line for line in reported(version) if "kind" in line]:
            result = line["result"]
            row = (line["kind"], line["on"], result["asked"], result["measured"], result["gone"])
            print("  " + " | ".join(row) + f" | {line['seconds']}")
        print(f"  elections with one avoided: {the(reported(version), 'elections')}")
    assert all(line["seconds"] for line in reported(version) if "kind" in line)
