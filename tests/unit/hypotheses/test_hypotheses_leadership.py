"""leader_elected, leadership_leaves and leadership_stays.
Do writes go on while leadership moves about?
"""

import pytest

from hashidrill.core import hypothesis
from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.hypothesis import Broken
from hashidrill.testing.recordings import RecordingBuilder


def check(builder, name, **params):
    return hypothesis.get(name).check(builder.build(), params)


def handover(lost, found, to="consul-2"):
    """consul-1 leads, then nobody from `lost`, then another one from `found`."""
    return lambda t: "consul-1" if t < lost else "" if t < found else to


def reelected(at, term=2.0, silent=99):
    """consul-1 leads all the time, as the majority sees it; from `at` on in the next term; silent before, from then."""
    return lambda t: term + 1 if t >= at else None if t >= silent else term


class TestLeaderElected:
    @pytest.fixture
    def builder(self, tmp_path):
        return RecordingBuilder(tmp_path / "run").fault("process.kill", "consul-1", at=10, until=30)

    def test_holds_when_another_one_leads_in_time(self, builder):
        held = check(builder.leader(handover(11, 13)), "leader_elected", within="4s")
        assert held.figures["elected_after_s"] == pytest.approx(2.5, abs=0.1)
        assert "process.kill on consul-1" in held.text

    def test_holds_when_the_same_one_is_back_in_time(self, builder):
        assert check(builder.leader(handover(11, 13, "consul-1")), "leader_elected", within="4s")

    def test_is_broken_when_it_takes_too_long(self, builder):
        with pytest.raises(Broken) as broken:
            check(builder.leader(handover(11, 19)), "leader_elected", within="4s")
        assert "consul-2 led after 8.5s" in broken.value.text
        assert (
            "leaders: consul-1, then nobody 11.0s into the run, then consul-2 19.0s into the run" in broken.value.text
        )

    def test_is_broken_when_nobody_ever_leads_again(self, builder):
        with pytest.raises(Broken, match="no leader was seen") as broken:
            check(builder.leader(handover(11, 99)), "leader_elected", within="4s")
        assert broken.value.figures["elected_after_s"] == "never"

    def test_each_fault_is_judged(self, builder):
        """The first election is quick, the second is not."""
        builder.fault("process.kill", "consul-2", at=31, until=40)
        second = lambda t: handover(11, 12)(t) if t < 32 else "" if t < 45 else "consul-3"  # noqa: E731
        with pytest.raises(Broken, match="consul-3 led after"):
            check(builder.leader(second), "leader_elected", within="4s")

    def test_a_leader_that_stayed_in_office_is_invalid_not_a_pass(self, builder):
        with pytest.raises(HypothesisInvalidError, match="no election to judge"):
            check(builder.leader(), "leader_elected")

    def test_a_run_that_was_watched_too_shortly_is_invalid(self, builder):
        with pytest.raises(HypothesisInvalidError, match="watched for only"):
            check(builder.leader(handover(11, 99)), "leader_elected", within="2m")

    def test_the_same_winner_was_elected_although_the_majority_never_saw_it_gone(self, builder):
        """A quick restart of the leader: the followers named it all the time, and it leads in the next term."""
        held = check(builder.leader(term=reelected(12, silent=10)), "leader_elected", within="4s")
        assert held.figures["elected_after_s"] == pytest.approx(2, abs=0.1)

    def test_an_unseen_election_that_takes_too_long_is_broken(self, builder):
        with pytest.raises(Broken, match=r"consul-1 again \(term 3\) 17\.0s into the run"):
            check(builder.leader(term=reelected(17, silent=10)), "leader_elected", within="4s")

    def test_without_terms_nobody_can_say_that_no_election_was_seen(self, builder):
        with pytest.raises(HypothesisInvalidError, match="it is unknown whether it was elected again"):
            check(builder.leader(term=lambda _: None), "leader_elected")

    def test_a_late_answer_of_the_probe_is_not_the_election(self, builder):
        """One sample without a leader, in one term; the election itself comes later, and takes too long."""
        late = lambda t: "" if t == 11 else handover(13, 25, "consul-2")(t)  # noqa: E731
        with pytest.raises(Broken, match="consul-2 led after"):
            check(builder.leader(late), "leader_elected", within="4s")

    @pytest.mark.lie
    @pytest.mark.parametrize(
        ("named_until", "elected", "answers_from", "text"),
        [
            (33, 41, 31, "consul-2 led after 31s"),
            (33, 99, 31, "no leader was seen"),
            (99, 99, 31, "the others named consul-1 until the end, but it led no longer"),
            (99, 99, 12, "the others named consul-1 until the end, but it led no longer"),
            (33, 41, 99, "consul-2 led after 31s"),
        ],
    )
    def test_a_loss_that_the_others_notice_after_the_fault_or_never_is_one(
        self, builder, named_until, elected, answers_from, text
    ):
        """With slow elections, the followers of a killed leader name it until after it started again."""
        slow = lambda t: "consul-1" if t < named_until else "" if t < elected else "consul-2"  # noqa: E731
        builder.leader(slow, term=lambda t: 1.0 if t < 10 else 2.0 if t >= elected else None)
        for at in range(10, min(named_until, 50)):
            told = {"value": 1.0} if at >= answers_from else {"value": None, "ok": False, "text": "refused"}
            builder.sample("raft.term", at=at + 0.2, host="consul-1", **told)
        with pytest.raises(Broken) as broken:
            check(builder, "leader_elected", within="4s")
        assert text in broken.value.text
        assert broken.value.figures["elected_after_s"] == ("never" if elected == 99 else pytest.approx(31, abs=0.1))

    @pytest.mark.lie
    @pytest.mark.parametrize("back", [29.5, 31.5])
    def test_a_leader_that_was_silent_and_led_on_in_its_term_was_not_lost(self, builder, back):
        builder.leader(term=lambda t: None if 10 <= t < back else 1.0)
        for at in range(10, 30):
            builder.sample("raft.term", None, at=at + 0.2, host="consul-1", ok=False, text="no answer within 1s")
        with pytest.raises(HypothesisInvalidError, match="no election to judge"):
            check(builder, "leader_elected", within="4s")

    @pytest.mark.lie
    def test_one_that_never_answers_again_and_is_named_to_the_end_is_not_known_to_be_lost(self, builder):
        builder.leader(term=lambda t: None if t >= 10 else 1.0)
        for at in range(10, 50):
            builder.sample("raft.term", None, at=at + 0.2, host="consul-1", ok=False, text="no answer within 1s")
        with pytest.raises(HypothesisInvalidError, match="unknown whether it was elected again"):
            check(builder, "leader_elected", within="4s")

    def test_no_samples_are_invalid(self, builder):
        with pytest.raises(HypothesisInvalidError, match=r"raft\.leader"):
            check(builder.load("kv-writes"), "leader_elected")


