"""Workers as a job of Nomad, against a fake of its API."""

import json

import anyio
import httpx2
import pytest

from hashidrill.staging.attach.http import Login, Wire
from hashidrill.staging.generators import spawners
from hashidrill.staging.generators.spawners import NomadSpawner, SpawnError, remove_left
from hashidrill.staging.generators.worker import PROTOCOL

TOKEN = "8f3e7c2a-nomad-token"


class FakeNomad:
    """Three clients; each allocation prints its introduction at once."""

    def __init__(self, **clients):
        self.clients = {"n1": {}, "n2": {}, "n3": {}} | clients
        self.jobs, self.requests, self.said = {}, [], {}
        self.status, self.forbidden, self.placed = "running", "", None

    def handler(self, request):
        path, method = request.url.path, request.method
        self.requests.append((method, path, request.content.decode()))
        if self.forbidden and self.forbidden in path:
            return httpx2.Response(403, text="Permission denied")
        last = path.rpartition("/")[2]
        if method == "DELETE":
            return httpx2.Response(200 if self.jobs.pop(last, None) else 404, json={})
        if method == "POST":
            return self._submitted(json.loads(request.content)["Job"])
        if path.startswith("/v1/client/fs/logs/"):
            return httpx2.Response(200, text=self.said.get(last, self._introduction(last[-1])))
        return httpx2.Response(200, json=self._looked(path, last))

    def _submitted(self, job):
        if job["ID"] in self.jobs:
            return httpx2.Response(500, text="Enforcing job modify index 0: job already exists")
        self.jobs[job["ID"]] = job
        return httpx2.Response(200, json={"EvalID": "e"})

    def _looked(self, path, last):
        if path.startswith("/v1/node/"):
            return {"Meta": self.clients[last].get("meta", {"hashidrill_python": "/opt/h/bin/python"})}
        if path.startswith("/v1/allocation/"):
            return self._allocation(int(last[-1]))
        if last == "allocations":
            count = next(iter(self.jobs.values()))["TaskGroups"][0]["Count"] if self.placed is None else self.placed
            return [self._allocation(n) for n in range(count)]
        known = {
            "nodes": [self._stub(name) for name in self.clients],
            "jobs": [{"ID": name} for name in self.jobs],
            "evaluations": [
                {"FailedTGAllocs": {"workers": {"ConstraintFiltered": {"${meta.hashidrill_python} is_set": 2}}}}
            ],
        }
        return known[last]

    def _stub(self, name):
        given = self.clients[name]
        drivers = {"raw_exec": {"Detected": True, "Healthy": given.get("raw_exec", True)}}
        return {
            "ID": name,
            "Name": name,
            "Status": given.get("status", "ready"),
            "Datacenter": given.get("dc", "dc1"),
            "SchedulingEligibility": given.get("eligible", "eligible"),
            "Drivers": drivers,
        }

    def _allocation(self, number):
        events = [{"DisplayMessage": "Exit Code: 1"}]
        return {
            "ID": f"alloc-{number}",
            "NodeName": f"n{number + 1}",
            "ClientStatus": self.status,
            "TaskStates": {"worker": {"Events": events}},
        }

    def _introduction(self, number, version=None):
        from importlib import metadata

        said = {
            "hashidrill": version or metadata.version("hashidrill"),
            "protocol": PROTOCOL,
            "session": f"s{number}",
            "address": "10.0.0.1",
            "port": 20000 + int(number),
            "certificate": f"PEM {number}",
        }
        return json.dumps(said) + "\n"


def wire_to(nomad):
    login = Login("nomad", "http://nomad.example:4646", headers={"X-Nomad-Token": TOKEN})
    return Wire(login, transport=httpx2.MockTransport(nomad.handler))


def spawned(nomad, workers=3, **options):
    async def main():
        spawner = NomadSpawner(wire_to(nomad), "run-1", lease_s=15.0, **options)
        try:
            return await spawner.spawn("RUNNER PEM", workers)
        finally:
            await spawner.take_away()

    return anyio.run(main)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """No wait between two looks: the fake answers at once."""
    monkeypatch.setattr(spawners, "_LOOK_EVERY_S", 0.0)


def job_in(nomad):
    [body] = [json.loads(body) for method, path, body in nomad.requests if (method, path) == ("POST", "/v1/jobs")]
    return body


def test_workers_are_found_by_what_they_print_and_the_job_is_gone_afterwards():
    nomad = FakeNomad()
    workers = spawned(nomad)
    assert [(one.name, one.on, one.address, one.port) for one in workers] == [
        ("w1", "n1", "10.0.0.1", 20000),
        ("w2", "n2", "10.0.0.1", 20001),
        ("w3", "n3", "10.0.0.1", 20002),
    ]
    assert nomad.jobs == {}


