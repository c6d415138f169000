"""Every shipped scenario can be played with every choice, tells nothing too early, and takes no other's diagnosis."""

import re
from functools import cache
from pathlib import Path

import pytest

from hashidrill.gamedays.training.course import chosen, course_of, each_choice, filled
from hashidrill.gamedays.training.scenario import Diagnosis, Written, list_scenarios, read_scenario
from hashidrill.gamedays.training.words import judged

NAMES = [path.stem for path in list_scenarios()]
ROOT = Path(__file__).parents[4]
_NOT_OURS = "job server session consul nomad vault leader node kv host agent config streams raft network"
NOT_OURS = {*_NOT_OURS.split()}
"""Words of fault kinds that every on-call engineer uses."""
USERS_SAY = {"slow", "timeout", "error", "down"}
"""Words of fault kinds that are symptoms too."""
ALIKE = ({"stopped-agent", "frozen-leader"}, {"slow-leader-disk", "lock-storm"})
"""The same fault on another role, or with a consequence: the words for one are right for the other."""
HOST = "consul-1"
ADDRESSES = {HOST: "10.73.0.11"}
EVERYWHERE = {f"{role}-{number}": "" for role in ("consul", "nomad", "vault", "client") for number in range(1, 6)}

RIGHT = {
    "slow-leader-disk": ["the leader's fsync is slow", "high io latency on {host}"],
    "full-disks": ["the disk of the followers ran out of space", "the volume of {host} is full"],
    "bloated-leader": [
        "The BoltDB file of {victim} has a huge freelist and that server leads",
        "the raft.db of {victim} is bloated",
    ],
    "streaming-overload": [
        "use_streaming_backend with that many watches",
        "too many streams, and each registration wakes all of them",
    ],
    "lock-storm": [
        "The leader's disk stalls and claims are retried again and again",
        "slow fsync on {host}, leases queue up",
    ],
    "lossy-follower": [
        "{victim} drops packets",
        "packet loss at {victim}",
        "{victim}: many retransmissions, bad cable",
    ],
    "minority-partition": [
        "{one} and {two} are unreachable, the other three are fine",
        "{two}, {one}: isolated by a switch",
    ],
    "half-open-api": ["{victim} accepts connections and delivers nothing", "half-open connections to {victim}"],
    "stopped-agent": ["the consul process of {victim} is stopped", "{victim} hangs, SIGSTOP"],
    "retry-storm": [
        "deployer-a retries into a full queue",
        "metastable: the backlog of the agent on {victim} never drains",
    ],
    "frozen-leader": ["{victim} is frozen", "consul on {victim} is in state T"],
    "black-hole-node": ["{victim} is a black hole", "every allocation fails on {victim}, permission denied"],
    "sealed-standby": ["{victim} is sealed", "nobody unsealed it: {victim} sealed after its restart"],
    "october-2021": ["streaming, and then the bloated raft.db of {victim}"],
}
WRONG = {
    "slow-leader-disk": ["the leader is slow", "the disk of the leader is full", "slow network at the leader"],
    "full-disks": ["the disk of {host} is slow", "memory of {host} is full", "no space"],
    "bloated-leader": [
        "the disk of {victim} is slow",
        "the leader is overloaded",
        "network loss at the leader",
        "bloat",
    ],
    "streaming-overload": ["the leader's disk is slow", "too many writes", "raft.db is bloated", "streaming"],
    "lock-storm": ["the disk of the leader is slow", "a lock storm", "the leader is partitioned and locks are retried"],
    "lossy-follower": [
        "{victim} is slow",
        "the network loses packets",
        "the disk of {victim} drops writes",
        "{victim} is down",
    ],
    "minority-partition": [
        "{one} is unreachable",
        "the cluster lost quorum, {one} and {two} are unreachable",
        "{one} and {two} crashed",
    ],
    "half-open-api": ["{victim} is frozen", "{victim} refuses connections", "the leader is half-open", "clients hang"],
    "stopped-agent": ["{victim} is half-open", "something is stopped", "the disk of {victim} hangs"],
    "retry-storm": [
        "the disk of {victim} is slow",
        "deployer-a is broken",
        "lock storm: retries fill the queue of the agent",
    ],
    "frozen-leader": ["{victim} crashed and is hung", "the leader was lost", "{victim} is partitioned and hangs"],
    "black-hole-node": [
        "the jobs are broken",
        "{victim} is disconnected and fails everything",
        "a black hole",
        "{victim} is full",
    ],
    "sealed-standby": ["{victim} is down", "Vault is sealed", "the token of {victim} was not unsealed: expired"],
    "october-2021": [
        "streaming",
        "raft.db of {victim} is bloated",
        "streaming, and faulty hardware of {victim}, raft.db bloated",
    ],
}


@cache
def written(name: str) -> Written:
    return read_scenario(next(path for path in list_scenarios() if path.stem == name))


def all_truths() -> list[tuple[str, str]]:
    return [(name, truth) for name in NAMES for truth in written(name).scenario.truths]


def first_values(name: str) -> dict[str, object]:
    return {key: each[0] for key, each in written(name).scenario.choose.items()}


def said_of(name: str, truth: str, text: str):
    """A diagnosis of that truth, with the first of all choices."""
    values = first_values(name)
    diagnosis = filled(written(name).data["truths"][truth]["diagnosis"], values)
    return judged(text, Diagnosis.model_validate(diagnosis), sick=ADDRESSES, known=EVERYWHERE)


