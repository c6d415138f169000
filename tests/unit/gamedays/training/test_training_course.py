"""What the seed makes of a scenario."""

from __future__ import annotations

import pytest

from hashidrill.core.errors import ExperimentError
from hashidrill.gamedays.training.course import WATCH, chosen, course_of, each_choice, filled
from hashidrill.gamedays.training.library import list_scenarios
from hashidrill.gamedays.training.scenario import read_scenario
from training_games import SMALL, course, written

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


@pytest.mark.parametrize("path", list_scenarios(), ids=lambda path: path.stem)
def test_every_scenario_of_the_library_makes_a_game_of_each_truth_choice_and_herring(path):
    scenario = read_scenario(path)
    choices = each_choice(scenario)
    for choice in choices:
        course_of(scenario, choice)
    assert {choice.truth for choice in choices} == {*scenario.scenario.truths}
    for name, values in scenario.scenario.choose.items():
        assert {choice.values[name] for choice in choices} == {*values}


@pytest.mark.parametrize("path", list_scenarios(), ids=lambda path: path.stem)
def test_name_title_and_pager_of_a_scenario_do_not_tell_its_truth(path):
    scenario = read_scenario(path).scenario
    told = f"{scenario.metadata.name} {scenario.metadata.title}".lower()
    for name, truth in scenario.truths.items():
        assert name not in told
        for step in truth.method:
            assert str(step.get("fault", "mark")) not in f"{told} {scenario.pager.text} {scenario.hand_over}"


@pytest.mark.parametrize("path", list_scenarios(), ids=lambda path: path.stem)
def test_the_exact_diagnosis_of_a_scenario_is_right_and_its_pager_is_not(path):
    from hashidrill.gamedays.training.words import judged

    scenario = read_scenario(path)
    for seed in range(10):
        game = course_of(scenario, chosen(scenario, seed))
        wanted = game.truth.diagnosis
        exact = wanted.exact.replace("${host}", "consul-2")
        assert judged(exact, wanted, sick={"consul-2": "10.73.0.12"}).right, exact
        assert not judged(game.pager.text, wanted, sick={"consul-2": "10.73.0.12"}).right
