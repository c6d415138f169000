"""The readers of HCL, version 2 and version 1: positions and values, and version 2 held against python-hcl2.

Version 1 is held against the agents themselves in tests/contract/clients/test_audit_grammar_real.py.
"""

import json
from functools import partial
from pathlib import Path

import hcl2
import pytest
from hcl2.utils import SerializationOptions
from hypothesis import given, settings
from hypothesis import strategies as st
from lark.exceptions import LarkError

import hcl1_texts
from hashidrill.clients.audit.hcl import read_hcl
from hashidrill.clients.audit.hcl1 import CONSUL, NOMAD, VAULT, read_hcl1
from hashidrill.clients.audit.tree import (
    MAX_DEPTH,
    Expression,
    MalformedError,
    Mapping,
    Place,
    Scalar,
    Sequence,
    read_json,
)

FIXTURES = Path(__file__).with_name("cases")
HCL = sorted(path for path in FIXTURES.rglob("*") if path.suffix in {".hcl", ".nomad"})
JOB = (FIXTURES / "HD214/near_miss_configured/web.nomad").read_text()

VERSION_2 = """
variable "count" {
  default = 3
}
locals {
  names = [for name in var.names : upper(name) if name != ""]
  ports = { for name, port in var.ports : name => port }
  total = (1 + 2) * -var.count
  one   = var.fast ? "a" : "b"
  deep  = module.x.list[0].*.id
}
job "web" {
  count = var.count
  meta  = { "key with space" = "v", plain = true }
  env {
    ADDR = "http://${NOMAD_IP_http}:${env["PORT"]}/$${not}"
  }
  template {
    data = <<-EOF
      {{ key "a" }} }
    EOF
  }
}
"""
VERSION_1 = """
"datacenter" = "east" // quoted names
ports { http = 8500, https = 8501 }
acl
# on a separate line
{
  enabled = true
}
limits { rate = 0x10 burst = 1e3 } telemetry { disable_compat_1.9 = true }
Routes = [
  {
    Match { HTTP { PathPrefix = "/" } }
  },
]
"""


def plain(value):
    """A tree as Python data: what is not known is None, and each name has the list of what it was given."""
    if isinstance(value, Scalar):
        return value.value
    if isinstance(value, Expression):
        return None
    if isinstance(value, Sequence):
        return [plain(item) for item in value.items]
    found = {}
    for entry in value.entries:
        inner = plain(entry.value)
        for label in reversed(entry.labels):
            inner = {label: inner}
        found.setdefault(entry.key, []).append(inner)
    return found


def theirs(value):
    """What python-hcl2 read, likewise."""
    if isinstance(value, dict):
        return {
            key: [theirs(one) for one in (inner if is_blocks(inner) else [inner])]
            for key, inner in value.items()
            if not key.startswith("__")
        }
    if isinstance(value, list):
        return [theirs(item) for item in value]
    if isinstance(value, str) and ("${" in value or "%{" in value):
        return None
    return value


def is_blocks(value):
    return isinstance(value, list) and any(isinstance(one, dict) and marked(one) for one in value)


def marked(one):
    """Whether a dict is a block, below its labels."""
    return "__is_block__" in one or any(isinstance(inner, dict) and marked(inner) for inner in one.values())


