"""The score card: what counts is what became of the users, of the data and of the cluster, and then the words."""

import json

import pytest

from hashidrill.core.errors import UsageError
from hashidrill.core.judging.judge import judge
from hashidrill.gamedays.training.card import (
    FAILED,
    NOT_COUNTED,
    PARTLY,
    PASSED,
    Card,
    card_of,
    drawn_of,
    html_page,
    markdown,
    text_lines,
)
from training_games import ADDRESSES, SMALL, PlayedGame, S, course, desk_of

pytestmark = pytest.mark.long

RIGHT = "the disk of consul-1, the leader, is slow"


@pytest.fixture
def game(tmp_path):
    return PlayedGame(tmp_path)


def points(card, title):
    return next(line.points for line in card.lines if line.title == title)


def test_an_expert_who_says_it_repairs_it_and_harms_nothing_has_all_points(game):
    card = game.says("detected", at=25).says("diagnosis", RIGHT, at=28).repairs(at=30).done(at=40).card()
    assert (card.result, card.points, card.reasons) == (PASSED, 100, [])
    assert (card.detected_s, card.diagnosed_s, card.mitigated_s, card.paged_s) == (15.0, 18.0, 30.0, 10.0)


GUESSED = {
    "the right words and no repair": (lambda g: g.says("diagnosis", RIGHT, at=25), FAILED, {"users back": 0}),
    "a repair without a diagnosis": (lambda g: g.repairs(at=30), PARTLY, {"users back": 40}),
    "a repair with a wrong diagnosis": (
        lambda g: g.says("diagnosis", "the network is slow", at=25).repairs(at=30),
        PARTLY,
        {"wrong diagnoses": -5},
    ),
    "a wrong diagnosis after the right one": (
        lambda g: g.says("diagnosis", RIGHT, at=25).says("diagnosis", "it is the cpu", at=26).repairs(at=30),
        PARTLY,
        {},
    ),
    "done before users are back": (lambda g: g.says("diagnosis", RIGHT, at=25).repairs(at=50), FAILED, {}),
}


@pytest.mark.lie
@pytest.mark.parametrize("guess", GUESSED)
def test_words_without_a_repair_fail_and_a_repair_without_the_right_words_passes_partly(game, guess):
    plays, result, counted = GUESSED[guess]
    card = plays(game).done(at=40).card()
    assert (card.result, {title: points(card, title) for title in counted}) == (result, counted)
    assert ("kv-writes was slow" in "".join(card.reasons)) is (result == FAILED)


@pytest.mark.lie
def test_who_ends_the_load_instead_of_repairing_does_not_pass(game):
    game.load_ends_s = 39
    card = game.says("diagnosis", RIGHT, at=25).repairs(at=30).done(at=40).card()
    assert card.result == NOT_COUNTED
    assert card.points == 0


@pytest.mark.lie
def test_who_deletes_what_was_acknowledged_fails_although_users_are_fast(game):
    game.lost = True
    card = game.says("diagnosis", RIGHT, at=25).repairs(at=30).done(at=40).card()
    assert card.result == FAILED
    assert any("lost acknowledged writes" in reason for reason in card.reasons)


@pytest.mark.lie
def test_a_bungler_who_restarts_everything_is_told_what_it_harmed(game):
    for number, host in enumerate(("consul-1", "consul-2", "consul-3")):
        game.acts("restart consul", host, at=26 + number)
    game.ends_agent("consul-2", at=27, until=31).ends_agent("consul-3", at=27, until=31)
    card = game.says("diagnosis", RIGHT, at=25).repairs(at=32).done(at=40).card()
    assert card.result == FAILED
    texts = [harm.text for harm in card.harm]
    assert "consul on consul-2 was healthy, but you did: restart consul" in texts
    assert "consul on consul-3 was healthy, but you did: restart consul" in texts
    assert any("broke consul's quorum: 1 of 3 servers ran" in text for text in texts)
    assert not any("consul-1 was healthy" in text for text in texts)
    assert points(card, "no harm") == 0


@pytest.mark.lie
def test_a_bungler_who_guesses_right_and_restarts_one_healthy_agent_after_the_other_does_not_pass(game):
    for number, host in enumerate(ADDRESSES):
        game.acts("restart consul", host, at=26 + number)
    card = game.says("diagnosis", RIGHT, at=25).repairs(at=32).done(at=40).card()
    assert (card.result, card.reasons) == (PARTLY, ["you stopped or restarted 3 healthy agents"])
    assert not any(harm.grave for harm in card.harm)


