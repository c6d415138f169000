"""Does Vault have one active server, and how long does it have none?

The servers' own reports, twice a second, decide: times are exact to half a second. Lost secrets are judged like any
other write: `writes_recover`, `no_acknowledged_write_lost`.
"""

import numpy as np

from hashidrill import Duration, Held, HypothesisInvalidError, Recording, Series, hypothesis, measure, require
from hashidrill.core.hypothesis import needs_fault, room
from hashidrill.core.judging.measure import SECOND, STEP_S, Reign, in_force, latest, longest_run, named, seconds, when
from hashidrill.core.recording.reader import Bools, Int64s

_ACTIVE, _SEALED = "vault.active", "vault.sealed"
_RED = "the check is red"
"""What a failed look at a health check means."""
_FRESH_S = 5.0
"""A server is asked twice a second. It may answer late while its storage is slow: health checks wait some seconds."""


@hypothesis(never=room(since="start"))
def vault_serves_within(recording: Recording, *, within: Duration = Duration("10s"), fault: str | None = None) -> Held:
    """After a fault makes Vault lose its active server, Vault has an active server again in at most `within`.

    The time starts at the loss: when the active server last reported that it is active, or when the fault began if the
    server has reported nothing since. So it includes the time to notice the loss. Each loss while a fault is in force
    counts. With integrated storage a standby takes over some seconds later; with `storage: consul` the dead server's
    session must expire first (15 s to 30 s), and then Consul's lock-delay of 15 s: allow a minute. For a fault that
    leaves the active server in place, use `vault_has_one_active`.
    """
    took_s: dict[str, float] = {}
    watched_ns = measure.loads_end_ns(recording)
    for window in measure.faults(recording, fault):
        started_ns, ended_ns = in_force(recording, window)
        seen = measure.reigns(recording, started_ns, watched_ns, _ACTIVE)
        name = named(recording, window)
        for each in measure.absences(recording, seen, started_ns, ended_ns, _ACTIVE):
            after_s = each.took_s(within, watched_ns)
            took_s[name] = max(after_s, took_s.get(name, 0.0))
            require(
                after_s <= within,
                f"Vault had no active server within {within} of its loss under {name}: "
                + (f"it took {seconds(after_s)} until {each.host} was" if each.host else "no active server was seen")
                + f"\nseen: {_story(seen)}\n"
                "hint: a standby takes over only if it is unsealed and reaches its storage: look at vault.sealed",
                active_after_s=after_s,
            )
    if not took_s:
        raise HypothesisInvalidError(
            f"{fault or 'no fault'}{' did not take' if fault else ' took'} the active server away, so there was nothing"
            " to take over; to expect that, use `vault_has_one_active`"
        )
    slowest = max(took_s, key=lambda name: took_s[name])
    return Held(
        f"a server was active {seconds(took_s[slowest])} after the loss under {slowest} (allowed: {within})",
        active_after_s=took_s[slowest],
    )


@hypothesis
def vault_has_one_active(recording: Recording, *, grace: Duration = Duration("2s"), fault: str | None = None) -> Held:
    """From the start of the method until the loads stop, exactly one server reports that it is active.

    A time with no or several active servers counts if it is longer than `grace`, because the servers are asked one by
    one. With `fault`, this is judged only while faults of that kind are in force.
    """
    if fault is None:
        spans = [(measure.method(recording)[0], measure.loads_end_ns(recording))]
    else:
        spans = [in_force(recording, window) for window in measure.windows(recording, fault)]
    longest_s = 0.0
    for start_ns, end_ns in spans:
        seen = measure.reigns(recording, start_ns, end_ns, _ACTIVE)
        for reign in (reign for reign in seen if not reign.host):
            length_s = (reign.end_ns - max(reign.start_ns, start_ns)) / SECOND
            longest_s = max(longest_s, length_s)
            require(
                length_s <= grace,
                f"Vault did not have one active server for {seconds(length_s)}, from"
                f" {when(reign.start_ns)} on; allowed: {grace}\nseen: {_story(seen)}\n"
                "hint: vault.is_active says which servers claimed it, vault.sealed which could not",
                longest_s=length_s,
            )
    return Held(f"Vault had one active server all the time (at most {seconds(longest_s)} without)", longest_s=longest_s)


