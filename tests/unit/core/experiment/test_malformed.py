"""Files that nobody can run: each gets one screen that says where it is wrong, and how it would be right.
Generated files through `hashidrill validate`: the right exit code, and never a traceback.
"""

import json
import os
import random
import re
import shutil
import sys
import time
import warnings
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import places
from folded import unfolded
from hashidrill.core.errors import ExperimentError
from hashidrill.core.experiment.documents import MAX_DEPTH, MAX_NODES
from hashidrill.core.experiment.library import MAX_BYTES
from hashidrill.core.experiment.loader import load_experiment, load_text
from hashidrill.faces import cli
from malformed_files import generated, good_data, seeds
from tasks import raising

CORPUS = places.MALFORMED
GOOD = places.GOOD.read_text()
PLACE = re.compile(r":\d+:\d+: ")
SCREEN = (40, 160)
QUICK_S = 5.0  # a generous bound: a quadratic reader takes minutes

EXPECTED = {
    # not YAML, or not one document of it
    "tab-indent": "4:1: this line is indented with a tab",
    "bad-indent": "5:9: a ': ' where no key can be",
    "unclosed-bracket": "8:11: a bracket is opened but not closed, or a comma is missing",
    "unclosed-quote": "9:22: the indentation does not match the lines above, or a quote above is not closed",
    "colon-in-text": "6:12: a ': ' where no key can be: quote the text",
    "duplicate-key": "14:3: line 13 already has the key 'for'",
    "two-documents": "18:1: a second document starts here",
    "empty": "1:1: the file is empty",
    "only-comments": "1:1: the file is empty",
    "root-is-a-list": "1:1: an experiment must be a mapping",
    "root-is-text": "1:1: an experiment must be a mapping",
    "not-an-experiment": "1:1: not an experiment: it begins with `apiVersion: hashidrill/v1`",
    "playbook": "2:7: kind: expected Experiment, got 'Playbook'",
    "wrong-api-version": "1:13: apiVersion: expected hashidrill/v1, got 'hashidrill/v2'",
    "missing-api-version": "1:1: apiVersion is missing: write hashidrill/v1",
    "unknown-alias": "7:9: the alias *usual has no anchor",
    "cyclic-alias": "9:79: the alias *config is inside its own anchor",
    "python-tag": "6:8: the tag 'tag:yaml.org,2002:python/object/apply...' does not fit",
    "merge-key": "18:12: merge keys (<<) exist only in YAML 1.1",
    "number-as-key": "11:3: a key must be text: put '1' in quotes",
    "list-as-key": "18:12: a key must be text, not a list",
    "escaped-control-character": "6:8: contains a character that is not text",
    # wrong types
    "servers-is-text": "9:40: datacenter.consul.servers: expected a whole number, got '3'",
    "servers-is-true": "9:40: datacenter.consul.servers: expected a whole number, got true",
    "too-many-servers": "9:40: datacenter.consul.servers: expected at most 9, got 30",
    "version-is-a-number": "9:21: datacenter.consul.version: expected text, got 1.22",
    "method-is-a-mapping": "16:3: method: expected a list, got a mapping",
    "step-is-text": "16:5: method[0]: expected a mapping (`key: value`), got 'disk.latency'",
    "load-is-a-list": "11:3: load: expected a mapping (`key: value`), got a list",
    "follow-is-yes": "16:89: method[0].follow: expected true or false, got 'yes'",
    "title-is-empty": "5:10: metadata.title: expected at least 1 character, got ''",
    "null-section": "12:1: steady_state: expected a mapping (`key: value`), got nothing",
    "config-is-text": "9:63: datacenter.consul.config: expected a mapping (`key: value`), got 'performance'",
    "infinite-number": "9:95: '.inf' is not a finite number",
    "huge-number": "9:95: the number '9999999999999999999999999999999999999...' is too large",
    "fractional-keys": "11:56: load.kv-writes.keys: expected a whole number, got 0.5",
    # unknown kinds, keys and names
    "unknown-fault": "16:13: method[0].fault: there is no fault 'disk.latencey': did you mean disk.latency or ",
    "unknown-load": "11:21: load.kv-writes.kind: there is no load 'consul.kv.wirte': did you mean consul.kv.write",
    "unknown-hypothesis": "20:5: expect[0]: there is no hypothesis 'writes_recovers': did you mean writes_recover",
    "unknown-key": "17:1: unknown key 'gaurdrails': did you mean guardrails?",
    "unknown-nested-key": "9:31: datacenter.consul: unknown key 'severs': did you mean servers",
    "unknown-fault-parameter": "16:66: method[0].with: unknown key 'delays': did you mean delay?",
    "unknown-load-parameter": "11:50: load.kv-writes: unknown key 'key': did you mean keys?",
    "unknown-hypothesis-parameter": "20:39: expect[0].writes_recover: unknown key 'p50_bellow': did you mean",
    "unknown-choice": "16:59: method[0].with.op: 'fsnc' is not a valid value: did you mean fsync?",
    "unknown-consul-role": "16:31: method[0].on: 'consul:leeder' is not a selector: did you mean consul:leader",
    "two-hypotheses-in-one": "20:5: expect[0]: name exactly one hypothesis per expectation",
    "bad-load-name": "11:3: load: expected a name of lower-case words joined by dashes",
    "load-named-like-a-probe": "11:3: load: raft is the name of a probe's signals",
    "known-issue-without-place": "22:18: expect[1].known_issue: expected owner/repo#123 or an https URL",
    # missing and wrong units
    "rate-without-unit": "11:44: load.kv-writes.rate: 50 has no unit: a rate is written like 50/s or 10/m",
    "duration-without-unit": "13:8: steady_state.for: 10 has no unit: a duration is written like 500ms",
    "size-without-unit": "11:68: load.kv-writes.value: '512' has no unit: a size is written like 512B",
    "delay-with-unknown-unit": "16:73: method[0].with.delay: '500millis' is not a duration; write it like 500ms",
    "condition-without-unit": "14:13: steady_state.require[0]: '300' has no unit",
    "condition-of-nothing": "17:14: guardrails[0]: 'errors are low' is not a condition; write it like",
    "condition-on-unknown-load": "17:14: guardrails[0]: 'kv-write.errors > 90% for 20s': there is no load or probe",
    "condition-on-unknown-statistic": "14:13: steady_state.require[0]: 'kv-writes.latency.p51 < 300ms': a load has no",
    "condition-on-unknown-signal": "there is no signal raft.commit_tme: did you mean raft.commit_time",
    "over-a-hundred-percent": "17:14: guardrails[0]: '190%' is over 100%",
    # times that cannot be
    "negative-duration": "16:85: method[0].at: '-5s' is negative",
    "negative-rate": "11:44: load.kv-writes.rate: '-50/s' is negative",
    "fault-of-no-length": "16:94: method[0].for: a fault must last longer than 0s",
    "longer-than-an-hour": "16:95: method[0].for: the fault would end 70m into the method; at + for may be at most 1h",
    "steady-never-in-time": "13:3: steady_state: within (5s) is shorter than for (10s)",
    "missing-length": "16:5: method[0]: for is missing: a duration, like 500ms",
    "missing-with": "16:5: method[0].with: delay is missing: a duration, like 500ms",
    # hosts, loads and faults that are not there, or in each other's way
    "selector-without-role": "16:31: method[0].on: 'leader' is not a selector: did you mean consul:leader or",
    "clients-of-none": "16:31: method[0].on: consul:clients never matches: the datacenter has no client agents",
    "followers-of-one": "16:31: method[0].on: consul:followers never matches: a single server has no followers",
    "unknown-host": "16:31: method[0].on: there is no host 'consul-4': did you mean consul-3",
    "load-via-unknown-host": "11:79: load.kv-writes.via: there is no host 'client-2': did you mean client-1?",
    "colliding-faults": "17:5: method[1]: disk.latency on consul:servers runs while method[0]",
    "kill-the-paused": "17:5: method[1]: process.kill on consul:followers runs while method[0]",
    "full-disk-without-a-size": "16:13: method[0].fault: disk.full needs a disk of limited size",
    "expectation-of-another-load": "21:40: expect[1].no_acknowledged_write_lost.load: there is no load 'kv-reads'",
    "expectation-of-another-fault": "21:32: expect[1].leadership_leaves.fault: there is no step of the method",
    "no-faults": "15:9: method: expected at least 1 entry, got an empty list",
    "nothing-expected": "19:9: expect: expected at least 1 entry, got an empty list",
    "everything-at-once": "19:17: recovery.for: 20 has no unit",
    "long-lines": "7:480: metadata.tags[60]: expected at most 60 characters",
}


