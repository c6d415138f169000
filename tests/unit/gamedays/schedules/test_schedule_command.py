"""`hashidrill schedule` writes what was asked for, never over a file of somebody else, and no secret."""

import json
import shlex
from functools import partial
from types import SimpleNamespace

import anyio
import httpx2
import pytest
from ruamel.yaml import YAML

from command_line import command_line
from game_days import day_file
from hashidrill.core.errors import UsageError
from hashidrill.faces.cli import schedule
from hashidrill.gamedays.schedules import jobs
from hashidrill.gamedays.schedules.jobs import Job, cron
from hashidrill.staging.attach.http import Login, Wire

NIGHTLY = ("--cron", "17 2 * * *")
STAGING = """\
apiVersion: hashidrill/v1
kind: Attach
metadata: {name: staging-eu}
datacenter:
  consul: {address: "https://consul.staging.example:8501", token_file: /run/secrets/consul}
  nomad: {address: "https://nomad.staging.example:4646"}
"""
EVERYWHERE = ("--nomad", "--systemd", "--github")
IN_A_CHECKOUT = schedule._in_a_checkout


@pytest.fixture
def hashidrill(monkeypatch, tmp_path, capsys):
    """`hashidrill schedule`."""
    monkeypatch.setattr(schedule, "_ourselves", lambda: "/opt/hashidrill/bin/hashidrill")
    monkeypatch.setattr(schedule, "_in_a_checkout", lambda: ["uv", "run", "hashidrill"])
    return partial(command_line(monkeypatch, capsys, tmp_path, columns=200), "schedule")


def test_a_nomad_job_never_overlaps_never_restarts_and_runs_here(hashidrill, tmp_path):
    code, out, _ = hashidrill("raft/frozen-leader", *NIGHTLY, "--nomad", "--node", "drills-1")
    assert code == 0
    text = (tmp_path / "hashidrill-raft-frozen-leader.nomad.hcl").read_text()
    for line in (
        'crons            = ["17 2 * * *"]',
        "prohibit_overlap = true",
        'time_zone        = "UTC"',
        'value     = "drills-1"',
        f'work_dir = "{tmp_path}"',
        'command  = "/opt/hashidrill/bin/hashidrill"',
        'kill_signal  = "SIGINT"',
        "attempts = 0",
        "unlimited = false",
    ):
        assert line in text
    assert 'frozen-leader.yaml", "--plain"]' in text
    assert "HASHIDRILL_HISTORY" in text
    assert "next: nomad job run hashidrill-raft-frozen-leader.nomad.hcl" in out
    assert "runs at " in out


def test_a_job_for_any_host_is_bound_to_none(hashidrill, tmp_path):
    hashidrill("raft/frozen-leader", *NIGHTLY, "--nomad", "--node", "any")
    assert "constraint" not in (tmp_path / "hashidrill-raft-frozen-leader.nomad.hcl").read_text()


@pytest.mark.parametrize(("user", "line"), [("drills", 'user   = "drills"'), ("", None)])
def test_the_account_that_runs_it_can_be_named(user, line, hashidrill, tmp_path, monkeypatch):
    monkeypatch.setattr(schedule.pwd, "getpwnam", {"drills": SimpleNamespace(pw_dir="/home/drills")}.__getitem__)
    hashidrill("raft/frozen-leader", *NIGHTLY, "--nomad", "--user", user)
    text = (tmp_path / "hashidrill-raft-frozen-leader.nomad.hcl").read_text()
    assert [each.strip() for each in text.splitlines() if each.strip().startswith("user ")] == ([line] if line else [])


def test_a_user_without_a_name_or_a_home_schedules_too(hashidrill, tmp_path, monkeypatch):
    """As in a container that was started with a number for a user."""
    monkeypatch.setattr(schedule.os, "geteuid", lambda: 4_000_000_001)
    monkeypatch.setattr(schedule.pwd, "getpwuid", lambda number: {}[number])
    monkeypatch.delenv("HOME", raising=False)
    assert hashidrill("raft/frozen-leader", *NIGHTLY, "--systemd")[0] == 0
    service = (tmp_path / "hashidrill-raft-frozen-leader.service").read_text()
    assert "User=" not in service
    assert "HOME=" not in service