def test_one_healthy_agent_that_was_restarted_costs_points_and_not_the_game(game):
    game.acts("restart consul", "consul-2", at=26).acts("stop consul", "consul-2", at=27)
    card = game.says("diagnosis", RIGHT, at=25).repairs(at=32).done(at=40).card()
    assert (card.result, card.points) == (PASSED, 90)


def test_the_sick_server_may_be_stopped(game):
    game.acts("stop consul", "consul-1", at=26).ends_agent("consul-1", at=26, until=100)
    card = game.says("diagnosis", RIGHT, at=25).repairs(at=30).done(at=40).card()
    assert (card.result, card.harm) == (PASSED, [])


def leaves(game, host, *, at, until=200):
    """As `consul leave` makes it: whatever was typed, and wherever."""
    game.logs_line(host, "agent.server: server starting leave", at=at - 1)
    return game.ends_agent(host, at=at, until=until)


@pytest.mark.lie
@pytest.mark.parametrize("typed", ["", "sh", "exec sh", ". ./x", "unset PS0", "consul leave", "consul members"])
def test_a_healthy_server_that_was_told_to_leave_is_harm_whatever_was_typed(game, typed):
    """A shell in a shell tells of no line; the cluster does."""
    if typed:
        game.types(typed, "consul-2", at=25)
    leaves(game, "consul-2", at=27)
    card = game.says("diagnosis", RIGHT, at=25).repairs(at=30).done(at=40).card()
    assert [harm.text for harm in card.harm] == ["consul on consul-2 was healthy, but ended while you worked"]
    assert (card.result, card.points) == (PASSED, 90)


@pytest.mark.lie
def test_a_server_that_was_told_to_leave_did_not_end_by_a_fault_that_ends_nothing(game):
    """A red herring on a host, like lost packets, excused all that its agent did."""
    game.herrings = ("consul-2",)
    assert len(judged(leaves(game, "consul-2", at=27)).harm) == 1


@pytest.mark.lie
def test_two_healthy_servers_that_were_told_to_leave_are_a_lost_quorum_whatever_was_typed(game):
    game.types("sh", "consul-2", at=25)
    leaves(leaves(game, "consul-2", at=27, until=90), "consul-3", at=28, until=90)
    card = judged(game)
    assert sorted(harm.grave for harm in card.harm) == [False, False, True]
    assert card.result == FAILED


def test_a_server_that_was_ended_and_ran_again_before_anyone_looked_is_harm_too(game):
    """At each look a process runs; at 28 s it is another one than before."""
    game.new["consul-2"] = 28
    card = game.says("diagnosis", RIGHT, at=25).repairs(at=30).done(at=40).card()
    assert [harm.text for harm in card.harm] == ["consul on consul-2 was healthy, but ended while you worked"]


@pytest.mark.lie
def test_another_process_is_seen_although_the_samples_of_a_look_are_taken_apart(game):
    game.between_s, game.new["consul-3"] = 0.061, 28
    assert [harm.t_ns for harm in judged(game).harm] == [28 * S]


@pytest.mark.lie
def test_a_server_that_ended_between_late_looks_is_harm_all_the_same(game):
    game.late = {"consul-2": (26, 28)}
    card = judged(game.ends_agent("consul-2", at=27, until=200))
    assert [harm.text for harm in card.harm] == ["consul on consul-2 was healthy, but ended while you worked"]


@pytest.mark.lie
@pytest.mark.parametrize("looked", ["show consul", "is-active consul", "start consul", "kill consul (SIGCONT)"])
def test_who_looked_with_systemctl_before_a_healthy_server_left_is_told_all_the_same(game, looked):
    """That host's agent was thought to be told of by `systemctl`, which had harmed nothing."""
    card = judged(leaves(game.acts(looked, "consul-2", at=25), "consul-2", at=27))
    assert [harm.text for harm in card.harm] == ["consul on consul-2 was healthy, but ended while you worked"]


def removed(game, what="2", *, at):
    """As `consul operator raft remove-peer` is logged by the leader."""
    return game.logs_line("consul-1", f"agent.server.operator: Removed Raft peer: peer={what}", at=at)


def where(game, **so):
    vars(game).update(so)
    return game


def looked_late(game, seconds):
    """A recording of a machine with load 60: all servers ran, and two of them were looked at too late at once."""
    return where(game, late={"consul-2": seconds, "consul-3": seconds})


