"""The confusion matrix: every reference client against every verdict of the battery. All of them have to be right."""

import asyncio
import time

import pytest

from clients.prepare import go_binaries
from hashidrill.core.tap.catalogue import FAULTS
from retry_matrix import JUDGED, confusion


@pytest.fixture(scope="session")
def bin_folder():
    return go_binaries()


EVERYDAY = ("requests-bare", "go-net-http", "curl", "curl-retry", "go-retryablehttp", "wget", "tight-loop", "put-again")
"""What people have, good and bad; the whole matrix takes minutes."""
AGAIN = ("post-new-key", "put-nonce", "cache-buster")
"""Whose attempts are not alike."""
ALONE = ("random-gap", "long-gap", "curl-retry", "requests-retry-total", "put-again")


@pytest.mark.long
def test_the_verdicts_on_everyday_clients_are_right(consul, bin_folder, tell):
    """All but jitter, which a busy machine cannot tell; then its verdict is INVALID, and says so."""
    clients = [client for client in JUDGED if client.name in EVERYDAY]
    assert len(clients) == len(EVERYDAY)
    matrix = asyncio.run(confusion(consul.path, bin_folder, clients))
    for line in matrix.lines():
        tell(line)
    assert not matrix.troubles
    assert [text for name, text in matrix.wrong if name != "jitter"] == []
    assert sum(matrix.right.values()) > 20 * len(clients)


@pytest.mark.long
def test_a_request_is_known_again_whatever_differs_in_it(consul, bin_folder, tell):
    clients = [client for client in JUDGED if client.name in AGAIN]
    matrix = asyncio.run(confusion(consul.path, bin_folder, clients))
    for line in matrix.lines():
        tell(line)
    assert not matrix.troubles
    assert [text for name, text in matrix.wrong if name != "jitter"] == []
    assert sum(matrix.right.values()) > 20 * len(clients)


@pytest.mark.nightly
def test_the_verdicts_on_each_fault_alone_are_those_of_the_whole_battery(consul, bin_folder, tell):
    """A verdict has what it compares with, whatever was selected: two clients look well by what they are not asked."""
    clients = [client for client in JUDGED if client.name in ALONE]
    matrix = asyncio.run(confusion(consul.path, bin_folder, clients, [(fault,) for fault in FAULTS]))
    for line in matrix.lines():
        tell(line)
    assert not matrix.troubles
    assert [text for name, text in matrix.wrong if name != "jitter"] == []
    assert sum(matrix.right.values()) > 20 * len(clients)


@pytest.mark.nightly
def test_every_verdict_on_every_reference_client_is_right(consul, bin_folder, tell):
    began = time.monotonic()
    matrix = asyncio.run(confusion(consul.path, bin_folder))
    tell(f"\nconfusion matrix: {len(JUDGED)} clients, {time.monotonic() - began:.0f} s")
    for line in matrix.lines():
        tell(line)
    assert not matrix.troubles
    assert not matrix.wrong
    assert sum(matrix.right.values()) > 30 * 24
