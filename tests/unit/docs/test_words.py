"""Phrases that a reader at three in the morning has to decode do not come back into docs, help, docstrings or YAML.

Only phrases that are always bad are listed, each with what to write instead. The text of the sources is what people
read there: docstrings, comments and messages.
"""

import re
from collections.abc import Iterator

import pytest

from places import ROOT

INSTEAD = {
    r"shall": "must, should, will; or the imperative",
    r"so (many|much|large|often)(?! (as|that)\b)": "the number, or the name of the parameter",
    r"(for|after|within|by) so long(?! as\b)": "for this long; the name of the parameter",
    r"as it were": "leave it out",
    r"in (its|their) turn": "one after the other",
    r"(beside|besides) (it|them|that)": "next to it, with it, at the same time",
    r"befalls?|befell": "affects, hits",
    r"anew": "again",
    r"all the same": "anyway, still",
    r"(came|comes|come) to (?=[.;,]|$)": "the result",
    r"hence|thereby|therein|thereof|whereof": "so, by this, in it",
    r"loses? (its|the) office|in office|the office": "leadership",
    r"be it (a|an|that|the)": "whether",
    r"obsolete data": "unused data",
    r"of its likes?": "similar",
    r"mend(s|ed|ing)?": "fix",
    r"as late as can be": "infinitely late",
    r"accus(es|e) nobody": "proves nothing",
    r"in vain": "it did not help",
    r"(is|are|be) played again": "is replayed",
    r"lies whole": "lies entirely",
    r"bears? (less|more|at least)": "takes, sustains",
    r"nobody's business": "who may use it, and when",
    r"not even sent": "never sent",
    r"operations a second": "operations per second",
    r"cannot be told from (none|nothing on)": "cannot be proven; and the value that can",
    r"(more|less) could(?=[\"`.;])": "use this or more",
    r"is (about servers|asked for, .{1,40} was run)": "targets servers; the experiment says X, the run had Y",
    r"(is|are) no difference to": "shows no difference from",
    r"left hanging": "not answered",
    r"to stay, only after": "it stayed there only from X on",
    r"(hereby|thereafter|wherein|whereby|thereupon|herein)": "by this, after it, in it",
}
"""Regular expressions, read without regard to case and with word boundaries: what to write instead."""

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "playbooks").glob("*.md")])
SOURCES = sorted(
    path
    for folder, kind in (("runners", "*.py"), ("hypotheses", "*.py"), ("experiments", "*.yaml"))
    for path in (ROOT / folder).rglob(kind)
)
_GAP = r"(?: |\s*\n[\s#>]*)"
"""Between two words: a phrase may run over the end of a line, into a comment or a quotation."""
_BANNED = {
    re.compile(rf"\b(?:{phrase.replace(' ', _GAP)})\b", re.IGNORECASE): instead for phrase, instead in INSTEAD.items()
}


def found(path: str, text: str) -> Iterator[str]:
    """`path:line: phrase: what to write instead` for every banned phrase."""
    for pattern, instead in _BANNED.items():
        for match in pattern.finditer(text):
            said, line = re.sub(_GAP, " ", match[0]), text.count("\n", 0, match.start()) + 1
            yield f"{path}:{line}: {said!r}: write {instead}"


@pytest.mark.parametrize("path", [*PAGES, *SOURCES], ids=lambda path: str(path.relative_to(ROOT)))
def test_no_phrase_has_to_be_decoded(path):
    assert list(found(str(path.relative_to(ROOT)), path.read_text())) == []


PLANTED = [
    ("README.md", "The server that shall not be elected.", "shall"),
    ("playbooks/x.md", "It holds so many keys more.", "so many"),
    ("runners/x.py", '"""Reads are quick again within so long."""', "within so long"),
    ("runners/x.py", "# else by a restart in its\n    # turn", "in its turn"),
    ("runners/x.py", "    # what is written beside it", "beside it"),
    ("hypotheses/x.py", '"""A leader loses its office."""', "loses its office"),
    ("experiments/x.yaml", "why: the list is written anew", "anew"),
    ("CHANGELOG.md", "the fault that can befall it, hence the tap", "befall"),
    ("hypotheses/x.py", "Checks that did not come are as late as can be.", "as late as can be"),
    ("runners/x.py", '"20ms cannot be told from none here; 40ms or more could"', "cannot be told from none"),
    ("runners/x.py", '"this disk\'s own fsyncs; 23ms or more could"', "more could"),
    ("runners/x.py", '"rate: 5/s is asked for, 3/s was run"', "is asked for, 3/s was run"),
    ("runners/x.py", '"streaming bears less than long polls do"', "bears less"),
    ("hypotheses/x.py", '"expected p50 under 300ms: it was, to stay, only after 13.5s"', "to stay, only after"),
]


@pytest.mark.parametrize(("path", "text", "phrase"), PLANTED, ids=[phrase for _, _, phrase in PLANTED])
def test_a_phrase_that_comes_back_is_caught(path, text, phrase):
    assert any(repr(phrase) in trouble for trouble in found(path, text))


def test_the_line_of_a_phrase_is_named():
    [trouble] = found("README.md", "one\ntwo\nwritten anew\nfour\n")
    assert trouble.startswith("README.md:3: 'anew'")


@pytest.mark.parametrize(
    "text",
    ["so many that it fails", "as long as it holds", "a new server", "so long as nothing changes", "come together"],
)
def test_good_english_is_left_alone(text):
    assert list(found("README.md", text)) == []