def dies(game, host, last, until=90):
    return game.logs_line(host, last, at=26).ends_agent(host, at=27, until=until)


def leaderless_after(game, host, line):
    return game.logs_line(host, line, at=31).loses_its_leader(at=32, until=80)


MEMBER_LEFT = "agent.server.serf.lan: serf: EventMemberLeave: consul-1 10.73.0.11"
UNHARMED = {
    "a healthy server panicked": lambda g: dies(
        g.types("consul leave", "consul-2", at=26), "consul-2", "\npanic: runtime error: index out of range", 200
    ),
    "it had no memory left": lambda g: dies(g, "consul-2", "\nfatal error: out of memory", 200),
    "two panicked": lambda g: dies(dies(g, "consul-2", "\npanic: unexpected"), "consul-3", "\npanic: unexpected"),
    "one late look": lambda g: looked_late(g, (27,)),
    "two late looks": lambda g: looked_late(g, (27, 28)),
    "late looks for fourteen seconds": lambda g: looked_late(g, range(26, 40)),
    "the samples of a look are 61 ms apart": lambda g: where(g, between_s=0.061),
    "a fault sealed its own host": lambda g: leaderless_after(g, "consul-1", "core: marked as sealed"),
    "a fault let its own host leave": lambda g: leaderless_after(g, "consul-1", "agent.server: server starting leave"),
    "autopilot removed a server that a fault had ended": lambda g: leaderless_after(g, "consul-2", MEMBER_LEFT),
    "no leader before the pager": lambda g: removed(g, at=25).loses_its_leader(at=15, until=80),
    "an election after a repair": lambda g: removed(g, at=30).loses_its_leader(at=31, until=46),
    "writes go on": lambda g: removed(g, at=30).loses_its_leader(at=32, until=80, writes="go on"),
}


@pytest.mark.lie
@pytest.mark.parametrize("event", UNHARMED)
def test_what_servers_and_faults_did_by_themselves_is_no_harm_of_the_trainee(game, event):
    assert judged(UNHARMED[event](game)).harm == []


@pytest.mark.lie
def test_who_empties_the_log_of_a_server_that_left_hides_nothing(game):
    game.logs = dict.fromkeys(game.logs)
    game.ends_agent("consul-2", at=27, until=90).ends_agent("consul-3", at=27, until=90)
    assert sorted(harm.grave for harm in judged(game).harm) == [False, False, True]


@pytest.mark.lie
@pytest.mark.parametrize("done", ["start consul", "restart consul"])
def test_servers_that_the_fault_had_ended_are_not_the_trainees_who_starts_them(game, done):
    game.also_faulty = ("consul-2", "consul-3")
    for host in game.also_faulty:
        game.ends_agent(host, at=11, until=60).acts(done, host, at=59)
    assert [harm for harm in judged(game).harm if harm.grave] == []


def judged(game, *, until=100):
    """With the right words, and users who are back."""
    return game.says("diagnosis", RIGHT, at=25).repairs(at=until).done(at=until + 20).card()


@pytest.mark.lie
def test_peers_that_were_removed_until_nobody_could_lead_are_a_lost_quorum_although_every_server_ran(game):
    removed(game, at=30).loses_its_leader(at=32, until=80)
    card = judged(game)
    [harm] = card.harm
    assert (harm.grave, card.result) == (True, FAILED)
    assert "no majority of its servers knew a leader for about 48s" in harm.text
    assert harm.text.endswith("just before: the log of consul-1: agent.server.operator: Removed Raft peer: peer=2")


@pytest.mark.lie
@pytest.mark.parametrize("begins", [None, 40])
def test_who_empties_the_log_that_tells_of_a_lost_leader_hides_nothing(game, begins):
    game.logs["consul-1"] = None if begins is None else game.logs["consul-1"]
    if begins is not None:
        game.log_begins["consul-1"] = begins
    game.loses_its_leader(at=50, until=90)
    assert [harm.grave for harm in judged(game).harm] == [True]


@pytest.mark.lie
def test_a_leader_that_nobody_took_away_is_no_harm_of_the_trainee(game):
    """Whoever looks at a fault that takes the leader away did not do that."""
    for at in range(21, 60):
        game.types("consul operator raft list-peers; curl -X PUT -d x $CONSUL_HTTP_ADDR/v1/kv/probe", at=at)
    assert judged(game.loses_its_leader(at=32, until=80)).harm == []