def refused(path):
    """The message that a file gets: one screen, with places, in short time."""
    began = time.monotonic()
    with pytest.raises(ExperimentError) as error:
        load_experiment(path)
    message = str(error.value)
    assert time.monotonic() - began < QUICK_S
    assert_one_screen(message)
    return message


def assert_one_screen(message):
    lines = message.split("\n")
    assert len(lines) <= SCREEN[0]
    assert max(len(line) for line in lines) <= SCREEN[1]
    assert all(line.isprintable() for line in lines)
    assert "Traceback" not in message


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_each_malformed_file_gets_one_screen_with_the_place_and_what_is_wrong(name, monkeypatch):
    monkeypatch.chdir(CORPUS)
    message = refused(Path(f"{name}.yaml"))
    assert EXPECTED[name] in message
    assert message.startswith(f"{name}.yaml:")
    assert PLACE.search(message)


def test_every_file_of_the_corpus_has_its_expected_message():
    assert {path.stem for path in CORPUS.iterdir()} == EXPECTED.keys()
    assert len(EXPECTED) >= 40


def test_the_good_file_is_good():
    assert load_text(GOOD).metadata.name == "good"


def bomb():
    layers = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)]
    return "a0: &a0 [lol]\n" + "".join(layers)


ENORMOUS = {
    "billion laughs": (bomb(), f"too large: over {MAX_NODES} values"),
    "one long text, often": ("a: &a " + "x" * 100_000 + "\nb: [" + "*a, " * 5000 + "]\n", "too large: over"),
    "more bytes than any experiment": ("#" * (MAX_BYTES + 1), "1:1: is larger than 256 kB"),
    "more values than any experiment": ("[" + "1, " * 60_000 + "]", f"too large: over {MAX_NODES} values"),
    "deep in brackets": ("[" * 100_000, f"1:{MAX_DEPTH + 1}: nested deeper than {MAX_DEPTH} levels"),
    "deep in braces": ("{a: " * 50_000, "nested deeper"),
    "deep in dashes": ("- " * 50_000, "nested deeper"),
    "deep by indentation": ("".join(" " * n + "a:\n" for n in range(500)), "nested deeper"),
    "deep through aliases": ("a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 40)), "when *a"),
    "a thousand unknown keys": (GOOD + "".join(f"key{n}: 1\n" for n in range(1000)), "unknown key 'key0'"),
    "a thousand steps": (
        GOOD.replace("guardrails:", '  - {fault: noop, on: "consul:leader", for: 1s}\n' * 1000 + "guardrails:"),
        "method: expected at most 100 entries, got a list of 1001",
    ),
    "a long name": (GOOD.replace("disk.latency", "d" * 200_000), "there is no fault 'ddd"),
    "a long key": ("k" * 900 + ": 1\n" + GOOD, "unknown key 'kkk"),
    "a long condition": (GOOD.replace("kv-writes.errors > 90%", "a." * 100_000), "is not a condition"),
    "a number without end": (GOOD.replace("keys: 500", "keys: " + "9" * 200_000), "is too large"),
    "nothing but anchors": ("&a " * 80_000, "this is not YAML"),
    "nothing but colons": (":" * 250_000, "1:"),
}


@pytest.mark.parametrize("name", ENORMOUS)
def test_an_enormous_file_is_refused_before_it_costs_anything(tmp_path, name):
    text, said = ENORMOUS[name]
    path = tmp_path / "x.yaml"
    path.write_text(text)
    message = refused(path)
    assert said in unfolded(message)
    assert PLACE.search(message)


BINARY = {
    "an ELF file": (
        b"\x7fELF\x02\x01\x01\x00" + bytes(range(256)) * 40,
        "is not UTF-8; if this is a text file, save it as UTF-8",
    ),
    "a gzip file": (b"\x1f\x8b\x08\x00\x00" + bytes(range(256)), "1:2: byte 0x8b is not UTF-8"),
    "random bytes": (random.Random(1).randbytes(100_000), "is not"),
    "zeros": (bytes(1000), "1:1: the character U+0000 is not text; is this a binary file?"),
    "a zero in the middle": (GOOD.encode().replace(b"50/s", b"50\x00/s"), "12:46: the character U+0000 is not text"),
    "UTF-16": (GOOD.encode("utf-16"), "1:1: is UTF-16; save it as UTF-8"),
    "Latin-1": (GOOD.replace("why: The", "why: Thé").encode("latin-1"), "7:10: byte 0xe9 is not UTF-8"),
    "Latin-1 after a byte order mark": (b"\xef\xbb\xbfa: 1\nb: \xe9", "2:4: byte 0xe9 is not UTF-8"),
    "an escape sequence": (GOOD.encode().replace(b"why: ", b"why: \x1b[2J"), "7:8: the character U+001B is not text"),
}


@pytest.mark.parametrize("name", BINARY)
def test_what_is_not_text_is_refused_with_its_place(tmp_path, name):
    raw, said = BINARY[name]
    path = tmp_path / "x.yaml"
    path.write_bytes(raw)
    message = refused(path)
    assert said in unfolded(message)
    assert PLACE.search(message)


def test_a_file_that_is_not_there_is_answered_with_near_names(tmp_path):
    (tmp_path / "slow-leader.yaml").write_text(GOOD)
    assert "did you mean" in unfolded(refused(tmp_path / "slow-leder.yaml"))
    assert "there is no directory" in unfolded(refused(tmp_path / "nowhere/slow.yaml"))
    assert "there is no such file" in unfolded(refused(tmp_path / "slow-leader.yaml/x.yaml"))


def test_a_directory_a_pipe_and_a_device_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    assert "is a directory" in unfolded(refused(tmp_path))
    assert "is not a regular file" in unfolded(refused(tmp_path / "pipe.yaml"))
    assert "is not a regular file" in refused(Path("/dev/zero"))


def test_a_file_that_may_not_be_read_says_what_mends_it(tmp_path, monkeypatch):
    path = tmp_path / "secret.yaml"
    path.write_text(GOOD)
    monkeypatch.setattr(Path, "open", raising(PermissionError(13, "Permission denied")))
    assert f"chmod a+r {path}" in " ".join(refused(path).split())


def test_a_disk_that_fails_is_an_error_like_any_other(tmp_path, monkeypatch):
    path = tmp_path / "x.yaml"
    path.write_text(GOOD)
    monkeypatch.setattr(Path, "open", raising(OSError(5, "Input/output error")))
    assert "cannot be read: Input/output error" in refused(path)
    assert "cannot be read" in refused(Path("nul\0.yaml"))


def test_reading_leaves_the_warning_filters_as_they_were():
    before = list(warnings.filters)
    load_text(GOOD)
    with pytest.raises(ExperimentError):
        load_text("a: [1")
    assert list(warnings.filters) == before


SCHEMA = places.ROOT / "experiments" / "schema.json"
BLOCK = 2500


@pytest.fixture(scope="module")
def material():
    return seeds(), good_data(), Draft202012Validator(json.loads(SCHEMA.read_text()))


@pytest.fixture
def validate(monkeypatch, tmp_path, capsys):
    """The whole command line in this process: a file in, exit code and messages out."""
    path = tmp_path / "generated" / "generated.yaml"
    path.parent.mkdir()
    shutil.copytree(places.ROOT / "experiments" / "bases", tmp_path / "bases")

    def go(raw):
        path.write_bytes(raw)
        monkeypatch.setattr(sys, "argv", ["hashidrill", "validate", str(path)])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        said = capsys.readouterr()
        return code, said.out, said.err

    return go


def check(numbers, material, validate):
    """Exit code 2 with a message that names the file, or 0 with `ok`; 2 for all that the schema refuses."""
    texts, documents, schema = material
    codes = {0: 0, 2: 0}
    for number in numbers:
        raw, is_json = generated(number, texts, documents)
        began = time.monotonic()
        code, out, err = validate(raw)
        assert time.monotonic() - began < QUICK_S, f"file {number} took too long"
        assert code in codes, f"file {number}: exit code {code}"
        codes[code] += 1
        assert "Traceback" not in out + err, f"file {number}"
        if code == 0:
            assert out.startswith("ok  "), f"file {number}: {out!r}"
            # a probe's host may be one that the generated datacenter lost
            assert not err or (err.startswith("warning: ") and ".url: " in err), f"file {number}: {err!r}"
            assert not (is_json and not schema.is_valid(json.loads(raw))), f"file {number}: the schema refuses it"
        else:
            assert "generated.yaml" in err or "/bases/" in err, f"file {number}: {err!r}"
            assert not out, f"file {number}: {out!r}"
            assert all(line.isprintable() for line in err.splitlines()), f"file {number}: {err!r}"
    return codes


@pytest.mark.long
@pytest.mark.lie
@pytest.mark.parametrize("block", range(5))
def test_500_generated_files_are_refused_or_right_and_none_ends_in_a_traceback(block, material, validate):
    codes = check(range(block * 100, (block + 1) * 100), material, validate)
    assert codes[2] > 70, "hardly anything was malformed: this says nothing"
    assert codes[0] > 1, "hardly anything was good: a validate that refuses all would pass"


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("block", range(10_000 // BLOCK))
def test_10000_generated_files_are_refused_or_right_and_none_ends_in_a_traceback(block, material, validate):
    check(range(500 + block * BLOCK, 500 + (block + 1) * BLOCK), material, validate)


def test_the_same_number_is_the_same_file(material):
    texts, documents, _ = material
    assert [generated(n, texts, documents) for n in range(30)] == [generated(n, texts, documents) for n in range(30)]


def test_a_validate_that_crashes_is_caught(material, validate, monkeypatch):
    """Planted: the reader of one sort of file raises what it should not."""
    monkeypatch.setattr(
        "hashidrill.faces.cli.validate.read_experiment", raising(RecursionError("maximum recursion depth exceeded"))
    )
    with pytest.raises(AssertionError, match="exit code 70"):
        check(range(3), material, validate)


def test_a_validate_that_lets_all_pass_is_caught(material, validate, monkeypatch):
    monkeypatch.setattr("hashidrill.faces.cli.validate._error_of", lambda *_: None)
    with pytest.raises(AssertionError, match="the schema refuses it"):
        check(range(60), material, validate)
