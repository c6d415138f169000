"""Does a diagnosis say what it must?"""

from __future__ import annotations

import pytest

from hashidrill.training.words import judged

NAMES = [["disk", "storage", "i/o"], ["slow*", "latency"], ["$host", "leader"]]
NEVER = ["network", "cpu", "packet loss"]
HOSTS = {"consul-2": "10.73.0.12"}


def says(text):
    return judged(text, NAMES, NEVER, HOSTS)


@pytest.mark.parametrize(
    "text",
    [
        "the disk of consul-2 is slow",
        "Slow disks on the leader!",
        "consul-2's storage has a high latency",
        "10.73.0.12: I/O is slower than it was",
        "not the network, but the leader's disk is slow",
        "the disk of the leader is slow; it is not the CPU",
    ],
)
def test_right_words_are_right_however_they_are_put(text):
    assert says(text).right, says(text)


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("the disk is slow", (2,)),
        ("consul-2 is sick", (0, 1)),
        ("", (0, 1, 2)),
        ("the disk of consul-22 is slow", (2,)),
    ],
)
def test_half_of_a_diagnosis_says_which_half_is_missing(text, missing):
    assert says(text).missing == missing


def test_who_names_every_part_of_the_system_is_wrong():
    guessed = says("disk or network or cpu of consul-2 is slow")
    assert not guessed.right
    assert guessed.wrong == ("network", "cpu")


def test_what_is_denied_is_not_said():
    assert not says("it is not the slow disk of the leader").right


def test_a_phrase_counts_only_as_a_whole():
    assert says("the leader's disk is slow, and one packet was late").right
    assert not says("the leader's disk is slow: packet loss").right


def test_a_list_of_guesses_is_too_long():
    assert says("the disk of the leader is slow " * 20).too_long


def test_a_phrase_that_denies_something_itself_is_found():
    wanted = [["no space", "full"]]
    assert judged("there is no space left on consul-2", wanted, []).right
    assert not judged("it is not full", wanted, []).right
