"""The story of a run in a few sentences: what happened, what came closest to breaking, and what to do now.

Every moment is in seconds into the run, as on the timeline. A recording may lack anything (an aborted run, no
samples, no loads): sentences without data are left out.
"""

import math
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np

from hashidrill.core.errors import NOT_A_REPLY, OWN_CONFIGURATION, HypothesisInvalidError, RecordingError
from hashidrill.core.experiment.library import FOLDER as EXPERIMENTS
from hashidrill.core.experiment.model import Experiment
from hashidrill.core.judging import measure
from hashidrill.core.judging.alerts import AlertLooks, alert_looks, alerts_of
from hashidrill.core.judging.measure import SECOND
from hashidrill.core.judging.verdict import HARMLESS, Finding, Judgement, RunVerdict, Verdict
from hashidrill.core.protocols.service import asks, lanes
from hashidrill.core.recording.reader import FaultWindow, Operations, Recording
from hashidrill.core.units import Duration, counted
from hashidrill.core.util.folders import shipped
from hashidrill.reports.figures import (
    experiment_name,
    fault_span,
    load_figures,
    mark_spans,
    operations_of,
    run_end_ns,
    served_by,
)
from hashidrill.reports.text import human_duration, human_share, listed, one_line

SLOWER, SLOWER_BY_S, MANY_ERRORS = 5, 0.05, 0.02
"""Users notice a second in which more than 2 % of the due operations fail, or in which the median latency is five times
that of the steady state and at least 50 ms higher.
"""
LOUD_ERRORS = 0.15
"""If a load fails at least this often in a PASS, the report says so at the top."""
NOTICED = (
    "Users notice a second in which more than 2 % of the operations that were due fail, or in which the median is over"
    " five times that of the steady state and over 50 ms higher."
)
T = TypeVar("T")
Steps = tuple[tuple[str, str], ...]
"""What to do, and the command or the YAML for it; "" if there is none."""
_NOT_READ = (HypothesisInvalidError, RecordingError)
"""Raised for missing and for damaged parts of a recording. Any other error is a defect of this module."""
_Span = tuple[int, int]
_NOTHING = (None, "0s", "0%", "100%", "", 0)
"""Values of a fault's parameters that change nothing: their defaults."""


@dataclass(frozen=True)
class Story:
    """`warning`: what a PASS must not hide; `closest`: the held expectation with the least room; "" if unknown."""

    why: str
    sentences: tuple[str, ...]
    warning: str
    closest: str
    next: Steps


def story(recording: Recording, verdict: RunVerdict) -> Story:
    """Raises nothing for an incomplete recording."""
    experiment = _experiment(recording)
    passed = verdict.verdict is Verdict.PASS
    return Story(
        experiment.metadata.why.strip() if experiment else "",
        tuple(said for tell in (_broke, _users, _over) if (said := _told(partial(tell, recording), ""))),
        _told(lambda: _warning(recording), "") if passed else "",
        _closest(verdict) if passed else "",
        _told(lambda: tuple(_next(recording, verdict, experiment)), ()),
    )


def _told(tell: Callable[[], T], otherwise: T) -> T:
    """The result of `tell`, or `otherwise` if the recording cannot be read."""
    try:
        return tell()
    except _NOT_READ:
        return otherwise


def _experiment(recording: Recording) -> Experiment | None:
    try:
        return recording.experiment
    except _NOT_READ:
        return None


def at(t_ns: int) -> str:
    """A moment, as the timeline shows it: `14.7 s`."""
    return f"{t_ns / SECOND:.1f} s"


def _spans(recording: Recording) -> list[_Span]:
    end_ns = run_end_ns(recording)
    spans = [span for fault in recording.faults if (span := fault_span(fault, end_ns)) is not None]
    return sorted(spans or mark_spans(recording))


def _broke(recording: Recording) -> str:
    end_ns = run_end_ns(recording)
    applied = [(fault, span) for fault in recording.faults if (span := fault_span(fault, end_ns)) is not None]
    if not applied:
        marks = [
            f"{one_line(mark.mark, 60)} from {at(start)} to {at(end)}"
            for mark, (start, end) in zip(recording.marks, mark_spans(recording), strict=True)
        ]
        return f"No fault was applied; the method marked {listed(marks, 3)}." if marks else "No fault was applied."
    (first, (start, end)), many = applied[0], len(applied)
    if many > 1:
        kinds = dict.fromkeys(f"{fault.kind} on {fault.host}" for fault, _ in applied)
        last = max(span[1] for _, span in applied)
        return f"{many} faults were in force between {at(start)} and {at(last)}: {listed([*kinds], 4)}."
    led = _asked(recording, first, (start, end))
    told = {name: value for name, value in first.params.items() if value not in _NOTHING}
    how = f" ({one_line(', '.join(f'{name}={value}' for name, value in told.items()), 120)})" if told else ""
    proven = "" if first.proven else ", but was not proven in force"
    lasted = human_duration((end - start) / SECOND)
    return f"At {at(start)} into the run, {first.kind}{how} hit {first.host}{led} for {lasted}{proven}."


