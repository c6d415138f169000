"""`hashidrill audit`: what it prints, writes and ends with."""

import json
import os
import re
import runpy
import warnings
from pathlib import Path
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from typer.testing import CliRunner

from hashidrill.clients.audit.report import page
from hashidrill.clients.audit.run import RULES
from hashidrill.core.errors import UsageError
from hashidrill.faces.cli.app import app

FIXTURES = Path(__file__).with_name("cases")
ROOT = FIXTURES.parents[4]
ALONE = 'data_dir = "/opt/consul"\nserver = true\nbootstrap_expect = 3\n'
CAPPED = 'data_dir = "/opt/consul"\nretry_join = ["10.0.0.1"]\nretry_max = 3\n'

_TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string", "minLength": 1}}}
_LEVEL = {"enum": ["none", "note", "warning", "error"]}
_LOCATION = {
    "type": "object",
    "required": ["physicalLocation"],
    "properties": {
        "physicalLocation": {
            "required": ["artifactLocation"],
            "properties": {
                "artifactLocation": {"required": ["uri"], "properties": {"uri": {"pattern": r"^[^\s\\]+$"}}},
                "region": {"properties": {"startLine": {"minimum": 1}, "startColumn": {"minimum": 1}}},
            },
            "additionalProperties": False,
        }
    },
    "additionalProperties": False,
}
SARIF = {
    "type": "object",
    "required": ["version", "runs"],
    "properties": {
        "version": {"const": "2.1.0"},
        "$schema": {"type": "string"},
        "runs": {
            "type": "array",
            "items": {
                "required": ["tool", "results"],
                "properties": {
                    "tool": {
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "required": ["name", "rules"],
                                "properties": {
                                    "rules": {
                                        "items": {
                                            "required": ["id", "shortDescription", "fullDescription", "help"],
                                            "properties": {
                                                "shortDescription": _TEXT,
                                                "fullDescription": _TEXT,
                                                "help": _TEXT,
                                                "defaultConfiguration": {"properties": {"level": _LEVEL}},
                                                "helpUri": {"pattern": "^https://"},
                                            },
                                        }
                                    }
                                },
                            }
                        },
                    },
                    "results": {
                        "items": {
                            "required": ["ruleId", "ruleIndex", "level", "message", "locations"],
                            "properties": {
                                "level": _LEVEL,
                                "message": _TEXT,
                                "locations": {"items": _LOCATION, "minItems": 1},
                                "suppressions": {
                                    "items": {
                                        "required": ["kind", "justification"],
                                        "properties": {"kind": {"enum": ["inSource", "external"]}},
                                    }
                                },
                            },
                        }
                    },
                },
            },
        },
    },
    "additionalProperties": False,
}
"""The part of the SARIF 2.1.0 schema that is used, with its required properties."""


def run(*words):
    return CliRunner().invoke(app, ["audit", *map(str, words)])


@pytest.fixture
def alone(tmp_path):
    file = tmp_path / "server.hcl"
    file.write_text(ALONE)
    return file


def test_a_finding_is_told_with_its_place_and_all_that_one_needs(alone):
    result = run(alone)
    assert result.exit_code == 1
    first, *rest = result.stdout.splitlines()
    assert first == f"{alone}:2:1: error HD101 this Consul server has no retry_join: it never looks for other agents"
    labels = [line.split(":")[0].strip() for line in rest[:4]]
    assert labels == ["why", "default", "fix", "read"]
    assert rest[-1] == "1 file, 1 error, 0 warnings, 0 infos"
    assert result.stderr == ""


def test_a_rule_is_explained_once_however_often_it_finds_something(tmp_path):
    for number in range(27):
        (tmp_path / f"{number:02}").mkdir()
        (tmp_path / f"{number:02}" / "server.hcl").write_text(ALONE)
    lines = run(tmp_path).stdout.splitlines()
    assert sum("error HD101" in line for line in lines) == 27
    assert [sum(line.startswith(f"    {label}:") for line in lines) for label in ("why", "fix", "read")] == [1, 1, 1]
    assert lines[1].startswith("    why:")


