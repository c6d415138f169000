"""What a gate reads: files as agents read them, what differs, what is left out, and what no gate can be made of."""

import json
from pathlib import Path
from typing import ClassVar

import pytest

from hashidrill.core.errors import UsageError
from hashidrill.core.util.nested import dotted, leaves
from hashidrill.products.consul.model import Consul
from hashidrill.products.consul.settings import FIXED as FIXED_OF_CONSUL
from hashidrill.products.consul.settings import consul_config
from hashidrill.products.nomad import settings as nomad_agents
from hashidrill.products.nomad.settings import FIXED as FIXED_OF_NOMAD
from hashidrill.products.nomad.settings import unknown_keys
from hashidrill.products.vault.model import Vault
from hashidrill.products.vault.settings import vault_config
from hashidrill.rollouts.gate.configuration import (
    _DEFAULTS,
    check_taken,
    configuration,
    from_git,
    overlay,
    product_of,
    role_of,
    shipped,
    sources_of,
)
from hashidrill.rollouts.gate.differences import differences, why_left_out

pytestmark = pytest.mark.lie


@pytest.fixture
def read(tmp_path):
    """Writes files and reads them as one configuration."""

    def read_(product, **files):
        folder = tmp_path / f"conf-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        for name, text in files.items():
            (folder / name.replace("__", ".")).write_text(text)
        return configuration(product, sources_of([folder]))

    return read_


class TestReading:
    def test_a_directory_is_read_in_the_order_of_names_and_later_wins(self, read):
        config = read(
            "consul",
            b__hcl='log_level = "warn"\nlimits { rpc_rate = 5 }\nrecursors = ["b"]',
            a__json='{"log_level": "info", "limits": {"rpc_max_burst": 7}, "recursors": ["a"]}',
            z__txt="log_level = broken {",
        )
        assert config.settings == {
            "log_level": "warn",
            "limits": {"rpc_max_burst": 7, "rpc_rate": 5},
            "recursors": ["a", "b"],
        }

    def test_directories_below_are_not_read(self, tmp_path):
        (tmp_path / "below").mkdir()
        (tmp_path / "below" / "x.hcl").write_text("server = true")
        (tmp_path / "a.hcl").write_text("server = false")
        assert [source.path.name for source in sources_of([tmp_path])] == ["a.hcl"]

    def test_a_later_file_of_vault_replaces_a_whole_block(self, read):
        config = read(
            "vault",
            a__hcl='storage "raft" { path = "/a"\n node_id = "a" }\nmax_lease_ttl = "1h"',
            b__hcl='storage "raft" { path = "/b" }',
        )
        assert config.settings == {"storage": {"raft": {"path": "/b"}}, "max_lease_ttl": "1h"}
        assert "storage.raft.node_id" not in config.places

    def test_one_config_entry_of_consul_stays_a_list_which_is_what_consul_takes(self, read):
        config = read("consul", a__hcl='config_entries { bootstrap = [{ kind = "service-defaults", name = "web" }] }')
        assert config.settings == {"config_entries": {"bootstrap": [{"kind": "service-defaults", "name": "web"}]}}
        assert read("nomad", a__json='{"server": [{"raft_multiplier": 2}]}').settings == {
            "server": {"raft_multiplier": 2}
        }

    def test_of_an_object_that_consuls_json_says_twice_the_later_one_counts_alone(self, read):
        twice = '{"limits": {"rpc_rate": 5}, "limits": {"rpc_max_burst": 7}}'
        assert read("consul", a__json=twice).settings == {"limits": {"rpc_max_burst": 7}}

    def test_a_key_knows_the_line_where_it_was_said_last(self, read):
        config = read("consul", a__hcl="performance {\n  raft_multiplier = 1\n}", b__hcl="\n\nserver = true")
        assert str(config.place("performance.raft_multiplier")).endswith("a.hcl:2:3")
        assert str(config.place("server")).endswith("b.hcl:3:1")
        assert config.place("nothing") is None

    @pytest.mark.parametrize(
        ("name", "text", "said"),
        [
            ("a.hcl", "limits { ", "a.hcl:1:10: a } is missing"),
            ("a.json", '{"a": x}', "a.json:1:7: not JSON"),
            ("a.json", "[1]", "a.json:1:1: a configuration must be an object"),
        ],
    )
    def test_what_does_not_read_is_named_with_its_place(self, tmp_path, name, text, said):
        (tmp_path / name).write_text(text)
        with pytest.raises(UsageError, match=said.replace("[", r"\[")):
            sources_of([tmp_path / name])

    def test_what_is_not_there_is_said(self, tmp_path):
        with pytest.raises(UsageError, match="no such file or directory"):
            sources_of([tmp_path / "none.hcl"])
        with pytest.raises(UsageError, match=r"no \*\.hcl or \*\.json in this directory"):
            sources_of([tmp_path])


