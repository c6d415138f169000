"""Does a diagnosis say what it must?"""

import functools
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from hashidrill.gamedays.training.course import filled
from hashidrill.gamedays.training.scenario import Diagnosis, find_scenario, read_scenario
from hashidrill.gamedays.training.words import COMPONENT, TROUBLE, WHERE, judged

TRUTH = Diagnosis(
    component=["disk"],
    trouble=["slow"],
    where=["$host", "leader"],
    around="600ms",
    never=["network", "cpu", "packet loss", "full"],
    exact="the disk of consul-2 is slow",
)
TYPED = YAML(typ="safe").load(Path(__file__).with_name("diagnoses.yaml").read_text())
HOSTS = {"consul-2": "10.73.0.12"}
KNOWN = {f"consul-{number}": f"10.73.0.1{number}" for number in (1, 2, 3)}


def says(text):
    return judged(text, TRUTH, sick=HOSTS, known=KNOWN)


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
        ("the disk is slow", (WHERE,)),
        ("consul-2 is sick", (COMPONENT, TROUBLE)),
        ("", (COMPONENT, TROUBLE, WHERE)),
        ("the disk of consul-22 is slow", (WHERE,)),
        ("the disk of consul-1 or consul-2 or consul-3 is slow", (WHERE,)),
        ("the disks of consul-2 and consul-3 are slow", (WHERE,)),
    ],
)
def test_a_part_that_is_left_out_is_missing_and_contradicts_nothing(text, missing):
    said = says(text)
    assert (said.right, said.missing, said.wrong) == (False, missing, ())


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("the disk of consul-1 is slow", "consul-1"),
        ("the disk of consul-2 is full", "full"),
        ("the cpu of consul-2 is slow", "cpu"),
        ("streaming makes consul-2 slow", "streaming"),
    ],
)
def test_what_contradicts_the_truth_is_wrong(text, wrong):
    said = says(text)
    assert not said.right
    assert wrong in said.wrong


def test_a_time_near_the_true_one_says_that_it_is_slow_and_one_far_away_does_not():
    assert says("fsync on consul-2, the leader, takes 600 ms").right
    assert says("each fsync of consul-2 needs half a second: 0.5s").right
    assert says("fsync on consul-2 takes 6 ms").short == (TROUBLE,)


def test_a_consequence_contradicts_nothing():
    assert says("the disk of consul-2 is slow, so writes pile up and cpu is idle").right
    assert says("the network looks slow because the disk of the leader stalls").right


@pytest.mark.lie
def test_who_names_every_part_of_the_system_is_wrong():
    guessed = says("disk or network or cpu of consul-2 is slow")
    assert not guessed.right
    assert {"network", "cpu"} <= {*guessed.wrong}


GUESSES = [
    "The disk of consul-1 or consul-2 or consul-3 is slow",
    "the disk of consul-1 is slow or the disk of consul-2 is slow or the disk of consul-3 is slow",
    "the disk of consul-1 is slow. the disk of consul-2 is slow. the disk of consul-3 is slow",
    "the disk of consul-2 is slow, same for consul-1 and consul-3",
    "consul-2 has a slow disk, consul-1 as well, consul-3 as well",
    "consul-1's disk is slow; if not, then consul-2's; if not, then consul-3's",
    "slow disk, consul-2 most likely, but it could be consul-1",
    "consul-1 disk slow consul-2 disk slow consul-3 disk slow",
    "the disks of consul-1 to consul-3 are slow",
    "the disk of the leader or a follower is slow",
    "every server's disk is slow",
    "a slow disk on one of the servers",
]


@pytest.mark.lie
@pytest.mark.parametrize("text", GUESSES)
def test_who_names_more_than_is_sick_has_said_no_place_wherever_it_is(text):
    """Otherwise the answer, which costs nothing, would say who is among them."""
    for host, address in KNOWN.items():
        said = judged(text, TRUTH, sick={host: address}, known=KNOWN)
        assert (said.right, said.missing, said.wrong) == (False, (WHERE,), ())


