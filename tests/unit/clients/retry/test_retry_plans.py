"""Plans decide attempt by attempt; faults are given only where they fit; what is written wrong is named."""

import pytest

from hashidrill.core.errors import UsageError
from hashidrill.core.tap import catalogue
from hashidrill.core.tap.attempts import Attempt, replay_key
from hashidrill.core.tap.plans import Always, First, ForSeconds, InTurn, Moment, Nothing, OnceReused, WithProbability
from hashidrill.core.util.redaction import fingerprint

FRESH, REUSED = Moment(0), Moment(0, reused=True)


def at(seconds):
    return Moment(round(seconds * 1e9))


def test_the_first_ones_fail_and_then_all_pass():
    plan = First("503", 2)
    assert [plan.decide(FRESH) for _ in range(4)] == ["503", "503", "", ""]


def test_always_and_never():
    assert {Always("503").decide(FRESH) for _ in range(100)} == {"503"}
    assert Nothing().decide(FRESH) == ""


def test_a_fault_of_fresh_connections_waits_for_one():
    for fault in ("reset-before-fresh", "reset-after-fresh"):
        plan = First(fault)
        assert [plan.decide(moment) for moment in (REUSED, FRESH, FRESH)] == ["", fault, ""]


def test_a_fault_of_reused_connections_waits_for_one():
    plan = First("reset-after-reused")
    assert [plan.decide(moment) for moment in (FRESH, REUSED)] == ["", "reset-after-reused"]


def test_for_seconds_runs_from_the_first_attempt():
    plan = ForSeconds("503", 2.0)
    assert [plan.decide(at(t)) for t in (10, 11.9, 12.1)] == ["503", "503", ""]


def test_by_chance_with_a_seed_is_the_same_twice():
    first, second = (WithProbability("503", 0.3, seed=7) for _ in range(2))
    choices = [first.decide(FRESH) for _ in range(1000)]
    assert choices == [second.decide(FRESH) for _ in range(1000)]
    assert 230 < choices.count("503") < 370


def test_in_turn_an_empty_name_passes():
    plan = InTurn(["503", "", "502"])
    assert [plan.decide(FRESH) for _ in range(4)] == ["503", "", "502", ""]


def test_an_index_goes_backwards_only_in_a_blocking_query():
    plan = First("index-backwards")
    assert [plan.decide(moment) for moment in (FRESH, Moment(0, blocking=True))] == ["", "index-backwards"]


def test_a_redirect_leads_to_a_reused_connection_once():
    plan = OnceReused("reset-after-reused", redirect=True)
    assert [plan.takes_redirect(moment) for moment in (REUSED, FRESH, FRESH)] == [False, True, False]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: First("530"), "did you mean.*503"),
        (lambda: WithProbability("503", 1.5), "between 0 and 1"),
        (lambda: WithProbability("refused", 0.5), "cannot be probabilistic"),
        (lambda: InTurn(["503", "refused"]), "cannot alternate"),
    ],
    ids=["name", "probability", "refused-by-chance", "refused-in-turn"],
)
def test_what_cannot_be_is_named(make, message):
    with pytest.raises(UsageError, match=message):
        make()


@pytest.mark.parametrize(
    ("path", "headers", "key"),
    [
        ("/v1/kv/x?cas=7", [], "cas=7"),
        ("/v1/kv/x?acquire=abc", [], "acquire=abc"),
        ("/v1/kv/x?flags=7", [], ""),
        ("/v1/kv/x", [(b"idempotency-key", b"k1")], f"idempotency-key: {fingerprint('k1')}"),
        ("/v1/kv/x", [(b"if-match", b'"v"')], 'if-match: "v"'),
        ("/v1/kv/cas=7", [(b"host", b"tap")], ""),
    ],
    ids=["cas", "acquire", "flags", "idempotency-key", "if-match", "cas-in-the-path"],
)
def test_what_makes_a_replay_harmless(path, headers, key):
    assert replay_key(path, headers) == key


def test_attempts_of_a_watch_are_of_one_operation_wherever_it_stands():
    one, other = (Attempt(0, 0, 1, method="GET", path=f"/v1/kv/x?index={n}&dc=a") for n in (1, 2))
    assert one.what == other.what
    assert (one.asked_index, other.asked_index) == (1, 2)


def test_the_catalogue_is_whole():
    """Every fault that is named anywhere exists, and every verdict says when it is INVALID and where it comes from."""
    named = {*catalogue.TRANSIENT, *catalogue.RETRY_AFTER, *catalogue.LASTING, *catalogue.AMBIGUOUS_WRITES}
    named |= {fault for _, fault in catalogue.BATTERY_PAIRS}
    assert named <= set(catalogue.FAULTS)
    assert len(catalogue.VERDICTS) == 16
    for verdict in catalogue.VERDICTS.values():
        assert verdict.definition
        assert verdict.invalid_when
        assert verdict.source