def _asked(recording: Recording, fault: FaultWindow, span: _Span) -> str:
    """Whether the server led and which client agents used it when the fault began, or that it served no user."""
    leads = _leader(recording, span[0]) == fault.host
    clients = served_by(recording, fault.agent)
    during = [
        [each for each in spans if each.start_ns < span[1] and each.end_ns > span[0]] for spans in clients.values()
    ]
    known = all(spans and spans[0].start_ns <= span[0] for spans in during)
    asking = [
        client
        for client, spans in zip(clients, during, strict=True)
        if spans and spans[0].start_ns <= span[0] and spans[0].server == fault.host
    ]
    said = ["then the leader"] if leads else []
    said += [f"asked by {listed(asking, 3)}"] if asking else []
    if said:
        return f", {' and '.join(said)},"
    apart = known and not any(each.server is None or fault.host in each.connected for of in during for each in of)
    led = {reign.host for reign in _reigns(recording, span[0]) if reign.start_ns < span[1]}
    if clients and apart and fault.host not in clients and led and fault.host not in led:
        return " (it did not lead, and no client agent was connected to it)"
    return ""


def _moved(recording: Recording) -> str:
    """The first client agent that asked another server after the faults began: `client-1 asked consul-2 until ...`."""
    start_ns, stop_ns = _spans(recording)[0][0], _loads_end(recording)
    moved = []
    for product in asks():
        for client, spans in served_by(recording, product).items():
            known = [each for each in spans if each.server and each.end_ns > start_ns and each.start_ns < stop_ns]
            for before, after in pairwise(known):
                if after.server != before.server:
                    moved.append((before.end_ns, f"{client} asked {before.server} until", after))
                    break
    if not moved:
        return ""
    at_ns, said, after = min(moved)
    more = f" ({counted(len(moved) - 1, 'more client agent')} changed, too)" if len(moved) > 1 else ""
    return f"{said} {at(at_ns)}, then {after.server}{more}"


def _users(recording: Recording) -> str:
    """When, for how long and how badly the fault affected each load; the unaffected loads are listed in one clause."""
    spans, said, calm = _spans(recording), [], []
    for load in recording.loads:
        operations = operations_of(recording, load)
        felt = _noticed(recording, operations, spans) if operations is not None and spans else None
        if operations is None or felt is None:
            continue
        bad, p50_s, worst_s, failed = felt
        if not bad:
            calm.append(load)
            continue
        after_s = (bad[0] - spans[0][0]) / SECOND
        how = [f"p50 up to {human_duration(worst_s)} instead of {human_duration(p50_s)}"] if worst_s > p50_s else []
        how += [f"{human_share(failed)} of its operations failed in those seconds"] if failed else []
        when = "at once" if after_s < 1 else f"{human_duration(after_s)} later"
        said.append(f"{load} noticed {when}, for {counted(len(bad), 'second')}: {', '.join(how)}")
    if calm:
        said.append(f"{listed(calm, 4)} noticed nothing")
    return f"{'; '.join(said)}." if said else ""


def _noticed(
    recording: Recording, operations: Operations, spans: Sequence[_Span]
) -> tuple[list[int], float, float, float] | None:
    """(begin of each bad second, steady p50, worst p50 of a bad second, failed share in those); None if unknown."""
    steady = recording.phases.get("steady")
    before = None if steady is None else operations.between(*steady)
    if before is None or not len(before):
        return None
    p50_s = float(np.median(before.latency_s))
    limit_s = max(SLOWER * p50_s, p50_s + SLOWER_BY_S)
    bad, worst_s, due, failed = list[int](), 0.0, 0, 0
    for start_ns in range(spans[0][0], _watched_to(recording) - SECOND + 1, SECOND):
        second = operations.between(start_ns, start_ns + SECOND)
        if not len(second):
            continue
        middle_s, errors = float(np.median(second.latency_s)), float(1 - second.ok.mean())
        if errors > MANY_ERRORS or middle_s > limit_s:
            bad.append(start_ns)
            worst_s = max(worst_s, middle_s)
            due, failed = due + len(second), failed + int((~second.ok).sum())
    return bad, p50_s, worst_s, failed / due if due else 0.0


