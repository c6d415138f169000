"""What a worker is told before anything else, where it listens, and who is let in."""

import ssl
from pathlib import Path

import pytest

from hashidrill.core.errors import DatacenterError
from hashidrill.staging.generators import secrecy
from hashidrill.staging.generators.secrecy import Identity
from hashidrill.staging.generators.worker import place


def test_a_worker_listens_where_nomad_says_and_elsewhere_on_the_loopback_alone():
    assert place({}) == ("127.0.0.1", 0, "127.0.0.1")
    given = {"NOMAD_ADDR_stream": "10.1.2.3:24567", "NOMAD_PORT_stream": "24567"}
    assert place(given) == ("0.0.0.0", 24567, "10.1.2.3")
    assert place({"NOMAD_ADDR_stream": "[fd00::7]:24567"})[2] == "fd00::7"


class TestFiles:
    def test_tls_files_arrive_under_paths_of_the_workers_own(self, tmp_path):
        (tmp_path / "here" / "cas").mkdir(parents=True)
        for name in ("ca.pem", "cert.pem", "key.pem", "cas/one.pem"):
            (tmp_path / "here" / name).write_text(f"content of {name}")
        tls = {
            key: str(tmp_path / "here" / f"{key.removesuffix('_file')}.pem")
            for key in ("ca_file", "cert_file", "key_file")
        }
        tls |= {"ca_path": str(tmp_path / "here" / "cas"), "server_name": "consul", "verify": True}
        entrances = {"https://consul:8501": {"tls": tls, "headers": {"X-Consul-Token": "t"}, "params": {}}}
        files = secrecy.packed(entrances)
        assert len(files) == 4
        there = tmp_path / "there"
        there.mkdir()
        moved = secrecy.unpacked(entrances, files, there)["https://consul:8501"]
        assert moved["headers"] == {"X-Consul-Token": "t"}
        assert (moved["tls"]["server_name"], moved["tls"]["verify"]) == ("consul", True)
        for key in ("ca_file", "cert_file", "key_file"):
            path = moved["tls"][key]
            assert path.startswith(str(there))
            assert Path(path).read_text() == f"content of {key.removesuffix('_file')}.pem"
        assert (there / moved["tls"]["ca_path"] / "one.pem").read_text() == "content of cas/one.pem"
        assert {path.stat().st_mode & 0o077 for path in there.rglob("*.pem")} == {0}

    def test_a_file_that_cannot_be_read_is_named(self, tmp_path):
        entrances = {"https://x": {"tls": {"ca_file": str(tmp_path / "gone.pem")}, "headers": {}, "params": {}}}
        with pytest.raises(DatacenterError, match=r"gone\.pem: cannot be read, and workers need it"):
            secrecy.packed(entrances)


def shaken(client, server):
    """A handshake in memory, and a byte each way: raises ssl.SSLError where one does not let the other in."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)]
    for _ in range(10):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    for one, other in (ends, ends[::-1]):
        one.write(b"x")
        assert other.read(1) == b"x"


class TestSecrecy:
    def test_runner_and_worker_let_each_other_in(self):
        runner, worker = Identity.made("runner"), Identity.made("worker")
        shaken(runner.runner_side(worker.certificate), worker.worker_side(runner.certificate))

    def test_a_stranger_is_not_let_in(self):
        runner, worker, stranger = (Identity.made(name) for name in ("runner", "worker", "runner"))
        with pytest.raises(ssl.SSLError):
            shaken(stranger.runner_side(worker.certificate), worker.worker_side(runner.certificate))

    def test_a_runner_speaks_to_no_impostor(self):
        runner, worker, impostor = (Identity.made(name) for name in ("runner", "worker", "worker"))
        with pytest.raises(ssl.SSLError):
            shaken(runner.runner_side(worker.certificate), impostor.worker_side(runner.certificate))

    def test_who_has_no_certificate_is_not_let_in(self):
        worker = Identity.made("worker")
        anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
        with pytest.raises(ssl.SSLError):
            shaken(anybody, worker.worker_side(Identity.made("runner").certificate))

    def test_the_key_is_in_no_text_of_an_identity(self):
        assert "PRIVATE" not in repr(Identity.made("runner"))
