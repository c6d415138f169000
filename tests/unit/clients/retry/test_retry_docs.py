"""The reference of retries says what the catalogue says; each check is seen to catch a planted lie."""

import re
from dataclasses import replace

import pytest

from docs_pages import page, rows
from hashidrill.core.tap.catalogue import FAULTS, VERDICTS

PAGE = "playbooks/reference-retries.md"


def flat(text):
    return " ".join(text.split())


def troubles(each):
    found = []
    right = {
        fault.name: [fault.meaning, *("yes" if it else "no" for it in (fault.reaches_upstream, fault.ambiguous))]
        for fault in FAULTS.values()
    }
    if {row[0].strip("`"): row[1:] for row in rows(each.section("Faults"))} != right:
        found.append("the table of faults differs from the catalogue")
    headings = re.findall(r"^## `([^`]+)`$", each.prose, re.MULTILINE)
    if headings != list(VERDICTS):
        found.append(f"sections are {headings}")
        return found
    for verdict in VERDICTS.values():
        section = flat(each.section(f"`{verdict.name}`"))
        said = (
            verdict.definition,
            verdict.invalid_when,
            *(f"`{fault}`" for fault in (*verdict.battery_faults, *verdict.baseline)),
        )
        found += [f"{verdict.name} does not say: {text}" for text in said if flat(text) not in section]
        if "- **Source:** " not in section:
            found.append(f"{verdict.name} has no source")
    return found


def test_the_page_says_what_the_catalogue_says():
    assert troubles(page(PAGE)) == []


@pytest.mark.parametrize(
    ("true", "lie", "message"),
    [
        ("| `hang` |", "| `hung` |", "table of faults"),
        ("## `jitter`", "## `jitters`", "sections are"),
        ("at least 1.4 times", "at least 1.2 times", "backoff does not say"),
        ("a POST, PATCH or plain PUT", "a POST or plain PUT", "idempotent_only does not say"),
    ],
)
def test_a_lie_is_caught(true, lie, message):
    told = page(PAGE)
    assert true in told.text
    planted = replace(told, text=told.text.replace(true, lie))
    assert any(message in trouble for trouble in troubles(planted))