ALERTS = ("alert", "fired", "users", "cleared")


def alert_rows(recording: Recording) -> list[tuple[str, ...]]:
    """Rows below ALERTS: for each watched alert, when it fired, and whether users noticed the faults before.

    The alert that fired first comes first. With several probes, an alert's name follows its probe's.
    """
    experiment, rows = _experiment(recording), list[tuple[float, tuple[str, ...]]]()
    watched = list(alerts_of(experiment)) if experiment else []
    several = len({probe for probe, _ in watched}) > 1
    for probe, alert in watched:
        name, fired, row = f"{probe}: {alert}" if several else alert, None, ("not watched", "", "")
        try:
            looks = alert_looks(recording, alert, probe)
            fired, row = looks.first_firing(), _alert(recording, looks)
        except _NOT_READ:
            pass
        rows.append((fired[1] if fired else float("inf"), (name, *row)))
    return [row for _, row in sorted(rows, key=lambda each: each[0])]


def _alert(recording: Recording, looks: AlertLooks) -> tuple[str, str, str]:
    failed = int((~looks.firing & ~looks.quiet).sum())
    said = f"; {failed} of {counted(len(looks.t_ns), 'look')} failed" if failed else ""
    fired = looks.first_firing()
    if fired is None:
        return f"{'not seen' if failed else 'no'}{said}", "", ""
    spans, felt = _spans(recording), list[tuple[int, str]]()
    for load in recording.loads:
        operations = operations_of(recording, load)
        if operations is not None and spans and (noticed := _noticed(recording, operations, spans)) and noticed[0]:
            felt.append((noticed[0][0], load))
    late_s = (fired[1] - spans[0][0]) / SECOND if spans else 0.0
    after = f", {human_duration(late_s)} after the fault" if late_s > 0 else ", before the fault" if late_s < 0 else ""
    users = "noticed nothing"
    if felt:
        gap_s = (min(felt)[0] - fired[1]) / SECOND
        users = f"{min(felt)[1]} noticed {human_duration(abs(gap_s))} {'later' if gap_s >= 0 else 'before'}"
    last = int(np.flatnonzero(looks.firing)[-1])
    quiet = looks.t_ns[last:][looks.quiet[last:]]
    cleared = at(int(quiet[0])) if len(quiet) else "not seen"
    return f"{at(fired[1])}{after}{said}", users, cleared


def _watched_to(recording: Recording) -> int:
    """A second before the loads stop: operations that are due later were cut off."""
    return _loads_end(recording) - SECOND


def _loads_end(recording: Recording) -> int:
    end_ns = run_end_ns(recording)
    return recording.phases.get("recovery", recording.phases.get("method", (0, end_ns)))[1]


def _over(recording: Recording) -> str:
    """The leaders meanwhile, and when users were served as before."""
    spans = _spans(recording)
    if not spans:
        return ""
    bad = [
        felt[0][-1] + SECOND
        for load in recording.loads
        if (operations := operations_of(recording, load)) is not None
        and (felt := _noticed(recording, operations, spans))
        and felt[0]
    ]
    told = [each for each in (_leaders(recording, spans[0][0]), _moved(recording)) if each]
    led, ended = "; ".join(told), max(span[1] for span in spans)
    if not bad:
        return f"{led}." if led else ""
    last, stop = max(bad), _loads_end(recording)
    what = "the last fault" if len(recording.faults) > 1 else "the fault" if recording.faults else "the mark"
    if last > _watched_to(recording) - SECOND:
        over = f"it was not over when the loads stopped at {at(stop)}"
    else:
        gap_s = (last - ended) / SECOND
        side = f"{human_duration(abs(gap_s))} {'after' if gap_s >= 0 else 'before'}" if abs(gap_s) >= 1 else "as"
        over = f"it was over at {at(last)}, {side} {what} ended"
    return f"{led}; {over}." if led else f"{over[0].upper()}{over[1:]}."


def _leader(recording: Recording, t_ns: int) -> str:
    reigns = _reigns(recording, t_ns)
    return reigns[0].host if reigns else ""


def _reigns(recording: Recording, start_ns: int) -> list[measure.Reign]:
    """Those of the product that the first fault hit, if they are known."""
    signals = [measure.leader_signal(window) for window in recording.faults[:1]]
    for signal in [*signals, *(lane.signal for lane in lanes() if lane.names)]:
        try:
            return measure.reigns(recording, start_ns, max(_loads_end(recording), start_ns + 1), signal)
        except _NOT_READ:
            continue
    return []