UNREAD = {
    "packs/web/metadata.hcl": 'app { url = "" }\n',
    "packs/web/templates/web.nomad.tpl": 'job [[ template "job_name" . ]] {\n}\n',
    "jobs/web.nomad.j2": 'job "{{ name }}" {}\n',
    "docker-compose.yml": "services: {consul: {image: consul}}\n",
    "chart/Chart.yaml": "name: a\n",
    "chart/values.yaml": "consul: {server: {replicas: 3}}\n",
    "chart/values-prod.yaml": "nothing: 1\n",
    "k8s.yaml": "image: hashicorp/vault\n",
    "start.sh": "exec consul agent -retry-max=3\n",
    "other.sh": "echo hello\n",
    "main.go": 'import "github.com/hashicorp/consul/api"\n',
    "other.go": "// consul\n",
}


@pytest.fixture
def unread(tmp_path):
    for name, text in UNREAD.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.lie
def test_what_was_seen_and_not_read_is_said(unread):
    found = {Path(each["file"]).name: each["what"] for each in json.loads(run(unread, "--json").stdout)["unread"]}
    assert found == {
        "web.nomad.tpl": "Nomad Pack template",
        "web.nomad.j2": "job template",
        "docker-compose.yml": "compose file",
        "values.yaml": "Helm chart file",
        "k8s.yaml": "YAML file",
        "start.sh": "shell script",
        "main.go": "Go file",
    }
    result = run(unread)
    assert result.exit_code == 0
    assert f"found but not read: 1 Nomad Pack template: {unread / 'packs/web/templates/web.nomad.tpl'}" in result.stdout
    assert "7 files not read" in result.stdout
    [script] = [line for line in result.stdout.splitlines() if "shell script" in line]
    assert script.endswith(f"{script.split()[7]} try `hashidrill retry -- {script.split()[7].rstrip(';')}`")
    [invocation] = sarif(unread)["invocations"]
    notes = [each["message"]["text"] for each in invocation["toolExecutionNotifications"] if each["level"] == "note"]
    assert len(notes) == 7
    assert "found but not read: shell script" in notes


def test_many_of_a_kind_are_counted_and_all_named_where_asked_for(tmp_path):
    for number in range(61):
        (tmp_path / f"{number:02}.nomad.tpl").write_text("job [[ .x ]] {}\n")
    result = run(tmp_path, "-v")
    [line] = [line for line in result.stdout.splitlines() if "found but not read" in line]
    assert line.startswith("found but not read: 61 job templates: ")
    assert line.endswith("02.nomad.tpl, ...")
    assert result.stderr.count("not read: a job template") == 61


def test_what_is_excluded_is_not_told_as_unread(unread):
    assert "not read" not in run(unread, "--exclude", "*").stdout


@pytest.mark.lie
def test_a_rule_that_was_muted_is_told_with_the_reason(tmp_path):
    (tmp_path / "a.py").write_text((FIXTURES / "HD601/near_miss/caller.py").read_text())
    result = run(tmp_path)
    where = f"{tmp_path / 'a.py'}:5:9: HD601 muted: its only call is retried in the loop of line 9"
    assert (where in result.stdout, result.exit_code) == (True, 0)
    assert result.stdout.splitlines()[-1].endswith("1 muted")
    [muted] = json.loads(run(tmp_path, "--json").stdout)["muted"]
    assert (muted["rule"], muted["reason"]) == ("HD601", "its only call is retried in the loop of line 9")
    [note] = sarif(tmp_path)["invocations"][0]["toolExecutionNotifications"]
    assert (note["level"], note["message"]["text"][:12]) == ("note", "HD601 muted:")


def test_nothing_found_is_exit_code_0(tmp_path):
    (tmp_path / "web.json").write_text('{"service": {"name": "web", "port": 80}}')
    result = run(tmp_path)
    assert (result.exit_code, result.stdout) == (0, "1 file, 0 errors, 0 warnings, 0 infos\n")


def test_an_empty_directory_is_told(tmp_path):
    result = run(tmp_path)
    assert result.exit_code == 0
    assert "nothing was checked" in result.stderr


@pytest.mark.parametrize(("fail_on", "code"), [("error", 0), ("warning", 1), ("info", 1), ("never", 0)])
def test_fail_on_says_what_counts(tmp_path, fail_on, code):
    (tmp_path / "client.hcl").write_text(CAPPED)
    assert run(tmp_path, "--fail-on", fail_on).exit_code == code


def test_infos_do_not_fail_unless_asked_for(tmp_path):
    folder = FIXTURES / "HD213/fires"
    assert run(folder).exit_code == 0
    assert run(folder, "--fail-on", "info").exit_code == 1


