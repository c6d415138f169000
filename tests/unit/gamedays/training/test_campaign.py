"""A campaign: its file is checked, stages open one after the other, and progress is what was passed."""

from pathlib import Path

import pytest

from hashidrill.core.errors import ExperimentError
from hashidrill.gamedays.training.campaign import Campaign, read_campaign, standing, told
from hashidrill.gamedays.training.library import list_scenarios
from hashidrill.gamedays.training.progress import Played

ROOT = Path(__file__).parents[4]
SHIPPED = ROOT / "playbooks/training.yaml"
KNOWN = [path.stem for path in list_scenarios()]
SMALL = """\
apiVersion: hashidrill/v1
kind: Campaign
metadata: {{name: small, title: A small one}}
stages:
  - {{name: one, title: One, about: The first stage, scenarios: [{a}, {b}], needed: 1, takes: 1h}}
  - {{name: two, title: Two, about: The second stage, scenarios: [{c}], takes: 30m}}
"""


def small(tmp_path, *, change=("", "")) -> Campaign:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL.format(a=KNOWN[0], b=KNOWN[1], c=KNOWN[2]).replace(*change))
    return read_campaign(path)


def games(**results: str) -> dict[str, Played]:
    return {name.replace("_", "-"): Played(name, 1, result, 90, "2026-11-23") for name, result in results.items()}


def passed(*names: str) -> dict[str, Played]:
    return {name: Played(name, 1, "passed", 90, "2026-11-23") for name in names}


def test_nobody_who_played_nothing_is_past_the_first_stage(tmp_path):
    where = standing(small(tmp_path), {})
    assert [each.open for each in where.stages] == [True, False]
    assert where.next == KNOWN[0]
    assert not where.finished


def test_a_stage_opens_once_enough_of_the_one_before_is_passed(tmp_path):
    where = standing(small(tmp_path), passed(KNOWN[1]))
    assert [each.open for each in where.stages] == [True, True]
    assert where.next == KNOWN[2]


@pytest.mark.parametrize("result", ["partly", "failed", "not counted"])
def test_what_was_played_and_not_passed_opens_nothing(tmp_path, result):
    best = {KNOWN[0]: Played(KNOWN[0], 1, result, 60, "2026-11-23")}
    where = standing(small(tmp_path), best)
    assert [each.open for each in where.stages] == [True, False]
    assert where.next == KNOWN[0]


def test_the_last_stage_alone_finishes_nothing(tmp_path):
    assert not standing(small(tmp_path), passed(KNOWN[2])).finished


def test_with_every_stage_done_nothing_comes_next(tmp_path):
    campaign = small(tmp_path)
    where = standing(campaign, passed(KNOWN[0], KNOWN[2]))
    assert where.finished
    assert "all stages are done" in told(campaign, where)


def test_a_terminal_is_told_what_is_passed_and_what_to_type_next(tmp_path):
    campaign = small(tmp_path)
    text = told(campaign, standing(campaign, passed(KNOWN[0])))
    assert f"passed  {KNOWN[0]}" in text
    assert f"next: hashidrill train {KNOWN[2]}" in text
    assert "not open yet" in told(campaign, standing(campaign, {}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ((f"[{KNOWN[2]}]", "[frist]"), "there is no scenario 'frist'"),
        ((f"[{KNOWN[2]}]", f"[{KNOWN[0]}]"), "is in the campaign already"),
        (("needed: 1", "needed: 3"), "the stage has only 2 scenarios"),
        (("kind: Campaign", "kind: GameDay"), "not a campaign"),
        (("takes: 30m", "takes: soon"), "takes"),
        (("takes: 30m", "takes: 30m, read: [nowhere.md]"), "there is no nowhere.md beside this file"),
        (("about: The second stage, ", ""), "about is missing"),
        (("about: The second stage", "abuot: x, about: y"), "unknown key 'abuot'"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_line(tmp_path, change, said):
    with pytest.raises(ExperimentError, match=said) as error:
        small(tmp_path, change=change)
    assert "small.yaml:" in str(error.value)


def test_the_shipped_campaign_has_every_scenario_once_and_grows_harder_to_the_final():
    from hashidrill.gamedays.training.scenario import read_scenario

    campaign = read_campaign(SHIPPED)
    names = [name for stage in campaign.stages for name in stage.scenarios]
    levels = {path.stem: read_scenario(path).scenario.metadata.level for path in list_scenarios()}
    assert sorted(names) == sorted(KNOWN)
    assert names[0] == "first"
    assert names[-1] == "final"
    hardest = [max(levels[name] for name in stage.scenarios) for stage in campaign.stages]
    assert hardest == sorted(hardest)
    assert sum(float(stage.takes) for stage in campaign.stages) <= 8 * 3600
