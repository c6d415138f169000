"""Generated files through `hashidrill validate`: the right exit code, and never a traceback."""

import json
import shutil
import sys
import time

import pytest
from jsonschema import Draft202012Validator

import places
from hashidrill.faces import cli
from malformed_files import generated, good_data, seeds

SCHEMA = places.ROOT / "experiments" / "schema.json"
QUICK_S = 5.0
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

    def crashes(_path):
        raise RecursionError("maximum recursion depth exceeded")

    monkeypatch.setattr("hashidrill.faces.cli.validate.read_experiment", crashes)
    with pytest.raises(AssertionError, match="exit code 70"):
        check(range(3), material, validate)


def test_a_validate_that_lets_all_pass_is_caught(material, validate, monkeypatch):
    monkeypatch.setattr("hashidrill.faces.cli.validate._error_of", lambda *_: None)
    with pytest.raises(AssertionError, match="the schema refuses it"):
        check(range(60), material, validate)