def test_a_timer_and_its_service_are_written(hashidrill, tmp_path):
    code, out, _ = hashidrill(
        "raft/frozen-leader", *NIGHTLY, "--systemd", "--time-zone", "Europe/Berlin", "--output", "units"
    )
    assert code == 0
    timer = (tmp_path / "units/hashidrill-raft-frozen-leader.timer").read_text()
    service = (tmp_path / "units/hashidrill-raft-frozen-leader.service").read_text()
    assert "OnCalendar=*-*-* 02:17:00 Europe/Berlin\n" in timer
    assert "Persistent=false" in timer
    assert "Type=oneshot" in service
    assert f"WorkingDirectory={tmp_path}" in service
    assert "KillSignal=SIGINT" in service
    assert "systemctl enable --now hashidrill-raft-frozen-leader.timer" in out


def test_a_workflow_is_yaml_keeps_the_history_and_has_no_code_of_others_in_its_scripts(hashidrill, tmp_path):
    code, _, _ = hashidrill("raft/frozen-leader", *NIGHTLY, "--github")
    assert code == 0
    path = tmp_path / ".github/workflows/hashidrill-raft-frozen-leader.yml"
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


@pytest.mark.parametrize(
    ("project", "found"),
    [
        (None, False),
        ('[project]\nname = "shop"\ndependencies = ["hashidrill-extras"]\n', False),
        ('[dependency-groups]\ndev = ["hashidrill>=0.1"]\n', True),
        ('[project]\nname = "hashidrill"\n', True),
    ],
)
def test_a_workflow_whose_command_would_not_be_found_is_refused(monkeypatch, tmp_path, project, found):
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    if project is not None:
        (tmp_path / "pyproject.toml").write_text(project)
    if found:
        assert IN_A_CHECKOUT() == ["uv", "run", "hashidrill"]
        return
    with pytest.raises(UsageError, match="--command"):
        IN_A_CHECKOUT()


def test_a_game_day_runs_without_asking(hashidrill, tmp_path):
    day_file(tmp_path)
    hashidrill("a-day.yaml", *NIGHTLY, "--systemd")
    service = (tmp_path / "hashidrill-a-day.service").read_text()
    assert f'"gameday" "run" "{tmp_path / "a-day.yaml"}" "--yes"' in service
    hashidrill("a-day.yaml", *NIGHTLY, "--github")
    assert "gameday run a-day.yaml --yes" in (tmp_path / ".github/workflows/hashidrill-a-day.yml").read_text()


@pytest.mark.lie
@pytest.mark.parametrize(
    "case",
    [
        ({"before": [{"confirm": "Nobody deploys"}]}, (), "a person must confirm: Nobody deploys"),
        (
            {
                "experiments": [{"experiment": "config/streaming-moderate", "compare": True}],
                "messages": None,
                "alerts": {},
                "questions": {},
                "abort": {},
            },
            ("--attach", "staging.yaml"),
            "has variants",
        ),
        ({"metadata": {"name": "x\r[Service]\rExecStartPre=+/bin/sh", "title": "A", "why": "B"}}, (), "name"),
        ({"experiments": [{"experiment": "raft/dead-leader"}], "messages": None}, (), "'raft/dead-leader'"),
    ],
)
@pytest.mark.parametrize("to", ["--nomad", "--systemd", "--github"])
def test_a_day_that_would_not_begin_is_not_scheduled(case, to, hashidrill, tmp_path):
    changes, words, says = case
    (tmp_path / "staging.yaml").write_text(STAGING)
    path = day_file(tmp_path, **changes)
    code, _, err = hashidrill("a-day.yaml", *NIGHTLY, to, *words)
    assert code == 2
    assert says in " ".join(err.split())
    assert {each for each in tmp_path.rglob("*") if each.is_file()} == {path, tmp_path / "staging.yaml"}


