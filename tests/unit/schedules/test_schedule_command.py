"""`hashidrill schedule` writes what was asked for, never over a file of somebody else, and no secret."""

from __future__ import annotations

import json
import sys

import anyio
import httpx
import pytest
from ruamel.yaml import YAML

from hashidrill import cli
from hashidrill.cli import schedule
from hashidrill.datacenter.attach.login import Login
from hashidrill.datacenter.attach.wire import Wire
from hashidrill.errors import UsageError
from hashidrill.schedules import nomad
from hashidrill.schedules.cron import cron
from hashidrill.schedules.job import Job

NIGHTLY = ("--cron", "17 2 * * *")


@pytest.fixture
def hashidrill(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(schedule, "_ourselves", lambda: "/opt/hashidrill/bin/hashidrill")

    def go(*words):
        monkeypatch.setattr(sys, "argv", ["hashidrill", "schedule", *map(str, words)])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        out = capsys.readouterr()
        return code, out.out, out.err

    return go


def test_a_nomad_job_never_overlaps_never_restarts_and_runs_here(hashidrill, tmp_path):
    code, out, _ = hashidrill("raft/frozen-leader", *NIGHTLY, "--nomad", "--node", "drills-1")
    assert code == 0
    text = (tmp_path / "hashidrill-frozen-leader.nomad.hcl").read_text()
    for line in ('crons            = ["17 2 * * *"]', "prohibit_overlap = true", 'time_zone        = "UTC"',
                 'value     = "drills-1"', f'work_dir = "{tmp_path}"', 'command  = "/opt/hashidrill/bin/hashidrill"',
                 'kill_signal  = "SIGINT"', "attempts = 0", "unlimited = false"):  # fmt: skip
        assert line in text
    assert 'frozen-leader.yaml", "--plain"]' in text
    assert "HASHIDRILL_HISTORY" in text
    assert "next: nomad job run hashidrill-frozen-leader.nomad.hcl" in out
    assert "runs at " in out


def test_a_job_for_any_host_is_bound_to_none(hashidrill, tmp_path):
    hashidrill("raft/frozen-leader", *NIGHTLY, "--nomad", "--node", "any")
    assert "constraint" not in (tmp_path / "hashidrill-frozen-leader.nomad.hcl").read_text()


@pytest.mark.parametrize(("user", "line"), [("drills", 'user   = "drills"'), ("", None)])
def test_the_account_that_runs_it_can_be_named(user, line, hashidrill, tmp_path):
    hashidrill("raft/frozen-leader", *NIGHTLY, "--nomad", "--user", user)
    text = (tmp_path / "hashidrill-frozen-leader.nomad.hcl").read_text()
    assert [each.strip() for each in text.splitlines() if each.strip().startswith("user ")] == ([line] if line else [])


def test_a_user_without_a_name_or_a_home_schedules_too(hashidrill, tmp_path, monkeypatch):
    """As in a container that was started with a number for a user."""
    monkeypatch.setattr(schedule.os, "geteuid", lambda: 4_000_000_001)
    monkeypatch.setattr(schedule.pwd, "getpwuid", lambda number: {}[number])
    monkeypatch.delenv("HOME", raising=False)
    assert hashidrill("raft/frozen-leader", *NIGHTLY, "--systemd")[0] == 0
    service = (tmp_path / "hashidrill-frozen-leader.service").read_text()
    assert "User=" not in service
    assert "HOME=" not in service


def test_a_timer_and_its_service_are_written(hashidrill, tmp_path):
    code, out, _ = hashidrill("raft/frozen-leader", *NIGHTLY, "--systemd", "--time-zone", "Europe/Berlin",
                              "--output", "units")  # fmt: skip
    assert code == 0
    timer = (tmp_path / "units/hashidrill-frozen-leader.timer").read_text()
    service = (tmp_path / "units/hashidrill-frozen-leader.service").read_text()
    assert "OnCalendar=*-*-* 02:17:00 Europe/Berlin\n" in timer
    assert "Persistent=false" in timer
    assert "Type=oneshot" in service
    assert f"WorkingDirectory={tmp_path}" in service
    assert "KillSignal=SIGINT" in service
    assert "systemctl enable --now hashidrill-frozen-leader.timer" in out


def test_a_workflow_is_yaml_keeps_the_history_and_has_no_code_of_others_in_its_scripts(hashidrill, tmp_path):
    code, _, _ = hashidrill("raft/frozen-leader", *NIGHTLY, "--github")
    assert code == 0
    path = tmp_path / ".github/workflows/hashidrill-frozen-leader.yml"
    workflow = YAML(typ="safe").load(path.read_text())
    on = workflow.get("on", workflow.get(True))
    assert on["schedule"] == [{"cron": "17 2 * * *"}]
    steps = workflow["jobs"]["drill"]["steps"]
    assert [step["run"] for step in steps if step.get("name") == "drill"] == [
        "uv run hashidrill run raft/frozen-leader --plain"
    ]
    assert "${{" not in "".join(step.get("run", "") for step in steps)
    restored, kept = (step["with"] for step in steps if "history" in step.get("name", ""))
    assert restored["path"] == kept["path"] == workflow["jobs"]["drill"]["env"]["HASHIDRILL_HISTORY"]
    assert kept["key"].startswith(restored["restore-keys"])


def test_a_game_day_runs_without_asking(hashidrill, tmp_path):
    (tmp_path / "day.yaml").write_text("apiVersion: hashidrill/v1\nkind: GameDay\nmetadata: {name: first-day}\n")
    hashidrill("day.yaml", *NIGHTLY, "--systemd")
    service = (tmp_path / "hashidrill-first-day.service").read_text()
    assert f'"gameday" "run" "{tmp_path / "day.yaml"}" "--yes"' in service
    hashidrill("day.yaml", *NIGHTLY, "--github")
    assert "gameday run day.yaml --yes" in (tmp_path / ".github/workflows/hashidrill-first-day.yml").read_text()


def test_an_existing_datacenter_is_named_in_the_command(hashidrill, tmp_path):
    (tmp_path / "staging.yaml").write_text("kind: Attach\n")
    hashidrill("raft/frozen-leader", *NIGHTLY, "--nomad", "--attach", "staging.yaml")
    text = (tmp_path / "hashidrill-frozen-leader.nomad.hcl").read_text()
    assert f'"--attach", "{tmp_path / "staging.yaml"}"' in text


def test_no_secret_of_the_environment_is_in_any_file(hashidrill, tmp_path, monkeypatch):
    for name in ("HASHIDRILL_NOTIFY", "NOMAD_TOKEN", "CONSUL_HTTP_TOKEN"):
        monkeypatch.setenv(name, "https://hooks.example.org/s3cr3t")
    for to in ("--nomad", "--systemd", "--github"):
        assert hashidrill("raft/frozen-leader", *NIGHTLY, to)[0] == 0
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 4
    assert not [path for path in files if "s3cr3t" in path.read_text()]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("raft/frozen-leader", *NIGHTLY), "Give one of --nomad, --github and --systemd"),
        (("raft/frozen-leader", *NIGHTLY, "--nomad", "--github"), "Give one of"),
        (("raft/frozen-leader", *NIGHTLY, "--github", "--submit"), "use it with --nomad"),
        (("raft/frozen-leader", *NIGHTLY, "--github", "--node", "a"), "use it with --nomad"),
        (("raft/frozen-leader", "--cron", "* * * * *", "--github"), "every 5 minutes at most"),
        (("raft/frozen-leader", "--cron", "61 * * * *", "--nomad"), "is not from 0 to 59"),
        (("raft/frozen-leader", *NIGHTLY, "--github", "--time-zone", "Europe/Berlin"), "GitHub's schedules are UTC"),
        (("raft/frozen-leader", *NIGHTLY, "--systemd", "--time-zone", "Mars/Olympus"), "there is no such time zone"),
        (("raft/frozen-leader", *NIGHTLY, "--systemd", "--time-zone", "../etc"), "there is no such time zone"),
        (("raft/frozen-leader", *NIGHTLY, "--systemd", "--attach", "none.yaml"), "there is no such file"),
        (("raft/frozen-leader", *NIGHTLY, "--systemd", "--command", "uv run hashidrill"), "by their paths"),
        (("raft/frozen-leeder", *NIGHTLY, "--nomad"), "frozen-leader"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(words, says, hashidrill, tmp_path):
    code, _, err = hashidrill(*words)
    assert code == 2
    assert says in " ".join(err.split())
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_file_of_somebody_else_is_not_written_over_and_our_own_is(hashidrill, tmp_path):
    file = tmp_path / "hashidrill-frozen-leader.nomad.hcl"
    file.write_text('job "mine" {}\n')
    code, _, err = hashidrill("raft/frozen-leader", *NIGHTLY, "--nomad")
    assert code == 2
    assert "this command did not write it" in " ".join(err.split())
    assert file.read_text() == 'job "mine" {}\n'
    file.unlink()
    assert hashidrill("raft/frozen-leader", *NIGHTLY, "--nomad")[0] == 0
    assert hashidrill("raft/frozen-leader", "--cron", "30 3 * * *", "--nomad")[0] == 0
    assert "30 3 * * *" in file.read_text()


def test_what_is_special_in_a_file_is_written_as_it_is(tmp_path):
    odd = Job("odd", ["/bin/x", 'a "b" ${c} %{d} $e %f \\'], cron("17 2 * * *"))
    assert r'"a \"b\" $${c} %%{d} $e %f \\"' in nomad.job_file(odd)
    from hashidrill.schedules.systemd import unit_files

    assert r'"a \"b\" $${c} %%{d} $$e %%f \\"' in unit_files(odd)["hashidrill-odd.service"]
    with pytest.raises(UsageError, match="line break"):
        unit_files(Job("odd", ["/bin/x"], cron("17 2 * * *"), directory=tmp_path / "a\nb"))


# --submit


class FakeNomad:
    """Answers as a server does, in order; keeps what it was asked."""

    def __init__(self, *, refuses=None, status=200):
        self.asked, self._refuses, self._status = [], refuses, status

    def take(self, request):
        body = json.loads(request.content)
        self.asked.append((request.method, request.url.path, body))
        if self._status != 200:
            return httpx.Response(self._status, text="Permission denied")
        if request.url.path == "/v1/jobs/parse":
            return httpx.Response(200, json={"ID": "hashidrill-x", "Parsed": body["JobHCL"]})
        if request.url.path == "/v1/validate/job":
            return httpx.Response(200, json={"ValidationErrors": [self._refuses] if self._refuses else None})
        return httpx.Response(200, json={"EvalID": ""})

    def submit(self, text="job {}"):
        async def go():
            async with Wire(Login("nomad", "http://nomad.example:4646"),
                            transport=httpx.MockTransport(self.take)) as wire:  # fmt: skip
                return await nomad.submit(wire, text)

        return anyio.run(go)


def test_what_nomad_parsed_is_what_it_checks_and_registers():
    server = FakeNomad()
    assert server.submit("job {}") == "hashidrill-x"
    assert [(method, path) for method, path, _ in server.asked] == [
        ("POST", "/v1/jobs/parse"), ("PUT", "/v1/validate/job"), ("PUT", "/v1/jobs")
    ]  # fmt: skip
    assert server.asked[1][2] == server.asked[2][2] == {"Job": {"ID": "hashidrill-x", "Parsed": "job {}"}}


def test_a_job_that_nomad_refuses_is_not_registered():
    server = FakeNomad(refuses="Invalid cron spec")
    with pytest.raises(UsageError, match="Nomad refuses the job: Invalid cron spec"):
        server.submit()
    assert "/v1/jobs" not in [path for _, path, _ in server.asked]


def test_a_token_that_may_not_says_what_it_needs():
    with pytest.raises(UsageError, match="submit-job and parse-job"):
        FakeNomad(status=403).submit()
