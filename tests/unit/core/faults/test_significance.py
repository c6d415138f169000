"""The statistics of proofs: how often chance alone would prove what is not so."""

import itertools
import math

import pytest

from hashidrill.core.faults.significance import (
    LOOK_ERROR,
    at_most,
    counts,
    delays_over,
    more_than,
    most_before,
    smallest_share,
    trials_for,
)
from hashidrill.staging.carriers.host import barriers

SHARES = [1.0, 0.75, 0.5, 0.3, 0.23, 0.1, 0.05]


def binomial(hits, trials, share):
    return math.comb(trials, hits) * share**hits * (1 - share) ** (trials - hits)


def test_fishers_test_counts_the_ways_to_deal_the_hits():
    for trials, hits, before in itertools.product((1, 3, 5), range(6), range(6)):
        if max(hits, before) > trials:
            continue
        both = hits + before
        deals = list(itertools.combinations(range(2 * trials), both))
        as_many = sum(sum(place < trials for place in deal) >= hits for deal in deals)
        assert more_than(hits, before, trials) == pytest.approx(as_many / len(deals))


@pytest.mark.parametrize(
    ("hits", "trials", "share"), [(-1, 5, 0.2), (0, 5, 0.2), (3, 18, 0.5), (17, 18, 1.0), (5, 5, 0.9)]
)
def test_the_binomial_distribution_is_that_of_the_book(hits, trials, share):
    assert at_most(hits, trials, share) == pytest.approx(sum(binomial(k, trials, share) for k in range(hits + 1)))


@pytest.mark.lie
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("noise", [0.0, 0.001, 0.01, 0.1, 0.3])
def test_what_is_not_there_is_proven_less_often_than_said(share, noise):
    """Over all baselines that such noise gives, of which those that tell nothing are refused."""
    trials, wrong = trials_for(share), 0.0
    for before in range(most_before(trials, share) + 1):
        so_many = at_most(before, trials, noise) - at_most(before - 1, trials, noise)
        wrong += so_many * (1 - at_most(counts(trials, share, before).least - 1, trials, noise))
    assert wrong <= LOOK_ERROR + 1e-12


@pytest.mark.parametrize("share", SHARES)
def test_what_is_there_is_seen_and_is_never_proven_gone(share):
    trials = trials_for(share)
    for before in range(most_before(trials, share) + 1):
        needed = counts(trials, share, before)
        assert at_most(needed.free, trials, share) <= LOOK_ERROR
        missed = at_most(needed.least - 1, trials, share) + 1 - at_most(needed.most, trials, share)
        assert missed <= 2e-6 + 1e-9
        assert needed.free < needed.least
    assert counts(trials, share, most_before(trials, share) + 1) is None


def test_the_trials_that_the_reference_names():
    assert [trials_for(share) for share in (1.0, 0.5, 0.3, 0.1, 0.01)] == [18, 144, 273, 890, 9484]
    assert smallest_share(9484) == 0.01
    assert smallest_share(890) == 0.1
    assert smallest_share(17) == math.inf


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1])
def test_no_trials_tell_nothing_from_nothing(share):
    with pytest.raises(ValueError, match="cannot be distinguished from nothing"):
        trials_for(share)


def test_at_least_the_share_of_delays_that_is_said_takes_so_long():
    for delay, jitter in ((1.0, 0.0), (1.0, 0.5), (1.0, 0.6), (1.0, 1.0)):
        cut, share = delays_over(delay, jitter)
        over = 1.0 if not jitter else min(1.0, (delay + jitter - cut) / (2 * jitter))
        assert over >= share
        assert cut > 0.45 * delay


NFT = [
    {"metainfo": {"version": "1.0.6"}},
    {"table": {"family": "inet", "name": "t"}},
    {"chain": {"family": "inet", "table": "t", "name": "input", "policy": "accept"}},
    {
        "rule": {
            "table": "t",
            "chain": "input",
            "expr": [
                {
                    "match": {
                        "op": "==",
                        "left": {"payload": {"protocol": "ip", "field": "saddr"}},
                        "right": {"set": ["10.73.0.12", "10.73.0.13"]},
                    }
                },
                {
                    "match": {
                        "op": "<",
                        "left": {"numgen": {"mode": "random", "mod": 1000000, "offset": 0}},
                        "right": 300,
                    }
                },
                {"drop": None},
            ],
        }
    },
    {
        "rule": {
            "table": "u",
            "chain": "input",
            "expr": [
                {
                    "match": {
                        "op": "==",
                        "left": {"payload": {"protocol": "ip", "field": "saddr"}},
                        "right": "10.73.0.12",
                    }
                },
                {"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 8500}},
                {"reject": {"type": "tcp reset"}},
            ],
        }
    },
    {
        "rule": {
            "table": "v",
            "chain": "prerouting",
            "expr": [
                {
                    "match": {
                        "op": "==",
                        "left": {"payload": {"protocol": "ip", "field": "saddr"}},
                        "right": "10.73.0.12",
                    }
                },
                {"redirect": {"port": 22000}},
            ],
        }
    },
]
"""As nft 1.0.6 lists the rules of a loss, a block and a link."""


def test_what_drops_or_refuses_packets_is_read_from_the_kernels_list():
    loss, block = barriers(NFT)
    assert (loss.table, loss.chain, loss.addresses, loss.port) == ("t", "input", {"10.73.0.12", "10.73.0.13"}, None)
    assert (block.table, block.chain, block.addresses, block.port) == ("u", "input", {"10.73.0.12"}, 8500)
