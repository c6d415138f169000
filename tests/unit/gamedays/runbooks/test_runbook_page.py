"""A runbook file is read whole, or refused with file and line of each mistake; its decisions hold as they read."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashidrill.core.errors import ExperimentError, UsageError
from hashidrill.gamedays.runbooks.model import parse_line
from hashidrill.gamedays.runbooks.parser import read_runbook
from places import ROOT
from runbook_pages import FILE, line_of, page, text

SHIPPED = sorted((ROOT / "playbooks").glob("runbook-*.md"))


def refused(*changes):
    """What is said of the page with these changes."""
    with pytest.raises(ExperimentError) as error:
        page(*changes)
    return str(error.value)


def test_a_page_that_makes_sense_is_read_in_its_order():
    runbook = page()
    assert [(block.kind, block.name or ",".join(block.diagnoses)) for block in runbook.blocks] == [
        ("observe", "leader"),
        ("observe", "commit_ms"),
        ("decide", ""),
        ("act", "slow-disk"),
        ("confirm", "slow-disk"),
        ("confirm", "slow-disk"),
    ]
    assert runbook.title == "Runbook: slow"
    assert runbook.acting == {"slow-disk"}
    assert runbook.blocks[1].on == "{leader}"
    assert runbook.blocks[1].number == "max"
    assert runbook.blocks[4].within_s == 5


def test_blocks_without_a_mark_are_prose():
    assert not [block for block in page().blocks if "prose" in block.text]


@pytest.mark.parametrize(
    ("change", "at", "said"),
    [
        (("sh observe leader", "sh look leader"), "sh look leader", "'look' is not a kind of block"),
        (("sh observe leader", "yaml observe leader"), "yaml observe", "its language is 'yaml'"),
        (("on={leader}", "on={boss}"), "on={boss}", "boss is not observed before this line"),
        (("commit_ms > 300", "commit_s > 300"), "commit_s > 300", "commit_s is not observed before this line: did you"),
        (("act for=slow-disk", "act for=slow-disc"), "act for=slow-disc", "no decide block leads to it: did you mean"),
        (("act for=slow-disk", "act"), "sh act on", "for which diagnosis?"),
        (("-> slow-disk:", "->slow-disk:"), "->slow-disk", "write CONDITION -> DIAGNOSIS"),
        (("> 300 ", "is huge "), "is huge", "is not a condition"),
        (("> 300 ", "> three hundred "), "three hundred", "neither a number"),
        (("commit_ms > 300   ", "otherwise "), "otherwise ->", "no observation supports it"),
        (("commit_ms > 300   ", "commit_ms is missing "), "is missing", "no observation supports it"),
        (("observe leader on=consul:server", "observe leader"), "observe leader", "its place is missing"),
        (("observe leader on=consul:server", "observe leader on=Server/1"), "Server/1", "is not a place"),
        (("observe leader ", "observe "), "sh observe on", "needs a name"),
        (("number\n", "number=mean\n"), "number=mean", "number= must be max or min"),
        (("within=5s", "within=5"), "within=5", "confirm:"),
        (("within=5s", "within=1h"), "within=1h", "at most 10m"),
        (("within=5s", "patience=5s"), "patience=5s", "'patience=5s' is not valid here; use one of: for=, on="),
        (("\ntransfer\n", "\ntransfer || true\n"), "sh act", "it hides a command that fails"),
        (("\ntransfer\n", "\nset +e\ntransfer\n"), "sh act", "it hides a command that fails"),
        (("\nanother leads\n", "\ntrue\n"), "within=5s", "it always succeeds"),
        (("\ntransfer\n", "\n\n"), "sh act", "it is empty"),
        (("sh confirm for=slow-disk", "sh confirm throughout for=slow-disk"), "sh act", "nothing confirms that"),
        (
            ("all alive\n```\n", "all alive\n```\n\n```sh act fails for=slow-disk on=consul-1\nx\n```\n"),
            "sh act fails",
            "it may fail, and no confirm block follows it",
        ),
        (("observe commit_ms", "observe leader"), "observe leader on={leader}", "leader is observed in line"),
    ],
)
def test_each_mistake_is_one_message_with_its_line(change, at, said):
    there = f"{FILE}:{line_of(at, change)}: "
    told = [each for each in (f"{FILE}:{part}" for part in refused(change).split(f"{FILE}:")) if each.startswith(there)]
    assert said in " ".join(" ".join(told).split())


def test_a_block_that_never_ends_is_told_where_it_begins():
    whole = text()
    assert refused((whole[-18:], "all alive\n")).startswith(f"{FILE}:{line_of('confirm throughout')}: this block never")


@pytest.mark.parametrize(
    ("change", "at", "said"),
    [
        (("runbook: slow", "runbook: quick"), "runbook: quick", "its name is slow"),
        (("pager: Writes take seconds\n", ""), "runbook: slow", "pager"),
        (("pager:", "page:"), "page:", "page"),
        (("healthy: {", "raft/slow-leader-disk: {"), "slow-leader-disk: {diagnosis: not-this}", "it cannot be both"),
        (("{diagnosis: slow-disk}", "{diagnosis: slow-disk, after: 5}"), "after: 5", "after"),
    ],
)
def test_mistakes_in_the_front_matter_are_placed_as_in_yaml(change, at, said):
    told = refused(change)
    assert said in told
    assert re.search(rf"^{FILE}:{line_of(at, change)}:\d+: ", told, re.MULTILINE), told


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("{diagnosis: slow-disk}", "{diagnosis: slow-links}"), "no decide block leads to slow-links"),
        (("healthy: {diagnosis: not-this}", "healthy: {diagnosis: slow-disk}"), "a look-alike must be left unchanged"),
        (("{diagnosis: slow-disk}", "{diagnosis: not-this}"), "nothing is done about not-this"),
    ],
)
def test_what_it_promises_must_be_possible(change, said):
    assert said in refused(change)


def test_all_mistakes_are_told_at_once():
    told = refused(("sh observe leader", "sh look leader"), ("within=5s", "within=5"), ("> 300 ", "is huge "))
    assert len(told.splitlines()) == 3


def test_a_page_without_front_matter_is_refused():
    assert "no front matter" in refused(("---\nrunbook", "runbook"))


def test_a_file_that_is_none_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        read_runbook(tmp_path / "runbook-nowhere.md")
    binary = tmp_path / "runbook-binary.md"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(ExperimentError, match="not UTF-8"):
        read_runbook(binary)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_runbook_that_ships_makes_sense(path):
    runbook = read_runbook(path)
    assert len(runbook.front.look_alikes) >= 2


SEEN = {"ms": 812.5, "few": 3.0, "who": "consul-2", "text": "Error: No cluster leader", "gone": None, "yes": "true"}


def holds(when):
    return parse_line(f"{when} -> slow: why", 1).holds(SEEN)


@pytest.mark.parametrize(
    "when",
    [
        "ms > 300",
        "ms >= 812.5",
        "few < 5",
        "few <= 3",
        "few == 3",
        "ms != few",
        "ms > few",
        'who == "consul-2"',
        "who != 'consul-1'",
        'text contains "No cluster leader"',
        "who is there",
        "gone is missing",
        "never is missing",
        "yes == true",
        "yes != false",
        "ms > 300 and few < 5 and who is there",
        "otherwise",
    ],
)
def test_it_holds(when):
    assert holds(when)


@pytest.mark.parametrize(
    "when",
    [
        "ms > 900",
        "few == 4",
        "who == consul",
        'who == "consul-1"',
        'text contains "leader "',
        "gone is there",
        "who is missing",
        "ms > 300 and few > 5",
        "who > 3",
        "ms != ms",
    ],
)
def test_it_does_not_hold(when):
    assert not holds(when)


@pytest.mark.parametrize("op", ["<", "<=", ">", ">=", "==", "!=", "contains"])
def test_no_comparison_holds_with_what_is_missing(op):
    assert not holds(f"gone {op} 3")
    assert not holds(f"few {op} gone")


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_a_number_is_above_a_limit_or_not_and_never_both(number):
    above, below = (parse_line(f"x {op} 5 -> slow: w", 1).holds({"x": number}) for op in (">", "<="))
    assert above + below == (number - number == 0)


def test_it_tells_what_a_diagnosis_rests_on():
    line = parse_line("ms > few and gone is missing -> slow-disk: the leader's disk: its log store", 7)
    assert line.because(SEEN) == {"ms": 812.5, "few": 3.0, "gone": None}
    assert (line.diagnosis, line.text, line.line) == ("slow-disk", "the leader's disk: its log store", 7)
