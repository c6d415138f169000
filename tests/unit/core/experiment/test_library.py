"""Where experiments are found: a path that was given, one's own folder, what ships. One's own hides nothing else."""

import logging

import pytest

from hashidrill.core.errors import ExperimentError, UnknownNameError, UsageError
from hashidrill.core.experiment import library
from hashidrill.core.experiment.library import read_experiment
from hashidrill.core.util import folders

EXPERIMENT = "kind: Experiment\n"


def write(path, text=EXPERIMENT):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def ships(tmp_path, monkeypatch):
    """What ships, in a package that is installed: there is no checkout. The working directory is one's own."""
    package = tmp_path / "site-packages/hashidrill"
    experiments = package / "_library/experiments"
    for name in ("raft/slow-leader-disk.yaml", "raft/frozen-leader.yml", "network/lossy.yaml", "retry/lossy.yaml"):
        write(experiments / name)
    write(experiments / "schema.json", "{}")
    (experiments / "raft/folder.yaml").mkdir()
    monkeypatch.setattr(folders, "_PACKAGE", package)
    (tmp_path / "own/deep/er").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "own/deep/er")
    return experiments


@pytest.fixture
def own(ships, tmp_path):
    return tmp_path / "own/experiments"


def test_the_source_tree_serves_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert folders.shipped("experiments") == folders._PACKAGE.parent.parent / "experiments"
    assert library.find_experiment("raft/frozen-leader").is_relative_to(folders.shipped("experiments"))


def test_the_packaged_copy_serves_where_there_is_no_checkout(ships):
    assert library.list_experiments() == [
        ships / name
        for name in ("network/lossy.yaml", "raft/frozen-leader.yml", "raft/slow-leader-disk.yaml", "retry/lossy.yaml")
    ]


def test_ones_own_first_experiment_hides_none_that_ships(ships, own):
    mine = write(own / "raft/mine.yaml")
    assert library.experiments() == {
        "network/lossy": ships / "network/lossy.yaml",
        "raft/frozen-leader": ships / "raft/frozen-leader.yml",
        "raft/mine": mine,
        "raft/slow-leader-disk": ships / "raft/slow-leader-disk.yaml",
        "retry/lossy": ships / "retry/lossy.yaml",
    }
    assert library.find_experiment("raft/mine") == library.find_experiment("mine") == mine
    assert library.find_experiment("slow-leader-disk") == ships / "raft/slow-leader-disk.yaml"
    assert library.library_name(mine) == "raft/mine"
    assert library.library_name(ships / "network/lossy.yaml") == "network/lossy"


def test_ones_own_wins_over_the_one_of_that_name_that_ships_and_a_line_says_so(ships, own, caplog):
    mine = write(own / "raft/frozen-leader.yaml", f"{EXPERIMENT}# mine\n")
    for _ in range(2):
        assert library.find_experiment("raft/frozen-leader") == mine
    assert [record.message for record in caplog.records] == [
        f"hashidrill: note: {mine} takes the place of the shipped one"
    ]
    assert library.experiments()["raft/frozen-leader"] == mine
    assert len(caplog.records) == 1
    assert library.library_name(ships / "raft/frozen-leader.yml") is None


def test_a_copy_of_a_shipped_one_is_not_worth_a_line(ships, own, caplog):
    assert library.find_experiment("raft/frozen-leader") == ships / "raft/frozen-leader.yml"
    write(own / "raft/frozen-leader.yaml")
    library.find_experiment("raft/frozen-leader")
    assert caplog.records == []


def test_the_line_reaches_standard_error_without_any_setting(ships, own, capsys, monkeypatch):
    monkeypatch.setattr(logging.getLogger("hashidrill"), "propagate", False)  # pytest's own handlers
    write(own / "network/lossy.yaml", f"{EXPERIMENT}# mine\n")
    library.find_experiment("network/lossy")
    assert "takes the place of the shipped one" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["kind: Attach\napiVersion: hashidrill/v1\n", "consul: []\n", "kind: Deployment\napiVersion: apps/v1\n"]
)
def test_what_is_no_experiment_is_not_listed(ships, own, text):
    write(own / "other.yaml", text)
    assert "other" not in library.experiments()


def test_an_experiment_whose_kind_is_misspelt_is_listed_so_that_validate_says_so(ships, own):
    write(own / "odd.yaml", "apiVersion: hashidrill/v1\nkind: Experimant\n")
    assert "odd" in library.experiments()


def test_ones_own_folder_is_not_above_the_repository(ships, own, tmp_path):
    write(own / "mine.yaml")
    (tmp_path / "own/deep/.git").mkdir()
    assert "mine" not in library.experiments()


def test_ones_own_experiment_extends_a_base_that_ships(ships, own):
    write(ships / "bases/three.yaml", "kind: Base\nload: {}\n")
    mine = write(own / "raft/mine.yaml", f"apiVersion: hashidrill/v1\n{EXPERIMENT}extends: ../bases/three.yaml\n")
    assert read_experiment(mine).data["load"] == {}
    write(own / "bases/three.yaml", "kind: Base\nload: {mine: 1}\n")
    assert read_experiment(mine).data["load"] == {"mine": 1}


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("raft/slow-leader-disk", "raft/slow-leader-disk.yaml"),
        ("raft/slow-leader-disk.yaml", "raft/slow-leader-disk.yaml"),
        ("experiments/raft/slow-leader-disk.yaml", "raft/slow-leader-disk.yaml"),
        ("raft/frozen-leader", "raft/frozen-leader.yml"),
        ("slow-leader-disk", "raft/slow-leader-disk.yaml"),
    ],
)
def test_an_experiment_is_found_by_name(ships, asked, found):
    assert library.find_experiment(asked) == ships / found


