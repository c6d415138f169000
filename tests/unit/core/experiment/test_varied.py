"""`varied`: an experiment with an overlay of its datacenter, load or clients is a whole experiment, checked again."""

import re

import pytest

from hashidrill.core.errors import ExperimentError, UsageError
from hashidrill.core.experiment.library import read_experiment
from hashidrill.core.experiment.loader import load_text, resolve, varied
from hashidrill.core.experiment.resolved import ResolvedExperiment

BASE = """\
apiVersion: hashidrill/v1
kind: Base
datacenter:
  consul: {version: "1.10.3", servers: 3, clients: 2, config: {performance: {raft_multiplier: 1}}}
"""
OVER = """\
apiVersion: hashidrill/v1
kind: Experiment
extends: base.yaml
metadata: {name: over, title: Over a base, why: To see what is merged}
load:
  kv-writes: {kind: consul.kv.write, rate: 50/s, keys: 500, value: 512B, via: "consul:clients"}
  kv-reads: {kind: consul.kv.read, rate: 10/s}
steady_state:
  for: 5s
  require: ["kv-writes.latency.p50 < 300ms"]
method:
  - {fault: process.pause, on: "consul:leader", for: 5s}
expect:
  - writes_recover: {load: kv-writes, within: 10s}
"""


@pytest.fixture
def path(tmp_path):
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "over.yaml").write_text(OVER)
    return tmp_path / "over.yaml"


def said(path, overlay, **kwargs):
    with pytest.raises(ExperimentError) as caught:
        varied(resolve(path), overlay, name="candidate", **kwargs)
    return re.sub(r"\n    (?=\S)", " ", str(caught.value))


def test_an_overlay_is_merged_key_by_key_and_wins(path):
    one = varied(resolve(path), {"datacenter": {"consul": {"config": {"use_streaming_backend": True}}}}, name="new")
    assert one.data["datacenter"]["consul"] == {
        "version": "1.10.3",
        "servers": 3,
        "clients": 2,
        "config": {"performance": {"raft_multiplier": 1}, "use_streaming_backend": True},
    }
    assert one.experiment.datacenter.consul.config["use_streaming_backend"] is True
    assert one.variant == "new"


def test_the_experiment_itself_stays_as_it_was(path):
    given = resolve(path)
    before = dict(given.data)
    varied(given, {"load": {"kv-reads": None}}, name="new")
    assert (given.data, given.variant) == (before, "")


def test_a_document_serves_as_well_as_an_experiment(path):
    overlay = {"datacenter": {"consul": {"servers": 5}}}
    by_document = varied(read_experiment(path), overlay, name="five")
    assert by_document.data == varied(resolve(path), overlay, name="five").data


def test_the_recording_gets_a_whole_experiment_its_variant_and_the_files_that_it_came_from(path):
    given = resolve(path)
    one = varied(given, {"datacenter": {"consul": {"servers": 5}}}, name="five")
    assert load_text(one.text).datacenter.consul.servers == 5
    assert "variant five" in one.text.splitlines()[0]
    assert one.provenance.sha256 == given.provenance.sha256
    assert one.provenance.extends == given.provenance.extends
    again = ResolvedExperiment.from_data(one.to_data())
    assert again.variant == "five"
    assert again.provenance.variant.overlay == {"datacenter": {"consul": {"servers": 5}}}


def test_what_came_out_of_a_recording_can_be_varied_too(path):
    kept = ResolvedExperiment.from_data(resolve(path).to_data())
    assert (
        varied(kept, {"datacenter": {"consul": {"servers": 5}}}, name="five").experiment.datacenter.consul.servers == 5
    )


def test_a_mistake_is_shown_in_the_overlay_with_line_column_and_caret(path):
    text = said(path, {"datacenter": {"consul": {"servers": 3, "clints": 2}}}, source="candidate.hcl")
    assert re.search(
        r"^candidate.hcl:5:7: datacenter.consul: unknown key 'clints': did you mean clients\?", text, re.MULTILINE
    )
    assert "(in the variant candidate)" in text
    assert '        "clints": 2\n        ^' in text


def test_what_no_longer_fits_is_shown_where_it_is_written(path):
    text = said(path, {"load": {"kv-writes": None}})
    assert re.search(r"over.yaml:10:\d+: steady_state.require\[0\]: .*\(in the variant candidate\)", text)


def test_only_what_varies_can_be_overlaid(path):
    text = said(path, {"method": []})
    assert "variant candidate:2:3: method cannot vary: there are: clients, datacenter, expect, load" in text
    assert "must be a mapping" in said(path, ["datacenter"])


def test_a_variant_needs_a_name_that_a_person_can_type(path):
    with pytest.raises(UsageError, match="cannot name a variant"):
        varied(resolve(path), {}, name="../x")


def test_a_variant_without_an_overlay_is_the_experiment_under_that_name(path):
    one = varied(resolve(path), {}, name="as-it-is")
    assert (one.data, one.variant) == (resolve(path).data, "as-it-is")
