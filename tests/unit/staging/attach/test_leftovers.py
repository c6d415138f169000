"""What a run left is removed, and nothing else; what cannot be removed is told."""

import pytest

from attached_estates import FakeEstate, consul_target
from hashidrill.core.errors import FaultError
from hashidrill.core.protocols.rights import Left
from hashidrill.products.consul.leftovers import BELOW, KEY
from hashidrill.staging.attach.leftovers import sweep
from virtual_time import run

pytestmark = pytest.mark.lie

OURS = Left("consul", BELOW, "hashidrill/kv-writes/")


@pytest.fixture
def there(tmp_path):
    """(the fake, its KV store, `swept(lefts)`)."""
    fake, target = FakeEstate(), consul_target(tmp_path)
    told = []

    def swept(*lefts, within_s=30.0, may=None):
        def tell(verb, what="", where="", note=""):
            told.append((verb, what, where, note))

        found = dict.fromkeys(lefts, "kind")
        return run(sweep(found, fake.wires(target), tell, within_s=within_s, may=may)), told

    return fake, fake.world.consul.kv, swept


def put(kv, *keys):
    for key in keys:
        kv.answer("PUT", f"/v1/kv/{key}", {}, b"x")


def test_a_folder_goes_and_its_neighbours_stay(there):
    _, kv, swept = there
    put(kv, "hashidrill/kv-writes/1", "hashidrill/kv-writes/2", "hashidrill/kv-writes-2/1", "hashidrill/kv-writes")
    assert swept(OURS) == (
        (["keys below hashidrill/kv-writes/: 2"], []),
        [("clean-up", "kind", "keys below hashidrill/kv-writes/", "2 removed")],
    )
    assert set(kv.entries) == {"hashidrill/kv-writes-2/1", "hashidrill/kv-writes"}


def test_a_single_key_goes_and_those_that_begin_like_it_stay(there):
    _, kv, swept = there
    put(kv, "hashidrill-targets/m", "hashidrill-targets/m2")
    assert swept(Left("consul", KEY, "hashidrill-targets/m"))[0] == (["key hashidrill-targets/m: 1"], [])
    assert set(kv.entries) == {"hashidrill-targets/m2"}


def test_where_nothing_is_left_nothing_is_asked_for_but_that_and_nothing_is_told(there):
    fake, _, swept = there
    assert swept(OURS) == (([], []), [])
    assert {request.method for request in fake.asked} == {"GET"}


def test_a_write_that_arrives_after_the_delete_is_removed_too(there):
    """A sick agent held it: one look would have called the folder empty."""
    fake, kv, swept = there
    put(kv, "hashidrill/kv-writes/1")
    late = ["hashidrill/kv-writes/9"]
    answer = fake.world.consul.answer

    def holding(host, method, *rest):
        said = answer(host, method, *rest)
        if method == "DELETE" and late:
            put(kv, late.pop())
        return said

    fake.world.consul.answer = holding
    assert swept(OURS)[0] == (["keys below hashidrill/kv-writes/: 2"], [])
    assert set(kv.entries) == set()


def test_a_delete_that_does_nothing_is_not_believed(there):
    fake, kv, swept = there
    put(kv, "hashidrill/kv-writes/1")
    answer = fake.world.consul.answer
    fake.world.consul.answer = lambda host, method, *rest: answer(host, "GET" if method == "DELETE" else method, *rest)
    (removed, kept), told = swept(OURS)
    assert removed == []
    assert kept[0].startswith("keys below hashidrill/kv-writes/: ")
    assert [verb for verb, *_ in told] == ["left"]


def test_a_consul_that_is_silent_for_a_while_is_asked_again(there):
    fake, kv, swept = there
    put(kv, "hashidrill/kv-writes/1")
    answer, silent = fake.world.consul.answer, [500, 500, 500]

    def recovering(host, *rest):
        said = answer(host, *rest)
        return type(said)(silent.pop(), b"No cluster leader", {}) if silent else said

    fake.world.consul.answer = recovering
    assert swept(OURS)[0] == (["keys below hashidrill/kv-writes/: 1"], [])


def test_one_that_stays_silent_is_told_with_the_reason(there):
    fake, _, swept = there
    fake.silent = {"10.73.0.11"}
    (removed, kept), told = swept(OURS, Left("nomad", "jobs", "x"), within_s=3)
    assert removed == []
    assert "connection refused" in kept[0]
    assert kept[1] == "jobs x: the attach file names no nomad"
    assert [verb for verb, *_ in told] == ["left", "left"]


def test_what_somebody_else_took_over_while_it_was_tried_again_is_left_alone(there):
    """A run that was cut off tries for a while; by the time that Consul answers, its lock may be another's."""
    _, kv, swept = there
    put(kv, "hashidrill/kv-writes/1")
    seen = [FaultError("no answer in time"), FaultError("no answer in time"), False]

    async def may(_left):
        said = seen.pop(0)
        if isinstance(said, FaultError):
            raise said
        return said

    (removed, kept), told = swept(OURS, may=may)
    assert (removed, seen) == ([], [])
    assert kept == ["keys below hashidrill/kv-writes/: another run may use it by now: this one lost its lock"]
    assert [verb for verb, *_ in told] == ["left"]
    assert set(kv.entries) == {"hashidrill/kv-writes/1"}
