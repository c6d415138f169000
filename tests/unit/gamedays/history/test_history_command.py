"""`hashidrill history`, and what `hashidrill run` leaves in it."""

import json

import pytest

from command_line import command_line
from hashidrill.faces.cli import runs
from hashidrill.gamedays.history.store import Store, history_file, opened
from history_runs import planted, recorded


@pytest.fixture
def hashidrill(monkeypatch, tmp_path, capsys):
    return command_line(monkeypatch, capsys, tmp_path, columns=200)


@pytest.fixture
def store():
    """Stores planted runs."""

    def add(*planted_runs):
        with opened(history_file()) as found:
            for run in planted_runs:
                Store(found).add(run)

    return add


@pytest.fixture
def ran(hashidrill, monkeypatch):
    """`hashidrill run` leaves this recording."""

    def run(recording, *words):
        monkeypatch.setattr(runs, "run_experiment", lambda *_, **__: recording.path)
        return hashidrill("run", "raft/slow-leader-disk", *words)

    return run


def listed(hashidrill):
    code, out, _ = hashidrill("history", "list", "--json")
    assert code == 0
    said = json.loads(out)
    assert said["format"] == 1
    return said["entries"]


# what a run leaves


def test_every_run_is_in_the_history_once_it_has_ended(hashidrill, ran, tmp_path):
    assert ran(recorded(tmp_path, "a"))[0] == 0
    assert ran(recorded(tmp_path, "b", fails=True))[0] == 1
    assert [(each["id"], each["verdict"]) for each in listed(hashidrill)] == [("a", "PASS"), ("b", "FAIL")]


@pytest.mark.long
def test_a_turn_is_said_at_the_end_and_in_the_json(ran, tmp_path):
    _, out, _ = ran(recorded(tmp_path, "a"))
    assert "turned" not in out
    _, out, _ = ran(recorded(tmp_path, "b", fails=True))
    assert "planted turned from PASS to FAIL: it last passed" in out
    assert "hashidrill history changed planted --run b" in out
    _, out, _ = ran(recorded(tmp_path, "c", fails=True), "--json")
    assert json.loads(out)[0]["turned"] is None
    ran(recorded(tmp_path, "d"))
    _, out, _ = ran(recorded(tmp_path, "e", fails=True), "--json")
    assert json.loads(out)[0]["turned"]["last_passed"] == "d"


@pytest.mark.lie
@pytest.mark.parametrize("fails", [False, True])
def test_a_history_that_cannot_be_written_changes_no_exit_code_and_is_one_line(ran, tmp_path, fails):
    history_file().mkdir(parents=True)
    code, out, err = ran(recorded(tmp_path, "a", fails=fails))
    assert code == int(fails)
    assert (out + err).count("not in the history") == 1


def test_a_webhook_is_told_of_the_turn_and_its_url_is_nowhere(ran, tmp_path, monkeypatch):
    sent = []
    monkeypatch.setattr(
        "hashidrill.gamedays.history.on_turn_red.send", lambda url, body, **_: sent.append((url, body["text"]))
    )
    url = "https://hooks.example.org/s3cr3t"
    said = [ran(recorded(tmp_path, "a"), "--notify", url), ran(recorded(tmp_path, "b", fails=True), "--notify", url)]
    [(told, text)] = sent
    assert told == url
    assert "turned from PASS to FAIL" in text
    assert all("s3cr3t" not in out + err for _, out, err in said)


def test_a_webhook_that_is_none_is_refused_before_anything_runs(hashidrill, monkeypatch):
    monkeypatch.setattr(runs, "run_experiment", lambda *_, **__: pytest.fail("it ran"))
    code, _, err = hashidrill("run", "raft/slow-leader-disk", "--notify", "s3cr3t.example.org")
    assert code == 2
    assert "expected the URL of a webhook" in err
    assert "s3cr3t" not in err


# the commands


def test_a_history_that_nobody_began_says_how_to(hashidrill):
    for words in (("list",), ("state",), ("changed", "raft/slow-leader-disk"), ("show", "last")):
        code, _, err = hashidrill("history", *words)
        assert code == 2
        assert "no history yet" in err
        assert not history_file().exists()


def test_runs_are_listed_the_newest_last(hashidrill, store):
    store(planted(2, "FAIL"), planted(1), planted(3, variant="old", datacenter="staging"))
    _, out, _ = hashidrill("history", "list")
    assert [line.split()[3] for line in out.splitlines()] == ["run-0001", "run-0002", "run-0003"]
    assert "slow-disk (old) at staging" in out
    _, out, _ = hashidrill("history", "list", "--last", "1")
    assert "run-0003" in out
    assert "run-0002" not in out


