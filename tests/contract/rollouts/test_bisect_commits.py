"""Commits as candidates, on a real git: their order, their builds, the configuration that each one has."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hashidrill.core.errors import UsageError
from hashidrill.core.experiment.loader import resolve
from hashidrill.faces.cli import bisect as command
from hashidrill.faces.cli.app import app
from hashidrill.rollouts.bisect.candidates import (
    Alike,
    Produced,
    Programs,
    RefusedError,
    Repository,
    Tree,
    clients_of,
    configured,
    shell,
)
from hashidrill.testing.recordings import RecordingBuilder
from repositories import new_repository

EXPERIMENT = """\
apiVersion: hashidrill/v1
kind: Experiment
metadata: {name: small, title: A small one, why: It tests the search}
clients:
  ingest: {command: ["{python}", "-m", "ingest", "{url}"], service: true}
steady_state: {for: 1s, require: ["ingest.errors < 50%"]}
method: [{fault: noop, on: "consul:leader", for: 20s}]
expect: [{latency_stays: {load: ingest}}]
"""


@pytest.fixture
def git(tmp_path, monkeypatch):
    """A repository of four commits on its first-parent line, one of them a merge; calls git in it."""
    top = tmp_path / "repository"
    git_ = new_repository(monkeypatch, top)
    monkeypatch.chdir(top)

    def commit(text: str) -> None:
        (top / "consul.hcl").write_text(text)
        git_("add", "-A")
        git_("commit", "-q", "-m", f"set {text}")

    commit("limits { rpc_rate = 1 }")
    git_("tag", "v1")
    commit("limits { rpc_rate = 2 }")
    git_("checkout", "-q", "-b", "side")
    (top / "other").write_text("x")
    git_("add", "-A")
    git_("commit", "-q", "-m", "aside")
    git_("checkout", "-q", "main")
    commit("limits {")
    git_("merge", "-q", "--no-ff", "-m", "join", "side")
    return git_


@pytest.fixture
def given(tmp_path):
    (tmp_path / "small.yaml").write_text(EXPERIMENT)
    return resolve(tmp_path / "small.yaml")


@pytest.fixture
def programs(git, given, tmp_path):
    """The commits, each of which `build` builds for the client; in a folder of their own, if no other is named."""
    del git

    def programs_(build, client, *, work=tmp_path / "work", **more):
        repository = Repository.here()
        names = repository.between("v1..HEAD")
        return Programs(given, repository, names, work, build=build, clients={"ingest": client}, **more)

    return programs_


def test_commits_are_those_of_the_first_parent_line_oldest_first(git):
    repository = Repository.here()

    names = repository.between("v1..HEAD")

    assert [repository.subject(name).partition(" = ")[0] for name in names] == [
        "set limits { rpc_rate",
        "set limits { rpc_rate",
        "set limits {",
        "join",
    ]
    assert names[0] == git("rev-parse", "v1")
    assert repository.between("v1..main~1") == names[:-1]


@pytest.mark.parametrize(
    ("revisions", "said"),
    [
        ("v1", "write two revisions"),
        ("..HEAD", "write two revisions"),
        ("v1...HEAD", "write two revisions"),
        ("v9..HEAD", "there is no revision v9"),
        ("HEAD..v1", "there is no commit after HEAD up to v1"),
        ("--exec=x..HEAD", "write two revisions"),
        ("side..main", "not on the first-parent line of main"),
    ],
)
def test_revisions_that_are_no_line_of_commits_are_said(git, revisions, said):
    del git
    with pytest.raises(UsageError, match=said):
        Repository.here().between(revisions)


OLD, NEW = "a" * 40, "b" * 40


@pytest.mark.parametrize(
    ("before", "after", "pins"),
    [
        (
            f"lib @ git+https://host/lib@{OLD}\nother==1",
            f"lib @ git+https://host/lib@{NEW}\nother==2",
            [("lib @ git+https://host/lib@COMMIT", OLD, NEW)],
        ),
        (f"lib @{OLD}", "lib @1.2", []),
        (f"lib @{OLD}", f"more\nlib @{OLD}", []),
        (f"{OLD}ff", f"{NEW}ff", []),
    ],
)
def test_a_dependency_that_is_pinned_to_another_commit_is_named_so_that_the_search_goes_on_there(
    git, tmp_path, before, after, pins
):
    for text in (before, after):
        (tmp_path / "repository" / "requirements.txt").write_text(text + "\n")
        git("add", "-A")
        git("commit", "-q", "-m", "pin")
    assert Repository.here().pins("HEAD~1", "HEAD") == pins


def test_a_submodule_is_a_pin(git):
    for commit in (OLD, NEW):
        git("update-index", "--add", "--cacheinfo", f"160000,{commit},lib")
        git("commit", "-q", "-m", "pin")
    assert Repository.here().pins("HEAD~1", "HEAD") == [("Subproject commit COMMIT", OLD, NEW)]


def test_outside_of_a_repository_it_says_so(tmp_path):
    with pytest.raises(UsageError, match="not a git repository"):
        Repository.here(tmp_path)


def test_each_commit_is_built_once_in_a_checkout_of_its_own(git, programs, tmp_path):
    client = ["{checkout}/ingest", "{url}"]
    build = "cat consul.hcl > ingest && chmod +x ingest && echo built >> ../builds && test ! -e .git"
    commits = programs(build, client)
    names = commits.names

    first = commits.resolved(names[1])
    commits.resolved(names[1])
    again = programs(build, client).resolved(names[1])

    command = first.experiment.clients["ingest"].command
    assert command == [str(tmp_path / "work" / names[1] / "ingest"), "{url}"]
    assert Path(command[0]).read_text() == "limits { rpc_rate = 2 }"
    assert again.experiment.clients == first.experiment.clients
    assert (tmp_path / "work" / "builds").read_text() == "built\n"
    assert git("status", "--porcelain") == ""
    assert commits.shown(names[-1]) == f"{names[-1][:10]} (join)"


def test_checkouts_may_be_inside_of_the_repository_and_have_names_that_git_knows(git, programs, monkeypatch):
    """As when the log is in the repository: a folder there is called like a commit, and git must not mix them up."""
    top = Path(git("rev-parse", "--show-toplevel"))
    commits = programs(":", ["{python}", "{checkout}/consul.hcl"], work=top)
    names = commits.names

    for name in (names[0], names[1], names[3]):
        commits.resolved(name)
        assert commits.shown(name).startswith(name[:10])

    monkeypatch.chdir(top / names[1])
    assert Repository.here().between("v1..HEAD") == names


def test_a_build_that_fails_cannot_be_run_and_says_why(programs):
    commits = programs("echo no compiler >&2; exit 3", ["x"])
    with pytest.raises(RefusedError, match="ended with exit status 3: no compiler"):
        commits.resolved(commits.names[0])


def test_a_build_that_is_killed_halfway_is_built_again(programs):
    def dies(_command: str, folder: Path) -> tuple[int, bytes, bytes]:
        (folder / "half").write_text("")
        raise KeyboardInterrupt

    build, client = "test ! -e half && touch whole && chmod +x whole", ["{checkout}/whole"]
    killed = programs(build, client, run=dies)
    with pytest.raises(KeyboardInterrupt):
        killed.resolved(killed.names[0])
    built = programs(build, client).resolved(killed.names[0])

    assert Path(built.experiment.clients["ingest"].command[0]).exists()


@pytest.fixture
def built(programs):
    """Builds the first commit with a command, for a client; gives the experiment that runs it."""

    def built_(build, client):
        commits = programs(build, client)
        return commits.resolved(commits.names[0])

    return built_


@pytest.mark.lie
@pytest.mark.parametrize(
    ("build", "client", "said"),
    [
        (":", ["{checkout}/ingest"], "`:` did not make ingest, which a client runs"),
        ("touch ingest", ["{checkout}/ingest", "{url}"], "`touch ingest` made ingest, which is not executable"),
        (":", ["/usr/bin/python3.12", "{checkout}/ingest.py"], "`:` did not make ingest.py"),
    ],
)
def test_a_build_that_makes_nothing_cannot_be_run(built, build, client, said):
    """It would never become steady, and pass for a commit that breaks."""
    with pytest.raises(RefusedError, match=said):
        built(build, client)


@pytest.mark.parametrize(
    "client",
    [["{checkout}"], ["java", "-jar", "{checkout}/x.jar"], ["x", "{checkout}/log"], ["{python}", "{checkout}/x.py"]],
)
def test_what_is_no_program_need_not_be_there(built, client):
    built("touch x.py", client)


@pytest.mark.lie
def test_what_another_command_built_in_the_same_folder_is_built_again(built):
    """As when a search starts again under the name of a log that was removed."""

    def flavour_of(flavour: str) -> str:
        found = built(f"echo {flavour} > ingest.py", ["{python}", "{checkout}/ingest.py"])
        return Path(found.experiment.clients["ingest"].command[1]).read_text().strip()

    assert [flavour_of(each) for each in ("slow", "quick", "slow")] == ["slow", "quick", "slow"]


@pytest.mark.lie
def test_a_build_that_does_not_use_what_is_committed_is_noticed(programs):
    def alike(build: str) -> Alike | None:
        commits = programs(build, ["{python}", "{checkout}/ingest.py"])
        for name in commits.names[:2]:
            commits.resolved(name)
        return commits.alike(*commits.names[:2])

    said = "ingest.py: the same at both commits, byte by byte; does the build use the committed files?"
    assert alike("echo prebuilt > ingest.py") == Alike(said)
    assert alike("cp consul.hcl ingest.py") is None


def test_the_good_end_runs_beside_each_candidate_of_a_duet(programs, tmp_path):
    commits = programs(":", ["{python}", "{checkout}/consul.hcl", "{url}"], duet=True)
    names = commits.names

    clients = commits.resolved(names[1]).experiment.clients

    commands = {name: each.command[1] for name, each in clients.items()}
    assert commands == {
        "ingest": str(tmp_path / "work" / names[1] / "consul.hcl"),
        "ingest-of-the-good-end": str(tmp_path / "work" / names[0] / "consul.hcl"),
    }
    assert {each.service for each in clients.values()} == {True}


@pytest.fixture
def produced(git, given, tmp_path):
    """Configurations of commits: those at `paths`, or what `command` prints."""
    del git
    repository = Repository.here()

    def make(files, ends):
        return configured(given, files, product="consul", refusal=lambda _product: lambda *_: "", ends=ends)

    def produced_(**options):
        names = repository.between("v1..HEAD")
        return Produced(given, repository, names, tmp_path / "work", configured=make, **options)

    return produced_


@pytest.mark.parametrize("where", [{"paths": ["consul.hcl"]}, {"command": "cat consul.hcl"}])
def test_the_configuration_of_each_commit_is_read_or_printed(produced, where):
    commits = produced(**where)
    assert commits.resolved(commits.names[1]).data["datacenter"]["consul"]["config"] == {"limits": {"rpc_rate": 2}}
    with pytest.raises(RefusedError, match=r"\.hcl:1:"):
        commits.resolved(commits.names[2])


@pytest.mark.lie
def test_a_command_that_prints_no_configuration_cannot_be_run(produced):
    """It would be the experiment's own configuration, at each such commit."""
    commits = produced(command="cat consul.d/moved.hcl || true")
    with pytest.raises(RefusedError, match="printed nothing"):
        commits.resolved(commits.names[0])


