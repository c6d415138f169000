"""Cases that a script plays in one sandbox, one after the other, and tells as JSON, a line each."""

import json
import sys
from dataclasses import dataclass

import places
from hashidrill.core.util.processes import python_path
from hashidrill.lab.sandbox.sandbox import sandbox

CONSUL = "1.22.2"
_END_OF_LOG = 6000


@dataclass(frozen=True)
class Cases:
    """What each case came to, by its name, and the end of what the script said besides."""

    lines: dict
    log: str

    def __getitem__(self, name):
        """Fails for a case that was not played, that crashed, or that left something behind."""
        assert name in self.lines, f"the sandbox ended before it came to {name}:\n{self.log}"
        line = self.lines[name]
        assert "error" not in line, f"{name}: {line['error']}\n{self.log}"
        assert "untidy" not in line, f"after {name}: {line['untidy']}\n{self.log}"
        return line


def played(script, *arguments, binary, versions, log, tell, **environment):
    """`script CONSUL ROOT VERSION ARGUMENTS NAME=PATH...` in a sandbox; each of its lines is told as it comes."""
    named = [f"{name}={binary(name, version).path}" for name, version in versions.items()]
    first = [str(binary("consul", CONSUL).path), "{root}", CONSUL]
    command = [sys.executable, str(places.SUPPORT / script), *first, *map(str, arguments), *named]
    lines = {}
    with sandbox(command, {"PYTHONPATH": python_path(), **environment}, log) as box:
        for text in box.output:
            line = json.loads(text)
            lines[line["case"]] = line
            tell(json.dumps(line))
        box.process.wait()
    said = log.read_text()[-_END_OF_LOG:]
    assert lines, said
    return Cases(lines, said)