def _leaders(recording: Recording, start_ns: int) -> str:
    reigns = _reigns(recording, start_ns)
    if not reigns:
        return ""
    if len(reigns) == 1:
        return f"{reigns[0].host} led throughout" if reigns[0].host else "No leader was known throughout"
    told = [reigns[0].host or "no leader"]
    for before, reign in pairwise(reigns[:5]):
        again = " again" if reign.host == before.host else ""
        lasts = "" if reign.host else f" for {human_duration((reign.end_ns - reign.start_ns) / SECOND)}"
        told.append(f"{reign.host or 'no leader'}{again}{lasts} from {at(reign.start_ns)}")
    more = f" and {len(reigns) - 5} more changes" if len(reigns) > 5 else ""
    return f"Leader: {', then '.join(told)}{more}"


def _warning(recording: Recording) -> str:
    loud = [row for row in load_figures(recording) if row.part != "steady" and row.errors >= LOUD_ERRORS]
    parts = {"fault": "while a fault was in force", "mark": "during the mark", "recovery": "in the recovery"}
    said = [f"{human_share(row.errors)} of {row.load} {parts.get(row.part, '')}" for row in loud]
    return (
        f"It passed, and yet these operations failed: {'; '.join(said)}. No expectation forbids that." if said else ""
    )


# ---- what came closest

_LIMITS: tuple[tuple[str, str], ...] = (
    (r"within", r"(?:^|_)(?:recovered_|elected_|left_|back_|)after_s$|^longest(?:_stall)?_s$"),
    (r"p50_below", r"^(?:worst_p50_s|p50_s)$"),
    (r"p99_below", r"^(?:worst_p99_s|p99_s)$"),
    (r"errors_below|at_most", r"^error(?:s|_share|s_share)$"),
)
"""A parameter that is a limit, and the figures that are compared with it."""


def _closest(verdict: RunVerdict) -> str:
    rooms = [room for each in verdict.judgements if each.finding is Finding.HELD for room in _rooms(each)]
    if not rooms:
        return ""
    share, text = max(rooms)
    return f"Closest to breaking: {text} ({share:.0%})."


def _rooms(judgement: Judgement) -> Iterator[tuple[float, str]]:
    limits = dict(re.findall(r"(\w+)=([^,()\s]+)", judgement.title))
    if stated := re.search(r"\((?:allowed:|within) ([\d.]+\w+)\)", judgement.text):
        limits.setdefault("within", stated[1])
    stays = "recovered_after_s" in judgement.figures  # its p50 includes the time before it was back
    for parameter, figures in _LIMITS:
        for name, limit in limits.items():
            most = _number(limit) if re.fullmatch(parameter, name) else None
            if not most or (stays and name != "within"):
                continue
            found = [
                float(value)
                for figure, value in judgement.figures.items()
                if re.search(figures, figure) and isinstance(value, (int, float)) and math.isfinite(value)
            ]
            if found and 0 < max(found) <= most:
                shown = human_share if limit.endswith("%") else human_duration
                yield max(found) / most, f"{judgement.hypothesis} took {shown(max(found))} of the {shown(most)} allowed"


def _number(limit: str) -> float | None:
    if limit.endswith("%"):
        return float(limit[:-1]) / 100 if re.fullmatch(r"[\d.]+%", limit) else None
    try:
        return float(Duration(limit))
    except ValueError:
        return None


# ---- what now

_SICK = "Look at the logs: the datacenter was sick before any fault. Or loosen steady_state.require"
_CURES: tuple[tuple[str, str, str], ...] = (
    ("machine cannot carry", "Run it on a larger machine, or with fewer agents, views or clients", ""),
    (
        OWN_CONFIGURATION,
        "Correct that configuration in the experiment: the agent refused to start with it, and its log says why",
        "",
    ),
    ("never got ready", "Look at the logs: an agent ended before any fault", ""),
    ("steady state never held", _SICK, ""),
    (NOT_A_REPLY, "Correct the load: it must catch that error", ""),
    (
        "used up its core|behind its schedule|generator",
        "Lower the rates of the loads, or give the generator a core",
        "",
    ),
    ("machine busy|other work", "Stop the other work on this machine, and run it again", ""),
    (
        "not proven in force|could not be put in force|no longer in force",
        "See what this machine lacks for the fault",
        "hashidrill doctor",
    ),
    ("not proven gone|could not be reverted", "Revert what is left", "hashidrill heal {path}"),
    ("no fault was applied|never carried out", "Give the method a fault whose target exists", ""),
    ("^the run was interrupted", "Nothing is wrong with the experiment: let it run to its end", ""),
    (
        "crashed|died",
        "Remove what the run left, then run it again; report a second crash as a defect of hashidrill",
        "hashidrill heal {path}",
    ),
    (
        "cannot be read|no hypothesis",
        "Judge it with the hypotheses and the version of hashidrill that ran it",
        "hashidrill check {path} --recorded-hypotheses",
    ),
    ("damaged", "Take the recording from a copy; this one cannot be trusted", ""),
    ("no successful operation|no operation|silent", "Look at the errors of the load: its agents never answered it", ""),
    ("longer `recovery|longer recovery|stopped before", "Give the experiment a longer recovery: {{for: ...}}", ""),
)
"""A pattern for the reason, the cure, and the cure's command."""
_HARDER = ("delay", "latency", "jitter", "loss", "share", "rate", "percent")
_OF_BANDWIDTH = ("B/s", "bps")
"""Units of the bandwidth that a fault leaves: less is worse."""


