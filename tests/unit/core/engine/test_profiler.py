"""When a run takes profiles: once when healthy, and once for each situation in which a promise is broken."""

import anyio
import pytest

from engine_game import STEADY, Game, feed
from go_profiles import HEALTHY, encoded
from hashidrill.core.engine import profiler
from hashidrill.core.errors import ExperimentError, FaultError
from hashidrill.core.experiment.loader import load_text
from hashidrill.core.protocols.abc import ApiAnswer
from hashidrill.core.recording.profiles import MOST_BYTES, read_profile
from places import GOOD

BROKEN_S = 13
"""Seconds after the loads began: 5 s of steady state, then 8 s of the method."""
NOOP = {"fault": "noop", "on": "host:consul-1", "name": "quiet", "for": "20s"}
FILE = encoded(HEALTHY)


class Served(Game):
    """Servers that answer what `answer` says, after the time that a profile takes."""

    def __init__(self, path, method=(NOOP,), answer=lambda _host, _path: ApiAnswer(200, FILE), **more):
        path.mkdir(exist_ok=True)
        super().__init__(path, list(method), steady_state=STEADY, recovery={"for": "10s"}, **more)
        self.asked = []
        for host in self.world.hosts.values():
            host.api = self._served(host, host.api, answer)

    def _served(self, host, others, answer):
        async def api(method, path, **asked):
            if "/pprof/" not in path:
                return await others(method, path, **asked)
            self.asked.append((host.name, path.rpartition("/")[2]))
            await anyio.sleep(float(asked["params"].get("seconds", 0)))
            return answer(host, path)

        return api

    def sick(self, since_s=BROKEN_S, until_s=99, **more):
        return self.run(from_start=feed(latency_s=lambda t: 2.0 if since_s <= t < until_s else 0.01), **more)

    @property
    def profiles(self):
        return [
            entry.data | {"at_s": self.since_method_s(entry.t_ns)} for entry in self.journal if entry.event == "profile"
        ]

    @property
    def whys(self):
        """Why each set was taken, in order."""
        return list(dict.fromkeys(one["why"].partition(" (")[0] for one in self.profiles))


def test_each_server_is_profiled_once_when_healthy_and_once_when_a_promise_is_broken(tmp_path):
    game = Served(tmp_path)
    assert game.sick() == "complete"
    kept = [(one["host"], one["kind"]) for one in game.profiles]
    assert sorted(set(kept)) == [(f"consul-{n}", kind) for n in (1, 2, 3) for kind in sorted(profiler.KINDS)]
    assert game.whys == ["steady state", "kv-writes.latency.p50 < 300ms"]
    # under the fault, and without it: two situations
    assert len(kept) == 3 * len(set(kept))
    for one in game.profiles:
        assert read_profile((tmp_path / one["file"]).read_bytes()).samples == 22
        assert one["at_s"] < 0 if one["why"] == "steady state" else one["at_s"] > profiler.CPU_S + 8


@pytest.mark.lie
def test_a_breach_of_two_seconds_is_not_profiled(tmp_path):
    game = Served(tmp_path)
    game.sick(BROKEN_S, BROKEN_S + 0.9)
    assert game.whys == ["steady state"]


def test_a_bound_of_an_expectation_is_a_promise_too(tmp_path):
    stricter = [{"writes_recover": {"load": "kv-writes", "p50_below": "1ms"}}]
    game = Served(tmp_path, expect=stricter)
    game.sick(since_s=99)
    assert game.whys == ["steady state", "kv-writes.latency.p50 < 1ms"]


def test_the_run_goes_on_at_its_own_times_while_profiles_are_taken(tmp_path):
    taken, without = Served(tmp_path / "a"), Served(tmp_path / "b", profiles="off")
    taken.sick(), without.sick()
    since = [
        {name: round(at - game.phases_s()["method"], 1) for name, at in game.phases_s().items()}
        for game in (taken, without)
    ]
    assert since[0]["recovery"] == since[1]["recovery"]
    assert since[0]["quiesce"] == since[1]["quiesce"]
    assert without.asked == [] == without.profiles


