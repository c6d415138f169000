"""What the probes of Vault say of servers that are well, sealed, gone, or twice active."""

from datetime import UTC, datetime

import pytest

import virtual_time
from hashidrill.core.protocols.service import LEADS
from hashidrill.products.vault.probes import ActiveProbe, MetricsProbe, SealProbe
from hashidrill.testing.vault import FakeVault

METRICS = {
    "Timestamp": "2026-11-22 22:00:00 +0000 UTC",
    "Gauges": [
        {"Name": "vault.expire.num_leases", "Value": 7, "Labels": {}},
        {"Name": "vault.core.active", "Value": 1},
    ],
    "Points": [],
    "Counters": [],
    "Samples": [
        {"Name": "vault.barrier.put", "Count": 4, "Mean": 2.5, "Max": 9.0, "Min": 1.0, "Labels": {}},
        {"Name": "vault.barrier.get", "Count": 0, "Mean": 0.0, "Max": 0.0, "Min": 0.0},
        {"Name": "vault.barrier.list", "Count": 1, "Mean": 1.0, "Max": 1.0},
    ],
}


@pytest.fixture
def fake():
    return FakeVault()


@virtual_time.ran
async def sampled(fake, kind, **more):
    async with fake.api() as api:
        return await kind({name: host.address for name, host in fake.hosts.items()}, api, **more).sample()


def values(samples):
    return {(sample.signal, sample.host): sample.value for sample in samples}


def test_one_active_server_is_named_and_each_says_what_it_is(fake):
    samples = sampled(fake, ActiveProbe)
    assert (samples[0].value, samples[0].text, samples[0].ok) == (1.0, "vault-1", True)
    assert values(samples[1:]) == {
        ("vault.is_active", "vault-1"): 1.0,
        ("vault.is_active", "vault-2"): 0.0,
        ("vault.is_active", "vault-3"): 0.0,
        ("vault.active_since", "vault-1"): datetime(2026, 1, 1, 0, 0, fake._reign, tzinfo=UTC).timestamp(),
    }
    assert samples[-1].text == LEADS


@pytest.mark.lie
def test_nobody_active_and_two_active_servers_both_fail(fake, monkeypatch):
    fake.hosts["vault-1"].process = None
    fake.hosts["vault-2"].process = None
    none = sampled(fake, ActiveProbe)
    assert (none[0].value, none[0].text, none[0].ok) == (0.0, "none", False)
    assert none[1].value is None
    twice = FakeVault()
    monkeypatch.setattr(twice, "answer", lambda *_: (200, {"is_self": True}))
    both = sampled(twice, ActiveProbe)
    assert (both[0].value, both[0].text, both[0].ok) == (0.0, "vault-1, vault-2, vault-3", False)


def test_a_sealed_server_is_one_and_one_that_is_gone_is_not_called_sealed(fake):
    fake.sealed.add("vault-2")
    fake.hosts["vault-3"].process = None
    count, *each = sampled(fake, SealProbe)
    assert (count.value, count.text) == (1.0, "vault-1")
    assert [(sample.value, sample.ok) for sample in each] == [(0.0, True), (1.0, True), (None, False)]


def test_storage_times_are_seconds_and_leases_a_number(fake, monkeypatch):
    monkeypatch.setattr(fake, "answer", lambda *_: (200, METRICS))
    samples = sampled(fake, MetricsProbe, host="vault-1")
    assert values(samples) == {("vault.storage_put", "vault-1"): 0.0025, ("vault.leases", "vault-1"): 7.0}
    assert samples[0].text.startswith("max 0.009000s, 4 in 10s since 2026")


def test_metrics_that_are_none_fail_each_signal_with_the_reason(fake, monkeypatch):
    monkeypatch.setattr(fake, "answer", lambda *_: (200, {"Gauges": "none"}))
    samples = sampled(fake, MetricsProbe, host="vault-1")
    assert {sample.signal for sample in samples} == {"vault.storage_put", "vault.storage_get", "vault.leases"}
    assert not any(sample.ok for sample in samples)
    assert "unexpected body" in samples[0].text
