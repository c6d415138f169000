"""Which binary is run: the table of products, the order of the ways, and the messages. No process, no network."""

import json
import os
import re
from pathlib import Path

import pytest

from hashidrill.core.errors import BinaryError, MachineError
from hashidrill.lab.provision import archive as binaries_archive
from hashidrill.lab.provision import binaries, packages
from hashidrill.lab.provision import build as binaries_build
from hashidrill.lab.provision import products as binaries_products
from hashidrill.lab.provision.build import Go
from hashidrill.lab.provision.pins import ARCHITECTURES
from hashidrill.lab.provision.products import (
    AUDITED_VERSIONS,
    DEFAULT_VERSIONS,
    KUBERNETES_VERSIONS,
    PRODUCTS,
    WATCHING_VERSIONS,
    WayError,
    product_named,
)
from tasks import raising

GO = Go(Path("/go"), (1, 26), "go1.26.8")
PLAINLY_REPORTED = binaries_products.reported_version
"""As it is: the fixture below replaces it."""


@pytest.fixture(autouse=True)
def nothing_from_this_machine(monkeypatch, tmp_path):
    """An empty cache and PATH, no explicit paths, and each binary says the version in its first line."""
    for product in PRODUCTS.values():
        monkeypatch.delenv(product.variable, raising=False)
        if product.release is not None:
            monkeypatch.delenv(product.release.variable, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(binaries_products, "reported_version", says)
    monkeypatch.setattr(binaries, "reported_version", says)


@pytest.fixture
def no_ways(monkeypatch):
    """Neither archive nor Go: fails, with reasons that are told apart."""

    def fails(reason):
        return raising(WayError(reason))

    monkeypatch.setattr(binaries_archive, "download", fails("the server is down"))
    monkeypatch.setattr(binaries_build, "build", fails("the compiler is broken"))


def says(product, path):
    first = path.read_text().splitlines()[0]
    if first == "broken":
        raise WayError(f"{path} cannot be executed")
    return first


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def cached(version: str = "1.22.2", name: str = "consul") -> Path:
    return binaries.cache_folder(name, version) / name


def kept(text: str, version: str = "1.22.2") -> Path:
    fresh = put(cached(version).parent / "work" / "consul", text)
    return binaries.keep(product_named("consul"), version, fresh, "built by hand").path


@pytest.fixture
def vendors(monkeypatch):
    """A vendor's archive that can be downloaded; how often it was."""
    asked = []

    def download(product, version, work, say):
        asked.append(product.name)
        return put(work / product.name, f"{version}\nthe vendor's"), "release archive https://vendor"

    monkeypatch.setattr(binaries_archive, "download", download)
    return asked


def built(name, version, source="built with go1.26 from pinned modules"):
    fresh = put(cached(version, name).parent / "work" / name, f"{version}\n{source}")
    return binaries.keep(product_named(name), version, fresh, source)


def test_a_build_without_a_ui_is_replaced_by_the_vendors_binary_where_a_ui_is_asked_for(vendors):
    built("nomad", "1.10.5")
    assert "built with" in binaries.ensure("nomad", "1.10.5").source
    assert binaries.ensure("nomad", "1.10.5", with_ui=True).path.read_text().endswith("the vendor's")
    assert "vendor" in binaries.ensure("nomad", "1.10.5").source
    binaries.ensure("nomad", "1.10.5", with_ui=True)
    assert vendors == ["nomad"]


def test_what_has_a_ui_or_was_named_by_a_person_is_never_replaced(vendors, tmp_path):
    built("consul", "1.22.2")
    binaries.ensure("consul", "1.22.2", with_ui=True)
    binaries.ensure("vault", "1.21.0", explicit=str(put(tmp_path / "mine", "1.21.0")), with_ui=True)
    put(tmp_path / "bin/nomad", "1.10.5")
    binaries.ensure("nomad", "1.10.5", with_ui=True)
    assert vendors == []


def test_without_a_way_to_the_vendor_the_build_stays_and_the_reason_is_said(no_ways):
    made, said = built("vault", "1.21.0"), []
    assert binaries.ensure("vault", "1.21.0", with_ui=True, progress=said.append).path == made.path
    assert said == ["vault 1.21.0 was built on this machine and stays without a UI: the server is down"]


def test_an_explicit_path_is_run_and_nothing_else_is_looked_at(tmp_path):
    put(tmp_path / "bin/consul", "1.22.2")
    mine = put(tmp_path / "mine", "1.22.2")
    found = binaries.ensure("consul", "1.22.2", explicit=str(mine))
    assert (found.path, found.source) == (mine, "explicit path (the YAML)")


def test_the_environment_names_an_explicit_path_and_the_yaml_goes_before_it(tmp_path, monkeypatch):
    by_environment, by_yaml = put(tmp_path / "a", "1.22.2"), put(tmp_path / "b", "1.22.2")
    monkeypatch.setenv("HASHIDRILL_CONSUL", str(by_environment))
    assert binaries.ensure("consul", "1.22.2").source == "explicit path (HASHIDRILL_CONSUL)"
    assert binaries.ensure("consul", "1.22.2", explicit=str(by_yaml)).path == by_yaml


def test_each_binary_has_its_own_environment_variable():
    assert PRODUCTS["toxiproxy-server"].variable == "HASHIDRILL_TOXIPROXY_SERVER"


def test_an_explicit_path_of_another_version_is_an_error_that_says_both(tmp_path, monkeypatch):
    monkeypatch.setenv("HASHIDRILL_CONSUL", str(put(tmp_path / "mine", "1.21.0")))
    put(tmp_path / "bin/consul", "1.22.2")  # would do, and is not what was named
    with pytest.raises(BinaryError, match=r"HASHIDRILL_CONSUL.*it is version 1\.21\.0, but version 1\.22\.2 is req"):
        binaries.ensure("consul", "1.22.2")


@pytest.mark.parametrize("text", [None, "broken"])
def test_an_explicit_path_that_is_missing_or_broken_is_an_error_that_names_it(tmp_path, text):
    mine = tmp_path / "mine"
    if text is not None:
        put(mine, text)
    with pytest.raises(BinaryError, match=re.escape(str(mine))):
        binaries.ensure("consul", "1.22.2", explicit=str(mine))


def test_path_goes_before_the_cache_when_its_version_is_the_one_asked_for(tmp_path):
    kept("1.22.2\ncached")
    on_path = put(tmp_path / "bin/consul", "1.22.2")
    assert binaries.ensure("consul", "1.22.2").path == on_path


@pytest.mark.parametrize("other", ["1.22.1", "1.22.2+ent", "1.22.2-dev", "1.22.20"])
def test_path_is_left_alone_when_its_version_differs_in_anything(tmp_path, other):
    put(tmp_path / "bin/consul", other)
    kept("1.22.2")
    assert binaries.ensure("consul", "1.22.2").path == cached()


def test_the_cache_says_where_its_binary_came_from_and_what_its_checksum_is(tmp_path):
    path = kept("1.22.2")
    found = binaries.ensure("consul", "1.22.2")
    assert found == binaries.Binary(path, "1.22.2", "cache (built by hand)", binaries.file_sha256(path))
    assert path == tmp_path / "cache/hashidrill/bin/consul/1.22.2/consul"
    assert os.access(path, os.X_OK)


def test_a_relative_cache_home_is_ignored_as_the_specification_says(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", "somewhere")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert binaries.cache_folder("consul", "1.22.2") == tmp_path / ".cache/hashidrill/bin/consul/1.22.2"


def test_a_binary_that_was_only_touched_stays_good():
    path = kept("1.22.2")
    os.utime(path, (1, 1))
    assert binaries.ensure("consul", "1.22.2").path == path


def test_a_damaged_binary_is_never_run_and_is_replaced(monkeypatch):
    put(kept("1.22.2"), "1.22.2\na flipped bit")

    def build(product, version, work, say):
        return put(work / "consul", "1.22.2\nwhole"), "built"

    monkeypatch.setattr(binaries_archive, "download", raising(WayError("offline")))
    monkeypatch.setattr(binaries_build, "build", build)
    assert binaries.locate("consul", "1.22.2") is None
    found = binaries.ensure("consul", "1.22.2")
    assert found.path.read_text() == "1.22.2\nwhole"
    assert binaries.ensure("consul", "1.22.2").source == "cache (built)"


def test_a_binary_put_into_the_cache_by_hand_must_say_its_version():
    put(cached(), "1.22.2")
    assert binaries.ensure("consul", "1.22.2").source == "cache (put there by hand)"
    put(cached(), "1.21.0")
    assert binaries.locate("consul", "1.22.2") is None


def test_a_torn_record_counts_as_none():
    path = kept("1.22.2")
    (path.parent / "record.json").write_text('{"sha256": "')
    assert binaries.ensure("consul", "1.22.2").source == "cache (put there by hand)"


def test_a_binary_that_was_made_is_refused_when_it_says_another_version(monkeypatch, no_ways):
    def build(product, version, work, say):
        return put(work / "consul", "1.22.1"), "built"

    monkeypatch.setattr(binaries_build, "build", build)
    with pytest.raises(BinaryError, match=r"go build: \S+ is consul 1\.22\.1, not 1\.22\.2"):
        binaries.ensure("consul", "1.22.2")
    assert not cached().exists()


def test_when_nothing_works_every_way_is_listed_with_its_reason_and_what_to_do(tmp_path, no_ways):
    put(tmp_path / "bin/consul", "1.20.0")
    with pytest.raises(BinaryError) as caught:
        binaries.ensure("consul", "1.22.2")
    message = str(caught.value)
    for expected in (
        "could not get consul 1.22.2",
        "1. explicit path: none was given (YAML, or HASHIDRILL_CONSUL=/path/to/consul)",
        f"2. PATH: {tmp_path}/bin/consul is consul 1.20.0, not 1.22.2",
        f"3. cache: {cached()} does not exist",
        "4. release archive: the server is down",
        "5. go build: the compiler is broken",
        "HASHIDRILL_RELEASES_URL",
        "Go 1.21 or newer",
    ):
        assert expected in message
    assert caught.value.exit_code == 2


def test_a_failed_try_leaves_no_work_folder_and_clears_those_of_the_killed(no_ways):
    put(cached().parent / ".work-killed/consul", "half")
    with pytest.raises(BinaryError):
        binaries.ensure("consul", "1.22.2")
    assert [entry.name for entry in cached().parent.iterdir()] == [".lock"]


def test_a_cache_that_cannot_be_written_is_a_reason_not_a_traceback(tmp_path, monkeypatch, no_ways):
    put(tmp_path / "file", "not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(BinaryError, match=r"the cache cannot be written: \S+file"):
        binaries.ensure("consul", "1.22.2")


@pytest.mark.parametrize("version", ["../../etc", "1.22", "latest", "1.22.2/..", "", "1.22.2 "])
def test_what_is_no_version_is_refused_before_it_becomes_a_path(version):
    with pytest.raises(BinaryError, match=r"write it like 1\.22\.2"):
        binaries.ensure("consul", version)


def test_an_unknown_binary_lists_near_ones():
    with pytest.raises(BinaryError, match="did you mean consul"):
        binaries.ensure("consol", "1.22.2")


@pytest.mark.parametrize(
    ("name", "printed", "version"),
    [
        ("consul", "Consul v1.22.2\nBuild Date 1970-01-01T00:00:01Z\n", "1.22.2"),
        ("consul", "Consul v1.10.3\nRevision c976ffd2d\nProtocol 2 spoken\n", "1.10.3"),
        ("consul", "Consul v1.22.2+ent\n", "1.22.2+ent"),
        ("toxiproxy-server", "toxiproxy-server version 2.12.0\n", "2.12.0"),
        ("toxiproxy-cli", "toxiproxy-cli version git\n", "git"),
        ("bbolt", "bbolt Version: 1.4.3\nGo Version: go1.26.8\nGo OS/Arch: linux/amd64\n", "1.4.3"),
        ("consul-template", "consul-template v0.41.0 ()\n", "0.41.0"),
        ("nomad", "Nomad v1.10.5\nBuildDate \nRevision \n", "1.10.5"),
        ("nomad", "Nomad v1.10.5+ent\n", "1.10.5+ent"),
        ("etcd", "etcd Version: 3.5.21\nGit SHA: Not provided\nGo Version: go1.26.8\n", "3.5.21"),
        ("kube-apiserver", "Kubernetes v1.34.4\n", "1.34.4"),
        ("chaosd", 'Chaosd Version: version.Info{GitVersion:"v1.4.0", GitCommit:"$Format:%H$"}\n', "1.4.0"),
        (
            "chaos-controller-manager",
            'Controller manager Version: version.Info{GitVersion:"v0.9.1-0.2026-4741", GitCommit:"x"}\n',
            "0.9.1-0.2026-4741",
        ),
        ("chaos-mesh-definitions", "# chaos-mesh-definitions 0.9.1-0.2026-4741\n---\nkind: x\n", "0.9.1-0.2026-4741"),
        ("vault", "Vault v1.21.0, built 2025-10-21T19:33:32Z\n", "1.21.0"),
        ("alertmanager", "alertmanager, version 0.31.1 (branch: , revision: unknown)\n", "0.31.1"),
        ("prometheus", "prometheus, version 3.16.0 (branch: , revision: unknown)\n", "3.16.0"),
        ("promtool", "promtool, version 3.16.0 (branch: , revision: unknown)\n", "3.16.0"),
    ],
)
def test_each_binary_is_understood_when_it_says_its_version(name, printed, version):
    assert re.search(PRODUCTS[name].says, printed, re.MULTILINE)[1] == version


MODULE_OF = {"3.16.0": "0.316.0"}
"""Prometheus tags its module with a version of its own."""


@pytest.mark.parametrize(
    ("name", "version"), DEFAULT_VERSIONS + WATCHING_VERSIONS + AUDITED_VERSIONS + KUBERNETES_VERSIONS
)
def test_what_ships_can_be_built_from_a_pinned_module_that_names_that_very_version(name, version):
    product = PRODUCTS[name]
    module = binaries_build.module_folder(product, version)
    pinned = (module / "go.mod").read_text()
    module_path = product.package.partition("/cmd/")[0].removesuffix("/cmd")
    tag = MODULE_OF.get(version, version)
    assert f"{module_path} v{tag}" in pinned
    assert f"{module_path} v{tag} h1:" in (module / "go.sum").read_text()
    if not product.files:
        assert re.search(rf"^(tool )?\s*{re.escape(product.package)}$", pinned, re.MULTILINE)


DEFINITIONS = PRODUCTS["chaos-mesh-definitions"]


def test_what_is_no_program_says_its_version_in_its_first_line_and_is_never_run(tmp_path):
    path = tmp_path / "definitions"
    path.write_text("# chaos-mesh-definitions 1.2.3\n---\nkind: x\n")
    assert PLAINLY_REPORTED(DEFINITIONS, path) == "1.2.3"
    path.write_text("kind: x\n# chaos-mesh-definitions 1.2.3\n")
    with pytest.raises(
        WayError, match=r"the first line of \S+ does not name a version of chaos-mesh-definitions: 'kind: x'"
    ):
        PLAINLY_REPORTED(DEFINITIONS, path)
    with pytest.raises(WayError, match="cannot be read: No such file"):
        PLAINLY_REPORTED(DEFINITIONS, tmp_path / "absent")


def downloads(monkeypatch, said, code=0, error=""):
    monkeypatch.setattr(binaries_build, "find_go", lambda: GO)
    done = binaries_build.subprocess.CompletedProcess([], code, said, error)
    monkeypatch.setattr(binaries_build.subprocess, "run", lambda *_, **__: done)


def test_files_of_a_module_become_one_with_its_version(tmp_path, monkeypatch):
    folder = tmp_path / "module-cache/config/crd/bases"
    put(folder / "b.yaml", "---\nkind: B\n")
    put(folder / "a.yaml", "\n---\nkind: A\nspec: {}\n")
    put(folder / "notes.txt", "no")
    downloads(monkeypatch, json.dumps({"Dir": str(tmp_path / "module-cache")}))
    work = tmp_path / "work"
    work.mkdir()
    version = dict(KUBERNETES_VERSIONS)["chaos-mesh-definitions"]
    into, source = binaries_build.build(DEFINITIONS, version, work, lambda _: None)
    assert into.read_text() == f"# chaos-mesh-definitions {version}\n---\nkind: A\nspec: {{}}\n---\nkind: B\n"
    assert source == "from the sources of the pinned module"


@pytest.mark.parametrize(
    ("came", "why"),
    [
        (("", 1, "dial tcp: no route"), r"`go mod download github.com/chaos-mesh/chaos-mesh`: dial tcp: no route"),
        (('{"Error": "checksum mismatch"}',), "checksum mismatch"),
        (('{"Dir": "/nowhere"}',), r"has no config/crd/bases/\*\.yaml"),
    ],
)
def test_sources_that_cannot_be_had_are_a_reason(tmp_path, monkeypatch, came, why):
    downloads(monkeypatch, *came)
    with pytest.raises(WayError, match=why):
        binaries_build.build(DEFINITIONS, dict(KUBERNETES_VERSIONS)["chaos-mesh-definitions"], tmp_path, lambda _: None)


def test_a_build_is_pinned_stripped_and_says_its_version(tmp_path):
    command = binaries_build.build_command(
        Go(Path("/go"), (1, 26), "go1.26.8"), PRODUCTS["toxiproxy-cli"], "2.12.0", tmp_path / "toxiproxy-cli"
    )
    assert command[:2] == ["/go", "build"]
    assert "-s -w -X github.com/Shopify/toxiproxy/v2.Version=2.12.0" in command
    assert command[-1] == "github.com/Shopify/toxiproxy/v2/cmd/cli"
    of_kubernetes = binaries_build.build_command(
        Go(Path("/go"), (1, 26), "go1.26.8"), PRODUCTS["kube-apiserver"], "1.34.4", tmp_path / "kube-apiserver"
    )
    assert "-s -w -X k8s.io/component-base/version.gitVersion=v1.34.4" in of_kubernetes
    without_clouds = binaries_build.build_command(GO, PRODUCTS["prometheus"], "3.16.0", tmp_path / "prometheus")
    assert without_clouds[3:5] == ["-tags", "remove_all_sd,enable_consul_sd"]
    assert "-tags" not in of_kubernetes


def test_the_users_own_go_settings_cannot_change_what_is_built(tmp_path):
    inherited = {"GOOS": "windows", "GOFLAGS": "-mod=mod", "GOWORK": "/x", "GOPROXY": "https://mirror", "HOME": "/h"}
    environment = binaries_build._environment(inherited, tmp_path, PRODUCTS["consul"])
    assert "GOOS" not in environment
    assert environment["GOFLAGS"].startswith("-mod=readonly")
    assert (environment["GOWORK"], environment["CGO_ENABLED"]) == ("off", "0")
    assert (environment["GOPROXY"], environment["HOME"]) == ("https://mirror", "/h")


@pytest.mark.parametrize(
    ("go", "reason"),
    [
        (None, "there is no Go on PATH"),
        (Go(Path("/usr/bin/go"), (1, 19), "go1.19.8"), "go1.19.8: Go 1.21 or newer is needed"),
    ],
)
def test_a_build_without_a_usable_go_says_so(tmp_path, monkeypatch, go, reason):
    def refuses(asked, say):
        assert packages.GO in asked
        raise MachineError("you said no")

    monkeypatch.setattr(binaries_build, "find_go", lambda: go)
    monkeypatch.setattr(packages, "install_packages", refuses)
    with pytest.raises(WayError, match=f"{re.escape(reason)}.*: you said no"):
        binaries_build.build(PRODUCTS["consul"], "1.22.2", tmp_path, print)


def test_a_build_installs_go_and_for_cgo_a_c_compiler_where_they_are_missing(tmp_path, monkeypatch):
    """As README says: root without a terminal does nothing for it but wait."""
    installed = []
    monkeypatch.setattr(
        packages, "install_packages", lambda asked, say: installed.append([one.debian for one in asked])
    )
    monkeypatch.setattr(binaries_build, "tool", lambda name: None)
    monkeypatch.setattr(binaries_build, "find_go", lambda: GO if installed else None)
    monkeypatch.setattr(binaries_build, "_run", lambda *_: None)
    monkeypatch.setattr(binaries_build, "_go_version", lambda *_: "")
    for name, version in (("nomad", "1.10.5"), ("consul", "1.22.2")):
        (tmp_path / name).mkdir()
        binaries_build.build(PRODUCTS[name], version, tmp_path / name, print)
    assert installed == [["golang-go", "ca-certificates", "gcc", "libc6-dev"]]


def test_a_go_that_was_unpacked_by_hand_is_found_behind_the_systems_old_one(tmp_path, monkeypatch):
    """Debian 12's 1.19 is first on PATH, and what we tell people to type puts another one into /usr/local/go."""
    for folder, version in (("bin", "1.19.8"), ("local/go/bin", "1.26.1")):
        put(tmp_path / folder / "go", f"#!/bin/sh\necho go version go{version} linux/amd64\n")
    monkeypatch.setattr(binaries_build, "_USUAL_PLACES", (str(tmp_path / "local/go"),))
    assert binaries_build.find_go() == Go(tmp_path / "local/go/bin/go", (1, 26), "go1.26.1")
    put(tmp_path / "local/go/bin/go", "#!/bin/sh\nexit 1\n")
    assert binaries_build.find_go() == Go(tmp_path / "bin/go", (1, 19), "go1.19.8")


def test_a_version_without_a_pinned_module_lists_those_that_have_one(tmp_path):
    with pytest.raises(WayError, match=r"no pinned module for consul 1\.21\.5; it can build 1\.10\.3 and 1\.22\.2"):
        binaries_build.build(PRODUCTS["consul"], "1.21.5", tmp_path, print)


def test_a_machine_that_vendors_do_not_publish_for_is_a_reason(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(WayError, match="amd64 and arm64; this machine is riscv64"):
        binaries_archive.architecture()


def test_the_record_is_json_that_names_source_and_checksum():
    record = json.loads((kept("1.22.2").parent / "record.json").read_text())
    assert record["source"] == "built by hand"
    assert len(record["sha256"]) == 64


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_this_package_knows_the_checksum_of_every_download_that_a_run_asks_for(arch):
    """toxiproxy-cli is for people alone, and bbolt has no releases: both are built."""
    wanted = [each for each in DEFAULT_VERSIONS if PRODUCTS[each[0]].release and each[0] != "toxiproxy-cli"]
    assert len(wanted) == 5
    for name, version in wanted:
        path = PRODUCTS[name].release.archive.format(name=name, version=version, arch=arch)
        assert re.fullmatch("[0-9a-f]{64}", binaries_archive.pinned(path) or "")


@pytest.mark.parametrize(
    "line", ["abc  a.zip", f"{'0' * 64} a.zip", f"{'0' * 64}  a.zip\n{'1' * 64}  a.zip", "garbage"]
)
def test_a_line_of_the_pins_that_is_none_is_an_error(line):
    with pytest.raises(ValueError, match="expected `SHA256  PATH`"):
        binaries_archive.parse_pins(f"# comment\n\n{line}\n")