@pytest.mark.lie
def test_each_project_has_its_own_history_unless_all_are_asked_for(hashidrill, store, tmp_path, monkeypatch):
    """A green run of another project would hide that this one never passed."""
    store(planted(1, of="/srv/other", figures={"p50": 0.1}), planted(2, "FAIL", figures={"p50": 0.1}))
    here, there = f"{tmp_path}", "/srv/other"
    assert [each["project"] for each in listed(hashidrill)] == [here]
    assert "it never passed before" in hashidrill("history", "changed", "slow-disk")[1]
    assert hashidrill("history", "show", "last")[1].startswith("FAIL")
    code, out, _ = hashidrill("history", "list", "--all")
    assert (code, [line.split()[-1] for line in out.splitlines()]) == (0, [there, here])
    monkeypatch.setenv("HASHIDRILL_ALL_PROJECTS", "1")
    assert len(listed(hashidrill)) == 2
    assert len(json.loads(hashidrill("history", "state", "--json")[1])["series"]) == 2
    monkeypatch.delenv("HASHIDRILL_ALL_PROJECTS")
    (tmp_path / "new" / "experiments").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "new" / "experiments")
    code, out, _ = hashidrill("history", "list")
    assert (code, out) == (0, f"no run of {tmp_path / 'new'} yet; --all lists the runs of all projects\n")
    code, _, err = hashidrill("history", "trend", "slow-disk")
    assert (code, f"of {tmp_path / 'new'} (--all searches all projects)" in " ".join(err.split())) == (2, True)


def test_a_turn_is_one_of_the_same_project(store):
    with opened(history_file()) as found:
        Store(found).add(planted(1, of="/srv/other"))
        assert Store(found).add(planted(2, "FAIL")).turn is None
        Store(found).add(planted(3))
        assert Store(found).add(planted(4, "FAIL")).turn.before.id == "run-0003"


@pytest.mark.parametrize(
    ("verdict", "outcome", "word"),
    [
        ("PASS", "complete", "PASS"),
        ("FAIL", "guardrail", "FAIL"),
        ("INVALID", "steady-state", "INVALID"),
        ("INVALID", "interrupted", "interrupted"),
        ("INVALID", "crashed", "crashed"),
        ("FAIL", "interrupted", "FAIL"),
    ],
)
def test_a_run_that_was_cut_short_says_so_in_the_list(hashidrill, store, verdict, outcome, word):
    store(planted(1, verdict, outcome=outcome))
    assert hashidrill("history", "list")[1].split()[2] == word


def test_an_experiment_is_named_as_elsewhere_and_a_near_name_is_suggested(hashidrill, store):
    store(planted(1, series="slow-leader-disk"))
    for name in ("slow-leader-disk", "raft/slow-leader-disk", "experiments/raft/slow-leader-disk.yaml"):
        assert "run-0001" in hashidrill("history", "list", name)[1]
    code, _, err = hashidrill("history", "trend", "slow-leader-disc")
    assert code == 2
    assert "did you mean slow-leader-disk?" in err


@pytest.mark.lie
def test_a_name_without_its_folder_is_enough_where_one_experiment_has_it(hashidrill, store):
    store(planted(1, series="raft/slow-leader-disk"), planted(2, series="raft/frozen-leader"))
    for name in ("slow-leader-disk", "raft/slow-leader-disk", "/srv/drills/experiments/raft/slow-leader-disk.yaml"):
        _, out, _ = hashidrill("history", "list", name)
        assert [line.split()[3] for line in out.splitlines()] == ["run-0001"]
    code, _, err = hashidrill("history", "list", "nomad/slow-leader-disk")
    assert code == 2
    assert "no run of 'nomad/slow-leader-disk'" in " ".join(err.split())
    store(planted(3, series="nomad/slow-leader-disk"))
    code, _, err = hashidrill("history", "list", "slow-leader-disk")
    assert code == 2
    assert "write nomad/slow-leader-disk or raft/slow-leader-disk" in " ".join(err.split())
    assert "run-0003" in hashidrill("history", "list", "nomad/slow-leader-disk")[1]


def test_a_run_is_shown_though_its_recording_is_gone(hashidrill, store):
    store(planted(1, "FAIL", figures={"p50": 0.012, "p99": float("inf")}, broken=["writes_recover"]))
    _, out, _ = hashidrill("history", "show", "last")
    assert "broken   writes_recover" in out
    assert "12 ms" in out
    assert "never" in out
    said = json.loads(hashidrill("history", "show", "run-0001", "--json")[1])["run"]
    assert [each["value"] for each in said["figures"]] == [0.012, "never"]
    assert said["agents"] == {"consul-1": {"server": True}}