def test_always_profiles_each_situation_without_a_breach(tmp_path):
    game = Served(tmp_path, profiles="always")
    game.sick(since_s=99)
    assert game.whys == ["steady state", "always"]


def test_always_profiles_a_breach_in_a_situation_that_was_healthy_at_first(tmp_path):
    game = Served(tmp_path, profiles="always")
    game.sick()
    assert game.whys == ["steady state", "always", "kv-writes.latency.p50 < 300ms"]


def test_the_healthy_set_is_taken_again_if_the_steady_state_broke_after_it(tmp_path):
    game = Served(tmp_path)
    assert game.sick(since_s=2, until_s=6) == "complete"
    healthy = [
        one
        for one in game.profiles
        if one["why"] == "steady state" and (one["host"], one["kind"]) == ("consul-1", "cpu")
    ]
    assert len(healthy) == 2
    assert -5 < healthy[-1]["at_s"] <= 0


def test_the_number_of_sets_and_of_bytes_is_bounded(tmp_path, monkeypatch):
    steps = [{**NOOP, "name": f"step-{n}", "at": f"{8 + 6 * n}s", "for": "5s"} for n in range(8)]
    monkeypatch.setattr(profiler, "MOST_SETS", 3)
    game = Served(tmp_path / "sets", steps)
    game.sick()
    assert len([one for one in game.profiles if one["kind"] == "cpu" and one["host"] == "consul-1"]) == 1 + 3
    monkeypatch.setattr(profiler, "MOST_SETS", 16)
    monkeypatch.setattr(profiler, "MOST_IN_ALL_BYTES", len(FILE))
    game = Served(tmp_path / "bytes", steps)
    game.sick()
    assert game.whys == ["steady state"]


def no_answer(host, path):
    raise FaultError(f"{host.name}: GET {path}: no answer")


@pytest.mark.lie
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda *_: ApiAnswer(200, b"<html>"), "not a profile that can be kept"),
        (lambda *_: ApiAnswer(200, b"\x1f\x8b" + bytes(MOST_BYTES)), "not a profile that can be kept"),
        (lambda *_: ApiAnswer(500, b"oops"), "HTTP 500 oops"),
        (no_answer, "no answer"),
    ],
)
def test_what_is_no_profile_is_not_kept_and_the_journal_says_so(tmp_path, answer, why):
    game = Served(tmp_path, answer=answer)
    assert game.sick() == "complete"
    assert all(why in one["error"] and not one["file"] for one in game.profiles)
    assert not (tmp_path / profiler.FOLDER).exists() or not any((tmp_path / profiler.FOLDER).iterdir())


def test_a_server_that_refuses_is_asked_no_more(tmp_path):
    game = Served(tmp_path, answer=lambda *_: ApiAnswer(403, b"Permission denied"))
    assert game.sick() == "complete"
    assert len(game.profiles) == 3
    assert len(game.asked) == 3 * len(profiler.KINDS)


def test_an_experiment_that_asks_for_profiles_ends_before_its_faults_if_all_servers_refuse(tmp_path):
    game = Served(tmp_path, answer=lambda *_: ApiAnswer(403, b"Permission denied"), profiles="on-breach")
    assert game.sick() == "fault"
    assert "HTTP 403 Permission denied; let the token read them" in game.error
    assert "fault.intent" not in game.events


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("consul: {config: {enable_debug: false}}", "datacenter.consul sets enable_debug: false"),
        ("sample: {}", "no service of this datacenter serves Go profiles"),
    ],
)
def test_profiles_that_cannot_be_had_are_refused_with_the_reason(key, text):
    good = GOOD.read_text()
    start, end = good.index("datacenter:"), good.index("load:")
    changed = f"{good[:start]}datacenter: {{{key}}}\nprofiles: always\n{good[end:]}"
    with pytest.raises(ExperimentError, match=text):
        load_text(changed, "x.yaml")
