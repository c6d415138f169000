"""`extends`: an experiment over a base. What is merged, where problems are shown, and what is refused."""

import hashlib
import json
import re
from pathlib import Path

import jsonschema
import pytest
from ruamel.yaml import YAML

import places
from hashidrill.core.errors import ExperimentError
from hashidrill.core.experiment import documents
from hashidrill.core.experiment.documents import Document
from hashidrill.core.experiment.library import (
    MOST_BASES,
    complete,
    list_bases,
    list_experiments,
    read_document,
    read_experiment,
)
from hashidrill.core.experiment.loader import check_base, load_experiment, load_text, resolve
from hashidrill.core.experiment.schema import experiment_schema

BASE = """\
apiVersion: hashidrill/v1
kind: Base
datacenter:
  consul: {servers: 3, clients: 2, config: {performance: {raft_multiplier: 1}}}
load:
  kv-writes: {kind: consul.kv.write, rate: 50/s, keys: 500, value: 512B}
  kv-reads: {kind: consul.kv.read, rate: 10/s}
steady_state:
  for: 5s
  require: ["kv-writes.latency.p50 < 300ms"]
"""
OVER = """\
apiVersion: hashidrill/v1
kind: Experiment
extends: base.yaml
metadata: {name: over, title: Over a base, why: To see what is merged}
datacenter: {consul: {servers: 5}}
load:
  kv-writes: {rate: 20/s}
  kv-reads:
steady_state: {for: 2s}
method:
  - {fault: process.pause, on: "consul:leader", for: 5s}
expect:
  - writes_recover: {load: kv-writes, within: 10s}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "over.yaml").write_text(OVER)
    return tmp_path


def unfolded(text):
    """A message without the line breaks that keep it on the screen."""
    return re.sub(r"\n    (?=\S)", " ", text)


def said(path):
    with pytest.raises(ExperimentError) as caught:
        load_experiment(path)
    return unfolded(str(caught.value))


def test_mappings_are_merged_key_by_key_and_the_experiment_wins(folder):
    consul = read_experiment(folder / "over.yaml").data["datacenter"]["consul"]
    assert consul == {"servers": 5, "clients": 2, "config": {"performance": {"raft_multiplier": 1}}}
    experiment = load_experiment(folder / "over.yaml")
    assert experiment.load["kv-writes"].params == {"rate": "20/s", "keys": 500, "value": "512B"}
    assert str(experiment.steady_state.for_) == "2s"


def test_null_takes_a_key_of_the_base_away(folder):
    assert list(load_experiment(folder / "over.yaml").load) == ["kv-writes"]


def test_a_list_replaces_that_of_the_base(folder):
    path = folder / "over.yaml"
    path.write_text(OVER.replace("{for: 2s}", '{require: ["kv-writes.errors < 1%"]}'))
    steady = load_experiment(path).steady_state
    assert ([str(each) for each in steady.require], str(steady.for_)) == (["kv-writes.errors < 1%"], "5s")


def test_a_base_may_extend_another_in_another_folder(folder):
    (folder / "deep").mkdir()
    (folder / "deep/mine.yaml").write_text(
        "apiVersion: hashidrill/v1\nkind: Base\nextends: ../base.yaml\ndatacenter: {consul: {clients: 4}}\n"
    )
    (folder / "over.yaml").write_text(OVER.replace("base.yaml", "deep/mine.yaml"))
    consul = read_experiment(folder / "over.yaml").data["datacenter"]["consul"]
    assert (consul["servers"], consul["clients"], consul["config"]) == (5, 4, {"performance": {"raft_multiplier": 1}})


def test_a_problem_is_shown_in_the_file_that_it_stands_in(folder):
    (folder / "base.yaml").write_text(BASE.replace("clients: 2", "clients: -2").replace("512B", "512"))
    (folder / "over.yaml").write_text(OVER.replace("rate: 20/s", "rate: 20"))
    text = said(folder / "over.yaml")
    for file, line, part in (("over", 7, "load.kv-writes.rate"), ("base", 4, "consul.clients"), ("base", 6, "value")):
        assert re.search(rf"{file}\.yaml:{line}:\d+: \S*{re.escape(part)}", text), text
    assert text.index("over.yaml:7") < text.index("base.yaml:4") < text.index("base.yaml:6")
    assert "{servers: 3, clients: -2," in text, "the excerpt is the base's own line"


def test_a_rule_about_both_files_is_shown_where_the_value_stands(folder):
    load = "  kv-writes: {rate: 20/s}\n  kv-reads:\n"
    (folder / "over.yaml").write_text(OVER.replace(load, "  kv-writes:\n").replace("load: kv-writes", "load: kv-reads"))
    assert re.search(r"base\.yaml:10:\d+: steady_state\.require\[0\]: .*kv-writes", said(folder / "over.yaml"))


def test_what_cannot_be_extended_is_one_message_with_its_place(folder):
    (folder / "loop.yaml").write_text("apiVersion: hashidrill/v1\nkind: Base\nextends: loop.yaml\n")
    (folder / "named.yaml").write_text(BASE + "metadata: {name: x}\n")
    (folder / "broken.yaml").write_text("kind: [Base\n")
    (folder / "empty.yaml").write_text("")
    (folder / "folder").mkdir()
    for written, expected in {
        "nowhere.yaml": r"over\.yaml:3:10: extends: nowhere\.yaml: there is no such file",
        "bases/five-servers.yaml": r"there is no such file .*; bases are .*/bases/\w",
        "bse.yaml": r"did you mean \S*base\.yaml",
        "folder": r"extends: folder: there is no such file",
        "over.yaml": r"extends: over\.yaml: extends itself",
        "loop.yaml": r"extends: loop\.yaml: extends itself, through",
        "[base.yaml]": r"over\.yaml:3:10: extends: expected the path of a base",
        "named.yaml": r"named\.yaml:11:1: a base has no metadata",
        "broken.yaml": r"broken\.yaml:2:1: .*bracket",
        "empty.yaml": r"empty\.yaml:1:1: the file is empty",
        '"a\\0b"': r"over\.yaml:3:10: .*not text",
    }.items():
        (folder / "over.yaml").write_text(OVER.replace("base.yaml", written))
        assert re.search(expected, said(folder / "over.yaml")), (written, said(folder / "over.yaml"))


def test_an_experiment_does_not_extend_an_experiment(folder):
    (folder / "other.yaml").write_text(OVER)
    (folder / "over.yaml").write_text(OVER.replace("base.yaml", "other.yaml"))
    assert "other.yaml:2:7: kind: cannot be extended" in said(folder / "over.yaml")


def test_a_chain_of_bases_ends_somewhere(folder):
    for number in range(MOST_BASES + 2):
        (folder / f"{number}.yaml").write_text(f"apiVersion: hashidrill/v1\nkind: Base\nextends: {number + 1}.yaml\n")
    (folder / "over.yaml").write_text(OVER.replace("base.yaml", "0.yaml"))
    assert f"more than {MOST_BASES} files extend each other" in said(folder / "over.yaml")


def test_text_without_a_file_cannot_extend_one():
    with pytest.raises(ExperimentError, match="only if the experiment is a file"):
        load_text(OVER)


def test_a_base_is_checked_by_itself_and_never_run(folder):
    check_base(read_experiment(folder / "base.yaml"))
    assert "name an experiment that extends it" in said(folder / "base.yaml")
    (folder / "base.yaml").write_text(
        BASE.replace("rate: 50/s", "rtae: 50/s").replace("for: 5s", "for: 5") + "laod: 1\n"
    )
    with pytest.raises(ExperimentError) as caught:
        check_base(read_experiment(folder / "base.yaml"))
    text = unfolded(str(caught.value))
    for place in (":6:", ":9:", ":11:"):
        assert f"base.yaml{place}" in text, text
    assert "missing" not in text.replace("rate is missing", "")


@pytest.mark.lie
def test_the_recording_gets_the_whole_experiment_and_where_it_came_from(folder):
    resolved = resolve(folder / "over.yaml")
    (folder / "alone.yaml").write_text(resolved.text)
    assert resolve(folder / "alone.yaml").data == resolved.data
    assert resolved.text.startswith("# ")
    assert "extends" not in resolved.data
    assert resolved.provenance.sha256 == hashlib.sha256(OVER.encode()).hexdigest()
    base = str(folder / "base.yaml")
    assert resolved.provenance.extends == {base: hashlib.sha256(BASE.encode()).hexdigest()}


def test_what_extends_nothing_stays_as_it_was_written(folder):
    assert complete(read_experiment(folder / "base.yaml")) == BASE


@pytest.fixture(scope="module")
def valid():
    return jsonschema.Draft202012Validator(experiment_schema()).is_valid


class TestTheSchema:
    @staticmethod
    def data(text):
        return YAML(typ="safe", pure=True).load(text)

    def test_takes_a_base_and_what_extends_it(self, valid):
        assert valid(self.data(BASE))
        assert valid(self.data(OVER))

    @pytest.mark.parametrize("path", list_bases(places.ROOT / "experiments"), ids=lambda path: path.stem)
    def test_takes_the_bases_of_the_library(self, valid, path):
        assert valid(self.data(path.read_text()))

    @pytest.mark.parametrize(
        "text",
        [
            pytest.param(BASE + "metadata: {name: x, title: x, why: x}\n", id="base with metadata"),
            pytest.param(BASE.replace("servers: 3", "servers: three"), id="wrong value in a base"),
            pytest.param(
                OVER.replace("metadata: {name: over, title: Over a base, why: To see what is merged}\n", ""),
                id="no metadata",
            ),
            pytest.param(OVER.replace("extends: base.yaml\n", ""), id="parts without a base"),
            pytest.param(OVER.replace("base.yaml", "[base.yaml]"), id="list"),
            pytest.param(OVER.replace("for: 5s}", "for: 5}"), id="wrong value"),
        ],
    )
    def test_refuses(self, valid, text):
        assert not valid(self.data(text))


class TestTheLibrary:
    def test_lists_no_base_among_the_experiments(self):
        root = places.ROOT / "experiments"
        bases = list_bases(root)
        assert bases
        assert {path.parent.name for path in bases} == {"bases"}
        assert not set(bases) & set(list_experiments(root))

    @pytest.mark.parametrize("path", list_bases(places.ROOT / "experiments"), ids=lambda path: path.stem)
    def test_holds_no_base_that_is_wrong_or_that_nothing_extends(self, path):
        check_base(read_experiment(path))
        extended = set()
        for each in [*list_experiments(places.ROOT / "experiments"), *list_bases(places.ROOT / "experiments")]:
            if (written := read_document(each).data.get("extends")) is not None:
                extended.add((each.parent / written).resolve())
        assert path.resolve() in extended


def test_hypotheses_are_looked_for_beside_the_experiment(folder, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (folder / "base.yaml").rename(tmp_path / "elsewhere/base.yaml")
    (folder / "hypotheses").mkdir()
    (folder / "hypotheses/own.py").write_text(
        "from hashidrill.core.hypothesis import Held, hypothesis\n\n\n"
        '@hypothesis\ndef mine_alone(recording):\n    """Mine."""\n    return Held("it held")\n'
    )
    text = OVER.replace("base.yaml", "elsewhere/base.yaml").replace(
        "writes_recover: {load: kv-writes, within: 10s}", "mine_alone:"
    )
    (folder / "over.yaml").write_text(text)
    assert json.loads(json.dumps(sorted(resolve(folder / "over.yaml").hypotheses["hypotheses"]))) == ["mine_alone"]
    assert Path(resolve(folder / "over.yaml").path) == folder / "over.yaml"


def test_a_text_that_was_read_before_is_read_the_same_and_its_problems_are_told_each_time():
    """Texts without a problem are kept as they were read; what one caller does to the data is not the next one's."""
    Document("first.yaml", BASE).data["load"].clear()
    again = Document("second.yaml", BASE)
    assert again.data == YAML(typ="safe", pure=True).load(BASE)
    again.problem(("load", "kv-reads"), "is not wanted")
    assert unfolded(again.message()).startswith("second.yaml:7:")
    assert not Document("third.yaml", BASE).problems

    twice = f"{BASE}kind: Base\n"
    for _ in range(2):
        assert "already has the key 'kind'" in Document("twice.yaml", twice).message()


def test_no_more_than_the_latest_texts_are_kept(monkeypatch):
    monkeypatch.setattr(documents, "_READ", kept := {})
    texts = [f"number: {number}\n" for number in range(documents._MOST_KEPT + 5)]
    for text in texts:
        Document("one.yaml", text)
    Document("large.yaml", "text: " + "x" * documents._MOST_KEPT_CHARS)
    assert list(kept) == texts[5:]