def test_a_trend_has_each_figure_with_its_noise(hashidrill, store):
    store(
        *(planted(n, figures={"p50": 0.01 + n % 3 / 1000, "lost": 0.0}) for n in range(12)),
        planted(20, figures={"p50": 0.5, "lost": 0.0}),
        planted(21, "INVALID", figures={"p50": 9.0}),
    )
    _, out, _ = hashidrill("history", "trend", "slow-disk")
    assert "13 runs that counted" in out
    assert "OUTSIDE of its noise" in next(line for line in out.splitlines() if "p50" in line)
    assert "OUTSIDE" not in next(line for line in out.splitlines() if "lost" in line)
    said = json.loads(hashidrill("history", "trend", "slow-disk", "--figure", "p50", "--json")[1])
    [figure] = said["series"][0]["figures"]
    assert (figure["name"], figure["last_is_outside"], len(figure["values"])) == ("p50", True, 13)


def test_what_changed_is_said_and_is_json(hashidrill, store):
    store(planted(1), planted(2, "FAIL", versions={"consul": "1.23.0"}, broken=["leader_elected"]))
    _, out, _ = hashidrill("history", "changed", "slow-disk")
    assert "changed: versions: consul: 1.22.2 -> 1.23.0" in out
    said = json.loads(hashidrill("history", "changed", "slow-disk", "--json")[1])
    assert said["series"][0]["changes"] == [
        {"what": "versions", "where": "consul", "before": "1.22.2", "now": "1.23.0"}
    ]
    assert said["series"][0]["last_passed"]["id"] == "run-0001"


def test_states_are_told_apart_and_invalid_runs_are_none(hashidrill, store):
    good = [planted(n, series="good") for n in range(20)]
    bad = [planted(n + 50, "FAIL", series="bad") for n in range(8)]
    store(*good, *bad, planted(99, "INVALID", series="never"))
    _, out, _ = hashidrill("history", "state")
    assert [line.split(":")[:2] for line in out.splitlines()] == [["bad", " broken"], ["good", " steady"]]
    assert "no run of never counted yet: all were INVALID" in "".join(map(str, hashidrill("history", "state", "never")))
    said = json.loads(hashidrill("history", "state", "bad", "--json")[1])
    assert [(each["experiment"], each["state"]) for each in said["series"]] == [("bad", "broken")]


@pytest.mark.long
def test_recordings_are_imported_once_and_one_that_is_none_is_named(hashidrill, tmp_path):
    paths = [recorded(tmp_path / "runs", name).path for name in ("a", "b")]
    going_on = recorded(tmp_path / "runs", "c").path
    journal = going_on / "journal.jsonl"
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:-1]))
    assert hashidrill("history", "add", *paths)[:2] == (0, "added 2, replaced 0, failed 0\n")
    code, out, err = hashidrill("history", "add", *paths, going_on, tmp_path / "nothing")
    assert (code, out) == (2, "added 0, replaced 2, failed 2\n")
    assert "still running, or its runner died" in err
    assert [each["id"] for each in listed(hashidrill)] == ["a", "b"]


def test_another_file_is_used_where_it_is_named(hashidrill, tmp_path):
    path = recorded(tmp_path / "runs", "a").path
    other = tmp_path / "other.sqlite"
    assert hashidrill("history", "add", path, "--db", other)[0] == 0
    assert other.exists()
    assert not history_file().exists()
    assert "planted" in hashidrill("history", "list", "--db", other)[1]


def test_coverage_prints_a_table_markdown_a_badge_and_json(hashidrill, tmp_path):
    db = tmp_path / "h.sqlite"
    hashidrill("history", "add", recorded(tmp_path, "one").path, "--db", db)
    db = ("--db", db, "--days", "1e6")
    code, out, _ = hashidrill("history", "coverage", *db)
    assert code == 0
    head, drilled, due = out.split("\n\n")
    assert head.startswith("1 of ")
    assert [line.split()[:3] for line in drilled.splitlines()] == [
        ["drilled", "last", "proof"],
        ["disk.latency", "on", "host:consul-1"],
    ]
    assert drilled.splitlines()[1].split()[-2:] == ["PASS", "one"]
    [_, *rows, more] = due.splitlines()
    assert (len(rows), more.startswith("and ")) == (10, True)
    _, out, _ = hashidrill("history", "coverage", *db, "--product", "consul", "--most", "99")
    assert "hashidrill run raft/killed-leader" in out
    assert "nomad" not in out
    _, out, _ = hashidrill("history", "coverage", *db, "--markdown")
    assert "| host | `disk.latency on host:consul-1` | `one` | PASS |" in out
    _, out, _ = hashidrill("history", "coverage", *db, "--badge")
    assert json.loads(out)["message"].startswith("1 of ")
    _, out, _ = hashidrill("history", "coverage", *db, "--json")
    document = json.loads(out)
    assert document["drilled"] == 1
    [mode] = [each for each in document["failure_modes"] if each["run"]]
    assert (mode["kind"], mode["on"], mode["run"], mode["verdict"]) == ("disk.latency", "host:consul-1", "one", "PASS")
    code, _, err = hashidrill("history", "coverage", *db, "--json", "--badge")
    assert (code, "use one" in err) == (2, True)