@pytest.mark.lie
def test_two_names_of_three_do_not_tell_whether_the_sick_one_is_among_them():
    for host, address in KNOWN.items():
        said = judged("the disk of consul-1 or consul-2 is slow", TRUTH, sick={host: address}, known=KNOWN)
        assert (said.right, said.missing, said.wrong) == (False, (WHERE,), ())


@pytest.mark.lie
def test_what_is_joined_by_or_is_no_answer_to_what_is_wrong_either():
    truth = TRUTH.model_copy(update={"never": []})
    assert judged("the disk of consul-2 is slow or full", truth, sick=HOSTS, known=KNOWN).missing == (TROUBLE,)
    assert judged("the disk or the network of consul-2 is slow", truth, sick=HOSTS, known=KNOWN).missing == (COMPONENT,)


@pytest.mark.parametrize(
    "text",
    [
        "compared with consul-1 and consul-3, the disk of consul-2 is slow",
        "the disk of consul-2 is slow; consul-1 and consul-3 are fine",
        "consul-2: fsync takes 600ms. consul-1: 2ms. consul-3: 3ms",
        "all servers are healthy but the disk of consul-2 is slow",
        "each fsync on consul-2's disk is slow",
        "consul-2's disk is slower than those of consul-1 and consul-3",
    ],
)
def test_who_names_others_to_compare_blames_one(text):
    assert says(text).right, says(text)


def test_what_is_denied_is_not_said():
    assert not says("it is not the slow disk of the leader").right


def test_a_list_of_guesses_is_too_long():
    assert says("the disk of the leader is slow " * 20).too_long


def test_a_phrase_that_denies_something_itself_is_found():
    full = Diagnosis(trouble=["full"], where=["$host"], exact="full")
    assert judged("there is no space left on consul-2", full, sick=HOSTS).right
    assert not judged("consul-2 is not full", full, sick=HOSTS).right


@functools.cache
def scenario_named(name):
    return read_scenario(find_scenario(name))


def judged_as(case, text):
    """right, wrong or half, as the trainee would be told."""
    scenario = scenario_named(case["scenario"])
    wanted = filled(scenario.data["truths"][case["truth"]]["diagnosis"], case["chosen"])
    sick = {host: case["all"].get(host, "") for host in case["hosts"]}
    said = judged(text, Diagnosis.model_validate(wanted), sick=sick, known=case["all"])
    return "right" if said.right else "wrong" if said.wrong else "half"


def texts_of(*kinds):
    for case in TYPED:
        for kind in kinds:
            for text in [case[kind]] if isinstance(case[kind], str) else case[kind]:
                yield kind, text, judged_as(case, text)


@pytest.mark.long
def test_at_least_95_percent_are_judged_as_a_person_would():
    judgements = list(texts_of("right", "half", "wrong", "everything"))
    odd = [text for kind, text, judgement in judgements if (kind == "right") != (judgement == "right")]
    assert len(judgements) == 644
    assert len(odd) <= 0.05 * len(judgements), "\n".join(odd)


@pytest.mark.long
def test_what_is_true_is_almost_never_punished_and_no_guess_is_right():
    judgements = list(texts_of("right", "half"))
    punished = [text for _, text, judgement in judgements if judgement == "wrong"]
    assert len(punished) <= 0.02 * len(judgements), "\n".join(punished)
    assert [text for kind, text, judgement in texts_of("wrong", "everything") if judgement == "right"] == []


@pytest.mark.long
@pytest.mark.lie
def test_no_guess_of_every_host_is_right():
    guesses = [(case["scenario"], text, judged_as(case, text)) for case in TYPED for text in case.get("guesses", [])]
    assert len(guesses) == 130
    assert [guess for guess in guesses if guess[2] == "right"] == []