def test_a_write_that_is_acknowledged_once_a_leader_is_back_was_not_acknowledged_without_one(game):
    """Those that were sent last wait, and end well when it is over."""
    removed(game, at=30).loses_its_leader(at=32, until=80)
    game.unserved = (32, 79.5)
    assert [harm.grave for harm in judged(game, until=85).harm] == [True]


def test_a_quorum_that_processes_tell_of_is_told_once(game):
    for host in ("consul-2", "consul-3"):
        game.acts("stop consul", host, at=30).ends_agent(host, at=31, until=80)
    card = judged(game.loses_its_leader(at=32, until=80))
    assert [harm.text.partition(",")[0] for harm in card.harm if harm.grave] == [
        "you broke consul's quorum: 1 of 3 servers ran"
    ]


@pytest.mark.lie
def test_a_healthy_server_that_was_made_to_leave_raft_is_harm_although_it_runs(game):
    removed(game, "10.73.0.12:8300", at=30)
    card = judged(game.is_outside("consul-2", at=31, until=200))
    [harm] = card.harm
    assert not harm.grave
    assert harm.text.startswith("consul on consul-2 was healthy, but was outside its cluster while you worked")
    assert points(card, "no harm") == 10


def test_a_server_that_a_fault_cuts_off_or_that_nobody_touched_is_no_harm(game, tmp_path):
    removed(game, "10.73.0.11:8300", at=30).is_outside("consul-1", at=31, until=200)
    assert judged(game).harm == []
    other = PlayedGame(tmp_path / "other").types("consul members", at=30).is_outside("consul-2", at=31, until=200)
    assert judged(other).harm == []


def test_where_every_agent_may_be_restarted_none_of_it_is_harm_but_a_lost_quorum_is(tmp_path):
    truth = {**SMALL["truths"]["slow-disk"], "allowed": "any"}
    game = PlayedGame(tmp_path, game_course=course(truths={"slow-disk": truth}))
    game.acts("restart consul", "consul-2", at=26).acts("restart consul", "consul-3", at=26)
    game.ends_agent("consul-2", at=27, until=31).ends_agent("consul-3", at=27, until=31)
    card = game.says("diagnosis", RIGHT, at=25).repairs(at=32).done(at=40).card()
    assert [harm.grave for harm in card.harm] == [True]


def why(card, title):
    return next(line.why for line in card.lines if line.title == title)


def test_users_that_are_not_back_are_told_of_with_their_p50_and_the_limit(game):
    assert why(game.done(at=40).card(), "users back") == "after you were done, p50 was 2s, but the limit is 300ms"


@pytest.mark.lie
def test_a_game_that_is_not_counted_judges_no_users(game):
    game.load_ends_s = 39
    card = game.repairs(at=30).done(at=40).card()
    assert (points(card, "users back"), why(card, "users back")) == (0, "cannot be judged: the game is not counted")


@pytest.mark.lie
def test_a_game_that_the_trainer_ended_counts_for_nothing_whatever_the_trainee_did(game):
    game.says("diagnosis", RIGHT, at=25).repairs(at=30)
    game.desk.cancel(40 * S)
    game.done_s = 40
    card = game.card()
    assert (card.result, card.points, card.reasons) == (NOT_COUNTED, 0, ["the trainer ended the game"])
    assert [row["who"] for row in card.timeline if row["what"] == "cancelled"] == ["trainer"]
    game.desk.state = "over"
    with pytest.raises(UsageError, match="is over"):
        game.desk.cancel(50 * S)


def test_who_gives_up_fails_and_is_shown_the_truth(game):
    card = game.says("give-up", at=30).card()
    assert (card.result, why(card, "users back")) == (FAILED, "you gave up")
    assert "consul-1" in card.truth["exact"]


def test_hints_cost_their_price(game):
    card = game.says("hint", at=24).says("diagnosis", RIGHT, at=25).repairs(at=30).done(at=40).card()
    assert card.points == 95


def test_late_is_worth_half(game):
    game.says("diagnosis", RIGHT, at=1700).repairs(at=1710).done(at=1790)
    card = game.card()
    assert card.result == PASSED
    assert points(card, "users back") in range(20, 24)


def test_a_fault_that_was_never_in_force_counts_for_nobody(game):
    game.proven = False
    game.desk.fault_ns = None
    card = game.repairs(at=30).done(at=40).card()
    assert card.result == NOT_COUNTED


