"""Does Vault have one active server, and how long does it have none?

Read from what each server says of itself twice a second: times are good to half a second. What became of the secrets is
judged as of any other write: `writes_recover`, `no_acknowledged_write_lost`.
"""

from hashidrill import measure
from hashidrill.errors import HypothesisInvalidError
from hashidrill.hypothesis import Held, hypothesis, require
from hashidrill.measure import SECOND, Reign, in_force, named, seconds, when
from hashidrill.recording.reader import Recording
from hashidrill.units import Duration

_ACTIVE = "vault.active"


@hypothesis
def vault_serves_within(recording: Recording, *, within: Duration = Duration("10s"), fault: str | None = None) -> Held:
    """After a fault takes the active server away, Vault has an active server again `within` that time.

    The time runs from the moment the fault is applied, so noticing is part of it. With integrated storage a standby
    takes over after an election of Raft, some seconds; with `storage: consul` the session of the dead server has to run
    out first (15 s to 30 s) and then Consul's lock-delay of 15 s: allow a minute. A fault that leaves the active server
    in place is nothing to judge here: see `vault_has_one_active`.
    """
    took_s: dict[str, float] = {}
    for window in measure.faults(recording, fault):
        started_ns, ended_ns = in_force(recording, window)
        watched_ns = measure.loads_end_ns(recording)
        seen = measure.reigns(recording, started_ns, watched_ns, _ACTIVE)
        if seen[0].host and not any(reign.start_ns < ended_ns for reign in seen[1:]):
            continue
        name = named(recording, window)
        active = next((reign for reign in seen[1:] if reign.host), None)
        if active is None and (watched_ns - started_ns) / SECOND < within:
            raise HypothesisInvalidError(
                f"no server was active after {name}, but it was watched for only"
                f" {seconds((watched_ns - started_ns) / SECOND)} of the {within}"
            )
        took_s[name] = (active.start_ns - started_ns) / SECOND if active else float("inf")
        require(
            took_s[name] <= within,
            f"Vault had no active server within {within} of {name}: "
            + (f"it took {seconds(took_s[name])} until {active.host} was" if active else "none was seen at all")
            + f"\nseen: {_story(recording, seen)}\n"
            "hint: a standby takes over only unsealed, and with the storage at hand: look at vault.sealed",
            active_after_s=took_s[name],
        )
    if not took_s:
        raise HypothesisInvalidError(
            f"{fault or 'no fault'}{' did not take' if fault else ' took'} the active server away, so there was nothing"
            " to take over; `vault_has_one_active` says that as an expectation"
        )
    slowest = max(took_s, key=lambda name: took_s[name])
    return Held(
        f"a server was active {seconds(took_s[slowest])} after {slowest} (allowed: {within})",
        active_after_s=took_s[slowest],
    )


@hypothesis
def vault_has_one_active(recording: Recording, *, grace: Duration = Duration("2s"), fault: str | None = None) -> Held:
    """From the start of the method until the loads stop, exactly one server says that it is active.

    None, or several, count once that lasts longer than `grace`: each server is asked for itself, and one that steps
    down and one that takes over may be asked in the wrong order. With `fault`, only while faults of that kind are in
    force.
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
                f" {when(recording, reign.start_ns)} on; allowed: {grace}\nseen: {_story(recording, seen)}\n"
                "hint: vault.is_active says which servers claimed it, vault.sealed which could not",
                longest_s=length_s,
            )
    return Held(f"Vault had one active server all the time (at most {seconds(longest_s)} without)", longest_s=longest_s)


def _story(recording: Recording, seen: list[Reign]) -> str:
    return ", ".join(f"{reign.host or 'none or several'} {when(recording, reign.start_ns)}" for reign in seen)
