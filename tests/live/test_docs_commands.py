"""The commands that the README shows are really run, as a stranger would type them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from drills import hashidrill
from hashidrill.testing.recordings import RecordingBuilder

HASHIDRILL = Path(sys.executable).with_name("hashidrill")


@pytest.fixture
def stranger(tmp_path):
    """Runs hashidrill in an empty folder of its own."""

    def run(*words, code=0, timeout_s=60):
        environment = {key: value for key, value in os.environ.items() if key not in {"COLUMNS", "HASHIDRILL_RUNS"}}
        done = subprocess.run(
            [HASHIDRILL, *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == code, f"{words}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stdout + done.stderr
        return done.stdout

    run.folder = tmp_path
    return run


def test_a_first_experiment_is_written_and_found_right(stranger):
    assert "hashidrill validate my-first.yaml" in stranger("new", "my-first.yaml")
    assert stranger("validate", "my-first.yaml").split() == ["ok", "my-first.yaml"]


def test_an_experiment_that_is_not_right_is_refused_with_its_place(stranger):
    stranger("new", "wrong.yaml")
    file = stranger.folder / "wrong.yaml"
    file.write_text(file.read_text().replace("disk.latency, on", "disk.latencies, on"))
    [result] = json.loads(stranger("validate", "wrong.yaml", "--json", code=2))
    assert re.search(r"wrong\.yaml:\d+:\d+", result["error"])
    assert "disk.latency" in result["error"]


def test_new_never_writes_over_a_file(stranger):
    stranger("new", "mine.yaml")
    (stranger.folder / "mine.yaml").write_text("mine")
    stranger("new", "mine.yaml", code=2)
    assert (stranger.folder / "mine.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    ("kind", "member"),
    [
        ("experiments", "raft/slow-leader-disk"),
        ("faults", "disk.latency"),
        ("loads", "consul.kv.write"),
        ("hypotheses", "writes_recover"),
    ],
)
def test_what_is_listed_can_be_shown(stranger, kind, member):
    assert member in stranger("list", kind)
    assert member.rpartition("/")[2] in stranger("show", member)


def test_the_schema_is_printed(stranger):
    assert json.loads(stranger("schema"))["title"] == "hashidrill experiment"


def recorded(folder, slow_until):
    """A recording as a run leaves it, in the folder where runs are kept."""
    run = RecordingBuilder(folder / ".hashidrill/runs/20250101-000000-planted-0000")
    run.fault("disk.latency", "consul-1", at=10, until=30)
    run.load("kv-writes", latency=lambda t: 3.0 if 10 <= t < slow_until else 0.01).final_reads("kv-writes").healthy()
    run.expect("writes_recover", load="kv-writes", within="10s")
    return run.build().path


@pytest.mark.parametrize(("slow_until", "verdict", "code"), [(32, "PASS", 0), (44, "FAIL", 1)])
def test_a_recording_is_judged_again_with_the_verdict_as_exit_code(stranger, slow_until, verdict, code):
    path = recorded(stranger.folder, slow_until)
    said = stranger("check", "last", code=code)
    assert verdict in said
    assert (path / "report.html").stat().st_size > 1000
    assert f"{verdict}:" in stranger("show", "last")
    assert path.name in stranger("list", "runs")
    assert json.loads(stranger("check", "last", "--json", code=code))["verdict"] == verdict


def test_a_recording_of_a_fault_that_was_not_proven_is_invalid(stranger):
    run = RecordingBuilder(stranger.folder / "run").fault("disk.latency", at=10, until=30, proven=False)
    run.load("kv-writes").final_reads("kv-writes").healthy().build()
    assert "INVALID" in stranger("check", "run", code=3)


def test_the_demo_passes_and_leaves_its_report_where_it_says(demo):
    folder, done = demo
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert "PASS" in said
    assert "proven in force" in said
    assert "proven gone" in said
    [report] = re.findall(r"^\s+report\s+(\S+)$", said, re.MULTILINE)
    page = (folder / report).read_text()
    assert "disk.latency" in page
    fetched = re.search(r"""<(?:script|img|iframe|link)\b[^>]*\s(?:src|href)\s*=\s*["']?https?:""", page)
    assert fetched is None, f"the report asks the network for something: {fetched}"
    recording = (folder / report).parent
    assert json.loads((recording / "verdict.json").read_text())["verdict"] == "PASS"
    assert list(recording.glob("logs/consul-*/consul.log"))
    # the recording alone gives the same verdict
    assert json.loads(hashidrill("check", "last", "--json", cwd=folder).stdout)["verdict"] == "PASS"


def test_a_folder_is_audited_and_its_finding_named(stranger):
    (stranger.folder / "consul.hcl").write_text('data_dir = "/opt/consul"\nretry_max = 3\nretry_join = ["10.0.0.1"]\n')
    assert "HD102" in stranger("audit", ".", code=1)


def test_a_bare_curl_is_said_not_to_retry(stranger):
    said = stranger("retry", "--fault", "502", "--", "curl", "-sf", "{url}/v1/kv/my-key", code=1, timeout_s=120)
    assert re.search(r"present.*502.*FAIL|FAIL.*present.*502", said), said