def test_a_path_wins_over_a_name(ships, tmp_path):
    here = write(tmp_path / "own/deep/er/raft/slow-leader-disk.yaml")
    assert library.find_experiment("raft/slow-leader-disk").resolve() == here
    assert library.find_experiment("../er/raft/slow-leader-disk").resolve() == here


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        ("raft/slow-leder-disk", "did you mean raft/slow-leader-disk"),
        ("slow-leder-disk", "did you mean raft/slow-leader-disk"),
        ("lossy", "did you mean network/lossy or retry/lossy?"),
        ("raft/frozen-leader-x.yaml", "there is no such file; did you mean raft/frozen-leader"),
        ("nosuch.yaml", "nosuch.yaml: there is no such file; `hashidrill list` shows all 4"),
        ("miine.yaml", "miine.yaml: there is no such file; did you mean mine.yaml?"),
        ("/nowhere/at/all", "there is no such file; there is no directory /nowhere/at either"),
        ("zzz", "`hashidrill list` shows all 4"),
        ("raft", "there is no experiment 'raft'"),
    ],
)
def test_an_unknown_experiment_is_answered_with_near_ones(ships, tmp_path, asked, near):
    write(tmp_path / "own/deep/er/mine.yaml")
    with pytest.raises(UnknownNameError) as error:
        library.find_experiment(asked)
    assert near in str(error.value)


def test_the_name_of_a_file_finds_that_file(ships, own):
    write(own / "raft/mine.yaml")
    for name, path in library.experiments().items():
        assert library.experiment_name(path) == name
        assert library.find_experiment(name) == path


def test_a_file_outside_the_library_is_named_by_its_path(ships, tmp_path):
    assert library.experiment_name(tmp_path / "deep/mine.yaml") == str(tmp_path / "deep/mine.yaml")


def test_a_playbook_that_is_nowhere_is_answered_with_near_ones(ships, tmp_path):
    write(tmp_path / "own/playbooks/friday.yaml", "kind: GameDay\n")
    assert folders.find_playbook("playbooks/friday.yaml", [".yaml"]).name == "friday.yaml"
    with pytest.raises(UsageError, match=r"fridai.yaml: there is no such file; did you mean friday\?"):
        folders.find_playbook("fridai.yaml", [".yaml"])


METADATA = {
    "in one line": "metadata: {name: a, title: A title, tags: [raft]}\n",
    "quoted": "metadata:\n  title: 'A title'\n  tags: ['raft']\n",
    "folded": "metadata:\n  why: >-\n    Because.\n\n    why: not\n  title: >-\n    A\n    title\n  tags:\n  - raft\n",
    "with comments": "metadata:  # all\n# why\n  title: A title  # here\n\n  # why: x\n  tags: [raft]\nload: {}\n",
    "of an anchor elsewhere": "load: &x A title\nmetadata:\n  title: *x\n  tags: [raft]\n",
    "why in a list": "metadata:\n  why:\n  - a\n  - b\n  title: A title\n  tags: [raft]\n",
    "with carriage returns": "metadata:\r\n  title: A title\r\n  why: x\r\n  tags: [raft]\r\nload:\r\n",
    "deep": "metadata:\n      title: A title\n      why: |\n        title: no\n      tags: [raft]\n",
    "without an end": "metadata:\n  tags: [raft]\n  title: A title",
    "and the rest wrong": "metadata:\n  title: A title\n  tags: [raft]\nload: [\n",
}


@pytest.mark.parametrize("text", METADATA.values(), ids=METADATA)
def test_the_metadata_of_a_file_are_read_however_they_are_written(tmp_path, text):
    said = library.metadata_of(write(tmp_path / "a.yaml", text))
    assert (said["title"], said["tags"]) == ("A title", ["raft"])


@pytest.mark.lie
def test_a_title_that_has_the_word_why_in_it_loses_nothing(tmp_path):
    said = library.metadata_of(
        write(tmp_path / "a.yaml", "metadata:\n  title: |-\n    One\n    why: not\n  tags: []\n")
    )
    assert said["title"] == "One\nwhy: not"


@pytest.mark.parametrize(
    "text", ["", "x", "metadata:\n", "metadata: {}\n", "metadata: {title: [}\n", "metadata:\n  title: 3\n"]
)
def test_metadata_without_a_title_are_an_error(tmp_path, text):
    with pytest.raises(ExperimentError, match="has no metadata with a title"):
        library.metadata_of(write(tmp_path / "a.yaml", text))


@pytest.mark.parametrize("path", library.list_experiments(), ids=library.experiment_name)
def test_the_metadata_of_a_shipped_file_are_those_of_the_whole_file(path):
    whole = dict(read_experiment(path).data["metadata"])
    assert {"why": whole["why"], **library.metadata_of(path)} == whole