@pytest.mark.lie
@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("leader_elected", {"within": "4s"}),
        ("leadership_leaves", {"fault": "process.kill", "within": "4s"}),
        ("leadership_stays", {"fault": "process.kill"}),
    ],
)
def test_a_fault_on_nomads_leader_is_judged_by_nomads_leader_and_not_by_consuls(tmp_path, name, params):
    """An election of Consul in the same seconds is none of Nomad's, nor is Consul's leader that stays."""

    def run(folder, consul, nomad):
        fault = RecordingBuilder(tmp_path / folder).fault("process.kill", "consul-1", at=10, until=30, agent="nomad")
        return fault.leader(consul).leader(nomad, signal="nomad.leader")

    stays = name == "leadership_stays"
    good, slow = ("consul-1", handover(11, 13)) if stays else (handover(11, 13), handover(11, 28))
    assert check(run("good", slow, good), name, **params)
    with pytest.raises(Broken):
        check(run("bad", good, slow), name, **params)


class TestLeadershipLeaves:
    @pytest.fixture
    def builder(self, tmp_path):
        return RecordingBuilder(tmp_path / "run").fault("disk.latency", "consul-1", at=10, until=30)

    def test_holds_when_another_host_takes_over(self, builder):
        held = check(builder.leader(handover(14, 15)), "leadership_leaves", fault="disk.latency", within="10s")
        assert held.figures["left_after_s"] == pytest.approx(5, abs=0.1)

    def test_is_broken_when_the_slow_leader_keeps_leading(self, builder):
        with pytest.raises(Broken) as broken:
            check(builder.leader(), "leadership_leaves", fault="disk.latency", within="20s")
        assert "leadership did not leave consul-1 within 20s" in broken.value.text
        assert "it still led after 20s" in broken.value.text

    @pytest.mark.parametrize(
        ("commits_s", "hint"),
        [
            (3.0, "raft.commit_time reached 3s (5ms before) on consul-1. Raft does not replace a slow leader"),
            (0.005, "raft.commit_time reached 5ms (5ms before) on consul-1: the fault did not slow this leader down"),
            (None, "hint: raft.commit_time was not sampled"),
        ],
    )
    def test_the_hint_goes_by_what_was_measured(self, builder, commits_s, hint):
        """A slow leader was hinted at where each commit took 5 ms."""
        if commits_s is not None:
            commits = lambda t: commits_s if 10 <= t < 30 else 0.005  # noqa: E731
            builder.series("raft.commit_time", commits, host="consul-1")
        with pytest.raises(Broken) as broken:
            check(builder.leader(), "leadership_leaves", fault="disk.latency", within="20s")
        assert hint in broken.value.text

    @pytest.mark.parametrize("leader", [handover(14, 99), handover(32, 33)], ids=["nobody leads", "after the fault"])
    def test_is_broken_by(self, builder, leader):
        with pytest.raises(Broken):
            check(builder.leader(leader), "leadership_leaves", fault="disk.latency", within="20s")

    def test_a_fault_on_a_follower_is_invalid(self, builder):
        with pytest.raises(HypothesisInvalidError, match="no host to leave"):
            check(builder.leader("consul-3"), "leadership_leaves", fault="disk.latency", within="10s")

    def test_a_fault_shorter_than_the_time_allowed_is_invalid_when_it_did_not_leave(self, builder):
        with pytest.raises(HypothesisInvalidError, match="too short to tell"):
            check(builder.leader(), "leadership_leaves", fault="disk.latency", within="1m")


