"""A runbook file is read whole, or refused with file and line of each mistake."""

import re

import pytest

from hashidrill.core.errors import ExperimentError, UsageError
from hashidrill.gamedays.runbooks.reading import read_runbook
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
        (("sh observe leader", "sh look leader"), "sh look leader", "'look' is no kind of block"),
        (("sh observe leader", "yaml observe leader"), "yaml observe", "its language is 'yaml'"),
        (("on={leader}", "on={boss}"), "on={boss}", "boss is not observed before this line"),
        (("commit_ms > 300", "commit_s > 300"), "commit_s > 300", "commit_s is not observed before this line: did you"),
        (("act for=slow-disk", "act for=slow-disc"), "act for=slow-disc", "no decide block leads here: did you mean"),
        (("act for=slow-disk", "act"), "sh act on", "for which diagnosis?"),
        (("-> slow-disk:", "->slow-disk:"), "->slow-disk", "write CONDITION -> DIAGNOSIS"),
        (("> 300 ", "is huge "), "is huge", "is no condition"),
        (("> 300 ", "> three hundred "), "three hundred", "neither a number"),
        (("commit_ms > 300   ", "otherwise "), "otherwise ->", "rests on nothing that was observed"),
        (("commit_ms > 300   ", "commit_ms is missing "), "is missing", "rests on nothing that was observed"),
        (("observe leader on=consul:server", "observe leader"), "observe leader", "does not say where it runs"),
        (("observe leader on=consul:server", "observe leader on=Server/1"), "Server/1", "is no place"),
        (("observe leader ", "observe "), "sh observe on", "needs a name"),
        (("number\n", "number=mean\n"), "number=mean", "number= takes max or min"),
        (("within=5s", "within=5"), "within=5", "confirm:"),
        (("within=5s", "within=1h"), "within=1h", "at most 10m"),
        (("within=5s", "patience=5s"), "patience=5s", "'patience=5s' means nothing here; known are: for=, on="),
        (("\ntransfer\n", "\ntransfer || true\n"), "sh act", "it hides a command that fails"),
        (("\ntransfer\n", "\nset +e\ntransfer\n"), "sh act", "it hides a command that fails"),
        (("\nanother leads\n", "\ntrue\n"), "within=5s", "it always succeeds"),
        (("\ntransfer\n", "\n\n"), "sh act", "it is empty"),
        (("sh confirm for=slow-disk", "sh confirm throughout for=slow-disk"), "sh act", "nothing confirms that"),
        (
            ("all alive\n```\n", "all alive\n```\n\n```sh act fails for=slow-disk on=consul-1\nx\n```\n"),
            "sh act fails",
            "it may fail, and nothing after it confirms anything",
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
        (("healthy: {diagnosis: not-this}", "healthy: {diagnosis: slow-disk}"), "in a look-alike nothing may be done"),
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