@pytest.mark.lie
@pytest.mark.parametrize("odd", ["a\rb", "a\nb", "a\x85b", "a\u2028b", "a\x1bb", "a\udc80b"], ids=ascii)
@pytest.mark.parametrize("to", ["--nomad", "--systemd", "--github"])
def test_what_could_begin_a_line_of_its_own_is_refused(odd, to, hashidrill, tmp_path):
    code, _, err = hashidrill("raft/frozen-leader", *NIGHTLY, to, "--command", shlex.quote(f"/bin/{odd}"))
    assert code == 2
    assert "a line break or another unprintable character" in " ".join(err.split())
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.lie
def test_each_experiment_of_one_name_and_each_datacenter_has_a_schedule_of_its_own(hashidrill, tmp_path):
    (tmp_path / "staging.yaml").write_text(STAGING)
    for name in ("raft/slow-leader-disk", "nomad/slow-leader-disk"):
        assert hashidrill(name, *NIGHTLY, "--nomad")[0] == 0
    assert hashidrill("raft/slow-leader-disk", *NIGHTLY, "--nomad", "--attach", "staging.yaml")[0] == 0
    jobs = {path.name.partition(".")[0]: path.read_text() for path in tmp_path.glob("*.hcl")}
    assert set(jobs) == {
        "hashidrill-raft-slow-leader-disk",
        "hashidrill-nomad-slow-leader-disk",
        "hashidrill-raft-slow-leader-disk-staging",
    }
    assert all(f'job "{name}" {{' in text for name, text in jobs.items())


@pytest.mark.lie
@pytest.mark.parametrize("to", ["--nomad", "--systemd", "--github"])
def test_a_schedule_of_something_else_is_not_written_over(to, hashidrill, tmp_path):
    """Two files of one stem: the names of the two schedules are the same."""
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "staging.yaml").write_text(STAGING)
    assert hashidrill("raft/frozen-leader", *NIGHTLY, to, "--attach", "one/staging.yaml")[0] == 0
    before = {path: path.read_text() for path in tmp_path.rglob("hashidrill-*")}
    later = ("--cron", "30 3 * * *")
    code, _, err = hashidrill("raft/frozen-leader", *later, to, "--attach", "other/staging.yaml")
    assert code == 2
    assert "runs something else" in " ".join(err.split())
    assert {path: path.read_text() for path in tmp_path.rglob("hashidrill-*")} == before
    assert hashidrill("raft/frozen-leader", *later, to, "--attach", "one/staging.yaml")[0] == 0
    assert {path: path.read_text() for path in tmp_path.rglob("hashidrill-*")} != before


def test_a_job_for_another_host_does_not_replace_the_one_for_this_host(hashidrill):
    assert hashidrill("raft/frozen-leader", *NIGHTLY, "--nomad", "--node", "drills-1")[0] == 0
    assert hashidrill("raft/frozen-leader", *NIGHTLY, "--nomad", "--node", "drills-2")[0] == 2


@pytest.mark.lie
@pytest.mark.parametrize(
    "whose",
    [
        (None, "/home/ada", "/home/ada/.local/state/hashidrill/history.sqlite"),
        ("drills", "/srv/drills", "/srv/drills/.local/state/hashidrill/history.sqlite"),
        ("", None, None),
    ],
)
@pytest.mark.parametrize("named", [None, "/srv/ours.sqlite"])
def test_a_run_has_the_home_and_the_history_of_whoever_runs_it(whose, named, hashidrill, tmp_path, monkeypatch):
    user, home, history = whose
    monkeypatch.setattr(schedule.pwd, "getpwnam", {"drills": SimpleNamespace(pw_dir="/srv/drills")}.__getitem__)
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    if named is None:
        monkeypatch.delenv("HASHIDRILL_HISTORY", raising=False)
    else:
        monkeypatch.setenv("HASHIDRILL_HISTORY", named)
    words = () if user is None else ("--user", user)
    assert hashidrill("raft/frozen-leader", *NIGHTLY, "--systemd", *words)[0] == 0
    service = (tmp_path / "hashidrill-raft-frozen-leader.service").read_text()
    given = dict(
        line.removeprefix('Environment="').rstrip('"').split("=", 1)
        for line in service.splitlines()
        if line.startswith("Environment=")
    )
    assert (given.get("HOME"), given.get("HASHIDRILL_HISTORY")) == (home, named or history)


