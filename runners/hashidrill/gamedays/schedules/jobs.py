"""A schedule as a GitHub workflow, as systemd units and as a Nomad periodic job.

`templates/` has the files. Nomad itself parses the file (`/v1/jobs/parse`), checks it (`/v1/validate/job`, where its
own parser reads the cron expression), and registers the result. Paths and fields are from Nomad 1.10.5.

A cron expression of five fields that means the same to Nomad, GitHub Actions and systemd.

The three read different dialects: Nomad's cronexpr knows L, W, #, seconds and `@daily`, GitHub knows POSIX's fields and
names, systemd has a form of its own. This module accepts their common subset: numbers, lists, ranges, steps over `*` or
a range, and the names of months and days of the week. It refuses everything else and names a valid alternative. No
cron library has this subset: each accepts its own dialect, which one of the three reads differently. The target then
checks the result: Nomad validates a job before it registers it, and tests use the real `nomad` and
`systemd-analyze`.
"""

import calendar
import datetime as dt
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hashidrill.core.errors import UsageError
from hashidrill.staging.attach.http import Wire

_MONTHS = {name.upper(): number for number, name in enumerate(calendar.month_abbr) if number}
_DAYS = {"SUN": 0, "MON": 1, "TUE": 2, "WED": 3, "THU": 4, "FRI": 5, "SAT": 6}
DAY_NAMES = ("Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat")
_FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of the month", 1, 31, {}),
    ("month", 1, 12, _MONTHS),
    ("day of the week", 0, 7, _DAYS),
)
_LONGEST_MONTH = {month: 29 if month == 2 else calendar.monthrange(2023, month)[1] for month in range(1, 13)}
_PART = re.compile(r"(?P<first>\*|\w+)(?:-(?P<last>\w+))?(?:/(?P<step>\w+))?")
_FURTHEST_DAYS = 366 * 9
"""A 29th of February may be eight years away."""
EXAMPLE = "like `17 2 * * *` (each night at 02:17) or `0 9 * * MON-FRI`"


@dataclass(frozen=True)
class Field:
    """The values of one field. `every`: the field was `*`, which restricts nothing."""

    values: tuple[int, ...]
    text: str

    @property
    def every(self) -> bool:
        return self.text == "*"


@dataclass(frozen=True)
class Cron:
    """A checked expression. Days of the week count from 0, which is Sunday."""

    minute: Field
    hour: Field
    day: Field
    month: Field
    weekday: Field

    def __str__(self) -> str:
        return " ".join(each.text for each in (self.minute, self.hour, self.day, self.month, self.weekday))

    @property
    def shortest_gap_minutes(self) -> int:
        """The shortest time between two runs, within a day with runs and across midnight."""
        times = [hour * 60 + minute for hour in self.hour.values for minute in self.minute.values]
        gaps = [later - one for one, later in pairwise(times)]
        return min([*gaps, 24 * 60 - times[-1] + times[0]])


def cron(text: str) -> Cron:
    """Raises UsageError that names the field, with a valid example."""
    words = text.split()
    if text.strip().startswith("@"):
        raise UsageError(f"--cron {text!r}: names like @daily vary between systems: write five fields, {EXAMPLE}")
    if len(words) != len(_FIELDS):
        raise UsageError(
            f"--cron {text!r}: expected 5 fields (minute, hour, day of the month, month, day of the week), got"
            f" {len(words)}: write it {EXAMPLE}"
        )
    fields = [_field(word, *about) for word, about in zip(words, _FIELDS, strict=True)]
    found = Cron(*fields)
    _check_days(found, text)
    return found


def _field(word: str, name: str, low: int, high: int, names: dict[str, int]) -> Field:
    values: set[int] = set()
    for part in word.split(","):
        values |= set(_part(part, f"--cron: {name} {word!r}", low, high, names))
    if high == 7:  # 7 is Sunday too, but not for GitHub
        values = {value % 7 for value in values}
    plain = re.fullmatch(r"[\d*/,-]+", word) and not (high == 7 and "7" in word)
    return Field(tuple(sorted(values)), word if plain else ",".join(map(str, sorted(values))))