def filled_in(name: str, text: str) -> str:
    given = {"host": HOST, **first_values(name)}
    return (
        text.replace("${host}", HOST).format(**given)
        if "{" in text and "${" not in text
        else str(filled(text.replace("${host}", HOST), given))
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_choice_of_a_scenario_makes_an_experiment_that_can_be_played(name):
    choices = each_choice(written(name))
    for choice in choices:
        course = course_of(written(name), choice)
        assert course.hidden
        assert course.back
    scenario = written(name).scenario
    assert {choice.truth for choice in choices} == {*scenario.truths}
    for key, values in scenario.choose.items():
        assert {choice.values[key] for choice in choices} == {*values}


@pytest.mark.parametrize("name", NAMES)
def test_neither_name_nor_title_nor_pager_says_what_is_broken(name):
    scenario = written(name).scenario
    told = f"{scenario.metadata.name} {scenario.metadata.title} {scenario.pager.text}".lower()
    words = set(re.findall(r"[a-z]+", told))
    kinds = {step["fault"] for truth in scenario.truths.values() for step in truth.method if "fault" in step}
    broken = {word for kind in kinds for word in re.split(r"[._]", kind)} - NOT_OURS - USERS_SAY
    assert not words & broken
    for truth, about in scenario.truths.items():
        assert truth not in told
        kinds = [str(step.get("fault", "mark")) for step in about.method]
        assert not [kind for kind in kinds if kind in f"{told} {scenario.hand_over}"]
        said = said_of(name, truth, filled_in(name, told))
        wanted = written(name).scenario.truths[truth].diagnosis
        asked = sum(map(bool, (wanted.component, wanted.trouble, wanted.where))) + len(wanted.also)
        assert len(said.short) >= min(asked, 3) - 1, "all but one of the parts are for the trainee to find"


@pytest.mark.lie
@pytest.mark.parametrize(("name", "truth"), all_truths())
def test_no_hint_but_the_last_is_the_diagnosis_and_each_costs_more_than_the_one_before(name, truth):
    hints = written(name).scenario.truths[truth].hints
    assert len(hints) >= 3
    assert [hint.price for hint in hints] == sorted({hint.price for hint in hints})
    for hint in hints[:-1]:
        assert not said_of(name, truth, filled_in(name, hint.text)).right
    assert not said_of(name, truth, filled_in(name, str(written(name).scenario.hand_over))).right


@pytest.mark.parametrize(("name", "truth"), all_truths())
def test_the_whole_truth_of_a_debrief_counts_as_the_right_diagnosis(name, truth):
    exact = filled_in(name, written(name).scenario.truths[truth].diagnosis.exact)
    assert said_of(name, truth, exact).right, said_of(name, truth, exact)
    assert not said_of(name, truth, filled_in(name, written(name).scenario.pager.text)).right


@pytest.mark.parametrize(("name", "truth"), [pair for pair in all_truths() if pair[1] in RIGHT])
def test_other_words_for_the_same_are_right_and_near_misses_are_wrong(name, truth):
    for text in RIGHT[truth]:
        assert said_of(name, truth, filled_in(name, text)).right, text
    for text in WRONG[truth]:
        assert not said_of(name, truth, filled_in(name, text)).right, text


@pytest.mark.long
@pytest.mark.lie
@pytest.mark.parametrize(("name", "truth"), all_truths())
def test_the_diagnosis_of_another_scenario_is_wrong(name, truth):
    for other, another in all_truths():
        if another != truth and {another, truth} not in ALIKE:
            exact = written(other).scenario.truths[another].diagnosis.exact
            values = {**first_values(other), **first_values(name)}  # the other's words, on this one's hosts
            text = str(filled(exact.replace("${host}", HOST), values))
            assert not said_of(name, truth, text).right, f"{other}: {text}"


@pytest.mark.parametrize(("name", "truth"), all_truths())
def test_the_diagnosis_of_somebody_who_names_everything_is_wrong(name, truth):
    everything = (
        "disk network cpu memory streaming raft.db locks partition sealed frozen half-open retries of every host"
    )
    assert not said_of(
        name, truth, f"{everything} {HOST} leader {' '.join(map(str, first_values(name).values()))}"
    ).right


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_is_the_same_game_and_others_are_other_games(name):
    games = [chosen(written(name), seed) for seed in range(30)]
    assert games == [chosen(written(name), seed) for seed in range(30)]
    different = {(game.truth, game.herring, *map(str, game.values.values())) for game in games}
    assert len(different) > 1


@pytest.mark.parametrize(("name", "truth"), all_truths())
def test_the_debrief_names_what_an_expert_sees_the_repair_and_a_page_that_exists(name, truth):
    told = written(name).scenario.truths[truth]
    assert len(told.expert) >= 2
    assert told.repair
    assert (ROOT / told.runbook).is_file(), told.runbook


def test_there_are_scenarios_of_three_levels():
    assert {written(name).scenario.metadata.level for name in NAMES} == {1, 2, 3}


LONG_AGO = re.compile(
    r"(some|few) (minutes|hours)\b.*(now|ago)|(now|since) .*some (minutes|hours)|a minute ago|for hours", re.IGNORECASE
)


@pytest.mark.lie
@pytest.mark.parametrize("said", ["For some minutes now, it is slow", "since some minutes", "since a minute ago"])
def test_a_pager_that_tells_of_minutes_is_found(said):
    assert LONG_AGO.search(said)


@pytest.mark.parametrize("name", NAMES)
def test_no_pager_tells_of_minutes_while_its_fault_is_seconds_old(name):
    [path] = [each for each in list_scenarios() if each.stem == name]
    assert not LONG_AGO.search(" ".join(read_scenario(path).scenario.pager.text.split()))