def test_an_account_that_is_not_here_is_refused(hashidrill, tmp_path, monkeypatch):
    monkeypatch.setattr(schedule.pwd, "getpwnam", {}.__getitem__)
    code, _, err = hashidrill("raft/frozen-leader", *NIGHTLY, "--systemd", "--user", "nobody-has-this")
    assert code == 2
    assert "no such account" in " ".join(err.split())
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.lie
def test_each_attempt_of_a_workflow_keeps_its_history_under_a_key_of_its_own(hashidrill, tmp_path):
    """A cache is never written over: under the key of the first attempt, the second one's history would be lost."""
    hashidrill("raft/frozen-leader", *NIGHTLY, "--github")
    workflow = YAML(typ="safe").load((tmp_path / ".github/workflows/hashidrill-raft-frozen-leader.yml").read_text())
    steps = [step["with"]["key"] for step in workflow["jobs"]["drill"]["steps"] if "history" in step.get("name", "")]
    assert len(steps) == 2
    assert all(key.endswith("-${{ github.run_id }}-${{ github.run_attempt }}") for key in steps)


@pytest.mark.lie
def test_a_new_webhook_interrupts_no_run_and_a_variable_without_one_is_none(hashidrill, tmp_path):
    hashidrill("raft/frozen-leader", *NIGHTLY, "--nomad")
    text = (tmp_path / "hashidrill-raft-frozen-leader.nomad.hcl").read_text()
    assert 'change_mode = "noop"' in text
    assert "{{ with .notify }}HASHIDRILL_NOTIFY={{ . }}{{ end }}{{ end }}{{ end }}\n" in text


def test_an_existing_datacenter_is_named_in_the_command(hashidrill, tmp_path):
    (tmp_path / "staging.yaml").write_text(STAGING)
    hashidrill("raft/frozen-leader", *NIGHTLY, "--nomad", "--attach", "staging.yaml")
    text = (tmp_path / "hashidrill-raft-frozen-leader-staging.nomad.hcl").read_text()
    assert f'"--attach", "{tmp_path / "staging.yaml"}"' in text


@pytest.mark.parametrize("to", EVERYWHERE)
def test_a_day_over_an_existing_datacenter_has_a_schedule_of_its_own(to, hashidrill, tmp_path):
    (tmp_path / "staging.yaml").write_text(STAGING)
    day_file(tmp_path)
    for words in ((), ("--attach", "staging.yaml")):
        code, _, err = hashidrill("a-day.yaml", *NIGHTLY, to, *words)
        assert code == 0, err
    names = {path.name.partition(".")[0] for path in tmp_path.rglob("hashidrill-*")}
    assert names == {"hashidrill-a-day", "hashidrill-a-day-staging"}
    texts = [path.read_text() for path in tmp_path.rglob("hashidrill-a-day-staging.*")]
    [run] = [line for text in texts for line in text.splitlines() if "--attach" in line]
    words = run.replace('"', "").replace(",", "").split()
    at = words.index("--attach")
    assert words[at - 1] == "--yes"
    assert words[at + 1].rstrip("]").endswith("staging.yaml")


SECRETS = {"CONSUL_HTTP_AUTH", "NOMAD_TOKEN"}
"""That the file leaves to the environment: Consul's token has a file, and Nomad has no http_auth."""


@pytest.mark.lie
@pytest.mark.parametrize("to", EVERYWHERE)
@pytest.mark.parametrize("what", ["raft/frozen-leader", "a-day.yaml"])
def test_the_tokens_of_an_existing_datacenter_are_named_and_are_in_no_file(what, to, hashidrill, tmp_path, monkeypatch):
    for name in (*SECRETS, "CONSUL_HTTP_TOKEN", "VAULT_TOKEN"):
        monkeypatch.setenv(name, "s3cr3t")
    (tmp_path / "staging.yaml").write_text(STAGING)
    day_file(tmp_path)
    assert hashidrill(what, *NIGHTLY, to, "--attach", "staging.yaml")[0] == 0
    text = "".join(path.read_text() for path in tmp_path.rglob("hashidrill-*"))
    assert "s3cr3t" not in text
    named = {name for name in (*SECRETS, "CONSUL_HTTP_TOKEN", "VAULT_TOKEN") if name in text}
    assert named == SECRETS


