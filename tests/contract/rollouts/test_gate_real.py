"""What a gate asks of git and of the agents themselves, on the real ones."""

import json
import re

import pytest
from typer.testing import CliRunner

from hashidrill.core.errors import UsageError
from hashidrill.core.util.nested import merge
from hashidrill.faces.cli.app import app
from hashidrill.products.consul.settings import refusal as consul_refuses
from hashidrill.products.nomad.settings import known_keys
from hashidrill.rollouts.gate.configuration import check_taken, configuration, from_git, shipped, sources_of
from hashidrill.rollouts.gate.differences import differences
from repositories import new_repository

CONSULS = [pytest.param(version, marks=pytest.mark.needs(f"consul {version}")) for version in ("1.22.2", "1.10.3")]
AGENTS = [
    pytest.param("consul", "1.22.2", marks=pytest.mark.needs("consul 1.22.2")),
    pytest.param("nomad", "1.10.5", marks=[pytest.mark.nomad, pytest.mark.needs("nomad")]),
    pytest.param("vault", "1.21.0", marks=[pytest.mark.vault, pytest.mark.needs("vault")]),
]
GOOD = {
    "consul": "performance { raft_multiplier = 1 }",
    "nomad": "server { raft_multiplier = 2 }",
    "vault": 'default_lease_ttl = "1h"\nstorage "raft" { path = "/nowhere" }',
}


def named_keys(product):
    """Every key that the gate's own tables name, without patterns."""
    groups = [*shipped("keys.yaml")[product], *shipped("left_out.yaml")[product]]
    return sorted({key for group in groups for key in group["keys"] if "*" not in key and "[" not in key})


def nested(keys):
    """As a configuration that says nothing of any of them."""
    said = {}
    for key in keys:
        part = None
        for name in reversed(key.split(".")):
            part = {name: part}
        said = merge(said, part)
    return said


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """With one commit on main and one on top."""
    monkeypatch.chdir(tmp_path)
    git = new_repository(monkeypatch, tmp_path)
    folder = tmp_path / "consul.d"
    folder.mkdir()
    for text in ("limits { rpc_rate = 1 }", "limits { rpc_rate = 2 }"):
        (folder / "a.hcl").write_text(text)
        git("add", ".")
        git("commit", "-qm", text)
    (folder / "a.hcl").write_text("limits { rpc_rate = 3 }  # not committed")
    return tmp_path


class TestGit:
    def test_both_sides_come_from_their_revisions_and_the_working_tree_stays(self, repository, tmp_path):
        before, after = from_git("main~1..main", ["consul.d"], tmp_path / "into")
        found = differences(configuration("consul", before), configuration("consul", after))
        assert [str(change) for change in found.changes] == ["limits.rpc_rate: 1 -> 2"]
        assert str(found.changes[0].place) == "consul.d/a.hcl:1:10"
        assert "not committed" in (repository / "consul.d/a.hcl").read_text()

    @pytest.mark.parametrize(
        ("revisions", "paths", "said"),
        [
            ("main", ["consul.d"], "write two revisions"),
            ("none..main", ["consul.d"], "git: there is no revision none$"),
            ("main~1..main", ["elsewhere"], "elsewhere"),
            ("main~1..main", [], "--git needs --path"),
            ("--output=x..main", ["consul.d"], "a revision cannot begin with a dash"),
        ],
    )
    def test_what_git_cannot_give_is_one_message(self, repository, tmp_path, revisions, paths, said):
        with pytest.raises(UsageError, match=said):
            from_git(revisions, paths, tmp_path / "into")


@pytest.mark.parametrize(("product", "version"), AGENTS)
class TestRefusals:
    @pytest.fixture
    def taken(self, product, version, binary, tmp_path):
        """Asks the agent about a file with this text."""

        def ask(text):
            file = tmp_path / "server.hcl"
            file.write_text(text)
            check_taken("candidate", configuration(product, sources_of([file])), version, binary(product, version).path)

        return ask

    def test_a_part_of_a_configuration_is_taken(self, product, taken):
        taken(GOOD[product])

    @pytest.mark.lie
    def test_an_unknown_key_is_refused_and_named(self, product, taken):
        with pytest.raises(UsageError, match=r"refuses the candidate configuration:(.|\n)*no_such_key") as refused:
            taken(f"{GOOD[product]}\nno_such_key = 3")
        assert len(str(refused.value).splitlines()) < 6

    def test_a_value_of_another_type_is_refused_in_the_agents_words(self, product, taken):
        wrong = {
            "consul": ('performance { raft_multiplier = "many" }', "raft_multiplier"),
            "nomad": ('server { heartbeat_grace = "soon" }', "heartbeat_grace"),
            "vault": ('default_lease_ttl = "soon"\nstorage "raft" { path = "/nowhere" }', "soon"),
        }[product]
        with pytest.raises(UsageError, match=wrong[1]):
            taken(wrong[0])


