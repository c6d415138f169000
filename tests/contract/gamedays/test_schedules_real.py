"""What is written is read by the one that it is for: the real nomad, systemd-analyze, and bash as GitHub starts it."""

import datetime as dt
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from docs_pages import ROOT
from drills import hashidrill
from hashidrill.gamedays.history.store import Store, opened
from hashidrill.gamedays.schedules import jobs
from hashidrill.gamedays.schedules.jobs import Job, cron, next_times, on_calendar

EXPRESSIONS = [
    "* * * * *",
    "17 2 * * *",
    "*/7 */5 * * *",
    "0 9-17/4 * * MON-FRI",
    "30 1 1,15 jan,JUL *",
    "0 4 1 * 1",
    "5 0 29 2 *",
    "0 0 31 * *",
    "0 12 * * 5-7",
]
ODD = ['a "b"', "${c} %{d}", "$e %f", "back\\slash", "it's"]
SYSTEMD = shutil.which("systemd-analyze")
needs_systemd = [
    pytest.mark.skipif(SYSTEMD is None, reason="this machine has no systemd-analyze"),
    pytest.mark.may_skip(reason="a machine without systemd has no timers"),
]


def job(text="17 2 * * *", words=("/bin/true",), **more):
    return Job("slow-leader-disk", list(words), cron(text), **more)


# Nomad


@pytest.mark.nomad
@pytest.mark.needs("nomad 1.10.5")
class TestNomad:
    @pytest.fixture
    def validate(self, binary, tmp_path):
        """`nomad job validate` without a server: (exit code, what it said)."""

        def run(text):
            file = tmp_path / "job.nomad.hcl"
            file.write_text(text)
            done = subprocess.run(
                [binary("nomad", "1.10.5").path, "job", "validate", file],
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
                env={**os.environ, "NOMAD_ADDR": "http://127.0.0.1:1"},
            )
            return done.returncode, done.stdout + done.stderr

        return run

    @pytest.mark.parametrize("text", EXPRESSIONS)
    def test_each_job_is_valid(self, text, validate):
        odd = job(text, ["/bin/echo", *ODD], variables={"ODD": '${x} "y"'})
        code, said = validate(jobs.job_file(odd, node="a"))
        assert code == 0, said

    def test_a_wrong_expression_and_a_wrong_time_zone_are_seen(self, validate):
        """Planted: what this binary says of a file that it did not read would be no proof."""
        good = jobs.job_file(job())
        for old, new in (("17 2 * * *", "17 26 * * *"), ('"UTC"', '"Mars/Olympus"'), ("periodic {", "periodical {")):
            assert old in good
            assert validate(good.replace(old, new))[0] != 0


# systemd


@pytest.mark.lie
@pytest.mark.parametrize("text", EXPRESSIONS)
class TestCalendar:
    pytestmark = needs_systemd

    def test_systemd_runs_it_when_cron_would(self, text):
        found = cron(text)
        after = dt.datetime(2026, 1, 10, 3, 30, tzinfo=dt.UTC)
        elapses = set()
        for line in on_calendar(found, "UTC"):
            done = subprocess.run(
                ["systemd-analyze", "calendar", "--base-time=2026-01-10 03:30:00 UTC", "--iterations=12", line],
                capture_output=True,
                text=True,
                check=True,
                env={**os.environ, "TZ": "UTC", "LC_ALL": "C"},
            )
            stamps = re.findall(r"\w{3} (\d{4}-\d\d-\d\d \d\d:\d\d):00 UTC", done.stdout)
            elapses |= {dt.datetime.fromisoformat(each).replace(tzinfo=dt.UTC) for each in stamps}
        expected = next_times(found, after, 6)
        assert expected
        assert sorted(elapses)[: len(expected)] == expected
        for line in on_calendar(found, "Europe/Berlin"):
            subprocess.run(["systemd-analyze", "calendar", line], check=True, capture_output=True)