def test_the_debrief_has_every_command_beside_the_truth_and_what_an_expert_could_see(game):
    game.types("consul members", at=24).says("diagnosis", RIGHT, at=25).repairs(at=30).done(at=40)
    rows = game.card().timeline
    assert [row["what"] for row in rows] == ["fault", "visible", "pager", "typed", "diagnosis", "done"]
    assert rows[3] == {
        "at_s": 14.0,
        "who": "trainee",
        "what": "typed",
        "text": "consul members",
        "host": "consul-client-1",
    }


def test_what_a_trainee_typed_is_text_on_every_page(game):
    game.types("echo '<script>alert(1)</script> | **x**'", at=24).repairs(at=30).done(at=40)
    card = game.card()
    assert "<script>" not in html_page(card)
    assert "<script>" not in markdown(card)
    assert "\\|" in markdown(card)
    assert any("partly" in line for line in text_lines(card))


HALF = "something is odd with consul-1"


def test_the_trainer_may_say_that_a_diagnosis_is_right_and_the_card_shows_who_said_so_and_why(game):
    game.says("diagnosis", HALF, at=25).repairs(at=30)
    game.desk.overrule(26 * S, "she meant the disk", right=True)
    card = game.done(at=40).card()
    assert (card.result, card.diagnosed_s) == (PASSED, 15.0)
    why = next(line.why for line in card.lines if line.title == "diagnosed")
    assert why.endswith("the trainer says that it is right (its words were judged not right): she meant the disk")
    assert [(row["at_s"], row["text"]) for row in card.timeline if row["who"] == "trainer"] == [
        (16.0, "right: she meant the disk")
    ]
    assert "the trainer" in markdown(card)


def test_the_trainer_may_say_that_it_is_wrong_and_the_last_word_counts(game):
    game.says("diagnosis", RIGHT, at=25).repairs(at=30)
    game.desk.overrule(26 * S, "he was told", right=True)
    game.desk.overrule(27 * S, "he was told, I mean", right=False)
    card = game.done(at=40).card()
    assert (card.result, points(card, "wrong diagnoses")) == (PARTLY, -5)


def test_what_the_trainer_decided_is_about_that_diagnosis_and_no_later_one(game):
    game.says("diagnosis", HALF, at=25)
    game.desk.overrule(26 * S, "she meant the disk", right=True)
    card = game.says("diagnosis", "it is the cpu", at=27).repairs(at=30).done(at=40).card()
    assert card.result == PARTLY


def test_there_is_nothing_to_overrule_before_a_diagnosis_and_no_decision_without_a_reason(game):
    with pytest.raises(UsageError, match="no diagnosis has been said yet"):
        game.desk.overrule(26 * S, "why", right=True)
    game.says("diagnosis", HALF, at=27)
    with pytest.raises(UsageError, match="say why"):
        game.desk.overrule(28 * S, " ", right=True)


def test_a_card_comes_back_from_its_file_as_it_was(game):
    card = game.says("diagnosis", RIGHT, at=25).repairs(at=30).acts("restart consul", "consul-2", at=31).done(at=40)
    card = card.card()
    assert Card.from_data(json.loads(json.dumps(card.data()))) == card


def test_the_page_draws_the_game_with_a_lane_of_what_was_said_and_done(game):
    game.types("consul members", at=24).says("diagnosis", RIGHT, at=25).repairs(at=30).done(at=40)
    recording = game.recording()
    card = card_of(game.course, game.desk, recording, judge(recording), trainee="ada")
    lane = drawn_of(card, game.desk, recording)["lanes"][-1]
    assert lane["title"] == "you"
    assert [(part["start"], part["end"], part["label"]) for part in lane["segments"][1:3]] == [
        (24.0, 25.0, "consul-client-1$ consul members"),
        (25.0, 40.0, f"diagnosis: {RIGHT}"),
    ]
    page = html_page(card, drawn_of(card, game.desk, recording))
    assert 'id="timeline-data"' in page
    assert page.index("100 points") < page.index('id="timeline"') < page.index("second by second")


@pytest.mark.lie
def test_a_game_whose_fault_never_came_has_a_page_too(tmp_path):
    """Its machine was too busy for the steady state: the trainee gets a card that says so, and no traceback."""
    game = PlayedGame(tmp_path)
    game.desk, game.done_s, game.proven = desk_of(game.course, paged=False), 40, False
    recording = game.recording()
    card = card_of(game.course, game.desk, recording, judge(recording), trainee="ada")
    assert (card.result, card.timeline) == (NOT_COUNTED, [])
    assert drawn_of(card, game.desk, recording)["lanes"][-1]["segments"] == []