class TestProduct:
    @pytest.mark.parametrize(
        ("text", "product"),
        [
            ("server = true\nbootstrap_expect = 3", "consul"),
            ("use_streaming_backend = true", "consul"),
            ("server { enabled = true }", "nomad"),
            ('storage "raft" { path = "/x" }', "vault"),
            ('default_lease_ttl = "1h"', "vault"),
        ],
    )
    def test_it_is_recognised_by_what_only_it_says(self, tmp_path, text, product):
        (tmp_path / "a.hcl").write_text(text)
        assert product_of([], sources_of([tmp_path]), None) == product

    def test_what_anybody_could_say_needs_a_word(self, tmp_path):
        (tmp_path / "a.hcl").write_text('log_level = "info"')
        with pytest.raises(UsageError, match="--product"):
            product_of([], sources_of([tmp_path]), None)
        assert product_of([], sources_of([tmp_path]), "nomad") == "nomad"

    def test_two_products_are_not_compared(self, tmp_path):
        (tmp_path / "a.hcl").write_text("use_streaming_backend = true")
        (tmp_path / "b.hcl").write_text('storage "raft" { path = "/x" }')
        with pytest.raises(UsageError, match="the baseline is for consul and the candidate for vault"):
            product_of(sources_of([tmp_path / "a.hcl"]), sources_of([tmp_path / "b.hcl"]), None)

    def test_a_product_that_is_not_there_has_near_names(self):
        with pytest.raises(UsageError, match="consul"):
            product_of([], [], "consl")


class TestDifferences:
    def test_changed_keys_have_both_values_and_the_place_of_the_candidate(self, read):
        found = differences(
            read("consul", a__hcl='performance { raft_multiplier = 1 }\nlog_level = "info"\nsession_ttl_min = "60s"'),
            read("consul", a__hcl='performance { raft_multiplier = 7 }\nlog_level = "info"\nsession_ttl_min = "1m"'),
        )
        assert [str(change) for change in found.changes] == ["performance.raft_multiplier: 1 -> 7"]
        assert str(found.changes[0].place).endswith("a.hcl:1:15")

    def test_a_key_that_goes_is_a_change_and_null_and_an_empty_block_say_nothing(self, read):
        found = differences(
            read("consul", a__hcl="autopilot { cleanup_dead_servers = false }"),
            read("consul", a__json='{"autopilot": {}, "log_level": null}'),
        )
        assert [str(change) for change in found.changes] == ["autopilot.cleanup_dead_servers: false -> not set"]

    def test_true_is_not_one(self, read):
        found = differences(read("consul", a__json='{"x": 1}'), read("consul", a__json='{"x": true}'))
        assert found.keys == ["x"]

    def test_what_ties_an_agent_to_its_machine_reaches_neither_side(self, read):
        found = differences(
            read("consul", a__hcl='node_name = "a"\nencrypt = "0123456789abcdef"\nlimits { rpc_rate = 5 }'),
            read("consul", a__hcl='node_name = "b"\nencrypt = "fedcba9876543210"\nlimits { rpc_rate = 5 }'),
        )
        assert found.changes == ()
        assert found.kept == ({"limits": {"rpc_rate": 5}},) * 2
        assert {(one.key, one.differs) for one in found.left_out} == {("node_name", True), ("encrypt", True)}
        assert all(len(one.why) > 20 for one in found.left_out)

    def test_secrets_are_never_printed(self, read):
        found = differences(
            read("nomad", a__hcl='client { artifact { password = "swordfish-7" } }'),
            read("nomad", a__hcl='client { artifact { password = "swordfish-8" } }'),
        )
        assert [str(change) for change in found.changes] == ["client.artifact.password: a secret changed"]
        assert found.changes[0].shown() == ("[redacted]", "a secret that differs")

    def test_a_secret_within_a_list_that_changes_is_told(self, read):
        entry = 'config_entries {{ bootstrap = [{{ kind = "jwt-provider", client_secret = "swordfish-{}" }}] }}'
        found = differences(read("consul", a__hcl=entry.format(7)), read("consul", a__hcl=entry.format(8)))
        assert [str(change) for change in found.changes] == ["config_entries.bootstrap: a secret changed"]
        assert "swordfish" not in str(found.changes[0].shown())

    @pytest.mark.parametrize(
        ("product", "key"),
        [("consul", key) for key in sorted(FIXED_OF_CONSUL)] + [("nomad", key) for key in sorted(FIXED_OF_NOMAD)],
    )
    def test_what_the_datacenter_under_test_is_built_on_is_left_out(self, product, key):
        assert why_left_out(product, key)
        assert why_left_out(product, f"{key}.below")

    @pytest.mark.parametrize(
        ("product", "key"),
        [
            ("consul", "performance.raft_multiplier"),
            ("consul", "use_streaming_backend"),
            ("consul", "limits.rpc_rate"),
            ("consul", "serverish"),
            ("nomad", "server.raft_multiplier"),
            ("vault", "storage.raft.performance_multiplier"),
            ("vault", "listener.tcp.max_request_size"),
        ],
    )
    def test_what_changes_how_an_agent_behaves_is_kept(self, product, key):
        assert why_left_out(product, key) is None

    def test_consul_takes_its_keys_in_any_case(self, read):
        assert why_left_out("consul", "Data_Dir")
        assert why_left_out("consul", "Node_Meta.Team")
        assert why_left_out("consul", "Performance.Raft_Multiplier") is None
        assert why_left_out("nomad", "Data_Dir") is None, "of others we do not know it"
        found = differences(read("consul", a__hcl='Data_Dir = "/a"'), read("consul", a__hcl='Data_Dir = "/b"'))
        assert found.changes == ()

    def test_vaults_other_storage_is_left_out(self):
        assert why_left_out("vault", "storage.consul.address")
        assert why_left_out("vault", "storage.raft.path")

    def test_each_reason_covers_keys_and_no_key_stands_twice(self):
        for groups in shipped("left_out.yaml").values():
            keys = [key for group in groups for key in group["keys"]]
            assert len(keys) == len(set(keys))
            assert all(group["why"] and group["keys"] for group in groups)