@pytest.mark.lie
def test_a_configuration_that_links_out_of_the_repository_cannot_be_run(git, produced, tmp_path):
    (tmp_path / "elsewhere.hcl").write_text("limits { rpc_rate = 9 }")
    (Path(git("rev-parse", "--show-toplevel")) / "link.hcl").symlink_to(tmp_path / "elsewhere.hcl")
    git("add", "-A")
    git("commit", "-q", "-m", "link")
    commits = produced(paths=["link.hcl"])
    with pytest.raises(RefusedError, match="outside of the repository"):
        commits.resolved(commits.names[-1])


def test_commits_that_have_the_same_configuration_are_alike(produced):
    commits = produced(command="sed s/2/1/ consul.hcl")
    assert commits.alike(*commits.names[:2]) == Alike("the configuration is the same at both commits", sure=True)
    assert produced(paths=["consul.hcl"]).alike(*commits.names[:2]) is None


def test_the_shell_of_a_build_gives_status_and_output(tmp_path):
    code, output, error = shell(f"{sys.executable} -c 'print(1)'; echo 2 >&2; exit 4", tmp_path)

    assert (code, output.strip(), error.strip()) == (4, b"1", b"2")


@pytest.mark.lie
@pytest.mark.parametrize(
    ("written", "said"),
    [
        (["ingest"], "write NAME=COMMAND"),
        (["ingest="], "write NAME=COMMAND"),
        (["digest={checkout}/x"], "mean ingest"),
        (["ingest=./ingest {url}"], "every commit would run the same program"),
        (["ingest='"], "No closing quotation"),
        ([], "--build needs --client"),
    ],
)
def test_a_client_that_does_not_run_the_build_is_refused(given, written, said):
    with pytest.raises(UsageError, match=said):
        clients_of(written, given)


