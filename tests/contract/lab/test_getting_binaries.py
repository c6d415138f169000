"""Getting binaries for real: from a release server on loopback, by Go, and by two processes at once."""

import contextlib
import hashlib
import io
import os
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from hashidrill.core.errors import BinaryError
from hashidrill.core.util.syscalls import process_state
from hashidrill.lab.provision import archive as binaries_archive
from hashidrill.lab.provision import binaries, pins
from hashidrill.lab.provision import build as binaries_build
from hashidrill.lab.provision.products import PRODUCTS, WayError, reported_version
from http_scripts import Answer, Scripted
from polled import wait

# the tests move XDG_CACHE_HOME, and with it Go's own cache, which is better shared
GO_CACHE = os.environ.get("GOCACHE") or str(Path.home() / ".cache/go-build")
ARCH = binaries_archive.architecture()
CONSUL = b"#!/bin/sh\necho Consul v1.22.2\n"
ZIP = f"consul_1.22.2_linux_{ARCH}.zip"
SUMS = "consul_1.22.2_SHA256SUMS"


@pytest.fixture(autouse=True)
def nothing_from_this_machine(monkeypatch, tmp_path):
    """An empty cache, no explicit paths, no proxies, and a PATH without consul, toxiproxy or Go."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith("HASHIDRILL_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(binaries_build, "_USUAL_PLACES", ())
    monkeypatch.setenv("HASHIDRILL_NO_INSTALL", "1")


class ReleaseServer(Scripted):
    """Laid out as a vendor's; `files` are what it holds, `hanging` the paths it never answers."""

    def __init__(self):
        super().__init__(self._said)
        self.files: dict[str, bytes] = {}
        self.hanging: set[str] = set()
        self.cut: set[str] = set()
        self.moved: dict[str, str] = {}

    @property
    def asked(self):
        return [request.path for request in self.seen]

    def _said(self, _number, request):
        path = request.path
        if path in self.hanging:
            return Answer(then="hang")
        if path in self.moved:
            return Answer(302, b"", {"Location": self.moved[path]})
        if (body := self.files.get(path)) is None:
            return Answer(404, b"")
        if path in self.cut:
            return Answer(200, body[: len(body) // 2], {"Content-Length": str(len(body))}, "close")
        return Answer(200, body)

    def publish(self, archive: bytes, *, sha256: str | None = None):
        self.files[f"/consul/1.22.2/{ZIP}"] = archive
        listed = sha256 or hashlib.sha256(archive).hexdigest()
        self.files[f"/consul/1.22.2/{SUMS}"] = f"{'0' * 64}  consul_1.22.2_darwin_arm64.zip\n{listed}  {ZIP}\n".encode()


@pytest.fixture
def pinned(monkeypatch):
    """What this package knows of archives: nothing, until a test says otherwise."""
    known: dict[str, str] = {}
    monkeypatch.setattr(binaries_archive, "pinned", known.get)
    return known


@pytest.fixture
def server(monkeypatch, pinned):
    """A release server whose versions are not among those that this package pins."""
    monkeypatch.setattr(binaries_archive, "DEFAULT_VERSIONS", ())
    with ReleaseServer() as server:
        monkeypatch.setenv("HASHIDRILL_RELEASES_URL", server.url + "/")
        monkeypatch.setenv("HASHIDRILL_TOXIPROXY_RELEASES_URL", server.url)
        yield server


def zipped(files: Mapping[str, bytes] = MappingProxyType({}), **more: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {**files, **more}.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def cached():
    return binaries.cache_folder("consul", "1.22.2") / "consul"


def refused(reason: str) -> None:
    """The archive's way fails for that reason, and nothing of it is in the cache."""
    with pytest.raises(BinaryError, match=rf"4\. release archive: .*{reason}"):
        binaries.ensure("consul", "1.22.2")
    assert not cached().exists()


def test_a_release_archive_is_checked_unpacked_run_and_kept(server):
    server.publish(zipped(consul=CONSUL, **{"LICENSE.txt": b"..."}))
    said = []
    found = binaries.ensure("consul", "1.22.2", progress=said.append)
    assert found.path == cached()
    assert found.source == f"release archive {server.url}/consul/1.22.2/{ZIP}"
    assert found.sha256 == hashlib.sha256(CONSUL).hexdigest()
    assert said == [
        f"the SHA-256 of consul 1.22.2 is not in this package: trusting the list at {server.url}/consul/1.22.2/{SUMS}",
        f"downloading {server.url}/consul/1.22.2/{ZIP}",
    ]
    asked = len(server.asked)
    assert binaries.ensure("consul", "1.22.2").source == f"cache ({found.source})"
    assert len(server.asked) == asked


def test_toxiproxy_is_published_as_bare_files_with_one_list_of_checksums(server):
    body = b"#!/bin/sh\necho toxiproxy-cli version 2.12.0\n"
    name = f"toxiproxy-cli-linux-{ARCH}"
    server.files[f"/v2.12.0/{name}"] = body
    server.files["/v2.12.0/checksums.txt"] = f"{hashlib.sha256(body).hexdigest()}  {name}\n".encode()
    found = binaries.ensure("toxiproxy-cli", "2.12.0")
    assert found.path.read_bytes() == body
    assert reported_version(PRODUCTS["toxiproxy-cli"], found.path) == "2.12.0"


def test_a_pinned_archive_is_used_without_asking_the_server_what_it_ought_to_be(server, pinned):
    archive = zipped(consul=CONSUL)
    server.publish(archive, sha256="ab" * 32)
    pinned[f"consul/1.22.2/{ZIP}"] = hashlib.sha256(archive).hexdigest()
    said = []
    assert binaries.ensure("consul", "1.22.2", progress=said.append).path == cached()
    assert said == [f"downloading {server.url}/consul/1.22.2/{ZIP}"]
    assert f"/consul/1.22.2/{SUMS}" not in server.asked


@pytest.mark.lie
def test_a_server_that_changed_the_archive_and_its_list_alike_is_not_believed(server, pinned):
    """Whoever can write the one file there can write the other."""
    pinned[f"consul/1.22.2/{ZIP}"] = hashlib.sha256(zipped(consul=CONSUL)).hexdigest()
    server.publish(zipped(consul=CONSUL + b"# and more\n"))
    refused(f"has SHA-256 [0-9a-f]{{64}}, but this package says {pinned[f'consul/1.22.2/{ZIP}']}: the file was")


@pytest.mark.lie
def test_a_default_version_without_a_pin_is_not_downloaded(server, monkeypatch):
    monkeypatch.setattr(binaries_archive, "DEFAULT_VERSIONS", (("consul", "1.22.2"),))
    server.publish(zipped(consul=CONSUL))
    refused("has no SHA-256 for consul/1.22.2")
    assert server.asked == []


@pytest.mark.lie
def test_a_server_that_sends_on_to_plain_http_is_not_followed(server):
    server.publish(zipped(consul=CONSUL))
    server.moved[f"/consul/1.22.2/{ZIP}"] = "http://mirror.example/consul.zip"
    refused(r"leads to 'http://mirror\.example/consul\.zip': binaries are fetched over https:// only")


@pytest.mark.lie
@pytest.mark.parametrize("url", ["http://mirror.example", "ftp://mirror.example", "http://10.0.0.1:8080", "mirror"])
def test_a_mirror_without_https_is_refused_before_anything_is_asked(monkeypatch, url):
    monkeypatch.setenv("HASHIDRILL_RELEASES_URL", url)
    refused(rf"HASHIDRILL_RELEASES_URL is '{url}/?': binaries are fetched over https:// only")
    assert "https:// only" in binaries_archive.why_not(PRODUCTS["consul"], "1.22.2")


def test_whether_a_pinned_archive_is_there_is_asked_without_downloading_it(server, pinned):
    pinned[f"consul/1.22.2/{ZIP}"] = "ab" * 32
    assert "404" in binaries_archive.why_not(PRODUCTS["consul"], "1.22.2")
    server.publish(zipped(consul=CONSUL))
    assert binaries_archive.why_not(PRODUCTS["consul"], "1.22.2") is None
    assert f"/consul/1.22.2/{SUMS}" not in server.asked


def test_a_maintainer_adds_the_pins_of_a_version_as_they_are_measured(server, pinned, monkeypatch, tmp_path):
    file = tmp_path / "pins.sha256"
    file.write_text("# pins\n")
    monkeypatch.setattr(binaries_archive, "pins_file", lambda: file)
    archives = {arch: zipped(consul=CONSUL, arch=arch.encode()) for arch in pins.ARCHITECTURES}
    names = {arch: f"consul_1.23.0_linux_{arch}.zip" for arch in archives}
    sums = "".join(f"{hashlib.sha256(archives[arch]).hexdigest()}  {names[arch]}\n" for arch in archives)
    server.files["/consul/1.23.0/consul_1.23.0_SHA256SUMS"] = sums.encode()
    server.files |= {f"/consul/1.23.0/{names[arch]}": archives[arch] for arch in archives}
    pins.main("consul", "1.23.0")
    assert binaries_archive.parse_pins(file.read_text()) == {
        f"consul/1.23.0/{names[arch]}": hashlib.sha256(archives[arch]).hexdigest() for arch in archives
    }
    server.files[f"/consul/1.23.0/{names['arm64']}"] += b"."
    with pytest.raises(WayError, match="but its vendor's list says"):
        pins.main("consul", "1.23.0")
    assert len(file.read_text().splitlines()) == 3


def another_list(server):
    server.publish(zipped(consul=CONSUL))
    server.files[f"/consul/1.22.2/{SUMS}"] = b"0" * 64 + b"  another.zip\n"


def cut_short(server):
    server.publish(zipped(consul=os.urandom(200_000)))
    server.cut.add(f"/consul/1.22.2/{ZIP}")


NEVER_USED = {
    "a wrong checksum": (
        lambda server: server.publish(zipped(consul=CONSUL), sha256="ab" * 32),
        f"has SHA-256 [0-9a-f]{{64}}, but .* says {'ab' * 32}: the file was",
    ),
    "a version that is not published": (lambda _: None, rf"{SUMS} does not exist \(404\)"),
    "checksums without this file": (another_list, f"has no SHA-256 for {ZIP}"),
    "a download that ends early": (cut_short, "the connection ended early"),
    "a truncated archive with a matching checksum": (
        lambda server: server.publish(zipped(consul=os.urandom(200_000))[:100_000]),
        "is not a readable ZIP archive",
    ),
    "an archive without the binary": (
        lambda server: server.publish(zipped(README=b"hello")),
        "holds no file 'consul'",
    ),
    "an archive of another version": (
        lambda server: server.publish(zipped(consul=CONSUL.replace(b"1.22.2", b"1.22.1"))),
        r"is consul 1\.22\.1, not 1\.22\.2",
    ),
}


@pytest.mark.parametrize("case", NEVER_USED)
def test_what_is_not_that_release_is_never_used(server, case):
    publish, reason = NEVER_USED[case]
    publish(server)
    refused(reason)


@pytest.mark.parametrize("path", ["../../../../escaped", "/tmp/escaped", "bin/../../escaped"])
def test_an_archive_whose_paths_lead_out_of_it_is_refused(server, path, tmp_path):
    server.publish(zipped({"consul": CONSUL, path: b"evil"}))
    refused("leads out of the archive")
    assert not list(tmp_path.rglob("escaped"))


def test_an_archive_that_unpacks_to_more_than_any_release_is_refused(server, monkeypatch):
    monkeypatch.setattr(binaries_archive, "LARGEST_BYTES", 100_000)
    server.publish(zipped(consul=bytes(200_000)))
    refused("that is not a release")


def test_a_server_that_hangs_is_given_up(server, monkeypatch):
    monkeypatch.setattr(binaries_archive, "SILENCE_TIMEOUT_S", 0.2)
    server.publish(zipped(consul=CONSUL))
    server.hanging.add(f"/consul/1.22.2/{ZIP}")
    began = time.monotonic()
    refused("the server sent nothing for 0.2 s")
    assert time.monotonic() - began < 5


def test_a_server_that_does_not_take_connections_is_given_up_soon(monkeypatch):
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = full.getsockname()
        # a full backlog: the next connection's SYN is dropped, as by a firewall
        with contextlib.ExitStack() as held:
            for _ in range(3):
                client = held.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(address)
            monkeypatch.setattr(binaries_archive, "CONNECT_TIMEOUT_S", 0.3)
            monkeypatch.setenv("HASHIDRILL_RELEASES_URL", f"http://127.0.0.1:{address[1]}")
            began = time.monotonic()
            refused("no connection within 0.3 s")
            assert time.monotonic() - began < 3


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "not a url", "ftp://127.0.0.1"])
def test_a_base_url_that_leads_nowhere_is_a_reason(monkeypatch, url):
    monkeypatch.setenv("HASHIDRILL_RELEASES_URL", url)
    refused(r"\S+")


def test_why_not_asks_for_the_checksums_alone(server):
    assert "404" in binaries_archive.why_not(PRODUCTS["consul"], "1.22.2")
    server.publish(zipped(consul=CONSUL))
    assert binaries_archive.why_not(PRODUCTS["consul"], "1.22.2") is None
    assert f"/consul/1.22.2/{ZIP}" not in server.asked


def test_a_binary_that_does_not_run_or_says_nothing_is_a_reason(tmp_path):
    odd = tmp_path / "consul"
    odd.write_text("#!/bin/sh\necho hello\n")
    with pytest.raises(WayError, match="cannot be executed"):
        reported_version(PRODUCTS["consul"], odd)
    odd.chmod(0o755)
    with pytest.raises(WayError, match="prints no version; exit code 0, it printed: hello"):
        reported_version(PRODUCTS["consul"], odd)


# A stand-in for Go: the tests below are about what is done with a compiler, not about the compiler.
GO = """#!/bin/sh
case "$1" in
  version) if [ -n "$2" ]; then echo "$2: go1.27.1"; else echo "go version go1.26.8 linux/amd64"; fi ;;
  build)
    echo "built in $PWD with $GOFLAGS by $$" >> "$GO_RECORD"
    {during}
    while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done
    printf '#!/bin/sh\\necho Consul v1.22.2\\n' > "$out"; chmod +x "$out" ;;
esac
"""


@pytest.fixture
def go(tmp_path, monkeypatch):
    """`go(during)` puts a stand-in on PATH that runs `during` while it builds; its calls are in `go.record`."""
    monkeypatch.setenv("HASHIDRILL_RELEASES_URL", "http://127.0.0.1:9")
    record = tmp_path / "record"
    monkeypatch.setenv("GO_RECORD", str(record))

    def put(during=":"):
        script = tmp_path / "bin/go"
        script.parent.mkdir(exist_ok=True)
        script.write_text(GO.replace("{during}", during))
        script.chmod(0o755)
        return record

    return put


def test_without_an_archive_the_binary_is_built_and_progress_is_told(go, monkeypatch, tmp_path):
    record = go("sleep 0.2")
    monkeypatch.setattr(binaries_build, "PROGRESS_GAP_S", 0.05)
    said = []
    found = binaries.ensure("consul", "1.22.2", progress=said.append)
    assert found.source == "built with go1.27.1 from pinned modules"
    assert "building consul 1.22.2 with Go: this takes about 4 minutes the first time" in said
    assert "building consul 1.22.2 with Go: 0 s" in said
    assert f"{tmp_path}/cache/hashidrill/bin/consul/1.22.2/.work-" in record.read_text()
    assert "-mod=readonly" in record.read_text()
    assert sorted(entry.name for entry in cached().parent.iterdir()) == [".lock", "consul", "record.json"]


def test_a_build_that_fails_says_what_go_said(go):
    go("echo 'go: downloading github.com/x v1'; echo 'main.go:7: no such thing' >&2; exit 3")
    with pytest.raises(BinaryError, match=r"(?s)go build.*exit code 3:\n\s+main\.go:7: no such thing") as caught:
        binaries.ensure("consul", "1.22.2")
    assert "go: downloading" not in str(caught.value)


def another_process(said):
    code = (
        "from hashidrill.lab.provision.binaries import ensure\n"
        "print(ensure('consul', '1.22.2', progress=lambda line: print(line, flush=True)).source, flush=True)"
    )
    with said.open("wb") as output:
        return subprocess.Popen([sys.executable, "-c", code], stdout=output, stderr=subprocess.STDOUT)


def test_two_processes_that_want_the_same_binary_build_it_once(go, tmp_path):
    record = go(f"while [ ! -e {tmp_path}/go-on ]; do sleep 0.02; done")
    first = another_process(tmp_path / "first")
    wait("the compiler", record.exists)
    second = another_process(tmp_path / "second")
    told = "waiting: another process is getting consul 1.22.2"
    wait("the second to say so", lambda: told in (tmp_path / "second").read_text())
    (tmp_path / "go-on").touch()
    assert (first.wait(20), second.wait(20)) == (0, 0)
    assert len(record.read_text().splitlines()) == 1
    assert (tmp_path / "second").read_text().endswith("cache (built with go1.27.1 from pinned modules)\n")


def test_a_killed_builder_leaves_nothing_half_and_does_not_hold_up_the_next(go, tmp_path):
    record = go("exec sleep 60")
    builder = another_process(tmp_path / "said")
    wait("its first line", lambda: record.exists() and record.read_text().endswith("\n"))
    builder.send_signal(signal.SIGKILL)
    builder.wait(20)
    assert binaries.locate("consul", "1.22.2") is None
    os.kill(int(record.read_text().split()[-1]), signal.SIGKILL)  # the stand-in that was left, started by this test
    go()
    assert binaries.ensure("consul", "1.22.2").path == cached()
    assert not list(cached().parent.glob(".work-*"))


def test_ctrl_c_ends_the_build_and_its_compiler(go, tmp_path):
    record = go("exec sleep 60")
    builder = another_process(tmp_path / "said")
    wait("its first line", lambda: record.exists() and record.read_text().endswith("\n"))
    compiler = int(record.read_text().split()[-1])
    builder.send_signal(signal.SIGINT)
    assert builder.wait(20) != 0
    # it ended; whoever adopted it may take a while to reap it
    wait("the end of the compiler", lambda: (process_state(compiler) or ("Z", 0))[0] == "Z")
    assert not list(cached().parent.glob(".work-*"))


@pytest.mark.lie
def test_ctrl_c_while_the_compiler_is_being_started_ends_it_too(go, monkeypatch):
    """It runs by then, and who started it does not have it yet."""
    go("exec sleep 60")
    started, popen = [], subprocess.Popen

    def interrupted(command, **more):
        started.append(popen(command, **more))
        if command[1] == "build":
            signal.raise_signal(signal.SIGINT)
        return started[-1]

    monkeypatch.setattr(binaries_build.subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        binaries.ensure("consul", "1.22.2")
    assert [one.args[1] for one in started][-1] == "build"
    assert all(one.poll() is not None for one in started)


@pytest.mark.long
@pytest.mark.live
@pytest.mark.needs("go")
def test_toxiproxy_is_built_by_go_and_says_its_version(monkeypatch):
    monkeypatch.setenv("PATH", os.environ["PATH"] + ":/usr/local/go/bin")
    monkeypatch.setenv("GOCACHE", GO_CACHE)
    monkeypatch.setenv("HASHIDRILL_TOXIPROXY_RELEASES_URL", "http://127.0.0.1:9")
    found = binaries.ensure("toxiproxy-cli", "2.12.0")
    assert found.source.startswith("built with go1.")
    assert reported_version(PRODUCTS["toxiproxy-cli"], found.path) == "2.12.0"
