"""An arming is for a content: what changes what is done changes its digest, and nothing else does."""

import re

import pytest

from hashidrill.core.experiment.library import find_experiment
from hashidrill.core.experiment.loader import resolve
from hashidrill.staging.attach.plan import content_of, digest_of, lines_of
from hashidrill.staging.interlocks.settings import settings_of

PATH = find_experiment("raft/slow-leader-disk")
SETTINGS = settings_of({}, "x")
BASE = resolve(PATH).experiment


def digest(tmp_path, change, settings=SETTINGS):
    path = tmp_path / "slow-leader-disk.yaml"
    path.write_text(change(PATH.read_text()).replace("../bases", str(PATH.parents[1] / "bases")))
    return digest_of(resolve(path).experiment, settings)


PROBE = 'probes: {page: {kind: command, command: ["true", "a"]}}'
SAME = {
    "as it is": lambda text: text,
    "a comment": lambda text: text + "# a comment\n",
    "another title": lambda text: re.sub(r"title: .*", "title: Another", text),
}
OTHER = {
    "longer": lambda text: re.sub(r"(fault: disk.latency.*for: )\d+s", r"\g<1>59s", text),
    "slower": lambda text: re.sub(r"delay: \w+", "delay: 7s", text),
    "elsewhere": lambda text: text.replace('on: "consul:leader"', 'on: "consul:followers"'),
    "more load": lambda text: re.sub(r"rate: \d+/s", "rate: 499/s", text, count=1),
    "a probe": lambda text: text.replace("\nexpect:", f"\n{PROBE}\nexpect:"),
    "a broken quorum": lambda text: text.replace("\nexpect:", "\nbreaks_quorum: true\nexpect:"),
    "a longer recovery": lambda text: re.sub(r"\nrecovery:.*", "", text).replace(
        "\nexpect:", "\nrecovery: {for: 59s}\nexpect:"
    ),
}


@pytest.mark.parametrize("case", SAME)
def test_what_changes_nothing_that_is_done_needs_no_other_arming(tmp_path, case):
    assert digest(tmp_path, SAME[case]) == digest_of(BASE, SETTINGS)


@pytest.mark.lie
@pytest.mark.parametrize("case", OTHER)
def test_what_changes_what_is_done_does(tmp_path, case):
    """Whatever a file did that had an armed name was armed."""
    assert OTHER[case](PATH.read_text()) != PATH.read_text()
    assert digest(tmp_path, OTHER[case]) != digest_of(BASE, SETTINGS)


@pytest.mark.lie
@pytest.mark.parametrize(
    "own",
    [
        {"blast_radius": {"servers": 3}},
        {"blast_radius": {"clients": "100%"}},
        {"production": {"not_production": ["eu-prod"]}},
    ],
)
def test_neither_may_an_attach_file_go_wider_than_what_was_armed(own):
    assert digest_of(BASE, settings_of(own, "x")) != digest_of(BASE, SETTINGS)


def test_it_says_what_is_consented_to():
    text = "\n".join(lines_of(BASE, settings_of({"production": {"not_production": ["eu-prod"]}}, "x")))
    assert "disk.latency on consul:leader" in text
    assert "consul.kv.write" in text
    assert "a third of a product's servers and 20% of its clients" in text
    assert "counted as not production: eu-prod" in text


def test_every_shipped_experiment_has_a_content():
    found = [resolve(path).experiment for path in sorted((PATH.parents[1] / "state").glob("*.yaml"))]
    assert all(content_of(each, SETTINGS)["method"] for each in found)
    assert len({digest_of(each, SETTINGS) for each in found}) == len(found) > 3


@pytest.mark.lie
@pytest.mark.parametrize(
    "change", [('"a"', '"b"'), ("{page: {", "{page: {every: 2s, "), ("command, c", "command, exit_code: 1, c")]
)
def test_what_a_probe_runs_and_how_often_is_consented_to_and_shown(tmp_path, change):
    armed, other = (
        digest(tmp_path, lambda text, p=p: text.replace("\nexpect:", f"\n{p}\nexpect:"))
        for p in (PROBE, PROBE.replace(*change))
    )
    assert armed != other
    document = (
        PATH.read_text().replace("../bases", str(PATH.parents[1] / "bases")).replace("\nexpect:", f"\n{PROBE}\nexpect:")
    )
    (tmp_path / "shown.yaml").write_text(document)
    assert any(
        "probe page: command" in line and '"true"' in line
        for line in lines_of(resolve(tmp_path / "shown.yaml").experiment, SETTINGS)
    )