class TestLeadershipStays:
    @pytest.fixture
    def builder(self, tmp_path):
        return RecordingBuilder(tmp_path / "run").fault("disk.latency", "consul-2", at=10, until=30)

    def test_holds_when_the_leader_is_the_same_throughout(self, builder):
        assert check(builder.leader(), "leadership_stays").figures["leader"] == "consul-1"

    def test_is_broken_by_a_handover(self, builder):
        with pytest.raises(Broken) as broken:
            check(builder.leader(handover(20, 22)), "leadership_stays")
        assert "leadership did not stay with consul-1" in broken.value.text
        assert "consul-2 22.0s into the run" in broken.value.text
        assert broken.value.figures["changes"] == 2

    @pytest.mark.parametrize(
        ("leader", "params"),
        [
            (lambda t: "" if t == 20 else "consul-1", {}),
            (lambda t: "consul-3" if t < 9 else "consul-1", {}),
            (handover(40, 41), {"fault": "disk.latency"}),
        ],
        ids=["one late answer", "a change before the method", "a change after the fault that is meant"],
    )
    def test_holds_in_spite_of(self, builder, leader, params):
        assert check(builder.leader(leader), "leadership_stays", **params)

    @pytest.mark.parametrize(
        ("leader", "term"),
        [
            (lambda t: "" if 20 <= t < 23 else "consul-1", None),
            (handover(40, 41), None),
            (lambda t: "" if t == 20 else "consul-1", reelected(20)),
            ("consul-1", lambda t: None if 20 <= t < 23 else reelected(20)(t)),
        ],
        ids=["lost, and back", "a change in the recovery", "a new term after a short gap", "one that was heard late"],
    )
    def test_is_broken_by(self, builder, leader, term):
        with pytest.raises(Broken):
            check(builder.leader(leader, term=term), "leadership_stays")

    def test_a_new_term_of_the_same_leader_is_an_election(self, builder):
        with pytest.raises(Broken, match=r"consul-1 again \(term 3\) 20\.0s into the run") as broken:
            check(builder.leader(term=reelected(20)), "leadership_stays")
        assert broken.value.figures["changes"] == 1

    @pytest.mark.parametrize(
        "heard", [lambda _: False, lambda t: t > 10, lambda t: t < 40], ids=["never", "late", "early"]
    )
    def test_a_leader_whose_term_was_not_heard_is_invalid(self, builder, heard):
        with pytest.raises(HypothesisInvalidError, match="it is unknown whether it was elected again"):
            check(builder.leader(term=lambda t: 2 if heard(t) else None), "leadership_stays")

    def test_the_term_of_a_follower_says_nothing(self, builder):
        """A candidate that is cut off counts terms up, and consul-1 leads on."""
        for t in range(4, 50):
            builder.sample("raft.term", float(t), at=t, host="consul-3").sample("raft.term", 9, at=t, host="consul-1")
        assert check(builder.leader(), "leadership_stays")


