"""The fixture `tap` in anyone's own suite: the examples of the playbook run, and see a client that does not retry."""

import re

import pytest

from places import PLAYBOOKS

pytest_plugins = ["pytester"]
PAGE = PLAYBOOKS / "check-your-retries.md"
EXAMPLES = re.findall(r"^```python runnable\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def run(pytester, text):
    pytester.makepyfile(test_example=text)
    return pytester.runpytest_inprocess("-W", "error", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")


def test_the_playbook_has_three_examples():
    assert len(EXAMPLES) == 3


@pytest.mark.long
@pytest.mark.parametrize("number", range(3))
def test_an_example_of_the_playbook_passes(pytester, number):
    outcomes = run(pytester, EXAMPLES[number]).parseoutcomes()
    assert outcomes.get("passed", 0) >= 1
    assert set(outcomes) == {"passed"}


def test_a_client_without_retries_is_caught(pytester):
    """The first example's client with its retries taken out: the same tests must fail."""
    text, count = re.subn(r"Retry\(.*?\n?.*?\)(?=\))", "Retry(0)", EXAMPLES[0], count=1, flags=re.DOTALL)
    assert count == 1, "plant the defect anew"
    outcomes = run(pytester, text).parseoutcomes()
    assert outcomes.get("failed", 0) >= 1


def test_a_fault_that_does_not_exist_is_named_with_a_near_one(pytester):
    result = run(pytester, "def test_it(tap):\n    tap.fail('530')\n")
    result.stdout.fnmatch_lines(["*the tap has no fault '530': did you mean*503*"])


def test_every_test_has_a_tap_of_its_own_and_nothing_is_left(pytester):
    text = """
        import socket, threading, urllib.request
        import pytest

        ports = []

        def test_one(tap):
            ports.append(tap.address)
            tap.fail("503", times=1)
            with pytest.raises(urllib.error.HTTPError) as error:
                urllib.request.urlopen(tap.url)
            error.value.close()
            assert [a.status for a in tap.attempts] == [503]

        def test_two(tap):
            assert tap.attempts == []
            assert tap.address not in ports
            with pytest.raises(ConnectionRefusedError):
                host, port = ports[0].split(":")
                socket.create_connection((host, int(port)), timeout=1)
            assert sum(t.name == "hashidrill-tap" for t in threading.enumerate()) == 1
    """
    run(pytester, text).assert_outcomes(passed=2)


def test_by_chance_for_a_time_and_in_turn(pytester):
    text = """
        import urllib.request, urllib.error

        def get(tap):
            try:
                with urllib.request.urlopen(tap.url + "/v1/kv/x") as reply:
                    return reply.status
            except urllib.error.HTTPError as error:
                error.close()
                return error.code

        def test_in_turn(tap):
            tap.fail("503", "", "502")
            assert [get(tap) for _ in range(4)] == [503, 200, 502, 200]

        def test_by_chance(tap):
            tap.fail("503", probability=0.5, seed=3)
            first = [get(tap) for _ in range(20)]
            tap.fail("503", probability=0.5, seed=3)
            assert first == [get(tap) for _ in range(20)]
            assert 3 < first.count(503) < 17

        def test_for_a_time_and_healed(tap):
            tap.fail("503", seconds=60)
            assert get(tap) == 503
            tap.heal()
            assert get(tap) == 200

        def test_a_reply_of_ones_own(tap):
            tap.reply(404, b"gone", {"X-Consul-Index": "7"})
            assert get(tap) == 404
            assert tap.attempts[0].index == 7
    """
    run(pytester, text).assert_outcomes(passed=4)
