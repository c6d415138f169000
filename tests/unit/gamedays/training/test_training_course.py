"""What the seed makes of a scenario; what a trainee says, buys and reads in it, and when the game is over."""

import json

import pytest

from hashidrill.core.errors import ExperimentError
from hashidrill.core.protocols.events import Figures, InForce, Phase, Steady, Tick
from hashidrill.gamedays.training.course import WATCH, filled
from hashidrill.gamedays.training.game_log import _READY, STARTS, Desk
from training_games import ADDRESSES, SMALL, S, break_it, course, desk_of, written

TRUTH = SMALL["truths"]["slow-disk"]


def test_the_same_seed_is_the_same_game():
    assert course(seed=7).choice == course(seed=7).choice
    assert {course(seed=seed).choice.values["delay"] for seed in range(20)} == {"300ms", "500ms"}


def test_what_the_seed_chose_stands_in_the_fault_in_the_pager_and_in_the_debrief():
    game = course(seed=7)
    delay = game.choice.values["delay"]
    assert str(game.resolved.experiment.method[0].parameters.delay) == delay
    assert delay in game.pager.text
    assert delay in game.truth.diagnosis.exact


def test_a_hidden_fault_lasts_until_users_were_watched():
    game = course()
    fault, watch = game.resolved.experiment.method
    assert watch.mark == WATCH
    assert fault.at == game.act_s < watch.at
    assert fault.at + fault.for_ == watch.at + watch.for_


def test_the_hidden_fault_begins_when_the_set_up_is_over():
    before = [{"fault": "noop", "on": "consul:leader", "at": "5s", "for": "20s"}]
    game = course(before=before)
    assert game.hidden == (1,)
    assert game.resolved.experiment.method[1].at == 25


def test_a_red_herring_is_a_step_and_no_hidden_fault():
    herring = [{"fault": "network.loss", "on": "consul:one-follower", "with": {"percent": "5%"}}]
    game = course(herrings=[herring])
    assert [step.fault for step in game.resolved.experiment.faults] == ["disk.latency", "network.loss"]
    assert game.hidden == (0,)


def test_users_and_kept_data_are_judged_by_hypotheses():
    expect = course().resolved.experiment.expect
    assert [each.hypothesis for each in expect] == ["available_during", "latency_stays", "no_acknowledged_write_lost"]
    assert expect[0].params["fault"] == expect[1].params["fault"] == WATCH


def test_every_game_has_disks_of_a_size_so_that_one_tells_nothing():
    assert course().resolved.experiment.datacenter.disk.size is not None


def test_a_truth_that_makes_no_experiment_is_named_with_what_was_chosen():
    wrong = {**TRUTH, "method": [{"fault": "disk.latencies", "on": "consul:leader"}]}
    with pytest.raises(ExperimentError, match=r"truths\.slow-disk\.method\[0\]\.fault: .*disk\.latency\b"):
        course(truths={"slow-disk": wrong})


def test_an_unknown_key_is_named_with_its_place():
    with pytest.raises(ExperimentError, match=r"(?s)small\.yaml:1:.*unknown key"):
        written(pagers={})


def test_the_name_is_that_of_the_file():
    with pytest.raises(ExperimentError, match="must be the name of the file"):
        written(metadata={"name": "other", "title": "x", "level": 1})


def test_a_choice_that_is_a_whole_value_keeps_its_type():
    assert filled({"n": "${count}", "text": "${count} of ${host}"}, {"count": 3}) == {"n": 3, "text": "3 of ${host}"}


def test_the_pager_goes_some_time_after_all_of_the_hidden_fault_is_in_force():
    desk = desk_of(course(), paged=False)
    assert break_it(desk) == 10.0
    assert desk.fault_ns == 10 * S


def test_before_the_pager_there_is_nothing_to_say():
    desk = desk_of(course(), paged=False)
    for what in ("detected", "diagnosis", "done", "hint"):
        text, ends = desk.say(what, "the leader's disk is slow", 5 * S)
        assert "nothing has been reported" in text
        assert not ends
    assert desk.timeline == []


@pytest.mark.lie
def test_the_trainee_says_once_that_they_are_ready():
    desk = Desk(course(), ADDRESSES)
    assert "still starts" in desk.say("ready", "", S)[0]
    desk.event(Phase(phase="load"), S)
    assert desk.state == STARTS
    desk.event(Steady(held=True), 2 * S)
    assert desk.say("ready", "", 3 * S) == (_READY, False)
    assert "already" in desk.say("ready", "", 4 * S)[0]
    assert [entry.what for entry in desk.timeline] == ["ready"]


def test_the_pager_can_be_read_again_once_it_went():
    assert desk_of(course(), paged=False).say("pager", "", S)[0] == "the pager has not gone off"
    assert desk_of(course()).say("pager", "", 30 * S)[0].startswith("from shop: Carts take ")


def test_no_answer_says_whether_a_diagnosis_is_right():
    right, wrong = (
        desk_of(course()).say("diagnosis", words, 30 * S)[0]
        for words in ("the leader's disk is slow", "the network of consul-2 is slow")
    )
    assert right == wrong


def test_a_part_that_is_left_out_is_told_at_once_and_tells_nothing_else():
    """The true component and another one get the same answer."""
    true, other = (desk_of(course()).say("diagnosis", f"the {word} is slow", 30 * S)[0] for word in ("disk", "network"))
    assert true == other
    assert "on which host" in true


def test_hints_come_in_order_each_has_its_price_and_then_there_are_none():
    desk = desk_of(course())
    texts = [desk.say("hint", "", (30 + n) * S)[0] for n in range(3)]
    assert "Look at the disks. (5 points; 1 more)" in texts[0]
    assert "leader" in texts[1]
    assert texts[2] == "there are no more hints"
    assert sum(entry.price for entry in desk.timeline) == 15


def test_done_ends_the_game_and_nothing_is_said_afterwards():
    desk = desk_of(course())
    assert desk.say("done", "", 40 * S)[1]
    assert desk.say("diagnosis", "the leader's disk is slow", 41 * S) == ("the game is over", False)
    assert desk.done_ns == 40 * S


def test_the_time_limit_ends_it_once():
    desk = desk_of(course())
    assert desk.limit(1900 * S)
    assert not desk.limit(1901 * S)
    assert desk.timeline[-1].what == "limit"


@pytest.mark.lie
def test_what_a_trainee_can_read_tells_nothing_of_the_fault():
    desk = desk_of(course())
    figures = {"kv-writes": Figures(rate=50.0, p50_s=1.5, p99_s=float("inf"), errors=0.01)}
    fault = InForce("0-disk.latency-consul-1", "disk.latency", "consul-1")
    desk.event(Tick(phase="method", loads=figures, faults=(fault,), leaders=(("leader", "consul-1"),)), 30 * S)
    told = json.dumps([desk.shown(30 * S), desk.say("users", "", 30 * S), desk.say("detected", "", 30 * S)])
    assert "disk" not in told
    assert "slow" not in told
    assert "1.5s" in told
    assert "never" in told
    assert ADDRESSES["consul-2"] in told


def test_who_gives_up_is_told_that_the_card_says_what_it_was():
    text, ends = desk_of(course()).say("give-up", "", 30 * S)
    assert ends
    assert "score card" in text
