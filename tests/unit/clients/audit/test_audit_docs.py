"""The page about the audit is true: its commands run, and what it says to write works."""

import json
import re
import shutil

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from docs_pages import ROOT, page, words_of
from hashidrill.clients.audit.sources import SUFFIXES
from hashidrill.faces.cli.app import app

PAGE = page("playbooks/audit-your-config.md")
SHOWN = [line.strip() for block in PAGE.fences("sh") for line in block.splitlines()]
[STEP] = re.findall(r"uv run --project hashidrill (hashidrill audit .*)", PAGE.text)
FIXTURES = ROOT / "tests/unit/clients/audit/cases"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Someone's repository, with a warning in it."""
    (tmp_path / "consul").mkdir()
    (tmp_path / "nomad").mkdir()
    shutil.copytree(FIXTURES / "HD212/fires", tmp_path / "nomad/jobs")
    shutil.copytree(FIXTURES / "HD101/near_miss_other_file", tmp_path / "consul", dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("line", [*SHOWN, STEP])
def test_each_command_on_the_page_does_what_it_says(project, line):
    words = words_of(line)
    result = CliRunner().invoke(app, words)
    expected = 0 if {"--rules", "--explain", "--fail-on"} & set(words) else 1
    assert result.exit_code == expected, result.output
    if "--output" in words:
        assert (project / words[words.index("--output") + 1]).stat().st_size > 100
    else:
        assert "HD" in result.stdout


def test_the_suppression_on_the_page_suppresses(project):
    [block] = PAGE.fences("hcl")
    (project / "consul" / "more.hcl").write_text(block)
    result = json.loads(CliRunner().invoke(app, ["audit", "consul", "--json"]).stdout)
    assert [each["rule"] for each in result["suppressed"]] == ["HD102"]
    assert result["findings"] == []


def test_the_page_names_the_files_that_are_read():
    read = PAGE.section("What is read")
    assert set(SUFFIXES) == set(re.findall(r"`(\.[a-z]+)`", read.split("end in")[1].split(";")[0]))


def test_the_workflow_uploads_what_the_command_writes():
    [block] = PAGE.fences("yaml")
    steps = YAML(typ="safe").load(block)["jobs"]["audit"]["steps"]
    assert steps[-1]["with"]["sarif_file"] == STEP.split("--output ")[1]