def test_the_job_is_spread_never_restarted_and_never_takes_the_place_of_another():
    nomad = FakeNomad(n3={"dc": "dc2"})
    spawned(nomad)
    body = job_in(nomad)
    job = body["Job"]
    [group] = job["TaskGroups"]
    assert (body["EnforceIndex"], body["JobModifyIndex"]) == (True, 0)
    assert (job["Type"], group["Count"], job["Datacenters"]) == ("batch", 3, ["dc1", "dc2"])
    assert {one["Operand"] for one in group["Constraints"]} == {"distinct_hosts", "is_set"}
    assert group["Spreads"][0]["Attribute"] == "${node.unique.id}"
    assert group["RestartPolicy"]["Attempts"] == group["ReschedulePolicy"]["Attempts"] == 0
    assert job["Meta"] == {"hashidrill_run": "run-1"}


@pytest.mark.lie
def test_no_token_is_in_anything_that_nomad_is_told():
    nomad = FakeNomad()
    spawned(nomad)
    assert TOKEN not in json.dumps(nomad.requests)


@pytest.mark.parametrize(
    ("client", "why"),
    [
        ({"status": "down"}, "n2 is not ready and eligible"),
        ({"eligible": "ineligible"}, "n2 is not ready and eligible"),
        ({"raw_exec": False}, "n2 has no healthy driver raw_exec"),
        ({"meta": {}}, "n2 has no hashidrill_python in its meta"),
    ],
)
def test_too_few_clients_are_refused_before_a_job_is_there(client, why):
    nomad = FakeNomad(n2=client)
    with pytest.raises(SpawnError, match=r"2 of 3 can \(" + why + r"\).*nomad node meta apply"):
        spawned(nomad)
    assert all(method == "GET" for method, _, _ in nomad.requests)


@pytest.mark.parametrize(
    ("nomad", "said"),
    [
        (
            {"said": {"alloc-1": {"version": "0.0.9"}}},
            r"worker w2 on n2: hashidrill 0\.0\.9 .* install the same",
        ),
        ({"said": {"alloc-0": "No module\n"}}, "worker w1 on n1: it printed b'No module'"),
        ({"said": {"alloc-0": '{"hashidrill'}}, r"2 of 3 workers run within 0\.05s"),
        ({"status": "failed"}, "a worker on n1 did not start: Exit Code: 1"),
        ({"placed": 0}, r"0 of 3 workers .* could not place all: \$\{meta.hashidrill_python\} is_set"),
        ({"forbidden": "/v1/nodes"}, "token of Nomad lacks node:read"),
        ({"forbidden": "fs/logs"}, "token of Nomad lacks read-logs"),
    ],
    ids=["another version", "no introduction", "not a whole line", "ended", "not placed", "no nodes", "no logs"],
)
def test_workers_that_do_not_all_run_are_said_with_the_reason_and_their_job_is_removed(nomad, said):
    fake = FakeNomad()
    for name, text in nomad.pop("said", {}).items():
        fake.said[name] = text if isinstance(text, str) else fake._introduction(name.removeprefix("alloc-"), **text)
    vars(fake).update(nomad)
    with pytest.raises(SpawnError, match=said):
        spawned(fake, within_s=0.05)
    assert fake.jobs == {}


def test_a_second_run_of_the_same_id_is_refused_and_the_first_ones_job_stays():
    nomad = FakeNomad()
    nomad.jobs["hashidrill-generators-run-1"] = {}
    with pytest.raises(SpawnError, match="already exists"):
        spawned(nomad)
    assert list(nomad.jobs) == ["hashidrill-generators-run-1"]


async def test_a_nomad_that_does_not_answer_is_said():
    def dead(request):
        raise httpx2.ConnectError("connection refused", request=request)

    login = Login("nomad", "http://nomad.example:4646")
    spawner = NomadSpawner(Wire(login, transport=httpx2.MockTransport(dead)), "run-1", lease_s=15.0)
    with pytest.raises(SpawnError, match="Nomad does not answer"):
        await spawner.spawn("PEM", 1)


def test_what_a_killed_runner_left_is_found_by_its_run_and_removed():
    nomad = FakeNomad()
    nomad.jobs |= {"hashidrill-generators-run-1": {}, "hashidrill-generators-run-12": {}}

    async def main():
        async with wire_to(nomad) as wire:
            return await remove_left(wire, "run-1")

    assert anyio.run(main) == ["hashidrill-generators-run-1"]
    assert list(nomad.jobs) == ["hashidrill-generators-run-12"], "that of another run"
