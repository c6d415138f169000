"""What `convert import` makes of the files in the repositories of Chaos Mesh and Litmus themselves.

    export HASHIDRILL_BENCH_CHAOS_MESH=CLONE HASHIDRILL_BENCH_LITMUS=CLONE
    pytest -m bench -s tests/bench/test_bench_interchange.py

CLONE is a clone of chaos-mesh/chaos-mesh or litmuschaos/chaos-charts, bare or not; its HEAD is read. Counted are files
with an object of their group, but for definitions; a ChaosEngine is read with the ChaosExperiment beside it. Their
pods are not those of Consul or Vault, so each file is read again with --on and --from. A key is unread if another name
for it changes neither the experiment nor what is said to be lost, and no key above it is said to be lost either.
"""

import copy
import io
import os
import re
import subprocess
from collections import Counter
from pathlib import PurePosixPath

import pytest
from ruamel.yaml import YAML

from bench_runs import table
from hashidrill.core.errors import HashidrillError
from hashidrill.core.experiment.documents import Document
from hashidrill.core.experiment.loader import load_document
from hashidrill.kubernetes.interchange.reading import of_documents

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]

ON, SIDE = "consul:leader", "consul:servers"
NOT_OF_US = {"CustomResourceDefinition", "ChartServiceVersion"}
REASONS = {
    r"no fault on hosts is like|hashidrill has no fault like": "no such fault on hosts",
    r"breaks nothing by itself|of \S+ is not an experiment": "it injects nothing by itself",
    r"it is missing|: '' cannot be translated": "Chaos Mesh refuses it too: a key is missing",
    r"only hosts of the datacenter can be the other side": "the other side is outside of the datacenter",
    r"other clusters": "it is for another cluster",
    r"combined netem": "several netem actions at once",
    r"is another program": "it hits a sidecar or another program",
    r"a Task runs something": "a Task runs a command",
}


def files(clone, group):
    """(path, documents) of the files at HEAD with objects of that group."""

    def git(*words):
        return subprocess.run(["git", "-C", clone, *words], check=True, capture_output=True, text=True).stdout

    found = {}
    for name in git("ls-tree", "-r", "--name-only", "HEAD").splitlines():
        if not name.endswith((".yaml", ".yml")):
            continue
        text = git("show", f"HEAD:{name}")
        if not re.search(rf"(?m)^apiVersion: *[\"']?{re.escape(group)}/", text):
            continue
        documents = [one for one in YAML(typ="safe", pure=True).load_all(io.StringIO(text)) if isinstance(one, dict)]
        if not all(one.get("kind") in NOT_OF_US for one in documents):
            found[PurePosixPath(name)] = documents
    return git("log", "-1", "--abbrev=9", "--format=%h of %cs").strip(), found


def beside(path, documents, found):
    """With the ChaosExperiment that an engine leaves the rest to."""
    engine = any(one.get("kind") == "ChaosEngine" for one in documents)
    return [*(found.get(path.with_name("fault.yaml"), []) if engine else []), *documents]


def read(documents, *options):
    """(text, lost), or the reason for which it is refused. What is no HashidrillError ends the test."""
    try:
        made = of_documents("theirs", documents, *options)
        load_document(Document("ours", made.filled))
    except HashidrillError as error:
        return str(error)
    return made.text, made.lost


def helped(documents):
    """(the options that it takes, what it comes to)."""
    bare, both, alone = ((options, read(documents, *options)) for options in ((), (ON, SIDE), (ON,)))
    imported = [one for one in (bare, both, alone) if not isinstance(one[1], str)]
    return imported[0] if imported else alone if "none of its faults has another side" in both[1] else both


def places(value, at=()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        if isinstance(value, dict) and one not in (None, "", [], {}):
            yield (*at, key)
        yield from places(one, (*at, key))


def renamed(documents, place):
    changed = copy.deepcopy(documents)
    parent = changed
    for key in place[:-1]:
        parent = parent[key]
    whole = {f"x-{key}" if key == place[-1] else key: one for key, one in parent.items()}
    parent.clear()
    parent.update(whole)
    return changed


def unread(documents, options, result):
    """The places that nothing looked at."""
    silent = {place for place in places(documents) if read(renamed(documents, place), *options) == result}
    lost = {key.rpartition(".")[2] for said in result[1] for key in re.split(r": | \(", said)[0].split(", ")}
    return [
        place
        for place in silent
        if not any(place[:end] not in silent and place[end - 1] in lost for end in range(1, len(place)))
    ]


@pytest.mark.lie
def test_a_key_that_nothing_reads_is_counted():
    spec = {"spec": {"selector": {"pods": 1}, "device": "eth0"}}
    result = ("text", ["spec.selector, mode: --on says consul:leader", "spec.device (eth0): one interface"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(
            globals(), "read", lambda documents, *_: result if "selector" in documents.get("spec", {}) else "other"
        )
        assert sorted(unread(spec, (), result)) == [("spec", "device")]


def reason(text):
    return next((said for pattern, said in REASONS.items() if re.search(pattern, text)), text)


@pytest.mark.parametrize(("whose", "group"), [("CHAOS_MESH", "chaos-mesh.org"), ("LITMUS", "litmuschaos.io")])
def test_every_public_file_is_imported_whole_or_refused_with_a_reason(capsys, whose, group):
    if not (clone := os.environ.get(f"HASHIDRILL_BENCH_{whose}")):
        pytest.skip(f"HASHIDRILL_BENCH_{whose} names a clone")
    commit, found = files(clone, group)
    rows, left = Counter(), []
    for path, alone in found.items():
        documents = beside(path, alone, found)
        options, result = helped(documents)
        if isinstance(result, str):
            rows[f"refused: {reason(result)}"] += 1
            continue
        rows[f"imported{' with --on' if options else ''}"] += 1
        rows["messages about lost keys"] += len(result[1])
        rows["keys of the imported files"] += sum(1 for _ in places(documents))
        left += [(path, place) for place in unread(documents, options, result)]
    table(capsys, f"{group}, {commit}: {len(found)} files", [*rows.most_common(), ("unread keys", len(left))])
    assert not left
    assert rows["imported with --on"]
    assert not [row for row in rows if row.startswith("refused: theirs")], "each reason is one that is known"