AS_BY_DEFAULT = {"log_level", "telemetry.collection_interval", "server.raft_multiplier"}
"""What the datacenter under test sets as the agents do themselves."""
OURS = [
    ("consul", consul_config(Consul(), name="a", role="server", address="b", servers=["b"], data=Path("/c"))),
    ("nomad", {**nomad_agents._BASE, "server": nomad_agents._SERVER, "client": nomad_agents._CLIENT}),
    ("vault", vault_config(Vault(), name="a", address="b", peers=["c"], data=Path("/c"))),
]


class TestOverlay:
    written: ClassVar = {"version": "1.22.2", "config": {"performance": {"raft_multiplier": 1}}, "server_config": {}}

    def test_a_side_gets_its_configuration_in_the_place_of_the_experiments(self):
        kept = {"performance": {"raft_multiplier": 5}}
        assert overlay("consul", kept, {}, self.written) == {"datacenter": {"consul": {"config": kept}}}

    def test_a_key_that_only_the_other_side_has_falls_back_to_the_agents_default(self):
        found = overlay("consul", {}, {"performance": {"raft_multiplier": 5}}, self.written)
        assert found == {"datacenter": {"consul": {"config": {"performance": {"raft_multiplier": None}}}}}

    def test_nor_to_what_the_datacenter_under_test_happens_to_set(self):
        """Nomad waits 10 s for a heartbeat, and ours 3 s: who drops the key gets Nomad's own."""
        found = overlay("nomad", {}, {"server": {"heartbeat_grace": "30s"}}, {})
        assert found == {"datacenter": {"nomad": {"config": {"server": {"heartbeat_grace": "10s"}}}}}
        said = {"server": {"heartbeat_grace": "30s"}}
        assert overlay("nomad", said, {}, {}) == {"datacenter": {"nomad": {"config": said}}}
        found = overlay("vault", {}, {"storage": {"raft": {"performance_multiplier": 1}}}, {})
        assert found["datacenter"]["vault"]["config"] == {"storage": {"raft": {"performance_multiplier": 5}}}

    @pytest.mark.parametrize(("product", "config"), OURS)
    def test_all_that_it_sets_otherwise_is_left_out_or_has_its_default_here(self, product, config):
        ours = {dotted(path) for path, _ in leaves(config)}
        known = {dotted(path) for path, _ in leaves(_DEFAULTS.get(product, {}))} | AS_BY_DEFAULT
        assert {key for key in ours if not why_left_out(product, key)} <= known

    def test_servers_alone_get_what_is_for_servers(self):
        found = overlay("consul", {"limits": {"rpc_rate": 1}}, {}, self.written, role="server", version="1.10.3")
        assert found == {"datacenter": {"consul": {"server_config": {"limits": {"rpc_rate": 1}}, "version": "1.10.3"}}}

    def test_whose_configuration_it_is(self):
        assert [role_of("consul", said) for said in ({"server": True}, {"server": False}, {})] == [
            "server",
            "client",
            "all",
        ]
        assert role_of("nomad", {"server": {"enabled": True}}) == "all"


