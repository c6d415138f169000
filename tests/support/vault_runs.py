"""Recordings of runs on Vault: secrets that it keeps or loses, and leases."""

from hashidrill.products.vault.loads.tokens import STILL_VALID, Lease
from hashidrill.testing.recordings import RecordingBuilder

SECRETS, LEASES = "secrets", "leases"
PER_S, SINCE_S, UNTIL_S = 5, 4, 50
SAVED_S, RESTORED_S = 12, 20


def at(second):
    """The number of the first operation that starts then."""
    return round((second - SINCE_S) * PER_S)


def begun(path, *, reset=False, on="vault"):
    """A run with a fault from 10 s to 30 s; with `reset`, a snapshot was saved and restored instead."""
    run = RecordingBuilder(path)
    if not reset:
        return run.fault("process.kill", "vault-1", at=10, until=30)
    run.fault(f"{on}.snapshot.save", "vault-1", at=SAVED_S, until=SAVED_S + 1, params={"name": "before"})
    return run.fault(
        f"{on}.snapshot.restore", "vault-1", at=RESTORED_S, until=RESTORED_S + 2, params={"snapshot": "before"}
    )


def secrets(path, *, gone=(), unlisted=0, finals=None, reset=False, on="vault"):
    """A secret every 200 ms, each to a key of its own; those of these numbers are not there at the end."""
    run = begun(path, reset=reset, on=on).load(SECRETS, rate=PER_S, start=SINCE_S, end=UNTIL_S)
    run.final_reads(SECRETS, {**{f"{SECRETS}/{n}": None for n in gone}, **(finals or {})})
    return run if unlisted is None else run.sample(f"{SECRETS}.unlisted", float(unlisted), at=51)


def leases(path, *, gone=(), valid=(), unread=(), ttl_s=3600.0, reset=False, revoke=2, unlisted=0):
    """A token every 200 ms, of which each `revoke`-th (2: those with odd numbers) is revoked."""
    run = begun(path, reset=reset)
    if unlisted is not None:
        run.sample(f"{LEASES}.unlisted", float(unlisted), at=51)
    finals = {f"{LEASES}/{n}": None for n in gone} | {f"{LEASES}/{n}": STILL_VALID for n in valid}
    for n in range(at(UNTIL_S)):
        start, lease = SINCE_S + n / PER_S, Lease(ttl_s, revoked=n % revoke == revoke - 1)
        run.write(LEASES, f"{LEASES}/{n}", f"r.{n}", start=start, end=start + 0.01, detail=lease.detail())
        finals.setdefault(f"{LEASES}/{n}", f"r.{n}")
    return run.only_final_reads(LEASES, {key: value for key, value in finals.items() if key not in unread})