class TestUnits:
    pytestmark = needs_systemd

    def units(self, folder, **more):
        files = jobs.unit_files(job(directory=folder, **more))
        for name, text in files.items():
            (folder / name).write_text(text)
        return [folder / name for name in files]

    def verified(self, paths):
        command = ["systemd-analyze", "verify", *map(str, paths)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        # what it says of units of this machine is not about ours
        return [line for line in done.stderr.splitlines() if "hashidrill-" in line]

    def test_both_units_are_valid(self, tmp_path):
        assert self.verified(self.units(tmp_path, words=["/bin/echo", *ODD], variables={"HOME": '/a "b" %c'})) == []

    def test_what_is_wrong_in_a_unit_is_seen(self, tmp_path):
        """Planted."""
        service, timer = self.units(tmp_path)
        for path, old, new in ((timer, "02:17:00", "26:17:00"), (service, "/bin/true", "/bin/no-such-program")):
            text = path.read_text()
            path.write_text(text.replace(old, new))
            assert self.verified([service, timer]), new
            path.write_text(text)


# what a schedule starts, started


def planted(folder):
    """A stand-in for `hashidrill` that leaves a run in the history, as a run of three minutes would."""
    program = folder / "hashidrill"
    program.write_text(
        f"#!{sys.executable}\n"
        "import os, sys; from pathlib import Path\n"
        f"sys.path[:0] = [{str(ROOT / 'tests/support')!r}]\n"
        "from history_runs import recorded; from hashidrill.gamedays.history.from_recording import record_run\n"
        "number = len(list(Path('.hashidrill/runs').glob('*')))\n"
        "Path('words').write_text(repr(sys.argv[1:]))\n"
        "record_run(recorded(Path('.hashidrill/runs'), f'run-{Path.cwd().name[-1]}-{number}').path)\n"
    )
    program.chmod(0o755)
    return program


def runs_in(file):
    with opened(file) as database:
        return [run.id for run in Store(database).runs()]


@pytest.mark.long
def test_the_service_starts_the_run_which_is_in_the_history(tmp_path):
    """ExecStart and Environment as systemd reads them: words in double quotes, with $$ and %% for $ and %."""
    history = tmp_path / "history.sqlite"
    words = ["run", *ODD]
    environment = {"HASHIDRILL_HISTORY": str(history), "HOME": str(tmp_path)}
    text = jobs.unit_files(job(words=[str(planted(tmp_path)), *words], directory=tmp_path, variables=environment))[
        "hashidrill-slow-leader-disk.service"
    ]
    values = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
    undone = [word.replace("%%", "%") for word in shlex.split(values["ExecStart"].replace("$$", "$"))]
    given = dict(
        word.replace("%%", "%").split("=", 1)
        for line in re.findall(r"^Environment=(.*)$", text, re.MULTILINE)
        for word in shlex.split(line)
    )
    for _ in range(2):
        subprocess.run(undone, cwd=values["WorkingDirectory"], env={**os.environ, **given}, check=True, timeout=60)
    assert (tmp_path / "words").read_text() == repr(words)
    assert [run[-2:] for run in runs_in(history)] == ["-0", "-1"]


@pytest.mark.long
def test_each_step_of_the_workflow_runs_and_the_next_workflow_has_the_history(tmp_path):
    """As a runner does: bash with its options; the cache is a folder."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "sudo").write_text("#!/bin/sh\nexit 0\n")
    (bin_folder / "sudo").chmod(0o755)
    planted(bin_folder)
    text = jobs.workflow(job(words=["hashidrill", "run", *ODD[:1], "raft/slow-leader-disk"]))
    document = YAML(typ="safe").load(text)
    drill = document["jobs"]["drill"]
    environment = {**os.environ, **drill["env"], "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    cache = tmp_path / "cached"
    for number in range(2):
        work = tmp_path / f"work-{number}"
        work.mkdir()
        kept = work / drill["env"]["HASHIDRILL_HISTORY"]
        if cache.exists():
            kept.parent.mkdir()
            shutil.copy(cache, kept)
        for step in drill["steps"]:
            if "run" not in step:
                continue
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
                cwd=work,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            assert done.returncode == 0, done.stderr
        shutil.copy(kept, cache)
    assert runs_in(cache) == ["run-0-0", "run-1-0"]


@pytest.mark.long
def test_the_command_writes_files_that_their_readers_take(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[dependency-groups]\ndev = ["hashidrill"]\n')
    for to in ("--nomad", "--systemd", "--github"):
        done = hashidrill("schedule", "raft/frozen-leader", "--cron", "17 2 * * *", to, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.rglob("hashidrill-*") if path.is_file()} == {
        f"hashidrill-raft-frozen-leader.{end}" for end in ("nomad.hcl", "service", "timer", "yml")
    }
    assert Path(tmp_path, ".github/workflows/hashidrill-raft-frozen-leader.yml").is_file()