class TestRefusals:
    def test_the_agents_own_words_name_the_file_of_the_user(self, read):
        config = read("consul", a__hcl="raft_multiplir = 3")

        def ask(_product):
            return lambda _binary, files, _settings, _work: f"failed to parse {files[0]}: invalid config key"

        with pytest.raises(UsageError, match=r"Consul 1.22.2 refuses the candidate configuration:\n  failed to parse"):
            check_taken("candidate", config, "1.22.2", config.sources[0].path, ask=ask)

    def test_words_hold_no_secret(self, read):
        config = read("consul", a__json=json.dumps({"encrypt": "secret-value-1", "x": 1}))

        def ask(_product):
            return lambda *_: "cannot decode secret-value-1"

        with pytest.raises(UsageError) as refused:
            check_taken("baseline", config, "1.22.2", config.sources[0].path, ask=ask)
        assert "secret-value-1" not in str(refused.value)

    def test_a_key_that_nomad_would_ignore_is_named_with_the_near_ones(self):
        known = frozenset({"server", "heartbeat_grace", "enabled", "client", "options"})
        said = unknown_keys({"server": {"enabled": True, "heartbeat_grac": "3s"}, "serve": 1}, known)
        assert len(said) == 2
        assert "server.heartbeat_grac, and would ignore it: did you mean heartbeat_grace?" in said[0]
        assert unknown_keys({"client": {"options": {"anything.at.all": "1"}}}, known) == []


class TestWhatGitDoesNotHave:
    @pytest.fixture
    def repository(self, monkeypatch):
        """A repository of `main`, and of `lonely`, an orphan; planted: it is a shallow clone."""
        shallow = []

        def git(*words, **_more):
            if "--is-shallow-repository" in words:
                return b"true" if shallow else b"false"
            if words[0] == "rev-parse" and words[-1].removesuffix("^{commit}") in {"main", "lonely", "HEAD"}:
                return words[-1].encode()
            raise UsageError(f"git {words[0]}: it failed and does not say why")

        monkeypatch.setattr("hashidrill.core.util.checkout.git", git)
        return shallow

    @pytest.mark.lie
    @pytest.mark.parametrize(
        ("revisions", "said"),
        [
            ("main...lonely", "main and lonely have no common ancestor; compare .*, with two dots: --git main..lonely"),
            ("main...chang", "git: there is no revision chang$"),
            ("chang..main", "git: there is no revision chang$"),
        ],
    )
    def test_a_branch_is_lacking_only_where_it_lacks_and_by_a_shallow_clone_only_in_one(
        self, repository, tmp_path, revisions, said
    ):
        with pytest.raises(UsageError, match=said):
            from_git(revisions, ["consul.d"], tmp_path)
        repository.append("shallow")
        with pytest.raises(UsageError, match=r"this clone is shallow and may lack it: .*fetch-depth: 0"):
            from_git(revisions, ["consul.d"], tmp_path)

    @pytest.mark.parametrize(
        ("having", "said"),
        [
            ({"HEAD"}, "the baseline, main, has no file at consul.d, but the candidate, HEAD, does: a first config"),
            ({"main"}, "the candidate, HEAD, has no file at consul.d, but the baseline, main, does"),
            (set(), "neither main nor HEAD has a file at consul.d; --path starts"),
        ],
    )
    def test_a_path_that_a_side_lacks_is_said_with_that_side_as_typed(
        self, repository, tmp_path, monkeypatch, having, said
    ):
        assert not repository
        monkeypatch.setattr(
            "hashidrill.rollouts.gate.configuration.listed",
            lambda commit, _path: b"a" if commit.removesuffix("^{commit}") in having else b"",
        )
        with pytest.raises(UsageError, match=said):
            from_git("main..HEAD", ["consul.d"], tmp_path)
