"""Where experiments are found: a path that was given, the checkout, the copy in the package."""

import pytest

from hashidrill.errors import UnknownNameError, UsageError
from hashidrill.experiment import library


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    (tmp_path / "hypotheses").mkdir()
    for name in ("raft/slow-leader-disk.yaml", "raft/frozen-leader.yml", "network/lossy.yaml", "retry/lossy.yaml"):
        path = tmp_path / "experiments" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("kind: Experiment\n")
    (tmp_path / "experiments/schema.json").write_text("{}")
    (tmp_path / "experiments/raft/folder.yaml").mkdir()
    (tmp_path / "deep/er").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "deep/er")
    return tmp_path


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A machine without a checkout: only the copy inside the package."""
    library_copy = tmp_path / "site-packages/hashidrill/_library"
    for name in ("experiments", "hypotheses"):
        (library_copy / name).mkdir(parents=True)
    (library_copy / "experiments/packaged.yaml").write_text("kind: Experiment\n")
    monkeypatch.setattr(library, "_PACKAGE", library_copy.parent)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return library_copy


def test_an_explicit_folder_wins(checkout, tmp_path):
    (tmp_path / "mine").mkdir()
    assert library.experiments_dir(tmp_path / "mine") == tmp_path / "mine"
    assert library.hypotheses_dir(str(tmp_path / "mine")) == tmp_path / "mine"


def test_an_explicit_folder_that_is_not_there_is_an_error(checkout):
    with pytest.raises(UsageError, match="no such folder"):
        library.experiments_dir("nowhere")


def test_the_checkout_above_the_working_directory_comes_next(checkout):
    assert library.experiments_dir() == checkout / "experiments"
    assert library.hypotheses_dir() == checkout / "hypotheses"


def test_a_folder_with_experiments_alone_is_no_checkout(checkout):
    (checkout / "deep/experiments").mkdir()
    assert library.experiments_dir() == checkout / "experiments"


def test_the_source_tree_serves_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert library.experiments_dir() == library._PACKAGE.parent.parent / "experiments"


def test_the_packaged_copy_is_the_last(package):
    assert library.experiments_dir() == package / "experiments"
    assert library.hypotheses_dir() == package / "hypotheses"
    assert library.find_experiment("packaged") == package / "experiments/packaged.yaml"


def test_a_checkout_wins_over_the_packaged_copy(package, checkout):
    assert library.experiments_dir() == checkout / "experiments"


def test_without_any_folder_the_message_says_where_it_looked(package):
    (package / "experiments/packaged.yaml").unlink()
    (package / "experiments").rmdir()
    with pytest.raises(UsageError, match=r"no experiments folder.*elsewhere"):
        library.experiments_dir()


def test_the_library_lists_yaml_files_alone_in_order(checkout):
    names = [path.relative_to(checkout / "experiments").as_posix() for path in library.list_experiments()]
    assert names == ["network/lossy.yaml", "raft/frozen-leader.yml", "raft/slow-leader-disk.yaml", "retry/lossy.yaml"]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("raft/slow-leader-disk", "raft/slow-leader-disk.yaml"),
        ("raft/slow-leader-disk.yaml", "raft/slow-leader-disk.yaml"),
        ("raft/frozen-leader", "raft/frozen-leader.yml"),
        ("slow-leader-disk", "raft/slow-leader-disk.yaml"),
        ("../../experiments/network/lossy.yaml", "network/lossy.yaml"),
        ("../../experiments/network/lossy", "network/lossy.yaml"),
    ],
)
def test_an_experiment_is_found_by_name_or_by_path(checkout, asked, found):
    assert library.find_experiment(asked).resolve() == checkout / "experiments" / found


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        ("raft/slow-leder-disk", "did you mean raft/slow-leader-disk"),
        ("slow-leder-disk", "did you mean raft/slow-leader-disk"),
        ("lossy", "did you mean network/lossy or retry/lossy?"),
        ("raft/frozen-leader-x.yaml", "did you mean raft/frozen-leader"),
        ("zzz", "`hashidrill list` shows all 4"),
        ("raft", "there is no experiment 'raft'"),
    ],
)
def test_an_unknown_experiment_is_answered_with_near_ones(checkout, asked, near):
    with pytest.raises(UnknownNameError) as error:
        library.find_experiment(asked)
    assert near in str(error.value)


def test_the_name_of_a_file_finds_that_file(checkout):
    for path in library.list_experiments():
        assert library.find_experiment(library.experiment_name(path)) == path


def test_a_file_outside_the_library_is_named_by_its_path(checkout, tmp_path):
    assert library.experiment_name(tmp_path / "deep/mine.yaml") == str(tmp_path / "deep/mine.yaml")
