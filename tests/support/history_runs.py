"""Runs for tests of the history: planted rows, and planted recordings."""

from hashidrill.core.judging.verdict import Verdict
from hashidrill.core.util.folders import project
from hashidrill.gamedays.history.store import Expected, Number, Run, Series, digest
from hashidrill.testing.recordings import RecordingBuilder

BEGAN_S = 1_760_000_000.0
SLOW = {"latency": lambda t: 3.0 if t >= 10 else 0.01}
"""A load that never recovers."""


def planted(
    number,
    verdict="PASS",
    *,
    series="slow-disk",
    variant="",
    datacenter="local",
    of=None,
    outcome="complete",
    figures=None,
    versions=None,
    config=None,
    experiment=None,
    hashidrill="0.1.0",
    broken=(),
):
    """The run of that number: an hour after the one before it."""
    versions = {"consul": "1.22.2"} if versions is None else versions
    config = {"consul-1": {"server": True}} if config is None else config
    experiment = {"load": {"kv-writes": {"rate": "50/s"}}} if experiment is None else experiment
    numbers = {
        name: each if isinstance(each, Number) else Number(name, "s", each, 5e-4)
        for name, each in (figures or {}).items()
    }
    return Run(
        id=f"run-{number:04d}",
        series=Series(series, variant, datacenter, str(project()) if of is None else of),
        began_s=BEGAN_S + 3600 * number,
        ended_s=BEGAN_S + 3600 * number + 60,
        verdict=Verdict(verdict),
        outcome=outcome,
        path=f"/runs/{number}",
        hashidrill=hashidrill,
        title="A slow disk",
        figures=numbers,
        versions=versions,
        experiment=experiment,
        config=config,
        conditions=digest([hashidrill, versions, experiment, config]),
        expectations=tuple(Expected(title, "broken", "it did not") for title in broken),
    )


def recorded(folder, name, /, *, fails=False, invalid=False, run=None, **how):
    """A recording in `folder`: of a run that passes, unless told otherwise."""
    builder = RecordingBuilder(folder / name, **how).fault("disk.latency", at=10, until=30, proven=not invalid)
    builder.load("kv-writes", **(SLOW if fails else {})).final_reads("kv-writes").healthy().run_info(**(run or {}))
    builder.expect("writes_recover", load="kv-writes", p50_below="300ms", within="10s")
    return builder.build()