LEADERS = ("consul-1", "consul-2", "consul-3", "consul-1")


def moving(t):
    """Another leader every five seconds of the method, half a second after the last one was lost."""
    turn, since = divmod(t - 10, 5)
    if turn < 0:
        return LEADERS[0]
    return "" if turn and since < 0.5 and turn < 4 else LEADERS[min(int(turn), 3)]


@pytest.fixture
def moving_about(tmp_path):
    return RecordingBuilder(tmp_path / "run").fault("process.pause", "consul-1", at=10, until=30).leader(moving)


def survives(moving_about, **params):
    return hypothesis.get("survives_leader_changes").check(moving_about.build(), {"load": "kv-writes", **params})


def test_holds_when_writes_go_on_through_every_change(moving_about):
    lost = lambda t: "fail" if 10 < t < 30 and (t - 10) % 5 < 0.5 else "ok"  # noqa: E731
    held = survives(moving_about.load("kv-writes", outcome=lost))
    assert held.figures["leader_changes"] == 3
    assert held.figures["leaders"] == 3
    assert held.figures["longest_stall_s"] == pytest.approx(0.52, abs=0.03)


def test_a_planted_stall_is_caught(moving_about):
    stalls = lambda t: "unknown" if 15 <= t < 22 else "ok"  # noqa: E731
    with pytest.raises(Broken, match=r"no operation was acknowledged for 7\.02s \(15\.0s into the run\)") as broken:
        survives(moving_about.load("kv-writes", outcome=stalls))
    assert "then consul-2 15.5s into the run" in broken.value.text


def test_one_long_answer_for_all_is_a_stall_too(moving_about):
    """Nothing failed, but all that was due in six seconds was answered at their end."""
    with pytest.raises(Broken):
        survives(moving_about.load("kv-writes", latency=lambda t: 21.0 - t if 15 <= t < 21 else 0.01))


BLINKS = lambda t: "" if 12 <= t < 14 else "consul-1"  # noqa: E731


@pytest.mark.parametrize("leader", [BLINKS, "consul-1"], ids=["seen gone", "never seen gone"])
def test_a_leader_that_is_elected_again_is_a_change(tmp_path, leader):
    moving_about = RecordingBuilder(tmp_path / "run").fault("process.restart", "consul-1", at=10, until=30)
    moving_about.leader(leader, term=lambda t: 2 if t < 13 else 3)
    assert survives(moving_about.load("kv-writes"), changes=1).figures["leader_changes"] == 1


@pytest.mark.parametrize("term", [2, None])
def test_a_leader_that_comes_back_in_its_term_or_in_an_unknown_one_is_no_change(tmp_path, term):
    moving_about = RecordingBuilder(tmp_path / "run").fault("process.pause", "consul-1", at=10, until=30)
    moving_about.leader(BLINKS, term=lambda _: term)
    with pytest.raises(HypothesisInvalidError, match="changed 0 times, expected at least 1"):
        survives(moving_about.load("kv-writes"), changes=1)


def test_too_few_changes_are_invalid(moving_about):
    with pytest.raises(HypothesisInvalidError, match="changed 3 times, expected at least 4"):
        survives(moving_about.load("kv-writes"), changes=4)
