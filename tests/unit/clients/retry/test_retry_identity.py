"""Whether a request was sent again: by more than its exact query; and where nothing says so, no verdict is given."""

import random
from dataclasses import replace

import pytest

from hashidrill.clients.retry.timing import backoff
from hashidrill.clients.retry.verdicts import bounded, idempotent_only, present
from hashidrill.core.errors import UsageError
from hashidrill.core.tap.attempts import HEADER_VARIABLE, DoubtError, header_in
from hashidrill.core.tap.catalogue import AMBIGUOUS_WRITES, FAULTS, TRANSIENT
from retry_runs import attempt, run
from simulated_battery import Model, verdicts

pytestmark = pytest.mark.lie
KEY = "idempotency-key: [redacted {}]"


def twice(one, other, *, fault="reply-dropped", plain=(), **about):
    """An operation whose first request failed, and one after it."""
    first, later = (
        attempt(fault=fault, upstream=True, **{**about, **one}),
        attempt(0.1, status=200, **{**about, **other}),
    )
    return run(first, later, plain=tuple(attempt(status=200, **{**about, **each}) for each in plain))


class TestAWriteThatIsSentAgain:
    @pytest.mark.parametrize(
        ("one", "other", "text"),
        [
            ({"key": KEY.format(1)}, {"key": KEY.format(2)}, "2 times with another key each time"),
            ({"key": KEY.format(1)}, {}, "another key"),
            ({"key": "cas=7", "path": "/v1/x?cas=7"}, {"path": "/v1/x"}, "another key"),
            ({"path": "/v1/x?nonce=1"}, {"path": "/v1/x?nonce=2"}, "2 times without a key"),
            ({"path": "/v1/x?_=1"}, {"path": "/v1/x?_=2"}, "2 times"),
            ({"path": "/v1/x"}, {"path": "/v1/x?attempt=2"}, "2 times"),
            ({"path": "/v1/x?173258912345"}, {"path": "/v1/x?173258912399"}, "2 times"),
            ({"path": "/v1/x?order=1", "body": "b"}, {"path": "/v1/x?order=2", "body": "b"}, "2 times"),
            ({"path": "/v1/a", "said": "o"}, {"path": "/v1/b/c", "said": "o"}, "2 times"),
        ],
    )
    def test_by_a_new_key_or_a_nonce_in_its_query_is_the_same_write_again(self, one, other, text):
        about = {"method": "POST", "path": "/v1/x"}
        judged = idempotent_only("reply-dropped", [twice(one, other, **about)])
        assert judged.verdict == "FAIL"
        assert text in judged.text
        assert present("reply-dropped", [twice(one, other, **about)]).verdict == "INVALID", "it would be wrong"

    @pytest.mark.parametrize("differs", [{"path": "/v1/x?a={}"}, {"body": "{}"}, {"path": "/v1/x/{}"}])
    def test_what_differs_in_each_run_without_a_fault_too_is_no_other_write(self, differs):
        one, other, usual = ({name: text.format(n) for name, text in differs.items()} for n in (1, 2, 3))
        again = twice(one, other, plain=[usual], method="POST")
        assert idempotent_only("reply-dropped", [again]).verdict == "FAIL"

    @pytest.mark.parametrize("differs", [{"path": "/v1/x?a={}"}, {"body": "{}"}])
    @pytest.mark.parametrize("known", [[1], []])
    def test_what_nothing_explains_is_a_doubt(self, differs, known):
        one, other = ({name: text.format(n) for name, text in differs.items()} for n in (1, 2))
        plain = [{name: text.format(n) for name, text in differs.items()} for n in known]
        doubtful = twice(one, other, plain=plain, method="POST")
        with pytest.raises(DoubtError, match=r"different (query|body) followed.*X-Hashidrill-Operation"):
            idempotent_only("reply-dropped", [doubtful])
        for verdict in (present, bounded, backoff):
            with pytest.raises(DoubtError):
                verdict("503", [doubtful])

    @pytest.mark.parametrize("differs", [{"path": "/v1/x?a={}"}, {"body": "{}"}, {"path": "/v1/x/{}"}])
    def test_what_the_operation_sends_anyway_is_another_write(self, differs):
        one, other = ({name: text.format(n) for name, text in differs.items()} for n in (1, 2))
        went_on = twice(one, other, plain=[one, other], method="POST")
        assert idempotent_only("reply-dropped", [went_on]).verdict == "PASS"

    def test_one_of_several_that_was_sent_again_is_seen(self):
        pages = [{"path": f"/v1/x?page={n}"} for n in (1, 2)]
        plain = tuple(attempt(method="POST", **each) for each in pages)
        failed = attempt(fault="reply-dropped", method="POST", **pages[0])
        again = run(
            failed, attempt(0.1, method="POST", **pages[0]), attempt(0.2, method="POST", **pages[1]), plain=plain
        )
        assert (again.retries, idempotent_only("reply-dropped", [again]).verdict) == (1, "FAIL")

    def test_a_failed_second_one_of_two_that_are_alike_is_seen(self):
        both = (attempt(method="POST"), attempt(0.1, method="POST"))
        failed = replace(both[1], fault="reply-dropped")
        again = run(both[0], failed, attempt(0.2, method="POST"), plain=both)
        assert idempotent_only("reply-dropped", [again]).verdict == "FAIL"
        assert idempotent_only("reply-dropped", [run(both[0], failed, plain=both)]).verdict == "PASS"

    def test_with_the_same_key_it_may_be_sent_again(self):
        keyed = twice({"body": "1"}, {"body": "2"}, key=KEY.format(1), method="POST")
        judged = idempotent_only("reply-dropped", [keyed])
        assert (judged.verdict, judged.applies) == ("INVALID", False)
        assert present("reply-dropped", [keyed]).verdict == "PASS"

    def test_a_precondition_that_was_read_again_leaves_open_whether_the_first_one_counted(self):
        again = twice({"path": "/v1/x?cas=7", "key": "cas=7"}, {"path": "/v1/x?cas=8", "key": "cas=8"}, method="PUT")
        judged = idempotent_only("reply-dropped", [again])
        assert (judged.verdict, judged.applies) == ("INVALID", True)
        assert "sent with cas=7, then with cas=8" in judged.text

    def test_a_client_that_says_that_they_are_two_is_believed_where_nothing_speaks_against_it(self):
        one, other = {"said": "1", "path": "/v1/x?a=1"}, {"said": "2", "path": "/v1/x?a=2"}
        assert idempotent_only("reply-dropped", [twice(one, other, method="POST")]).verdict == "PASS"
        with pytest.raises(DoubtError):  # without a fault it sends one
            idempotent_only("reply-dropped", [twice(one, other, plain=[one], method="POST")])

    def test_one_that_surely_failed_is_not_hidden_by_a_doubt(self):
        doubtful = twice({"body": "1"}, {"body": "2"}, method="POST")
        assert idempotent_only("reply-dropped", [doubtful, twice({}, {}, method="POST")]).verdict == "FAIL"