def comparable(value):
    """Without heredocs, whose text python-hcl2 keeps with its marks, and one level for blocks and labels alike."""
    if isinstance(value, dict):
        return {key: comparable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        items = [comparable(item) for item in value]
        return items[0] if len(items) == 1 and isinstance(items[0], dict) else items
    return "heredoc" if isinstance(value, str) and ("<<" in value or "\n" in value) else value


def test_version_2_is_read():
    tree, _ = read_hcl(VERSION_2)
    assert tree.block("locals").names() == {"names", "ports", "total", "one", "deep"}
    job = tree.block("job")
    assert job.labels == ("web",)
    assert isinstance(job.find("count").value, Expression)
    assert job.number("count") is None
    assert job.block("meta").text("key with space") == "v"
    assert job.block("meta").flag("plain") is True
    assert "{{ key" in job.block("template").text("data")


def test_version_1_is_read():
    tree, comments = read_hcl1(VERSION_1)
    assert tree.text("datacenter") == "east"
    assert tree.block("ports").number("https") == 8501
    assert (tree.block("limits").number("rate"), tree.block("limits").number("burst")) == (16, 1000)
    [route] = tree.blocks("Routes")
    assert route.block("match").block("http").text("path_prefix") == "/"
    assert tree.block("acl").flag("enabled") is True
    assert [comment.text for comment in comments] == ["quoted names", "on a separate line"]


@pytest.mark.long
def test_python_hcl2_does_not_read_version_1():
    """When it does, this reader can go."""
    with pytest.raises(LarkError):
        hcl2.loads(VERSION_1)


@pytest.mark.parametrize("path", HCL, ids=lambda path: str(path.relative_to(FIXTURES)))
def test_it_reads_the_same_as_python_hcl2(path):
    text = path.read_text()
    try:
        other = hcl2.loads(text, serialization_options=SerializationOptions(strip_string_quotes=True))
    except LarkError:
        assert "Routes" in text  # blocks within objects within lists are version 1
        assert read_hcl1(text)
        return
    ours, _ = read_hcl(text)
    assert comparable(plain(ours)) == comparable(theirs(other))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("017", 15),
        ("-0x1f", -31),
        ("1.", 1.0),
        (".5", 0.5),
        ("1E-2", 0.01),
        ("true", True),
        ('"\\a\\x41\\101\\u00e9\\U0001F600\\""', '\aAA\u00e9\U0001f600"'),
        ('"{%{"', "{%{"),
        ("<<EOF\n a\n  EOF\n", " a\n"),
        ("<<-EOF\n  a\n   b\n  EOF\n", "a\n b\n"),
        ("<<-EOF\n a\n  EOF\n", " a\n"),
        ("<<EOF\r\na\r\nEOF\r\n", "a\n"),
        ("[[1] [2,],]", [[1], [2]]),
        ("{ a = 1, b = 2 }", {"a": [1], "b": [2]}),
        ('"${a["b"]}"', None),
    ],
)
def test_a_value_of_version_1_is_what_the_agents_make_of_it(text, value):
    tree, _ = read_hcl1(f"a = {text}\nb = 1\n")
    assert plain(tree) == {"a": [value], "b": [1]}


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ('{"a": {"b": 1,}, "c": [1, 2,],}', {"a": [{"b": [1]}], "c": [[1, 2]]}),
        ('{"a": {"b": 1 "c": 2}, "d": 3}', {"a": [{"b": [1]}]}),
        ('{"a": [true, "b"], "c": null, "d": 1', {"a": [["b"]], "c": [None], "d": [1]}),
        ('{"a": {"b": }, "c": 2} x', {"a": [{}], "c": [2]}),
    ],
)
def test_json_is_read_as_an_agent_reads_it_that_takes_it_for_hcl(text, read):
    assert plain(read_hcl1(text)[0]) == read


def test_what_one_agent_refuses_another_may_take():
    """Nomad and Vault refuse an attribute that is given twice; all refuse a value that is missing."""
    dropped, twice = "a { b = 1 c = } }", "a = 1\na = 2\n"
    assert plain(read_hcl1(twice, CONSUL)[0]) == {"a": [1, 2]}
    for dialect in (NOMAD, VAULT):
        with pytest.raises(MalformedError, match="line 1"):
            read_hcl1(twice, dialect)
    for dialect in (CONSUL, NOMAD, VAULT):
        with pytest.raises(MalformedError, match="a value"):
            read_hcl1(dropped, dialect)


def test_places_are_where_the_name_stands():
    tree, _ = read_hcl('a = 1\n  server {\n\tretry_join = [\n    "x", "y"]\n}\n')
    server = tree.block("server")
    assert server.place == Place(2, 3)
    entry = server.find("retry_join")
    assert entry.place == Place(3, 2)
    assert [item.place for item in entry.value.items] == [Place(4, 5), Place(4, 10)]


