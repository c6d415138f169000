"""A verdict is the same whatever else is selected, and whatever chance does in a client that waits at random."""

from itertools import combinations

import pytest

from hashidrill.core.tap.catalogue import FAULTS, RETRY_AFTER, TRANSIENT
from simulated_battery import Model, verdicts

STATUSES = frozenset({"429", "500", "502", "503", "504"})


def honours(wait):
    """The same client, but it does what Retry-After says."""
    return lambda chance, retry, told: wait(chance, retry, told) if told is None else told


MODELS = {
    model.name: (model, right)
    for model, right in [
        (Model("fixed 0.5 s", lambda *_: 0.5), "FAIL"),
        (Model("fixed 5 s", lambda *_: 5.0), "FAIL"),
        (Model("0 to 6 s", lambda chance, *_: chance.uniform(0, 6)), "FAIL"),
        (Model("0 to 1 s, whatever is told", lambda chance, *_: chance.uniform(0, 1)), "FAIL"),
        (Model("exponential, mean 2 s", lambda chance, *_: min(9, chance.expovariate(0.5))), "FAIL"),
        (Model("1 s or 3 s", lambda chance, *_: chance.choice([1.0, 3.0])), "FAIL"),
        (Model("full jitter", lambda chance, retry, _told: chance.uniform(0, 0.5 * 2**retry)), "FAIL"),
        (Model("honours, full jitter", honours(lambda chance, n, _told: chance.uniform(0, 0.5 * 2**n))), "PASS"),
        (Model("honours, doubles", honours(lambda _chance, n, _told: 0.5 * 2**n)), "PASS"),
        (Model("honours and adds 0 to 3 s", lambda chance, _n, told: (told or 0.2) + chance.uniform(0, 3)), "PASS"),
        (Model("a header is 5 s", lambda _chance, _n, told: 5.0 if told else 0.2), "FAIL"),
        (Model("a header is 1 to 4 s", lambda chance, _n, told: chance.uniform(1, 4) if told else 0.2), "FAIL"),
        (
            Model(
                "honours, with Retry-After only",
                lambda _chance, _n, told: told or 0.0,
                retries_on=frozenset({"refused", "dns"}),
                retry_after_only=True,
            ),
            "PASS",
        ),
        (Model("statuses only", honours(lambda *_: 1.0), retries_on=STATUSES), "PASS"),
        (Model("writes", lambda *_: 0.5, method="PUT"), "FAIL"),
    ]
}
"""By name: a client, and what is right for retry_after_honoured."""
TIMING = {"backoff", "exponential", "jitter"}
FEW = ("fixed 5 s", "0 to 6 s", "honours, full jitter", "honours, with Retry-After only", "statuses only", "writes")
SUBSETS = [*((fault,) for fault in FAULTS), *combinations(FAULTS, 2)]


@pytest.mark.parametrize("name", MODELS)
def test_a_client_that_sleeps_whatever_it_is_told_never_passes_and_one_that_obeys_always_does(name):
    """With each fault alone, with all, and whatever chance does."""
    model, right = MODELS[name]
    for seed in range(8):
        found = [verdicts(model, seed=seed), *(verdicts(model, fault, seed=seed) for fault in RETRY_AFTER)]
        told = {verdict for each in found for (asked, _), verdict in each.items() if asked == "retry_after_honoured"}
        assert told == {right}, seed


@pytest.mark.long
@pytest.mark.parametrize("name", FEW)
def test_every_single_fault_and_every_pair_give_the_verdicts_of_the_whole(name):
    model, _ = MODELS[name]
    whole = verdicts(model)
    differ = [
        (subset, pair, verdict, whole[pair])
        for subset in SUBSETS
        for pair, verdict in verdicts(model, *subset, seed=len("".join(subset))).items()
        if pair in whole and verdict != whole[pair] and (pair[0] not in TIMING or pair[1] in subset)
    ]
    assert differ == []


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_no_verdict_flips_from_one_battery_to_the_next(name):
    model, _ = MODELS[name]
    seen = {}
    for seed in range(20):
        for pair, verdict in verdicts(model, seed=seed).items():
            seen.setdefault(pair, set()).add(verdict)
    assert {pair: each for pair, each in seen.items() if len(each) > 1} == {}


@pytest.mark.parametrize("name", MODELS)
def test_present_is_what_the_client_retries(name):
    model, _ = MODELS[name]
    found = verdicts(model)
    for fault in TRANSIENT:
        meant = "PASS" if fault in model.retries_on else "FAIL"
        write = model.method == "PUT" and FAULTS[fault].ambiguous
        assert found["present", fault] == ("INVALID" if write else meant), fault
