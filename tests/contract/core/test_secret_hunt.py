"""The search for tokens finds a leak in every place that it looks at: otherwise it would find nothing for ever."""

import base64
import gzip
import json
import os
import subprocess
import sys
import time
import zlib
from urllib.parse import quote

import pytest

from secret_hunt import Hunt

TOKEN, OTHER = "3e0c1a9b-77aa-4b1e-9f21-5d2c8f0e6a11", "hvs.CAESIOtherMarked/Token+4711"
WAITS = "import sys; print(1, flush=True); sys.stdin.read()"


@pytest.fixture
def hunt():
    return Hunt({"consul": TOKEN, "vault": OTHER})


@pytest.mark.lie
@pytest.mark.parametrize(
    "as_it_stands",
    [
        lambda token: token,
        lambda token: json.dumps({"headers": {"X-Consul-Token": token}}),
        lambda token: f"GET /v1/kv/x?token={quote(token, safe='')}",
        lambda token: base64.b64encode(f"x:{token}".encode()).decode(),
        lambda token: base64.urlsafe_b64encode(f"ab{token}".encode()).decode(),
        lambda token: base64.b64encode(token.encode()).decode(),
        lambda token: token.encode().hex(),
    ],
)
@pytest.mark.parametrize(("name", "token"), [("consul", TOKEN), ("vault", OTHER)])
def test_a_token_in_a_file_is_found_however_it_is_written(hunt, tmp_path, as_it_stands, name, token):
    (tmp_path / "deep").mkdir()
    path = tmp_path / "deep" / "engine.log"
    path.write_text(f"what is before it {as_it_stands(token)} and what is after it")
    hunt.files("artefact", tmp_path)
    assert hunt.found == {(str(path), name)}


@pytest.mark.lie
@pytest.mark.parametrize("packed", [zlib.compress, bytes])
def test_a_token_in_a_program_that_a_job_has_packed_is_found(hunt, packed):
    """As the command lines of Nomad's tasks have it: neither they nor their operators would see it there."""
    noise = "".join(f"{n:x}" for n in range(300))
    program = base64.b64encode(packed(f"{noise} told = {TOKEN!r} {noise}".encode())).decode()
    hunt.look("job", "the job", {"args": ["-c", f"exec(decompress(b64decode('{program}')))"]})
    hunt.look("job", "another", {"args": ["-c", base64.b64encode(packed(noise.encode())).decode()]})
    assert hunt.found == {("the job", "consul")}


def hexed(content):
    return content.hex().encode()


def in_json(content):
    return json.dumps({"args": ["-c", f"x\n{content.decode()}\n"]}).encode()


def after_noise(content):
    return b"\0" * 50 + b"x\x9c\x1f\x8b" + content


@pytest.mark.parametrize(
    "layers",
    [
        (zlib.compress, base64.b64encode, in_json),
        (base64.b64encode, zlib.compress, hexed, gzip.compress),
        (zlib.compress, base64.urlsafe_b64encode, zlib.compress, base64.b64encode),
        (zlib.compress, hexed, in_json),
        (gzip.compress, after_noise),
        (base64.b64encode, base64.b64encode, base64.b64encode),
        (zlib.compress, base64.b64encode, in_json, gzip.compress, base64.b64encode, in_json),
    ],
)
def test_a_token_is_found_however_it_is_nested(hunt, layers):
    content = f"told = {TOKEN!r}".encode()
    for layer in layers:
        content = layer(content)
    assert TOKEN.encode() not in content
    hunt.look("job", "the job", content)
    assert hunt.found == {("the job", "consul")}


@pytest.mark.long
def test_a_large_log_is_looked_at_in_good_time(hunt):
    lines = [
        f"{number:08x} {base64.b64encode(number.to_bytes(60, 'big')).decode()} GET /v1/kv" for number in range(20_000)
    ]
    content = "\n".join([*lines, base64.b64encode(zlib.compress(TOKEN.encode())).decode()]).encode()
    began_s = time.process_time()
    hunt.look("log", "the log", content)
    assert time.process_time() - began_s < 20
    assert hunt.found == {("the log", "consul")}


def test_a_token_in_a_compressed_file_is_found(hunt, tmp_path):
    (tmp_path / "log.gz").write_bytes(gzip.compress(f"it says {OTHER}".encode()))
    (tmp_path / "torn.gz").write_bytes(gzip.compress(b"x" * 100)[:20])
    hunt.files("artefact", tmp_path)
    assert hunt.found == {(str(tmp_path / "log.gz"), "vault")}


def test_a_token_in_a_key_or_its_value_is_found(hunt):
    coded = base64.b64encode(f"told: {TOKEN}".encode()).decode()
    hunt.keys([{"Key": "audit/1", "Value": coded}, {"Key": f"by/{OTHER}", "Value": None}, {"Key": "x", "Value": ""}])
    assert hunt.found == {("audit/1", "consul"), (f"by/{OTHER}", "vault")}


@pytest.mark.lie
@pytest.mark.parametrize("where", ["command", "environment"])
def test_a_token_that_the_process_table_shows_for_a_moment_is_found(hunt, where):
    words = [sys.executable, "-c", WAITS, *([TOKEN] if where == "command" else [])]
    env = {**os.environ, **({"CONSUL_HTTP_TOKEN": TOKEN} if where == "environment" else {})}
    with hunt.watching_processes():
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        with process:
            process.stdout.read(1)
            hunt.processes()
            process.stdin.close()
    assert {(place.split(" ")[0], name) for place, name in hunt.found} == {(where, "consul")}


def test_a_file_that_is_gone_at_the_end_is_found_while_it_is_there(hunt, tmp_path):
    path = tmp_path / "note.json"
    path.write_text(json.dumps({"environment": [f"CONSUL_HTTP_TOKEN={TOKEN}"]}))
    with hunt.watching_processes(tmp_path):
        pass
    path.unlink()
    assert hunt.found == {(str(path), "consul")}


def test_what_is_clean_is_clean_and_was_looked_at(hunt, tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"token": "[redacted]"}))
    hunt.files("artefact", tmp_path)
    hunt.processes()
    assert hunt.found == set()
    assert hunt.looked["artefact"] == 1
    assert hunt.looked["process"] > 1


def test_what_is_too_short_to_be_told_from_chance_is_no_mark():
    with pytest.raises(AssertionError, match="by chance"):
        Hunt({"consul": "token"})
