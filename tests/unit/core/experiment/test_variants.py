"""`variants:`, `rounds:` and `compare:`: what is checked, and where a mistake is shown."""

import re

import pytest

from hashidrill.core.errors import ExperimentError, UnknownNameError
from hashidrill.core.experiment.loader import load_experiment, load_text, resolve, variant_of, variants_of, varied

TEXT = """\
apiVersion: hashidrill/v1
kind: Experiment
metadata: {name: old-or-new, title: Two versions, why: To see what is compared}
load:
  kv-writes: {kind: consul.kv.write, rate: 50/s, keys: 500, value: 512B}
steady_state:
  for: 5s
  require: ["kv-writes.latency.p50 < 300ms"]
method:
  - {fault: process.pause, on: "consul:leader", for: 5s}
expect:
  - writes_recover: {load: kv-writes, within: 10s}
variants:
  old:
    datacenter: {consul: {version: "1.10.3"}}
    expect:
      - no_acknowledged_write_lost: {load: kv-writes}
  new:
rounds: 2
compare:
  - at_least_as_quick: {fast: new, slow: old, load: kv-writes}
"""
HYPOTHESES = """\
from hashidrill.core.hypothesis import comparison, hypothesis, Held

@comparison
def at_least_as_quick(fast, slow, *, load: str, percent: float = 50):
    assert fast.operations(load).percentile_s(percent) <= slow.operations(load).percentile_s(percent)
"""


@pytest.fixture
def path(tmp_path):
    (tmp_path / "hypotheses").mkdir()
    (tmp_path / "hypotheses" / "own.py").write_text(HYPOTHESES)
    (tmp_path / "x.yaml").write_text(TEXT)
    return tmp_path / "x.yaml"


def said(path, *changes):
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    with pytest.raises(ExperimentError) as caught:
        load_experiment(path)
    return re.sub(r"\n    (?=\S)", " ", str(caught.value))


def test_each_variant_is_a_whole_experiment_of_its_own(path):
    given = resolve(path)
    found = variants_of(given)
    assert list(found) == ["old", "new"]
    assert [one.experiment.datacenter.consul.version for one in found.values()] == ["1.10.3", "1.22.2"]
    assert not any(one.experiment.variants or one.experiment.compare for one in found.values())
    assert [one.name for one in found.values()] == ["old-or-new"] * 2
    assert load_text(found["old"].text) == found["old"].experiment


def test_expect_holds_for_each_variant_that_does_not_say_otherwise(path):
    found = variants_of(resolve(path))
    assert [each.hypothesis for each in found["old"].experiment.expect] == ["no_acknowledged_write_lost"]
    assert [each.hypothesis for each in found["new"].experiment.expect] == ["writes_recover"]


def test_a_recording_of_the_whole_keeps_the_comparisons(path):
    given = resolve(path)
    assert given.experiment.rounds == 2
    assert [each.title for each in given.experiment.compare] == [
        "at_least_as_quick(fast=new, slow=old, load=kv-writes)"
    ]
    assert "at_least_as_quick" in given.hypotheses["hypotheses"]
    assert "at_least_as_quick" not in variant_of(given, "old").hypotheses["hypotheses"]


def test_each_variant_runs_three_times_where_nothing_else_is_written(path):
    path.write_text(TEXT.replace("rounds: 2\n", ""))
    assert load_experiment(path).rounds == 3


def test_a_variant_that_is_not_there_is_named_with_the_near_ones(path):
    with pytest.raises(UnknownNameError, match=r"old-or-new has no variant 'odl': did you mean old\?"):
        variant_of(resolve(path), "odl")


def test_an_overlay_from_elsewhere_is_laid_over_the_experiment_and_over_none_of_its_variants(path):
    one = varied(resolve(path), {"datacenter": {"consul": {"servers": 5}}}, name="five")
    assert (one.experiment.variants, one.experiment.datacenter.consul.version) == ({}, "1.22.2")


@pytest.mark.lie
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"1.10.3"', "1.10", r"x.yaml:15:36: datacenter.consul.version: .* \(in the variant old\)"),
        ("version:", "versoin:", r"x.yaml:15:27: .*unknown key 'versoin': did you mean version\? \(in the"),
        ("    expect:\n", "    expects:\n", r"x.yaml:16:5: variants.old: unknown key 'expects': did you mean expect\?"),
        ("      - no_ack", "      - noo_ack", r"x.yaml:17:9: .*no hypothesis 'noo_ack.*\(in the variant old\)"),
        ("  new:\n", "  new:\n    load: {kv-writes: null}\n", r"nothing to measure.* \(in the variant new\)"),
        ("  new:\n", "", r"x.yaml:13:1: .*one variant has nothing to be compared with"),
        ('    datacenter: {consul: {version: "1.10.3"}}\n', "", r"x.yaml:\d+:3: variants: runs the same as the"),
        ("fast: new", "fast: now", r"x.yaml:21:31: .*there is no variant 'now': did you mean new\?"),
        ("fast: new", "fast: old", r"compares a variant with itself"),
        ("fast: new, ", "", r"fast is missing: The variant of this side"),
        ("load: kv-writes}\n", "load: kv-reads}\n", r"there is no load 'kv-reads'"),
        ("at_least_as_quick:", "writes_recover:", r"writes_recover compares nothing: write it under `expect`"),
        ("rounds: 2", "rounds: 0", r"rounds: expected at least 1"),
    ],
)
def test_a_mistake_is_shown_where_it_is(path, old, new, expected):
    assert re.search(expected, said(path, (old, new)))


def test_a_comparison_among_the_expectations_is_told_where_it_belongs(path):
    text = said(path, ("writes_recover: {load: kv-writes, within: 10s}", "at_least_as_quick: {}"))
    assert "at_least_as_quick compares recordings: write it under `compare`" in text


def test_a_comparison_needs_variants(path):
    head, _, _ = TEXT.partition("variants:")
    text = said(path, (TEXT, f"{head}compare:\n  - at_least_as_quick: {{fast: new, slow: old, load: kv-writes}}\n"))
    assert "compare" in text
    assert "there is nothing to compare: name two `variants:` or more" in text


def test_each_variant_is_checked_as_an_experiment_is(path):
    """A rule that no shape can tell: a fault without a host to befall."""
    text = said(
        path,
        ("  new:\n", "  new:\n    datacenter: {consul: {servers: 1, clients: 0}}\n"),
        ("consul:leader", "consul:one-follower"),
    )
    assert re.search(r"x.yaml:10:\d+: method\[0\].on: .*\(in the variant new\)", text)
