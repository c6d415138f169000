"""A schedule as a GitHub workflow, as systemd units and as a Nomad periodic job.

`templates/` has the files. Nomad itself parses the file (`/v1/jobs/parse`), checks it (`/v1/validate/job`, where its
own parser reads the cron expression), and registers the result. Paths and fields are from Nomad 1.10.5.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hashidrill.core.errors import UsageError
from hashidrill.gamedays.schedules.cron import Cron, on_calendar
from hashidrill.staging.attach.http import Wire

WEBHOOK = "HASHIDRILL_NOTIFY"
"""The variable with the URL of the webhook. It is a secret, and is never in the written files."""
SHORTEST_GAP_MINUTES = 5
"""https://docs.github.com/en/actions/reference/workflows-and-actions/events-that-trigger-workflows#schedule"""
_WITHIN_S = 10.0
_SPECIAL = {"\\": "\\\\", '"': '\\"', "%": "%%", "$": "$$"}


@dataclass(frozen=True)
class Job:
    """One experiment or game day, and when it runs."""

    what: str
    """The job's identity: the experiment or game day, and the datacenter that it attaches to."""
    words: Sequence[str]
    """The command line."""
    cron: Cron
    zone: str = "UTC"
    directory: Path = Path("/")
    """Its working directory, absolute: its recordings are below it."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Its environment."""
    user: str = ""
    """The user who runs it, if not root."""
    secrets: Sequence[str] = ()
    """Variables with the tokens of the datacenter that it attaches to. The written files have only the names."""

    def __post_init__(self) -> None:
        """Raises UsageError for characters that could start a new line: systemd ends lines at a carriage return too."""
        for text in (self.what, *self.words, str(self.directory), self.user, *self.variables.values()):
            if not text.isprintable():
                raise UsageError(
                    f"{text!r}: a schedule cannot contain a name, path or option with a line break or another"
                    " unprintable character: rename it"
                )

    @property
    def name(self) -> str:
        return f"hashidrill-{re.sub(r'[^A-Za-z0-9-]+', '-', self.what).strip('-')}"


def _filled(template: str, **values: str) -> str:
    """The template with each `@@name@@` replaced; a line that is only a placeholder is removed if its value is
    empty.
    """
    text = (files("hashidrill.gamedays.schedules") / "templates" / template).read_text(encoding="utf-8")
    return re.sub(r"@@(\w+)@@(\n?)", lambda found: values[found[1]] + (found[2] if values[found[1]] else ""), text)


def workflow(job: Job) -> str:
    """A GitHub Actions workflow: the cache keeps the history from run to run, and recordings become artifacts.

    Raises UsageError for schedules that GitHub cannot run: another time zone, or more often than every 5 minutes.
    """
    if job.zone != "UTC":
        raise UsageError(f"--time-zone {job.zone}: GitHub's schedules are UTC: leave it out, and shift the hours")
    if (gap := job.cron.shortest_gap_minutes) < SHORTEST_GAP_MINUTES:
        raise UsageError(
            f"--cron {str(job.cron)!r}: GitHub runs a schedule every {SHORTEST_GAP_MINUTES} minutes at most, but two"
            f" runs of this one are only {gap} apart"
        )
    command = shlex.join(job.words)  # printable, so that JSON without escapes is one line of YAML
    if "${{" in command:
        raise UsageError("a path or option with ${{ in it would be code in a workflow: rename it")
    return _filled(
        "workflow.yml",
        name=job.name,
        cron=json.dumps(str(job.cron)),
        secrets="\n".join(f"          {name}: ${{{{ secrets.{name} }}}}" for name in (WEBHOOK, *job.secrets)),
        command=json.dumps(command, ensure_ascii=False),
    )


def unit_files(job: Job) -> dict[str, str]:
    """A systemd service and the timer that starts it, by file name. Raises UsageError for values that a unit cannot
    hold.
    """
    if not job.words[0].startswith("/"):
        raise UsageError(f"--command: systemd needs the program's absolute path: {job.words[0]} is not one")
    what = _rest_of_line(job.what)
    variables = [_quoted(f"{name}={value}", command=False) for name, value in job.variables.items()]
    tokens = f"# put the tokens of the attached datacenter into that file too: {', '.join(job.secrets)}"
    service = _filled(
        "unit.service",
        what=what,
        user=f"User={job.user}" if job.user else "",
        directory=_rest_of_line(str(job.directory)),
        environment="\n".join(f"Environment={each}" for each in variables),
        tokens=tokens if job.secrets else "",
        command=" ".join(_quoted(word) for word in job.words),
    )
    calendar = "\n".join(f"OnCalendar={line}" for line in on_calendar(job.cron, job.zone))
    timer = _filled("unit.timer", name=job.name, what=what, calendar=calendar)
    return {f"{job.name}.service": service, f"{job.name}.timer": timer}


