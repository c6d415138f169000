"""A systemd service and the timer that starts it."""

from __future__ import annotations

from hashidrill.core.errors import UsageError
from hashidrill.gamedays.schedules.cron import on_calendar
from hashidrill.gamedays.schedules.job import Job

_SPECIAL = {"\\": "\\\\", '"': '\\"', "%": "%%", "$": "$$"}


def unit_files(job: Job) -> dict[str, str]:
    """The content of each file, by its name. Raises UsageError for what a unit cannot say."""
    return {f"{job.name}.service": _service(job), f"{job.name}.timer": _timer(job)}


def _service(job: Job) -> str:
    if not job.words[0].startswith("/"):
        raise UsageError(f"--command: systemd starts programs by their paths: {job.words[0]} is none")
    user = f"User={job.user}\n" if job.user else ""
    pairs = [f"{name}={value}" for name, value in job.variables.items()]
    environment = "".join(f"Environment={_quoted(each, command=False)}\n" for each in pairs)
    return f"""\
# Written by `hashidrill schedule`. A run that fails, or does not count, is a failed unit: `systemctl --failed`.
[Unit]
Description=hashidrill: {_plain(job.what)}
Wants=network-online.target
After=network-online.target

[Service]
Type=oneshot
{user}WorkingDirectory={_plain(str(job.directory))}
{environment}# HASHIDRILL_NOTIFY=URL in this file has a webhook told of a turn to FAIL; only its owner should read it
{_tokens(job)}EnvironmentFile=-/etc/hashidrill/schedule.env
ExecStart={" ".join(_quoted(word) for word in job.words)}
# an interrupted run reverts its faults first
KillMode=mixed
KillSignal=SIGINT
TimeoutStopSec=120
"""


def _tokens(job: Job) -> str:
    """Where the tokens are, for whoever reads the file."""
    if not job.secrets:
        return ""
    return f"# the tokens of the datacenter that it attaches to belong in there too: {', '.join(job.secrets)}\n"


def _timer(job: Job) -> str:
    calendar = "".join(f"OnCalendar={line}\n" for line in on_calendar(job.cron, job.zone))
    return f"""\
# Written by `hashidrill schedule`. Copy both files to /etc/systemd/system, then:
#   systemctl daemon-reload && systemctl enable --now {job.name}.timer
[Unit]
Description=hashidrill: {_plain(job.what)}, on a schedule

[Timer]
{calendar}AccuracySec=1s
# a run that was missed is not made up for: nobody expects a fault right after a boot
Persistent=false

[Install]
WantedBy=timers.target
"""


def _plain(text: str) -> str:
    """A value that systemd takes to the end of the line. Raises UsageError for one that goes on in the next line."""
    if text.endswith("\\"):
        raise UsageError(f"{text}: a path with a backslash at its end cannot stand in a unit: rename it")
    return text.replace("%", "%%")


def _quoted(word: str, *, command: bool = True) -> str:
    """A word as systemd reads it. `$` is a variable in a command line alone."""
    special = {key: value for key, value in _SPECIAL.items() if command or key != "$"}
    return '"' + "".join(special.get(character, character) for character in word) + '"'
