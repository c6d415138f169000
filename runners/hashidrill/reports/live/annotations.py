"""Sends each run, and each of its faults, to Grafana as a region annotation, once the run is judged."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from hashidrill.core.errors import UsageError
from hashidrill.core.judging.verdict import Finding
from hashidrill.core.protocols.events import Began, Event, Intent, Judged, Proof
from hashidrill.core.util.redaction import Redactor
from hashidrill.reports.text import one_line

if TYPE_CHECKING:
    import httpx2

URL, TOKEN, TOKEN_FILE = "HASHIDRILL_GRAFANA_URL", "HASHIDRILL_GRAFANA_TOKEN", "HASHIDRILL_GRAFANA_TOKEN_FILE"
EACH_WITHIN_S, ALL_WITHIN_S = 5.0, 15.0
_LONGEST = 400
_MS = 1_000_000
_ENDS = {"fault.gone", "fault.ended"}

Annotation = dict[str, Any]
"""An annotation for Grafana's API: `time` and `timeEnd` in ms since 1970, `tags`, `text`.

https://grafana.com/docs/grafana/latest/developers/http_api/annotations/
"""


class RunAnnotations:
    """Subscribes to the events of runs, one after the other; `send` gets the annotations of each."""

    def __init__(self, send: Callable[[list[Annotation]], None], *, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self._send, self._wall_ns = send, wall_ns
        self._redactor = Redactor()
        self._redactor.learn_environment(os.environ)
        self._run: Annotation | None = None
        self._faults: dict[str, Annotation] = {}
        self._origin_ns = self._last_ms = 0

    def event(self, event: Event) -> None:
        """Processes one event; the event of the verdict sends the annotations."""
        if isinstance(event, Began):
            self.close()
            self._origin_ns = self._wall_ns() - event.t_ns
            self._run = self._begun(event, f"{event.experiment}: not judged", "run", event.experiment)
        if self._run is None:
            return
        self._last_ms = max(self._run["time"], (self._origin_ns + event.t_ns) // _MS)
        match event:
            case Intent(kind=kind, target=target):
                text = f"{kind} on {target.host}: not proven"
                self._faults[event.fault_id] = self._begun(event, text, "fault", kind, target.host)
            case Proof() if event.fault_id in self._faults:
                fault = self._faults[event.fault_id]
                if event.event == "fault.proven":
                    fault["text"] = one_line(fault["text"].replace("not proven", event.evidence.measured), _LONGEST)
                if event.event in _ENDS:
                    fault["timeEnd"] = self._last_ms
            case Judged(verdict=verdict):
                broken = [one.title for one in event.expectations if one.finding == Finding.BROKEN]
                text = self._run["text"].replace("not judged", "; broken: ".join([verdict, *broken]))
                self._run |= {"text": one_line(text, _LONGEST), "tags": [*self._run["tags"], verdict]}
                self.close()

    def close(self) -> None:
        """Sends a run's annotations, even if it was never judged. Regions that have not ended end at the last event."""
        if self._run is not None:
            regions, self._run, self._faults = [self._run, *self._faults.values()], None, {}
            self._send([self._redactor.data({"timeEnd": self._last_ms, **region}) for region in regions])

    def _begun(self, event: Event, text: str, *tags: str) -> Annotation:
        return {"time": (self._origin_ns + event.t_ns) // _MS, "tags": ["hashidrill", *tags], "text": text}


@contextmanager
def annotated(
    tell: Callable[[str], None], environment: Mapping[str, str] = os.environ
) -> Iterator[Callable[[Event], None]]:
    """The subscriber that annotates Grafana; `tell` gets one line for each run that was not sent completely.

    Raises UsageError for an address, or a file with a token, that cannot be used.
    """
    address, token = environment[URL].rstrip("/"), _token(environment)
    try:
        parts = urlsplit(address)
        fine = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine or {"@", "?", "#"} & set(address):
        raise UsageError(
            f"{URL}: expected the address of Grafana, like https://grafana.example.org, without a password"
        )
    annotations = RunAnnotations(lambda all_of_run: send(address, token, all_of_run, tell))
    try:
        yield annotations.event
    finally:
        annotations.close()


def _token(environment: Mapping[str, str]) -> str:
    token, path = environment.get(TOKEN, ""), environment.get(TOKEN_FILE, "")
    if path and not token:
        try:
            token = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise UsageError(f"{TOKEN_FILE}={path}: cannot be read: {why}") from None
    if not token or not token.isprintable() or not token.isascii():
        raise UsageError(f"{URL} needs the token of a service account, in {TOKEN} or the file that {TOKEN_FILE} names")
    return token


def send(
    address: str,
    token: str,
    annotations: list[Annotation],
    tell: Callable[[str], None],
    *,
    within_s: float = ALL_WITHIN_S,
) -> None:
    """Posts the annotations one after the other, until one is refused. Waits for `within_s` at most.

    A thread makes the requests, since a server that answers byte by byte outlasts every timeout of a client.
    """
    done: list[str] = []
    asking = threading.Thread(target=lambda: done.extend(_posted(address, token, annotations)), daemon=True)
    asking.start()
    asking.join(within_s)
    refused = [why for why in done if why]
    if asking.is_alive() or refused:
        why = refused[0] if refused else f"no answer within {within_s:g} s"
        there = f"{len(done) - len(refused)} of {len(annotations)} annotations"
        tell(f"Grafana at {urlsplit(address).hostname} has {there}: {why}; the verdict stands")


def _posted(address: str, token: str, annotations: list[Annotation]) -> Iterator[str]:
    """For each annotation, "" or the reason for its refusal; nothing is sent after a refusal."""
    import httpx2  # noqa: PLC0415 - most runs annotate nothing

    head = {"Authorization": f"Bearer {token}"}
    try:
        with httpx2.Client(timeout=EACH_WITHIN_S, trust_env=False, headers=head) as client:
            for one in annotations:
                answer = client.post(f"{address}/api/annotations", json=one)
                why = "" if _added(answer) else f"it answered HTTP {answer.status_code}"
                yield why
                if why:
                    return
    except Exception as error:  # noqa: BLE001 - whatever it is, the run has its verdict
        yield type(error).__name__  # its text may name the token


def _added(answer: httpx2.Response) -> bool:
    """Whether Grafana stored it: a proxy's login page with status 200 does not count."""
    try:
        return answer.status_code == 200 and isinstance(answer.json().get("id"), int)
    except (ValueError, AttributeError):
        return False
