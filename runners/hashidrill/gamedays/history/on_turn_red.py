"""Sends a message to a webhook when a verdict turned from PASS to FAIL, and when a game day begins.

The call takes a bounded time, and its errors never fail a run.

The URL is a secret, because anyone who knows it can write there. It comes from an option or the environment, and is
never in a recording, the history or a message; messages name only its host. Redirects are not followed.

Webhooks of other products: a JSON template defines the headers and the body, filled with a message's fields.

`{name}` is a field of the message, `{env:NAME}` a secret from the environment. There are templates for PagerDuty and
Opsgenie.
"""

import contextlib
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2

from hashidrill import __version__
from hashidrill.core.errors import HashidrillError, UsageError
from hashidrill.core.judging.verdict import RunVerdict
from hashidrill.core.recording.reader import Recording
from hashidrill.core.util.redaction import Redactor
from hashidrill.core.util.safe_json import parse
from hashidrill.gamedays.history.changes import Changed, changed
from hashidrill.gamedays.history.from_recording import record_day, record_run
from hashidrill.gamedays.history.pages import moment, turn_line
from hashidrill.gamedays.history.store import Run, Store, Stored, Turn, history_file, opened
from hashidrill.reports.text import one_line

_FOLDER = Path(__file__).with_name("templates")
_PLACE = re.compile(r"\{(env:)?([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True)
class Template:
    """A template's JSON text, in which `{...}` stands for parts of the message; "": the message is the body."""

    text: str = ""

    def filled(self, message: Mapping[str, Any]) -> tuple[dict[str, str], Any]:
        """Headers and body for one message."""
        if not self.text:
            return {}, message

        def value(found: re.Match[str]) -> str:
            said = os.environ[found[2]] if found[1] else message.get(found[2], "")
            return json.dumps("; ".join(map(str, said)) if isinstance(said, list) else str(said))[1:-1]

        whole = parse(_PLACE.sub(value, self.text))
        return whole.get("headers", {}), whole["body"]


def template(variable: str, fields: Collection[str]) -> Template:
    """The template that a variable names: a shipped one, or a file. Raises UsageError if it cannot be filled."""
    name = os.environ.get(variable, "")
    if not name:
        return Template()
    shipped = {path.stem: path for path in sorted(_FOLDER.glob("*.json"))}
    try:
        text = shipped.get(name, Path(name)).read_text(encoding="utf-8")
        written = parse(text)
    except OSError as error:
        raise UsageError(f"{variable}={name}: {error.strerror}; name a file, or {', '.join(shipped)}") from None
    except ValueError as error:
        raise UsageError(f"{variable}={name}: not JSON: {error}") from None
    headers = written.get("headers", {}) if isinstance(written, dict) else None
    whole = isinstance(headers, dict) and all(isinstance(value, str) for value in headers.values())
    if not whole or "body" not in written or written.keys() - {"headers", "body"}:
        raise UsageError(f'{variable}={name}: expected {{"headers": {{NAME: TEXT}}, "body": ...}}')
    for secret, field in _PLACE.findall(text):
        value = os.environ.get(field, "")
        if secret and not (value and value.isprintable()):
            raise UsageError(f"{variable}={name}: it needs the variable {field}, with one line of text")
        if not secret and field not in fields:
            raise UsageError(f"{variable}={name}: there is no field {{{field}}}; there are {', '.join(sorted(fields))}")
    return Template(text)


VARIABLE = "HASHIDRILL_NOTIFY"
TEMPLATE = f"{VARIABLE}_TEMPLATE"
MAINTENANCE = "HASHIDRILL_MAINTENANCE"
MAINTENANCE_TEMPLATE = f"{MAINTENANCE}_TEMPLATE"
SCHEMA = "hashidrill.turned/v1"
FIELDS = (
    *("text", "schema", "hashidrill", "kind", "name", "verdict", "before", "id", "ended_at", "recording"),
    *("last_passed", "broken", "changes", "figures_outside_of_noise"),
)
"""The fields of each message, for templates."""
DAY_SCHEMA = "hashidrill.day/v1"
DAY_FIELDS = ("text", "schema", "name", "starts_at", "ends_at")
LEAST_WINDOW_S = 3600.0
"""The shortest announced length of a day; otherwise twice the time of its experiments, since people take time too."""
EACH_WITHIN_S = 5.0
ALL_WITHIN_S = 20.0
PATIENT_S = 5.0
"""After this many seconds, a message explains the wait."""
_GAPS_S = (1.0, 3.0)
"""The waits between three attempts."""
_LONGEST = 400
_MOST = 20
"""The most changes, and the most broken expectations, in one message."""


Tell = Callable[[str], None]


def webhook_url(url: str | None) -> str | None:
    """`url`, or the environment's URL. Raises UsageError for an invalid URL, without printing it.

    Raises UsageError also for an invalid URL in MAINTENANCE, and for an unusable template.
    """
    for variable, fields in ((TEMPLATE, FIELDS), (MAINTENANCE_TEMPLATE, DAY_FIELDS)):
        template(variable, fields)
    _checked(os.environ.get(MAINTENANCE) or None, MAINTENANCE)
    return _checked(url or os.environ.get(VARIABLE) or None, f"--notify, or {VARIABLE}")


def _checked(said: str | None, name: str) -> str | None:
    if said is None:
        return None
    try:
        parts = urlsplit(said)
        fine = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine:
        raise UsageError(
            f"{name}: expected the URL of a webhook, like https://hooks.example.org/services/..."
            " (the given value is not printed: it may be a secret)"
        )
    return said


def announce(name: str, lasts_s: float, *, tell: Tell, now: datetime | None = None) -> None:
    """Tells the webhook of MAINTENANCE, if there is one, that a game day begins, for about `lasts_s` seconds.

    Raises only KeyboardInterrupt.
    """
    url = os.environ.get(MAINTENANCE)
    if not url:
        return
    starts = now or datetime.now(UTC)
    ends = starts + timedelta(seconds=max(2 * lasts_s, LEAST_WINDOW_S))
    starts_at, ends_at = (each.strftime("%Y-%m-%dT%H:%M:%SZ") for each in (starts, ends))
    text = inert(f"hashidrill: the game day {name} breaks this datacenter on purpose until {ends_at}")
    said = {"text": text, "schema": DAY_SCHEMA, "name": name, "starts_at": starts_at, "ends_at": ends_at}
    headers, body = template(MAINTENANCE_TEMPLATE, DAY_FIELDS).filled(said)
    send(url, body, headers=headers, tell=tell)


def message(turn: Turn, changed: Changed | None = None) -> dict[str, Any]:
    """The body for a webhook. `text` is shown by Slack, Mattermost and similar; the rest is for programs."""
    now = turn.now
    broken = now.broken if isinstance(now, Run) else []
    changes = [str(each) for each in changed.changes] if changed else []
    outside = [each.name for each in changed.outside] if changed else []
    lines = [turn_line(turn), *(f"• {each}" for each in broken[:_MOST])]
    if changes:
        lines.append(f"changed since: {'; '.join(changes[:_MOST])}")
    elif changed is not None:
        lines.append("changed since: nothing that is known from the recordings")
    found = {
        "text": "\n".join(one_line(line, _LONGEST) for line in lines),
        "schema": SCHEMA,
        "hashidrill": __version__,
        "kind": "run" if isinstance(now, Run) else "day",
        "name": turn.name,
        "verdict": now.verdict.value,
        "before": turn.before.verdict.value,
        "id": now.id,
        "ended_at": moment(now.ended_s),
        "recording": now.path,
        "last_passed": {"id": turn.before.id, "ended_at": moment(turn.before.ended_s)},
        "broken": [one_line(each, _LONGEST) for each in broken[:_MOST]],
        "changes": [one_line(each, _LONGEST) for each in changes[:_MOST]],
        "figures_outside_of_noise": outside[:_MOST],
        **(
            {"experiment": now.series.experiment, "variant": now.series.variant, "datacenter": now.series.datacenter}
            if isinstance(now, Run)
            else {"gameday": now.gameday}
        ),
    }
    redactor = Redactor()
    redactor.learn_environment(os.environ)
    clean = dict(redactor.data(found))
    return clean | {"text": inert(clean["text"])}  # escaped last: the redactor would not find an escaped secret


def inert(text: str) -> str:
    """Text that chats show literally: `<!channel>`, `<url|words>` and `@here` in evidence notify no one and make no
    link.

    Slack decodes the entities. A `>` opens nothing without its `<`, and stays.
    """
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("@", "@\N{WORD JOINER}")


def send(
    url: str,
    body: Any,
    *,
    tell: Callable[[str], None],
    headers: Mapping[str, str] = {},
    client: httpx2.Client | None = None,
    sleep: Callable[[float], None] = time.sleep,
    within_s: float = ALL_WITHIN_S,
    patient_s: float = PATIENT_S,
) -> bool:
    """Whether the webhook accepted it. Tries three times, for `within_s` at most; `tell` receives the reason of a
    failure.

    Raises only KeyboardInterrupt, so that Ctrl-C ends the waiting. An answer from 300 to 499 is final, except for
    408 and 429. A thread makes the request: a server that answers byte by byte, or a hanging name server, outlasts
    every timeout of a client.
    """
    why: list[str] = []
    asking = threading.Thread(target=lambda: why.append(_ask(url, body, headers, client, sleep)), daemon=True)
    try:
        asking.start()
        asking.join(min(patient_s, within_s))
        if asking.is_alive() and patient_s < within_s:
            tell(f"the webhook at {urlsplit(url).hostname} is slow to answer; Ctrl-C ends the wait, the verdict stands")
            asking.join(within_s - patient_s)
        said = why[0] if why else f"no answer within {within_s:g} s"
        if said:
            tell(f"the webhook at {urlsplit(url).hostname} did not get the message: {said}; the verdict stands")
    except KeyboardInterrupt:
        tell("interrupted while the webhook was called; the verdict stands")
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, the run has ended, and its verdict stands
        tell(f"the webhook did not get the message: {type(error).__name__}; the verdict stands")
        return False
    return not said


def _ask(
    url: str,
    body: Any,
    headers: Mapping[str, str],
    client: httpx2.Client | None,
    sleep: Callable[[float], None],
) -> str:
    """Why it was refused; "" if it was accepted."""
    try:
        import httpx2  # noqa: PLC0415 - most runs send no message

        why = ""
        with _silent(), client or httpx2.Client(timeout=EACH_WITHIN_S, follow_redirects=False) as one:
            for gap_s in (*_GAPS_S, None):
                why, again = _once(one, url, body, headers)
                if not again or gap_s is None:
                    break
                sleep(gap_s)
    except Exception as error:  # noqa: BLE001 - as above
        return type(error).__name__
    return why


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Silences the HTTP client, which logs the whole URL of each request."""
    loggers = [logging.getLogger(name) for name in ("httpx2", "httpcore")]
    before = [one.level for one in loggers]
    try:
        for one in loggers:
            one.setLevel(logging.WARNING)
        yield
    finally:
        for one, level in zip(loggers, before, strict=True):
            one.setLevel(level)


def _once(client: httpx2.Client, url: str, body: Any, headers: Mapping[str, str]) -> tuple[str, bool]:
    """Returns (why the message was refused, or ""; whether another try makes sense)."""
    import httpx2  # noqa: PLC0415 - as above

    try:
        answer = client.post(url, json=body, headers=headers)
    except httpx2.HTTPError as error:
        return type(error).__name__, True  # the error's text may contain the URL
    if answer.is_success:
        return "", False
    final = 300 <= answer.status_code < 500 and answer.status_code not in {408, 429}
    return f"it answered HTTP {answer.status_code}", not final


def keep(
    recording: Recording,
    verdict: RunVerdict | None,
    *,
    webhook: str | None,
    tell: Tell,
    turned: Callable[[Turn], None] = lambda _: None,
) -> Turn | None:
    """Stores a finished run. The change of verdict is reported once, however often the run is stored.

    `turned` receives it before the webhook, which may take long. Raises only KeyboardInterrupt.
    """
    return _tell(record_run(recording, verdict=verdict, tell=tell), webhook, tell, turned)


def keep_day(
    folder: Path, *, webhook: str | None, tell: Tell, turned: Callable[[Turn], None] = lambda _: None
) -> Turn | None:
    """Like `keep`, for a game day."""
    return _tell(record_day(folder, tell=tell), webhook, tell, turned)


def _tell(stored: Stored | None, webhook: str | None, tell: Tell, turned: Callable[[Turn], None]) -> Turn | None:
    if stored is None or stored.turn is None:
        return None
    turn = stored.turn
    turned(turn)
    if webhook is not None:
        found = None
        with contextlib.suppress(HashidrillError):  # an unreadable history must not hide a turn
            if isinstance(turn.now, Run):
                with opened(history_file()) as database:
                    found = changed(Store(database).runs(turn.now.series, last=200), turn.now)
        headers, body = template(TEMPLATE, FIELDS).filled(message(turn, found))
        send(webhook, body, headers=headers, tell=tell)
    return turn