def test_the_command_of_a_client_is_split_as_a_shell_does(given):
    assert clients_of(["ingest={checkout}/x --name 'a b' {url}"], given) == {
        "ingest": ["{checkout}/x", "--name", "a b", "{url}"]
    }


class Nested:
    """A program that pins `lib` by a line, which pins `lib/pool` as a submodule; `slow` is what breaks, and where."""

    def __init__(self, monkeypatch, top, slow):
        self.top, self.commits = top, {"app": [], "lib": [], "pool": []}
        self.git = {name: new_repository(monkeypatch, top / name) for name in self.commits}
        for n in range(5):
            self.commit("pool", "pool.py", slow == "pool" and n >= 3)
        for n, pool in enumerate([0, 0, 4, 4]):
            pin = f"160000,{self.commits['pool'][pool]},pool"
            self.git["lib"]("update-index", "--add", "--cacheinfo", pin)
            self.commit("lib", "lib.py", (slow == "lib" and n >= 2) or (slow == "back" and n < 2))
        for n, lib in enumerate([3, 3, 0, 0] if slow == "back" else [0, 0, 3, 3]):
            pin = f"lib @ git+https://host/lib.git@{self.commits['lib'][lib]}\n"
            (top / "app" / "requirements.txt").write_text(pin)
            self.commit("app", "app.py", slow == "app" and n >= 2)

    def commit(self, name, file, slow):
        (self.top / name / file).write_text(f"# {len(self.commits[name])} {'slow' if slow else 'quick'}\n")
        self.git[name]("add", file, *(["requirements.txt"] if name == "app" else []))
        self.git[name]("commit", "-q", "-m", f"{name} {len(self.commits[name])}")
        self.commits[name].append(self.git[name]("rev-parse", "HEAD"))