def test_a_file_that_cannot_be_read_is_exit_code_2_and_the_others_are_judged(alone):
    (alone.parent / "broken.hcl").write_text("server {\n")
    result = run(alone.parent)
    assert result.exit_code == 2
    assert "HD101" in result.stdout
    assert "1 file not judged" in result.stdout
    assert result.stderr.startswith(f"{alone.parent / 'broken.hcl'}:2:1: a }} is missing")
    assert run(alone.parent, "--fail-on", "never").exit_code == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "no files given"),
        ((".", "--kind", "consul-agnet"), "did you mean consul-agent"),
        ((".", "--ignore", "HD101"), "say why"),
        ((".", "--ignore", "HD101="), "say why"),
        ((".", "--ignore", "HD999=x"), "there is no rule 'HD999'"),
        (("--explain", "HD9"), "there is no rule 'HD9'"),
        ((FIXTURES / "HD101/near_miss_single_server", "--output", "/nowhere/x"), "cannot be written"),
    ],
)
def test_bad_usage_is_one_clear_message(words, said):
    result = run(*words)
    assert isinstance(result.exception, UsageError)
    assert said in str(result.exception)
    assert result.exception.exit_code == 2


def test_unknown_formats_are_refused():
    assert run(".", "--format", "yaml").exit_code == 2


def test_a_rule_is_left_out_with_a_reason(alone):
    result = run(alone, "--ignore", "hd101=one node on purpose", "--ignore", "HD202=not ours")
    assert result.exit_code == 0
    assert "HD101 suppressed: one node on purpose" in result.stdout
    assert result.stderr == "--ignore HD202: this rule finds nothing here\n"


@pytest.mark.parametrize(
    "text",
    [
        "{}retry_max = 3 # hashidrill: ignore HD102 -- because\n",
        "{}# hashidrill: ignore HD101, HD102 -- because\n\n// and more\nretry_max = 3\n",
        "{}/* hashidrill: ignore hd102 -- because */\nretry_max = 3\n",
    ],
)
def test_a_suppression_holds_for_its_line_or_the_next(tmp_path, text):
    file = tmp_path / "client.hcl"
    file.write_text(text.format('data_dir = "/opt/consul"\nretry_join = ["10.0.0.1"]\n'))
    result = json.loads(run(file, "--json").stdout)
    assert [each["rule"] for each in result["suppressed"]] == ["HD102"]
    assert [each["reason"] for each in result["suppressed"]] == ["because"]
    assert {each["rule"] for each in result["findings"]} <= {"HD002"}


def test_a_suppression_without_a_reason_suppresses_nothing(tmp_path):
    (tmp_path / "client.hcl").write_text(CAPPED.replace("= 3", "= 3 # hashidrill: ignore HD102 --"))
    result = json.loads(run(tmp_path, "--json").stdout)
    assert [each["rule"] for each in result["findings"]] == ["HD001", "HD102"]


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        ("a.py", "import hvac\n\n# hashidrill: ignore HD603 -- a script run by hand\nhvac.Client()\n", "HD603"),
        ("a.service", "[Service]\n; hashidrill: ignore HD501 -- a test\nExecStart=/bin/nomad agent\n", "HD501"),
        ("a.env", "# hashidrill: ignore HD302 -- a test\nVAULT_MAX_RETRIES=0\n", "HD302"),
    ],
)
def test_other_languages_have_suppressions_too(tmp_path, name, text, rule):
    (tmp_path / name).write_text(text)
    result = json.loads(run(tmp_path, "--json").stdout)
    assert ([each["rule"] for each in result["suppressed"]], result["findings"]) == ([rule], [])


def test_json_says_everything(alone):
    result = json.loads(run(alone, "--json").stdout)
    [finding] = result["findings"]
    assert (finding["rule"], finding["severity"], finding["line"], finding["column"]) == ("HD101", "error", 2, 1)
    assert finding["fix"] == RULES["HD101"].fix
    assert finding["verified"] == RULES["HD101"].verified
    assert result["files"] == {str(alone): "consul-agent"}


def sarif(*words):
    document = json.loads(run(*words, "--format", "sarif").stdout)
    jsonschema.validate(document, SARIF)
    return document["runs"][0]


