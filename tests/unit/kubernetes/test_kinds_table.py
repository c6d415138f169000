"""The page of Kubernetes says of each kind of fault on pods whether it ever broke one."""

import re

import pytest

from docs_pages import ROOT
from hashidrill.core.protocols import registry
from kubernetes import kinds

ON_THREE_NODES = "litmus.node_drain"
"""tests/live/kubernetes/test_pods_nightly.py runs it."""
RUN = {kind.name for kind in (*kinds.OF_CHAOS_MESH, *kinds.OF_LITMUS)} | {ON_THREE_NODES}


def rows(text):
    """Of the table of kinds: what it says, by kind."""
    part = text.partition("## Which kinds have broken a pod")[2].partition("\n## ")[0]
    return {
        kind: cell.strip()
        for line in part.splitlines()
        if line.startswith("| `")
        for cell in [line.split("|")[2]]
        for kind in re.findall(r"`([\w.]+)`", line.split("|")[1])
    }


def wrong(text):
    """What the table says that the tests do not show, or leaves out."""
    said = rows(text)
    of_pods = {
        kind for kind in registry.faults() if kind.startswith(("chaos_mesh.", "litmus.")) and "physical" not in kind
    }
    found = [f"{kind}: not in the table" for kind in sorted(of_pods - {*said})]
    for kind, cell in said.items():
        if kind in RUN and not re.match(r"run on 20\d\d-\d\d-\d\d", cell):
            found.append(f"{kind}: it is run, and the table has no date")
        if kind not in RUN and not re.match(r"never run by us: \w", cell):
            found.append(f"{kind}: nothing runs it, and the table has no reason")
    return found


def test_each_kind_was_run_or_never_run_by_us_with_the_reason():
    assert wrong((ROOT / "playbooks/reference-kubernetes.md").read_text()) == []


@pytest.mark.lie
@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("| `chaos_mesh.time` |", "| `chaos_mesh.tim` |", "chaos_mesh.time: not in the table"),
        ("never run by us: ", "run on 2026-11-27: ", "nothing runs it, and the table has no reason"),
        ("run on 2026", "run in 2026", "it is run, and the table has no date"),
    ],
)
def test_a_table_that_claims_what_no_test_shows_is_found(before, after, said):
    text = (ROOT / "playbooks/reference-kubernetes.md").read_text()
    assert before in text
    assert said in "\n".join(wrong(text.replace(before, after)))