def test_json_has_the_same_places():
    tree = read_json('{\n  "a": [1, {"b\\u0041": "\\/"}],\n  "c": -1.5e3\n}')
    assert tree.find("a").place == Place(2, 3)
    inner = tree.find("a").value.items[1]
    assert inner.find("bA").place == Place(2, 13)
    assert inner.text("bA") == "/"
    assert tree.number("c") == -1500


def test_names_are_compared_folded():
    tree, _ = read_hcl("NumRetries = 3\nretry_on = []\n")
    assert tree.number("num_retries") == 3
    assert not tree.has("RetryOn")
    assert tree.find("RetryOn") is not None


def test_what_is_not_known_before_the_run_is_not_guessed():
    tree, _ = read_hcl('attempts = var.attempts\nmode = "${var.mode}"\nenabled = !var.off\n')
    assert (tree.number("attempts"), tree.text("mode"), tree.flag("enabled")) == (None, None, None)
    assert tree.has("attempts", "mode", "enabled")


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a = \n}", 2, "a value was expected"),
        ('server {\n  a = "x\n}', 2, "a string is not closed"),
        ("server {\n  a = 1\n", 3, "a } is missing: the block opened in line 1"),
        ("a = [1, 2\n", 2, "a ] is missing"),
        ("a = [1 2]", 1, "a comma or ]"),
        ("a = <<EOF\nx\n", 1, "closing EOF"),
        ("a = f(1, 2\n", 1, "( is never closed"),
        ("a = (1]", 1, "] does not close"),
        ("/* a", 1, "never closed"),
        ("a b = 1", 1, "=, { or a label was expected"),
        ("a", 1, "=, { or a label was expected"),
        ("}", 1, "a name was expected"),
        ("a = x ? 1", 1, "a ? needs a :"),
        ('a = "${b"', 1, "a string is not closed"),
        ("a = " + "[" * (MAX_DEPTH + 1), 1, "nested deeper"),
        ("a " + "{ a " * (MAX_DEPTH + 1), 1, "nested deeper"),
        ("a = " + "!" * (MAX_DEPTH + 1), 1, "nested deeper"),
        ("a = " + "x ? 1 : " * (MAX_DEPTH + 1), 1, "nested deeper"),
        ("a = " + '"${' * (MAX_DEPTH + 1), 1, "nested deeper"),
    ],
)
def test_malformed_text_is_refused_with_its_place(text, line, said):
    with pytest.raises(MalformedError) as caught:
        read_hcl(text)
    assert said in caught.value.what
    assert caught.value.place.line == line


@pytest.mark.parametrize("text", ["", "{", "[1,]", '{"a": NaN}', '{"a" 1}', "{'a': 1}", "1" * 5000, "[" * 100000])
def test_malformed_json_is_refused(text):
    with pytest.raises(MalformedError):
        read_json(text)


def read(text):
    for reader in (read_hcl, *(partial(read_hcl1, dialect=dialect) for dialect in (CONSUL, NOMAD, VAULT))):
        try:
            tree, comments = reader(text)
        except MalformedError as error:
            refused = error
        else:
            assert isinstance(tree, Mapping)
            assert isinstance(comments, list)
            continue
        assert 1 <= refused.place.line <= text.count("\n") + 1
        assert refused.what


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet='abc_1.${}[]()"\\\n =,:#/*<->?!%\t\x00\u00e9', max_size=60))
def test_any_text_is_read_or_refused(text):
    read(text)


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(hcl1_texts.hcl() | hcl1_texts.json())
def test_any_odd_text_is_read_or_refused(text):
    read(text)


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_damage_to_a_job_is_read_or_refused(data):
    start = data.draw(st.integers(0, len(JOB)))
    end = data.draw(st.integers(start, min(len(JOB), start + 30)))
    read(JOB[:start] + data.draw(st.text(max_size=5)) + JOB[end:])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(json_values, st.sampled_from([None, 2]))
def test_json_is_read_as_the_standard_library_reads_it(value, indent):
    def back(tree):
        if isinstance(tree, Mapping):
            return {entry.key: back(entry.value) for entry in tree.entries}
        return [back(item) for item in tree.items] if isinstance(tree, Sequence) else tree.value

    assert back(read_json(json.dumps(value, indent=indent))) == value