def _next(recording: Recording, verdict: RunVerdict, experiment: Experiment | None) -> Iterator[tuple[str, str]]:
    path, again = shlex.quote(str(recording.path)), str(recording.run.get("command") or "")
    result = verdict.verdict
    if recording.outcome in {"revert", "died"}:
        yield "Revert what is left", f"hashidrill heal {path}"
    if result is Verdict.PASS:
        if harder := _harder(experiment, _to_edit(recording)):
            yield harder
        return
    if result is Verdict.INVALID:
        yield from _cures(verdict, path, experiment)
    else:
        hosts = dict.fromkeys(fault.host for fault in recording.faults)
        logs = [str(folder) for host in hosts if (folder := recording.path / "logs" / host).is_dir()]
        if logs:
            yield (
                "Read what the agents under fault logged",
                f"less {' '.join(f'{shlex.quote(log)}/*' for log in logs[:3])}",
            )
        named = str(recording.run.get("named") or experiment_name(recording))
        yield "See what changed since it last passed", f"hashidrill history changed {shlex.quote(named)}"
    if again:
        yield "Run it again", again


def _cures(verdict: RunVerdict, path: str, experiment: Experiment | None) -> Iterator[tuple[str, str]]:
    reasons = [*verdict.invalid, *(doubt for doubt in verdict.doubts if not doubt.endswith(HARMLESS))]
    reasons += [each.text for each in verdict.judgements if each.finding is Finding.INVALID]
    said = dict[str, str]()
    for reason in reasons:
        for words, cure, command in _CURES:
            if re.search(words, reason):
                own = experiment.probes if experiment and cure == _SICK else ()
                asked = [f"probes.{name}" for name in own if f" {name}." in reason]
                wrong = f". Or {listed(asked, 3)} asks the wrong address" if asked else ""
                said.setdefault(f"{cure}{wrong}", command.format(path=path))
                break
    yield from list(said.items())[:2]


def _to_edit(recording: Recording) -> str:
    """The experiment's own file; for a shipped experiment, how to get a copy."""
    path = Path(recording.resolved.path)
    if path.resolve().is_relative_to(shipped(EXPERIMENTS).resolve()):
        name = shlex.quote(str(recording.run.get("named") or experiment_name(recording)))
        return f"in a copy (`hashidrill new --from {name} harder`)"
    return f"in {one_line(str(path), 120)}"


def _harder(experiment: Experiment | None, where: str) -> tuple[str, str] | None:
    """Makes one value of the experiment twice as bad: a parameter of a fault if it has one, else the rate of a load."""
    if experiment is None:
        return None
    for number, step in enumerate(experiment.method):
        for name, value in getattr(step, "with_", {}).items():
            less = str(value).endswith(_OF_BANDWIDTH)
            if any(word in name for word in _HARDER) and (worse := _times(0.5 if less else 2, str(value))):
                line = f"method[{number}].with.{name}: {worse}   # was {value}"
                how = "half of what {} leaves" if less else "double what {} does"
                return f"Harder: {where}, {how.format(getattr(step, 'fault', 'it'))}", line
    for name, load in experiment.load.items():
        rate = str(load.params.get("rate", ""))
        if twice := _times(2, rate):
            return f"Harder: {where}, twice the load of {name}", f"load.{name}.rate: {twice}   # was {rate}"
    return None


def _times(factor: float, value: str) -> str:
    """`1s` for 2 and `500ms`; "" if the text is not a number with a unit, or the result is over 100%."""
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)([a-zA-Z%/]*)", value)
    if parts is None or float(parts[1]) == 0:
        return ""
    more = float(parts[1]) * factor
    if parts[2] == "ms" and more >= 1000:
        return f"{more / 1000:g}s"
    return "" if parts[2] == "%" and more > 100 else f"{more:g}{parts[2]}"
