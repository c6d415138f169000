"""The audit reads what the agents read: it accepts each file exactly when the agent itself does.

Only the grammar counts. What an agent says of a key that it does not know, of a value of another type, or of what it
needs and was not given, it says after it has read the file: `READ` has these words, and all else is a refusal. Numbers
and escapes that are none are refused by the audit everywhere, by Nomad and Vault only below names that they know.
"""

import json
import re
import shutil
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import hcl1_texts
from hashidrill.clients.audit.sources import MAX_BYTES, read_document
from hashidrill.clients.audit.tree import MalformedError

PRODUCTS = [
    pytest.param("consul", marks=pytest.mark.needs("consul 1.22.2")),
    pytest.param("nomad", marks=[pytest.mark.nomad, pytest.mark.needs("nomad")]),
    pytest.param("vault", marks=[pytest.mark.vault, pytest.mark.needs("vault")]),
]
KINDS = {"consul": "consul-agent", "nomad": "nomad-agent", "vault": "vault-server"}
VERSIONS = {"consul": "1.22.2", "nomad": "1.10.5", "vault": "1.21.0"}
TYPES = (
    r"unknown type|unknown slice type|not an object type|map must have|cannot decode into|decodeBool"
    r"|decoding failed|error\(s\) decoding|cannot unmarshal (string|number|bool|object|array) into Go struct"
)
"""Words of hcl/decoder.go and mapstructure, for a file that was read and has a value of another type somewhere."""
READ = {
    "consul": re.compile(rf"\A(?!.*failed to parse)|invalid config key|{TYPES}", re.DOTALL),
    "nomad": re.compile(rf"\A(?!.*failed to (decode|parse) HCL)|strconv\.|{TYPES}", re.DOTALL),
    "vault": re.compile(rf"\A(?!At |\d+:\d+: |\S* ?[Ee]xpected|unexpected|The argument|EOF)|{TYPES}", re.DOTALL),
}
VALUES = re.compile("is not a number|too large for a number|is not a character$")


@dataclass(frozen=True)
class Agent:
    product: str
    path: Path

    def accepts(self, file):
        """Whether it can read the file, and its words."""
        commands = {
            "consul": ["validate", file],
            "nomad": ["config", "validate", file],
            "vault": [
                *("operator", "diagnose", "-format=json", "-skip=listener", "-skip=storage", "-skip=autounseal"),
                f"-config={file}",
            ],
        }
        command = [self.path, *commands[self.product]]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        words = (done.stdout + done.stderr).strip()
        if "panic: " in words:
            return False, words[:300]
        if self.product == "vault":
            words = parsed(words)
        return READ[self.product].search(words) is not None, words


def parsed(words):
    """What `vault operator diagnose` says of parsing, apart from which keys it does not know."""
    try:
        [found] = [part for part in json.loads(words)["children"] if part["name"] == "Parse Configuration"]
    except (ValueError, KeyError):
        return words
    said = found.get("message", "") if found["status"] == "fail" else ""
    return re.sub(r"^Could not parse configuration: |error loading configuration from \S+: ", "", said)


def ours(kind, file, text):
    try:
        read_document(str(file), text.replace("\r\n", "\n"), kind=kind)
    except MalformedError as error:
        return error.what
    return ""


@pytest.fixture
def agent(product, binary):
    return Agent(product, binary(product, VERSIONS[product]).path)


def disagreement(agent, file, text):
    """An empty string where both accept a file, or both refuse it."""
    refused = ours(KINDS[agent.product], file, text)
    accepts, words = agent.accepts(file)
    if accepts is not bool(refused) or (accepts and agent.product != "consul" and VALUES.search(refused)):
        return ""
    return f"{file.name} {text[:200]!r}: {agent.product} says {words!r}, the audit {refused!r}"


def compared(agent, files):
    """The disagreements; processes of an agent wait for the disk more than they compute."""
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda each: disagreement(agent, *each), files)
        return [line for line in found if line]


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("suffix", [".hcl", ".json"])
def test_an_oddity_is_accepted_exactly_when_the_agent_accepts_it(agent, suffix, tmp_path):
    files = []
    for name, text in hcl1_texts.ODDITIES.items():
        file = tmp_path / f"{name}{suffix}"
        file.write_bytes(text.encode())
        files.append((file, text))
    assert compared(agent, files) == []


@pytest.mark.parametrize("product", PRODUCTS)
@settings(
    max_examples=3, derandomize=True, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(data=st.data())
def test_what_is_made_up_is_accepted_exactly_when_the_agent_accepts_it(agent, tmp_path_factory, data):
    folder, files = tmp_path_factory.mktemp("made-up"), []
    for number in range(40):
        suffix, texts = data.draw(st.sampled_from([(".hcl", hcl1_texts.hcl()), (".json", hcl1_texts.json())]))
        text = data.draw(texts)
        file = folder / f"{number}{suffix}"
        file.write_bytes(text.encode())
        files.append((file, text))
    assert compared(agent, files) == []


def own_test_data(product):
    """HCL and JSON files of the product's own tests, from its source in Go's cache of modules."""
    go = shutil.which("go")
    cache = go and subprocess.run([go, "env", "GOMODCACHE"], capture_output=True, text=True, check=True).stdout.strip()
    source = Path(cache or "/nowhere", "github.com", "hashicorp", f"{product}@v{VERSIONS[product]}")
    for file in sorted(source.rglob("*")):
        within = file.relative_to(source).as_posix()
        if file.suffix in {".hcl", ".json"} and "test" in within and file.stat().st_size < MAX_BYTES:
            text = file.read_bytes()
            if b"\0" not in text:
                yield file, text.decode(errors="replace")


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.may_skip("a binary that was downloaded, or came from a cache, has no sources on this machine")
def test_the_agents_own_test_data_is_accepted_exactly_when_the_agent_accepts_it(agent, tell):
    files = list(own_test_data(agent.product))
    if not files:
        pytest.skip(f"no source of {agent.product} {VERSIONS[agent.product]} in Go's cache of modules")
    assert compared(agent, files) == []
    taken = Counter(not ours(KINDS[agent.product], *each) for each in files)
    tell(f"{agent.product}: of {len(files)} files, {taken[True]} are accepted and {taken[False]} refused, by both")