@pytest.fixture
def descending(tmp_path, monkeypatch):
    """`hashidrill bisect` in the program, whose planted runs are slow if any file of the checkout says so."""
    (tmp_path / "small.yaml").write_text(EXPERIMENT)
    paths = {}
    for slow in (True, False):
        built = RecordingBuilder(tmp_path / f"run-{slow}").fault("noop", at=10, until=30)
        built.expect("latency_stays", load="ingest", p50_below="300ms")
        paths[slow] = built.load("ingest", rate=5, latency=2.0 if slow else 0.01).build().path

    def searched(slow, *more):
        nested = Nested(monkeypatch, tmp_path / slow, slow)
        monkeypatch.chdir(tmp_path / slow / "app")

        def run(resolved, _title):
            folder = Path(resolved.experiment.clients["ingest"].command[-1]).parent
            files = [folder / name for name in ("app.py", "lib/lib.py", "lib/pool/pool.py")]
            return paths[any("slow" in file.read_text() for file in files if file.exists())]

        monkeypatch.setattr(command, "_runner", lambda *_, **__: run)
        asked = ["--experiment", str(tmp_path / "small.yaml"), "--git", f"{nested.commits['app'][0]}..HEAD", "--json"]
        build = ["--build", ":", "--client", "ingest={python} {checkout}/app.py"]
        return nested, CliRunner().invoke(app, ["bisect", *asked, *build, *more])

    return searched


BOTH = ("--descend", "lib=../lib", "--descend", "lib/pool=../pool/.git")


