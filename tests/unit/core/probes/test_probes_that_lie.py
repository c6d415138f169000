"""Every probe of a product whose agents are silent, fail, or lie: no sample of it says that all is well."""

import anyio
import httpx2
import pytest

from hashidrill.core.probes.agents import Interval, Metrics
from hashidrill.core.probes.base import SickError
from hashidrill.core.recording.columns import IMPLAUSIBLE
from hashidrill.products.consul.probes import consul_probes
from hashidrill.products.nomad.probes import nomad_probes
from hashidrill.products.vault.probes import vault_probes
from virtual_time import run

HOSTS = {"one": "10.73.0.11", "two": "10.73.0.12", "three": "10.73.0.13"}
BAD = {"vault.sealed", "consul.members_failed", "nomad.nodes_down"}
"""Where more is worse."""
LIES = {
    "an error": httpx2.Response(500, text="rpc error"),
    "a redirect": httpx2.Response(302, headers={"location": "http://elsewhere/"}),
    "nothing": httpx2.Response(200, content=b""),
    "a page": httpx2.Response(200, text="<html>proxy</html>"),
    "null": httpx2.Response(200, json=None),
    "a number": httpx2.Response(200, json=2**63),
    "an empty object": httpx2.Response(200, json={}),
    "an empty list": httpx2.Response(200, json=[]),
    "half a document": httpx2.Response(200, content=b'{"Stats": {"raft": {"state": "Leader"'),
}


def probes(answer):
    transport = httpx2.MockTransport(answer)
    return [
        *consul_probes(HOSTS, transport=transport),
        *nomad_probes(HOSTS, HOSTS, transport=transport),
        *vault_probes(HOSTS, transport=transport),
    ]


KINDS = sorted({type(probe).__module__ + "." + type(probe).__name__ for probe in probes(lambda _: None)})


def well(kind, answer, *, silent=False):
    """The samples of that probe that say something good."""

    async def main():
        mine = [each for each in probes(answer) if type(each).__module__ + "." + type(each).__name__ == kind]
        with anyio.fail_after(30):
            samples = [sample for probe in mine for sample in await probe.sample()]
        for probe in mine:
            await probe.aclose()
        return samples

    samples = run(main())
    assert samples or silent, "a probe that says nothing at all is silent, and nobody knows why"
    return [one for one in samples if one.ok and one.value and one.signal not in BAD]


@pytest.mark.lie
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("answer", LIES.values(), ids=LIES)
def test_a_probe_of_agents_that_fail_or_answer_nonsense_says_nothing_good(kind, answer):
    assert well(kind, lambda _: answer) == []


@pytest.mark.lie
@pytest.mark.parametrize("kind", KINDS)
def test_a_probe_of_silent_agents_gives_up_in_time_and_says_nothing_good(kind):
    async def never(_):
        await anyio.sleep(3600)

    assert well(kind, never) == []


@pytest.mark.lie
@pytest.mark.parametrize("kind", KINDS)
def test_a_figure_of_2_to_the_63_is_no_figure(kind):
    raft = {"state": "Leader", "term": 2**63, "commit_index": 2**63}
    document = {"Stats": {"raft": raft}, "stats": {"raft": raft, "client": {"last_heartbeat": f"{2**63}s"}}}
    timer = {"Name": "consul.raft.commitTime", "Count": 1, "Mean": 2.0**73, "Max": 2.0**73}
    document |= {"Timestamp": "now", "Samples": [timer, {**timer, "Name": "nomad.raft.commitTime"}]}
    document["Counters"] = [{"Name": "nomad.nomad.plan.node_rejected", "Count": 2**63}]
    found = well(kind, lambda _: httpx2.Response(200, json=document), silent=True)
    assert all(one.value == 1 or one.value >= IMPLAUSIBLE for one in found), found


@pytest.mark.lie
def test_telemetry_that_stands_still_is_a_look_that_failed():
    """A frozen agent repeats its last interval for ever: no plan was rejected in it, and none ever is."""
    interval = Interval()
    first, second = (Metrics(Timestamp=f"12:00:{at}0", Samples=[]) for at in (1, 2))
    interval.goes_on(first, 0.0)
    interval.goes_on(first, 20.0)
    interval.goes_on(second, 22.0)
    interval.goes_on(second, 40.0)
    with pytest.raises(SickError, match="has not changed for 28s, since 12:00:20"):
        interval.goes_on(second, 50.0)
