"""A Nomad periodic batch job, as HCL; and how it is registered.

What is written is what is registered: Nomad parses the file (`/v1/jobs/parse`), checks it (`/v1/validate/job`, which is
where its own parser reads the cron expression), and registers what it parsed. Paths and fields of 1.10.5.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from hashidrill.core.errors import UsageError
from hashidrill.gamedays.schedules.job import WEBHOOK, Job

if TYPE_CHECKING:
    from hashidrill.staging.attach.http import Wire

_WITHIN_S = 10.0


def job_file(job: Job, *, node: str = "") -> str:
    """The job. `node`: the name of the host that it is for; "" for any, where all have the same paths."""
    on_node = (
        f"""
  # the paths below are those of this machine
  constraint {{
    attribute = "${{attr.unique.hostname}}"
    value     = {_text(node)}
  }}
"""
        if node
        else ""
    )
    user = f"\n      user   = {_text(job.user)}" if job.user else ""
    environment = "".join(f"        {name} = {_text(value)}\n" for name, value in job.variables.items())
    items = {"notify": WEBHOOK, **{name: name for name in job.secrets}}
    known = "".join(f"          {line}\n" for line in _variables(job.name, items))
    return f"""\
# Written by `hashidrill schedule`. Register it with `nomad job run {job.name}.nomad.hcl`, or with --submit.
# Its clients need the raw_exec driver: hashidrill makes namespaces of its own.
job {_text(job.name)} {{
  type        = "batch"
  datacenters = ["*"]

  periodic {{
    crons            = [{_text(str(job.cron))}]
    time_zone        = {_text(job.zone)}
    prohibit_overlap = true
  }}
{on_node}
  group "drill" {{
    # a run that fails is a finding: it is not run again
    restart {{
      attempts = 0
      mode     = "fail"
    }}
    reschedule {{
      attempts  = 0
      unlimited = false
    }}

    task "hashidrill" {{
      driver = "raw_exec"{user}

      config {{
        command  = {_text(job.words[0])}
        args     = {_list(job.words[1:])}
        work_dir = {_text(str(job.directory))}
      }}

      env {{
{environment}      }}

      # `nomad var put nomad/jobs/{job.name} notify=URL` has a webhook told when a verdict turns to FAIL{_tokens(job)}
      template {{
        data        = <<-EOF
{known}          EOF
        destination = "${{NOMAD_SECRETS_DIR}}/notify.env"
        env         = true
        change_mode = "noop" # a new URL is for the next run: this one is not restarted for it
      }}

      # an interrupted run reverts its faults first; a client allows max_kill_timeout at most, 30 s by default
      kill_signal  = "SIGINT"
      kill_timeout = "30s"

      resources {{
        cpu    = 1000
        memory = 1024
      }}
    }}
  }}
}}
"""


def _variables(job: str, items: Mapping[str, str]) -> Iterator[str]:
    """A template's line for each variable of the environment: the item of Nomad's variable that it is in, if any."""
    there = f"nomad/jobs/{job}"
    for item, name in items.items():
        known = f"{{{{ with .{item} }}}}{name}={{{{ . }}}}{{{{ end }}}}"
        yield f'{{{{ if nomadVarExists "{there}" }}}}{{{{ with nomadVar "{there}" }}}}{known}{{{{ end }}}}{{{{ end }}}}'


def _tokens(job: Job) -> str:
    """Where the tokens are, for whoever reads the file."""
    if not job.secrets:
        return ""
    return f"\n      # tokens of the datacenter that it attaches to belong in there too: {', '.join(job.secrets)}"


def _text(value: str) -> str:
    """A string of HCL: as JSON's, with its two interpolations escaped."""
    return json.dumps(value, ensure_ascii=False).replace("${", "$${").replace("%{", "%%{")


def _list(values: Any) -> str:
    return f"[{', '.join(_text(value) for value in values)}]"


async def submit(wire: Wire, text: str) -> str:
    """Have Nomad parse, check and register the job; returns its id. Raises UsageError with what Nomad says.

    Raises UnansweredError where nobody answers.
    """
    parsed = await _asked(wire, "POST", "/v1/jobs/parse", {"JobHCL": text, "Canonicalize": False})
    checked = await _asked(wire, "PUT", "/v1/validate/job", {"Job": parsed})
    if wrong := [*(checked.get("ValidationErrors") or []), *filter(None, [checked.get("Error")])]:
        raise UsageError(f"{wire.login.address}: Nomad refuses the job: {'; '.join(map(str, wrong))}")
    name = str(parsed["ID"])
    there = await _asked(wire, "GET", f"/v1/job/{quote(name, safe='')}")
    if there and not there.get("Stop") and (differ := _differences(there, parsed)):
        raise UsageError(
            f"{wire.login.address}: there is a job {name} already, and it is another one: {'; '.join(differ)}. To"
            f" replace it, remove it first: nomad job stop {name}"
        )
    await _asked(wire, "PUT", "/v1/jobs", {"Job": parsed})
    return name


def _differences(there: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """What two jobs of one name do not have in common: what they run, and where. When it runs may change."""
    pairs = zip(_runs(there), _runs(ours), strict=True)
    return [f"it has {before}, this one has {now}" for before, now in pairs if before != now]


def _runs(job: Mapping[str, Any]) -> tuple[str, str, str]:
    """(the command line, its directory, what the host must be)."""
    tasks = [task for group in job.get("TaskGroups") or [] for task in group.get("Tasks") or []]
    config: Mapping[str, Any] = (tasks[0].get("Config") if len(tasks) == 1 else None) or {}
    words = [config.get("command"), *(config.get("args") or [])]
    command = shlex.join(str(word) for word in words if word is not None)
    bound = ", ".join(f"{each.get('LTarget')} = {each.get('RTarget')}" for each in job.get("Constraints") or [])
    return (
        f"the command `{command}`" if command else "no command",
        f"the directory {config.get('work_dir')}",
        f"the constraint {bound}" if bound else "no constraint",
    )


async def _asked(wire: Wire, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What it answers; nothing where GET finds nothing. Raises UsageError for any other answer."""
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