@pytest.mark.long
@pytest.mark.lie
@pytest.mark.parametrize(
    ("slow", "found", "says", "logs"),
    [
        ("pool", [("app", 2), ("lib", 2), ("pool", 3)], "in lib/pool: ", 3),
        ("lib", [("app", 2), ("lib", 2)], "it breaks with the old commit of lib/pool too", 3),
        ("app", [("app", 2)], "it breaks with the old commit of lib too", 2),
    ],
)
def test_a_search_descends_into_the_dependency_whose_pin_broke_it_and_no_further(descending, slow, found, says, logs):
    nested, done = descending(slow, *BOTH)
    said = json.loads(done.stdout)
    assert (done.exit_code, said["found"]) == (0, [nested.commits[name][n] for name, n in found])
    assert says in said["answer"]
    assert "go on in its repository" not in said["answer"]
    written = sorted(path.name.partition(".")[2] for path in Path(".hashidrill/bisect").glob("*.jsonl"))
    assert written == ["jsonl", "lib.jsonl", "lib.lib-pool.jsonl"][:logs]


@pytest.mark.long
def test_a_dependency_that_is_not_named_is_left_to_a_person(descending):
    nested, done = descending("lib", *BOTH[:2])
    said = json.loads(done.stdout)
    assert said["found"] == [nested.commits["app"][2], nested.commits["lib"][2]]
    old, new = nested.commits["pool"][0], nested.commits["pool"][4]
    assert f"go on in its repository with --git {old}..{new}, or name it with --descend" in said["answer"]


@pytest.mark.long
def test_a_search_that_descended_resumes_without_a_run(descending, monkeypatch):
    _, done = descending("pool", *BOTH)
    [log] = [path for path in Path(".hashidrill/bisect").glob("*.jsonl") if path.name.count(".") == 1]
    monkeypatch.setattr(command, "_runner", lambda *_, **__: lambda *_: pytest.fail("a run"))
    again = CliRunner().invoke(app, ["bisect", "--json", "--resume", str(log)])
    assert json.loads(again.stdout) == json.loads(done.stdout)


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("lib", "write FOLDER=REPOSITORY"),
        ("../lib=../lib", "write FOLDER=REPOSITORY"),
        ("other=../lib", "nothing pins other: neither a submodule nor a line with its name and commit"),
        ("lib=../nowhere", "git clone: "),
    ],
)
def test_a_dependency_that_cannot_be_searched_is_said_before_any_run(descending, named, said):
    assert said in str(descending("app", "--descend", named)[1].exception)


@pytest.mark.lie
def test_what_was_built_with_another_commit_above_is_built_again(programs, git, tmp_path):
    """As when a search starts again under the name of a log that was removed."""
    top = Path(git("rev-parse", "--show-toplevel"))
    commits = programs(":", ["{python}", "{checkout}/consul.hcl"])
    built = []
    for above in commits.names[:2]:
        tree = Tree(Repository(top), at={"": above}, searched="lib")
        again = replace(commits, tree=tree, run=lambda _command, _folder: (built.append(1) or 0, b"", b""))
        for _ in range(2):
            again.resolved(commits.names[2])
    assert len(built) == 2


def test_a_pin_to_several_commits_is_said(git, tmp_path):
    (tmp_path / "repository" / "requirements.txt").write_text(f"lib @{OLD}\nlib-more @{NEW}\n")
    git("add", "-A")
    git("commit", "-q", "-m", "pin")
    assert Repository.here().pinned(git("rev-parse", "HEAD"), "vendor/lib") == OLD
    (tmp_path / "repository" / "lock").write_text(f"lib {NEW}\n")
    git("add", "-A")
    git("commit", "-q", "-m", "pin twice")
    with pytest.raises(UsageError, match="pins vendor/lib to several commits"):
        Repository.here().pinned("HEAD", "vendor/lib")


@pytest.mark.long
def test_a_pin_that_went_back_cannot_be_searched(descending):
    """As when a dependency was rolled back: no line of commits leads from the old one to the new one."""
    nested, done = descending("back", *BOTH)
    said = json.loads(done.stdout)
    assert (done.exit_code, said["found"]) == (3, [nested.commits["app"][2]])
    assert "in lib: cannot tell: --git " in said["answer"]