def test_a_workflow_has_tokens_from_its_secrets_and_a_nomad_job_from_its_variable(hashidrill, tmp_path):
    (tmp_path / "staging.yaml").write_text(STAGING)
    for to in ("--github", "--nomad"):
        assert hashidrill("raft/frozen-leader", *NIGHTLY, to, "--attach", "staging.yaml")[0] == 0
    name = "hashidrill-raft-frozen-leader-staging"
    workflow = YAML(typ="safe").load((tmp_path / f".github/workflows/{name}.yml").read_text())
    [drill] = [step for step in workflow["jobs"]["drill"]["steps"] if step.get("name") == "drill"]
    assert drill["env"] == {each: f"${{{{ secrets.{each} }}}}" for each in ("HASHIDRILL_NOTIFY", *sorted(SECRETS))}
    text = (tmp_path / f"{name}.nomad.hcl").read_text()
    for each in SECRETS:
        assert f'nomadVar "nomad/jobs/{name}" }}}}{{{{ with .{each} }}}}{each}={{{{ . }}}}{{{{ end }}}}' in text


@pytest.mark.lie
@pytest.mark.parametrize("to", EVERYWHERE)
@pytest.mark.parametrize("what", ["raft/frozen-leader", "a-day.yaml"])
@pytest.mark.parametrize(
    "lie",
    [
        ('address: "https://consul.staging.example:8501", ', "", "datacenter.consul.address is missing"),
        ('{address: "https://nomad.staging.example:4646"}', "", "datacenter.nomad.address is missing"),
        ("kind: Attach", "kind: Experiment", "not an Attach file"),
        ("token_file: /run/secrets/consul", "token: s3cr3t", "a token must not be in this file"),
    ],
)
def test_an_attach_file_that_a_run_could_not_use_is_refused(lie, what, to, hashidrill, tmp_path):
    """Without an address a run would go to an agent of its own host."""
    right, wrong, says = lie
    assert right in STAGING
    (tmp_path / "staging.yaml").write_text(STAGING.replace(right, wrong))
    day_file(tmp_path)
    code, _, err = hashidrill(what, *NIGHTLY, to, "--attach", "staging.yaml")
    assert code == 2
    assert says in " ".join(err.split())
    assert not list(tmp_path.rglob("hashidrill-*"))


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
        (("raft/frozen-leader", *NIGHTLY), "exactly one of --nomad, --github and --systemd"),
        (("raft/frozen-leader", *NIGHTLY, "--nomad", "--github"), "exactly one of"),
        (("raft/frozen-leader", *NIGHTLY, "--github", "--submit"), "use it with --nomad"),
        (("raft/frozen-leader", *NIGHTLY, "--github", "--node", "a"), "use it with --nomad"),
        (("raft/frozen-leader", "--cron", "* * * * *", "--github"), "every 5 minutes at most"),
        (("raft/frozen-leader", "--cron", "61 * * * *", "--nomad"), "is not from 0 to 59"),
        (("raft/frozen-leader", *NIGHTLY, "--github", "--time-zone", "Europe/Berlin"), "GitHub's schedules are UTC"),
        (("raft/frozen-leader", *NIGHTLY, "--systemd", "--time-zone", "Mars/Olympus"), "unknown time zone"),
        (("raft/frozen-leader", *NIGHTLY, "--systemd", "--time-zone", "../etc"), "unknown time zone"),
        (("raft/frozen-leader", *NIGHTLY, "--systemd", "--attach", "none.yaml"), "there is no such file"),
        (("raft/frozen-leader", *NIGHTLY, "--systemd", "--command", "uv run hashidrill"), "needs the program's"),
        (("raft/frozen-leeder", *NIGHTLY, "--nomad"), "frozen-leader"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(words, says, hashidrill, tmp_path):
    code, _, err = hashidrill(*words)
    assert code == 2
    assert says in " ".join(err.split())
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_file_of_somebody_else_is_not_written_over_and_our_own_is(hashidrill, tmp_path):
    file = tmp_path / "hashidrill-raft-frozen-leader.nomad.hcl"
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
    assert r'"a \"b\" $${c} %%{d} $e %f \\"' in jobs.job_file(odd)
    from hashidrill.gamedays.schedules.jobs import unit_files

    assert r'"a \"b\" $${c} %%{d} $$e %%f \\"' in unit_files(odd)["hashidrill-odd.service"]
    with pytest.raises(UsageError, match="line break"):
        unit_files(Job("odd", ["/bin/x"], cron("17 2 * * *"), directory=tmp_path / "a\nb"))


# --submit


def registered(*, args=("run", "raft/slow-leader-disk"), directory="/srv/drills", node="drills-1"):
    """A job as Nomad's API has it."""
    config = {"command": "/opt/hashidrill/bin/hashidrill", "args": [*args], "work_dir": directory}
    constraint = {"LTarget": "${attr.unique.hostname}", "RTarget": node, "Operand": "="}
    return {
        "ID": "hashidrill-x",
        "Constraints": [constraint],
        "TaskGroups": [{"Name": "drill", "Tasks": [{"Name": "hashidrill", "Config": config}]}],
    }


class FakeNomad:
    """Answers as a server does, in order; keeps what it was asked."""

    def __init__(self, *, refuses=None, status=200, there=None):
        self.asked, self._refuses, self._status, self._there = [], refuses, status, there

    def take(self, request):
        body = json.loads(request.content) if request.content else None
        self.asked.append((request.method, request.url.path, body))
        if self._status != 200:
            return httpx2.Response(self._status, text="Permission denied")
        if request.url.path == "/v1/jobs/parse":
            return httpx2.Response(200, json={**registered(), "Parsed": body["JobHCL"]})
        if request.url.path == "/v1/validate/job":
            return httpx2.Response(200, json={"ValidationErrors": [self._refuses] if self._refuses else None})
        if request.method == "GET":
            found = self._there is not None
            return httpx2.Response(200, json=self._there) if found else httpx2.Response(404, text="job not found")
        return httpx2.Response(200, json={"EvalID": ""})

    def submit(self, text="job {}"):
        async def go():
            async with Wire(
                Login("nomad", "http://nomad.example:4646"), transport=httpx2.MockTransport(self.take)
            ) as wire:
                return await jobs.submit(wire, text)

        return anyio.run(go)


@pytest.mark.lie
def test_what_nomad_parsed_is_what_it_checks_and_registers():
    server = FakeNomad()
    assert server.submit("job {}") == "hashidrill-x"
    assert [(method, path) for method, path, _ in server.asked] == [
        ("POST", "/v1/jobs/parse"),
        ("PUT", "/v1/validate/job"),
        ("GET", "/v1/job/hashidrill-x"),
        ("PUT", "/v1/jobs"),
    ]
    assert server.asked[1][2] == server.asked[3][2] == {"Job": {**registered(), "Parsed": "job {}"}}


@pytest.mark.lie
@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"args": ["run", "nomad/slow-leader-disk"]}, "nomad/slow-leader-disk"),
        ({"directory": "/srv/other"}, "/srv/other"),
        ({"node": "drills-2"}, "drills-2"),
    ],
)
def test_a_job_of_that_name_that_runs_something_else_is_not_replaced(other, says):
    server = FakeNomad(there=registered(**other))
    with pytest.raises(UsageError, match="nomad job stop hashidrill-x") as refused:
        server.submit()
    assert says in str(refused.value)
    assert "/v1/jobs" not in [path for _, path, _ in server.asked]


@pytest.mark.parametrize(
    "there",
    [
        {**registered(), "Version": 3, "Periodic": {"Specs": ["1 1 * * *"]}},
        {**registered(args=["run", "nomad/slow-leader-disk"]), "Stop": True},
    ],
)
def test_the_same_job_at_another_time_and_one_that_was_stopped_are_replaced(there):
    assert FakeNomad(there=there).submit() == "hashidrill-x"


@pytest.mark.lie
def test_a_job_that_nomad_refuses_is_not_registered():
    server = FakeNomad(refuses="Invalid cron spec")
    with pytest.raises(UsageError, match="Nomad refuses the job: Invalid cron spec"):
        server.submit()
    assert "/v1/jobs" not in [path for _, path, _ in server.asked]


def test_a_token_that_may_not_says_what_it_needs():
    with pytest.raises(UsageError, match="submit-job and parse-job"):
        FakeNomad(status=403).submit()