def _part(part: str, where: str, low: int, high: int, names: dict[str, int]) -> Iterator[int]:
    found = _PART.fullmatch(part)
    if found is None:
        raise UsageError(
            f"{where}: Nomad, GitHub and systemd read {part!r} differently; write numbers, `1,15`,"
            f" `1-5`, `*` or `*/10`, {EXAMPLE}"
        )
    first, last, step = found["first"], found["last"], found["step"]
    if first == "*":
        if last is not None:
            raise UsageError(f"{where}: {part!r}: a range is from a number to a number, `1-5`")
        begin, end = low, min(high, 6) if high == 7 else high
    else:
        begin = _number(first, where, low, high, names)
        end = begin if last is None else _number(last, where, low, high, names)
        if end < begin:
            raise UsageError(f"{where}: {part!r} runs backwards: write two ranges, like `22-23,0-2`")
        if step is not None and last is None:
            raise UsageError(f"{where}: a step needs a range: write {first}-{high}/{step}")
    width = 1 if step is None else _number(step, where, 1, high, {})
    yield from range(begin, end + 1, width)


def _number(text: str, where: str, low: int, high: int, names: dict[str, int]) -> int:
    if text.upper() in names:
        return names[text.upper()]
    if not (text.isascii() and text.isdigit()) or not low <= int(text) <= high:
        known = f", or {', '.join(names)}" if names else ""
        raise UsageError(f"{where}: {text!r} is not from {low} to {high}{known}")
    return int(text)


def _check_days(found: Cron, text: str) -> None:
    if not found.day.every and not found.weekday.every:
        for field, most in ((found.day, 31), (found.weekday, 7)):
            if "*" in field.text or len(field.values) == most:
                raise UsageError(
                    f"--cron {text!r}: with a day of the month and a day of the week, some systems read {field.text!r}"
                    " as either, others as both: write `*` for one of the two, or numbers for both"
                )
    elif found.weekday.every and min(found.day.values) > max(_LONGEST_MONTH[month] for month in found.month.values):
        raise UsageError(f"--cron {text!r}: there is no such day in any of its months, so it would never run")


def on_calendar(found: Cron, zone: str) -> list[str]:
    """The expression in the form of systemd.time(7). Days of the month together with days of the week
    need two lines: cron runs when either matches, but one line of systemd needs both to match.

    The values are written one by one, so that nothing depends on how a step is read.
    """
    date = f"*-{_listed(found.month, 2)}-"
    time = f"{_listed(found.hour, 2)}:{_listed(found.minute, 2)}:00"
    tail = f" {time} {zone}"
    names = ",".join(DAY_NAMES[value] for value in found.weekday.values)
    lines = []
    if found.weekday.every or not found.day.every:
        lines.append(f"{date}{_listed(found.day, 2)}{tail}")
    if not found.weekday.every:
        lines.append(f"{names} {date}*{tail}")
    return lines


def _listed(field: Field, width: int) -> str:
    return "*" if field.every else ",".join(f"{value:0{width}d}" for value in field.values)


def next_times(found: Cron, after: dt.datetime, count: int) -> list[dt.datetime]:
    """The next runs after that moment, in its time zone; hours and minutes are local time."""
    times: list[dt.datetime] = []
    day = after.replace(hour=0, minute=0, second=0, microsecond=0)
    for offset in range(_FURTHEST_DAYS):
        date = day + dt.timedelta(days=offset)
        if not _on(found, date):
            continue
        for hour in found.hour.values:
            for minute in found.minute.values:
                if (moment := date.replace(hour=hour, minute=minute)) > after:
                    times.append(moment)
                    if len(times) == count:
                        return times
    return times


def _on(found: Cron, date: dt.datetime) -> bool:
    in_month, in_week = date.day in found.day.values, date.isoweekday() % 7 in found.weekday.values
    either = not found.day.every and not found.weekday.every
    return date.month in found.month.values and ((in_month or in_week) if either else (in_month and in_week))


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
    """The template with each `@@name@@` replaced; without a line that is only a placeholder of an empty value."""
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
    """A systemd service and its timer, by file name. Raises UsageError for values that a unit cannot hold."""
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