def _rest_of_line(text: str) -> str:
    if text.endswith("\\"):  # the value would go on in the next line
        raise UsageError(f"{text}: a path in a unit cannot end with a backslash: rename it")
    return text.replace("%", "%%")


def _quoted(word: str, *, command: bool = True) -> str:
    """A word as systemd reads it. `$` starts a variable only in a command line."""
    special = {key: value for key, value in _SPECIAL.items() if command or key != "$"}
    return '"' + "".join(special.get(character, character) for character in word) + '"'


def job_file(job: Job, *, node: str = "") -> str:
    """A Nomad job, as HCL. `node`: the name of the host that runs it; "" for any host, if all have the same paths."""
    there = f"nomad/jobs/{job.name}"
    known = [
        f'          {{{{ if nomadVarExists "{there}" }}}}{{{{ with nomadVar "{there}" }}}}{{{{ with .{item} }}}}'
        f"{name}={{{{ . }}}}{{{{ end }}}}{{{{ end }}}}{{{{ end }}}}"
        for item, name in {"notify": WEBHOOK, **{name: name for name in job.secrets}}.items()
    ]
    tokens = f"      # put the tokens of the attached datacenter there too: {', '.join(job.secrets)}"
    return _filled(
        "job.nomad.hcl",
        name=job.name,
        cron=_hcl(str(job.cron)),
        zone=_hcl(job.zone),
        constraint=_filled("constraint.nomad.hcl", node=_hcl(node)).rstrip("\n") if node else "",
        user=f"      user   = {_hcl(job.user)}" if job.user else "",
        command=_hcl(job.words[0]),
        arguments=", ".join(map(_hcl, job.words[1:])),
        directory=_hcl(str(job.directory)),
        environment="\n".join(f"        {name} = {_hcl(value)}" for name, value in job.variables.items()),
        tokens=tokens if job.secrets else "",
        known="\n".join(known),
    )


def _hcl(value: str) -> str:
    """An HCL string: a JSON string with HCL's two interpolations escaped."""
    return json.dumps(value, ensure_ascii=False).replace("${", "$${").replace("%{", "%%{")


async def submit(wire: Wire, text: str) -> str:
    """Makes Nomad parse, check and register the job; returns its id. Raises UsageError with Nomad's message.

    Raises UnansweredError if Nomad does not answer.
    """
    parsed = await _asked(wire, "POST", "/v1/jobs/parse", {"JobHCL": text, "Canonicalize": False})
    checked = await _asked(wire, "PUT", "/v1/validate/job", {"Job": parsed})
    if wrong := [*(checked.get("ValidationErrors") or []), *filter(None, [checked.get("Error")])]:
        raise UsageError(f"{wire.login.address}: Nomad refuses the job: {'; '.join(map(str, wrong))}")
    name = str(parsed["ID"])
    there = await _asked(wire, "GET", f"/v1/job/{quote(name, safe='')}")
    if there and not there.get("Stop"):  # the schedule may change; the command, its directory and its host may not
        pairs = zip(_runs(there), _runs(parsed), strict=True)
        if differ := [f"it has {before}, this one has {now}" for before, now in pairs if before != now]:
            raise UsageError(
                f"{wire.login.address}: there is already a different job {name}: {'; '.join(differ)}. To"
                f" replace it, remove it first: nomad job stop {name}"
            )
    await _asked(wire, "PUT", "/v1/jobs", {"Job": parsed})
    return name


def _runs(job: Mapping[str, Any]) -> tuple[str, str, str]:
    """The command line, its directory, and the host's required properties."""
    tasks = [task for group in job.get("TaskGroups") or [] for task in group.get("Tasks") or []]
    config: Mapping[str, Any] = (tasks[0].get("Config") if len(tasks) == 1 else None) or {}
    command = shlex.join(str(word) for word in [config.get("command"), *(config.get("args") or [])] if word is not None)
    bound = ", ".join(f"{each.get('LTarget')} = {each.get('RTarget')}" for each in job.get("Constraints") or [])
    return (
        f"the command `{command}`" if command else "no command",
        f"the directory {config.get('work_dir')}",
        f"the constraint {bound}" if bound else "no constraint",
    )


async def _asked(wire: Wire, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Nomad's answer; {} if GET finds nothing. Raises UsageError for any other status."""
    sent = None if body is None else json.dumps(body).encode()
    answer = await wire.request(method, path, body=sent, timeout_s=_WITHIN_S)
    if method == "GET" and answer.status == 404:
        return {}
    if answer.status != 200:
        said = answer.body[:400].decode(errors="replace").strip()
        needs = "submit-job and parse-job in this namespace, and read-job"
        needed = f"; its token needs {needs}" if answer.status == 403 else ""
        raise UsageError(f"{wire.login.address}: {method} {path}: HTTP {answer.status} {said}{needed}")
    found = answer.json()
    return found if isinstance(found, dict) else {}