@pytest.mark.parametrize("version", CONSULS)
def test_what_only_the_agents_own_machine_can_fill_in_is_no_reason_to_refuse(version, binary, tmp_path):
    file = tmp_path / "a.hcl"
    file.write_text('bind_addr = "{{ GetInterfaceIP \\"nowhere7\\" }}"\nserver = true\nbootstrap_expect = 3')
    config = configuration("consul", sources_of([file]))
    check_taken("baseline", config, version, binary("consul", version).path)


class TestKeysThatTheTablesName:
    @pytest.mark.lie
    @pytest.mark.needs("consul 1.22.2", "consul 1.10.3")
    def test_some_consul_knows_each_of_them(self, binary, tmp_path):
        file = tmp_path / "keys.json"
        file.write_text(json.dumps(nested([*named_keys("consul"), "performance.no_such_key"])))
        said = [
            consul_refuses(binary("consul", version).path, [file], {}, tmp_path) for version in ("1.22.2", "1.10.3")
        ]
        unknown = [set(re.findall(r"invalid config key (\S+)", words)) for words in said]
        assert unknown[0] & unknown[1] == {"performance.no_such_key"}

    @pytest.mark.nomad
    @pytest.mark.needs("nomad")
    def test_nomad_knows_each_of_them(self, binary):
        known = known_keys(binary("nomad").path)
        unknown = [key for key in named_keys("nomad") if not set(key.split(".")) <= known]
        assert unknown == []
        assert "heartbeat_grac" not in known

    @pytest.mark.vault
    @pytest.mark.needs("vault")
    def test_vault_knows_each_of_them(self, binary, tmp_path):
        from hashidrill.products.vault.settings import refusal

        keys = {key for key in named_keys("vault") if not key.startswith("storage.")} - {"listener", "listener.unix"}
        unknown = []
        for key in [*sorted(keys), "no_such_key", "listener.tcp.no_such_key"]:
            file = tmp_path / "keys.hcl"
            *blocks, name = key.split(".")
            opened = [f'{blocks[0]} "{blocks[1]}" {{' if len(blocks) == 2 else f"{blocks[0]} {{"] if blocks else []
            file.write_text("\n".join([*opened, f"{name} = 0", *("}" for _ in opened)]))
            if "nknown or unsupported field" in refusal(binary("vault").path, [file], {}, tmp_path):
                unknown.append(key)
        assert unknown == ["no_such_key", "listener.tcp.no_such_key"]


@pytest.fixture
def gate(tmp_path, monkeypatch):
    """The command, in a folder with two configurations; the exit code and what it printed as JSON."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "before.hcl").write_text('node_name = "a"\nuse_streaming_backend = false')
    (tmp_path / "same.hcl").write_text('node_name = "b"\nuse_streaming_backend = false')
    (tmp_path / "after.hcl").write_text("use_streaming_backend = true")

    def run(*words):
        done = CliRunner().invoke(app, ["gate", *words, "--json"])
        return done.exit_code, json.loads(done.stdout) if done.stdout.strip() else str(done.exception)

    return run


@pytest.mark.needs("consul 1.22.2")
class TestTheCommand:
    def test_what_is_equal_but_for_its_machine_is_no_regression_and_runs_nothing(self, gate, tmp_path):
        code, document = gate("--baseline", "before.hcl", "--candidate", "same.hcl")
        assert (code, document["verdict"], document["experiments"]) == (0, "no change", [])
        assert document["left_out"][0]["key"] == "node_name"
        assert (tmp_path / ".hashidrill/gate/junit.xml").is_file()

    def test_a_dry_run_says_what_it_would_run_and_why(self, gate, tmp_path):
        code, document = gate("--baseline", "before.hcl", "--candidate", "after.hcl", "--dry-run")
        assert code == 0
        assert document["changes"][0]["key"] == "use_streaming_backend"
        assert not (tmp_path / ".hashidrill").exists()

    def test_what_consul_refuses_ends_it(self, gate, tmp_path):
        (tmp_path / "bad.hcl").write_text("use_streaming_backen = true")
        done = CliRunner().invoke(app, ["gate", "--baseline", "before.hcl", "--candidate", "bad.hcl"])
        assert done.exception.exit_code == 2
        assert "invalid config key use_streaming_backen" in str(done.exception)


def test_a_version_that_cannot_be_had_says_each_way_that_was_tried(gate, monkeypatch, tmp_path):
    monkeypatch.setenv("HASHIDRILL_RELEASES_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    done = CliRunner().invoke(app, ["gate", "--baseline-version", "1.99.9", "--candidate-version", "1.22.2"])
    assert done.exception.exit_code == 2
    assert "This machine could not get consul 1.99.9" in str(done.exception)