def test_sarif_holds_rules_findings_suppressions_and_problems(tmp_path):
    (tmp_path / "a b.hcl").write_text(ALONE)
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "client.hcl").write_text(CAPPED)
    (tmp_path / "x" / "broken.hcl").write_text("{{")
    (tmp_path / "x" / "gone.hcl").symlink_to("nowhere.hcl")
    found = sarif(tmp_path, "--ignore", "HD102=a test")
    assert [rule["id"] for rule in found["tool"]["driver"]["rules"]] == list(RULES)
    assert [result["ruleId"] for result in found["results"]] == ["HD101", "HD102"]
    for result in found["results"]:
        assert found["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
    assert found["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"].endswith("/a%20b.hcl")
    assert found["results"][1]["suppressions"] == [{"kind": "inSource", "justification": "a test"}]
    [invocation] = found["invocations"]
    assert invocation["executionSuccessful"] is False
    assert len(invocation["toolExecutionNotifications"]) == 2


@pytest.mark.long
def test_sarif_of_everything_that_fires_is_right():
    found = sarif(FIXTURES)
    # all at once they meet near misses that hold for them too: a server of that datacenter that has joined the WAN,
    # a unit that takes one layer of retries away from a file of that name
    assert set(RULES) - {result["ruleId"] for result in found["results"]} <= {"HD103", "HD403"}


def test_sarif_that_is_not_right_would_be_seen():
    document = {"version": "2.1.0", "runs": [{"tool": {"driver": {"name": "x", "rules": []}}, "results": [{}]}]}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SARIF)


def test_junit_has_a_case_for_each_file(tmp_path):
    (tmp_path / "server.hcl").write_text(ALONE)
    (tmp_path / "web.nomad").write_text((FIXTURES / "HD213/fires/report.nomad").read_text())
    (tmp_path / "broken.hcl").write_text("a = \x0b\n")
    output = tmp_path / "report.xml"
    result = run(tmp_path, "--format", "junit", "--output", output)
    assert (result.exit_code, result.stdout) == (2, "")
    [suite] = ET.parse(output).getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "1")
    cases = {Path(case.get("name")).name: [child.tag for child in case] for case in suite}
    assert cases == {"server.hcl": ["failure"], "web.nomad": ["system-out"], "broken.hcl": ["error"]}


def test_text_goes_into_a_file_without_colours(alone, tmp_path):
    output = tmp_path / "audit.txt"
    assert run(alone, "--output", output).stdout == ""
    assert "HD101" in output.read_text()
    assert "\x1b" not in output.read_text()


def test_verbose_says_what_was_judged_and_what_was_not(alone):
    (alone.parent / "package.json").write_text("{}")
    (alone.parent / "node_modules").mkdir()
    result = run(alone.parent, "-v")
    assert f"{alone}: judged as consul-agent" in result.stderr
    assert "package.json: not recognised" in result.stderr
    assert "node_modules/: not entered" in result.stderr


def test_rules_are_listed_and_explained():
    listed = run("--rules").stdout.splitlines()
    assert [line.split()[0] for line in listed] == sorted(RULES)
    said = run("--explain", "hd101").stdout
    assert all(part in said for part in ("HD101 consul-no-retry-join (error)", "why:", "test_audit_claims.py::"))


def test_the_reference_page_is_made_from_the_rules(capsys):
    written = (ROOT / "playbooks/reference-audit.md").read_text()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # it is imported already
        runpy.run_module("hashidrill.clients.audit.report", run_name="__main__")
    assert written == capsys.readouterr().out == page(), "make it again, as its first lines say"


ODD = b"odd\xff\x1b]0;x\x07 \xe2\x9c\x93.hcl"


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
def test_a_file_with_an_odd_name_leaves_every_report_well_formed(tmp_path, monkeypatch, encoding):
    (tmp_path / os.fsdecode(ODD)).write_text(ALONE)
    monkeypatch.setattr("locale.getpreferredencoding", lambda *_: encoding)
    monkeypatch.chdir(tmp_path)
    for where in (".", tmp_path):
        assert run(where, "--format", "junit", "--output", "junit.xml").exit_code == 1
        cases = ET.fromstring((tmp_path / "junit.xml").read_bytes()).iter("testcase")
        assert any("odd" in case.get("name") for case in cases)
        [result, *_] = sarif(where)["results"]
        uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        assert uri.endswith("odd%FF%1B%5D0%3Bx%07%20%E2%9C%93.hcl")
        found = run(where, "--json").stdout
        assert found.isascii()
        assert not re.search(r"\\ud[89a-f]", found)
        run(where, "--output", "report.txt")
        assert not re.search(rb"[\x00-\x08\x0b-\x1f\x7f]", (tmp_path / "report.txt").read_bytes())