@hypothesis(never=needs_fault)
def vault_green_but_sick(
    recording: Recording,
    *,
    load: str,
    p50_below: Duration = Duration("300ms"),
    at_least: Duration = Duration("3s"),
    fault: str | None = None,
) -> Held:
    """Vault's users suffer while every check of Vault is green: one active server, and no sealed server.

    While a fault is in force, the p50 of the load over 1 s is over `p50_below` for `at_least` in a row, and all that
    time one server reports that it is active, and every server that it is unsealed. If not, the text says whether a
    check turned red, or the load never got slow. This is a trap: Vault's health checks do not measure its storage.
    """
    longest_s, span, worst_s, reds = 0.0, "", 0.0, set[str]()
    for window in measure.windows(recording, fault):
        p50 = measure.sliding(recording.operations(load), *in_force(recording, window))
        worst_s = max(worst_s, p50.worst()[1])
        sick = np.asarray(~np.isnan(p50.value_s) & (p50.value_s >= p50_below), np.bool_)
        checks = _checks(recording, p50.t_ns)
        reds |= {name for name, green in checks.items() if (sick & ~green).any()}
        first, last = longest_run(sick & np.logical_and.reduce(list(checks.values())))
        if (length_s := (last - first + 1) * STEP_S) > longest_s:
            longest_s = length_s
            span = f"from {when(int(p50.t_ns[first]))} on, under {named(recording, window)}"
    figures = {"green_but_sick_s": longest_s, "worst_p50_s": worst_s, "red": sorted(reds)}
    said = f"checks turned red ({', '.join(sorted(reds))})" if reds else "no check turned red"
    require(
        longest_s >= at_least,
        f"{load} was not over {p50_below} for {at_least} in a row with every check of Vault green: its worst p50 over"
        f" 1s was {seconds(worst_s)}, {said}; the longest such stretch was {longest_s:.1f}s {span}",
        **figures,
    )
    return Held(
        f"Vault was unsealed and active for {longest_s:.1f}s while p50 of {load} was over {p50_below} (worst"
        f" {seconds(worst_s)}): {span}\n"
        "hint: alert on what users get, and on vault.storage_put; these checks cannot see it",
        **figures,
    )


def _checks(recording: Recording, at_ns: Int64s) -> dict[str, Bools]:
    """Whether each check of Vault is green at each moment. Raises HypothesisInvalidError if one was never sampled."""
    checks = {"no server, or several, active": _green(recording.series(_ACTIVE, "", unknown=_RED), 1, at_ns)}
    for host in sorted({*recording.series(_SEALED, unknown=_RED).host}):
        series = recording.series(_SEALED, host, unknown=_RED)
        checks[f"{host} sealed or silent for {_FRESH_S:g}s"] = _green(_answers(series), 0, at_ns)
    return checks


def _answers(series: Series) -> Series:
    at = np.flatnonzero(series.ok & ~np.isnan(series.value))
    text, host = ([column[i] for i in at] for column in (series.text, series.host))
    return Series(series.t_ns[at], series.value[at], text, host, series.ok[at])


def _green(series: Series, good: float, at_ns: Int64s) -> Bools:
    if not len(series):
        return np.zeros(len(at_ns), np.bool_)
    index, fresh = latest(series.t_ns, at_ns, int(_FRESH_S * SECOND))
    return np.asarray(fresh & ((series.value == good) & series.ok)[index], np.bool_)


def _story(seen: list[Reign]) -> str:
    return ", ".join(f"{reign.host or 'none or several'} {when(reign.start_ns)}" for reign in seen)