class TestARead:
    @pytest.mark.parametrize("query", ["_={}", "cb={}", "cache_buster={}", "ts={}", "17325891234{}", "Request-ID={}"])
    def test_a_cache_buster_makes_no_other_request(self, query):
        one, other = ({"path": f"/v1/x?{query.format(n)}"} for n in (1, 2))
        assert present("503", [twice(one, other, fault="503")]).verdict == "PASS"

    def test_a_refusal_that_the_client_goes_on_from_is_not_tried_again(self):
        refused = attempt(fault="refused", method="", path="", connection=0)
        plain = (attempt(path="/v1/a"), attempt(0.1, path="/v1/b"))
        assert present("refused", [run(refused, plain[1], plain=plain)]).verdict == "FAIL"
        assert present("refused", [run(refused, *plain, plain=plain)]).verdict == "PASS"


def test_the_header_is_named_by_a_variable():
    assert header_in({}) == b"x-hashidrill-operation"
    assert header_in({HEADER_VARIABLE: "X-Correlation-Id"}) == b"x-correlation-id"
    with pytest.raises(UsageError, match=HEADER_VARIABLE):
        header_in({HEADER_VARIABLE: "no header"})


def hexes(chance):
    return f"{chance.getrandbits(64):016x}"


DIFFER = {
    "nothing": lambda _chance, _n: {},
    "a known nonce": lambda chance, _n: {"path": f"/v1/kv/x?nonce={hexes(chance)}"},
    "a nonce of its own": lambda chance, _n: {"path": f"/v1/kv/x?sig={hexes(chance)}"},
    "its body": lambda chance, _n: {"body": hexes(chance)},
    "its path": lambda chance, _n: {"path": f"/v1/kv/{hexes(chance)}"},
    "a new key": lambda chance, _n: {"key": KEY.format(hexes(chance)), "body": "b"},
}


@pytest.mark.parametrize("differs", DIFFER)
@pytest.mark.parametrize("number", range(6))
def test_random_clients_get_the_verdicts_of_what_they_do_on_random_faults(differs, number):
    """Some write, some hang, each makes its attempts differ in another way: no verdict on it is a lie."""
    chance = random.Random(f"{differs} {number}")
    model = Model(
        f"{differs} {number}",
        lambda _chance, n, _told: 0.2 * 2**n,
        retries=chance.randint(0, 3),
        retries_on=frozenset(chance.sample(TRANSIENT, chance.randint(0, len(TRANSIENT)))),
        timeout_s=chance.choice([1.0, 40.0]),
        method=chance.choice(["GET", "POST"]),
        sends=DIFFER[differs],
    )
    found = verdicts(model, *chance.sample(list(FAULTS), chance.randint(1, len(FAULTS))), seed=number)
    for (name, fault), verdict in found.items():
        retried = fault in model.retries_on and model.retries > 0
        hangs = fault == "hang" and model.timeout_s > 30
        unkeyed = differs != "a new key" or (retried and not hangs)
        wrong = model.method == "POST" and FAULTS[fault].ambiguous and unkeyed
        if name == "present":
            assert verdict == ("INVALID" if wrong else "PASS" if retried and not hangs else "FAIL"), fault
        if name == "idempotent_only" and fault in AMBIGUOUS_WRITES:
            keyed = differs == "a new key" and not retried
            unjudged = model.method == "GET" or keyed or hangs
            assert verdict == ("INVALID" if unjudged else "FAIL" if retried else "PASS"), fault
        if name == "timeout_present" and fault == "hang":
            assert verdict == ("FAIL" if hangs else "PASS")
