"""Whole runs against a datacenter of somebody else, and what its operators see before, during and after them."""

import json
import subprocess
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from drills import hashidrill
from hashidrill.core.recording.journal import read_journal
from secret_hunt import Hunt
from ssh_servers import Here, SshServers
from toxiproxies import in_links

AUDIT = "key hashidrill-audit/"
_AS_BEFORE_WITHIN_S = 40.0


@dataclass
class Ran:
    """One run, and what it changed."""

    done: subprocess.CompletedProcess
    said: dict
    changed: dict
    """By name what is there since and was not, or is another; without the audit lines."""
    audited: list = field(default_factory=list)
    """The verbs of its audit lines in Consul."""
    hunt: Hunt | None = None

    @property
    def journal(self):
        return read_journal(Path(self.said["recording"]) / "journal.jsonl")

    def evidence(self, event="fault.proven"):
        return [entry.data["evidence"] for entry in self.journal if entry.event == event]


class Drills:
    """`estate` is a Staging. Runs have the token that `staging acl` says, and its file says whatever `more` does."""

    def __init__(self, estate, folder, env):
        self.estate, self.folder, self.env = estate, folder, env
        self._more = ""

    @contextmanager
    def over_ssh(self):
        """Inside the block, faults are carried to its hosts: this machine, as root."""
        servers = SshServers(self.estate.folder, dict.fromkeys(self.estate.hosts, Here()))
        ssh = servers.settings(self.folder / "notes", check_address=False)
        before, self._more = self._more, f"carriers: {json.dumps({'ssh': ssh})}\n"
        try:
            yield
        finally:
            self._more = before
            servers.close()

    @contextmanager
    def through_links(self, toxiproxy):
        """Inside the block, a toxiproxy stands in its links, as `staging proxies` has it; yields the URL of its API."""
        before = self._more
        with in_links(toxiproxy, self.file("management"), self.folder, self.env) as url:
            self._more = f'services: {{toxiproxy: {{address: "{url}"}}}}\n'
            try:
                yield url
            finally:
                self._more = before

    def file(self, token):
        return self.estate.attach_file(name=f"{token}.yaml", token=token, interlocks=self._more)

    def least(self, path, service="consul", of=None):
        """(the name of its file, a token) that may do what `staging acl` says of that experiment, and no more."""
        policy = hashidrill("staging", "acl", service, path, env=self.env)
        assert policy.returncode == 0, policy.stderr
        name, secret = f"least-{uuid.uuid4().hex[:8]}", str(uuid.uuid4())
        if of is None:
            self.estate.make_token(name, secret, policy.stdout)
        else:
            secret = of.token(policy.stdout)
        (self.estate.folder / f"{name}.token").write_text(secret + "\n")
        return name, secret

    @contextmanager
    def beside(self, also, path):
        """Inside the block, the attach file names these products too; yields (that file, the tokens of all)."""
        name, secret = self.least(path)
        tokens, before = {"the run's token": secret}, self._more
        parts = []
        for service, product in also.items():
            file, token = self.least(path, service, product)
            tokens |= {f"the token of {service}": token, f"the management token of {service}": product.management}
            self._register(service, product)
            parts.append(f"  {service}: {json.dumps(product.part(self.estate.folder / f'{file}.token'))}\n")
        self._more = "".join(parts) + before
        try:
            yield self.file(name), tokens
        finally:
            self._more = before

    def _register(self, service, product):
        """In the Consul that arms, as its operators do: it arms no product that it does not name."""
        for host, address in product.hosts.items():
            node = {"Node": f"{service}-{host}", "Address": address, "Service": {"Service": service}}
            self.estate.ask("PUT", "/v1/catalog/register", json.dumps(node).encode())

    def run(self, path, *words, also=MappingProxyType({}), within_s=120):
        """Armed by an operator, and run with the least tokens; everything is looked at before, during and after.

        `also`: other products, by name, of the same datacenter.
        """
        with self.beside(also, path) as (file, tokens):
            wide = {"--breaks-quorum"} & {*words}
            armed = hashidrill(
                "staging", "arm", path, "--attach", self.file("management"), "--for", "10m", *wide, env=self.env
            )
            assert armed.returncode == 0, armed.stderr
            before, there = self.estate.dump(), {service: product.dump() for service, product in also.items()}
            hunt = Hunt({**tokens, "the management token": self.estate.management})
            runs = self.folder / "runs"
            with hunt.watching_processes(self.folder / "notes"):
                done = hashidrill(
                    "run", path, "--attach", file, "--json", "--runs", runs, *words, env=self.env, within_s=within_s
                )
        changed, lines = self._changed(before)
        for service, product in also.items():
            after = product.dump()
            hunt.look("product", service, after)
            for log in product.folder.glob("*.log"):
                hunt.look("log", log, log.read_bytes())
            if after != there[service]:
                changed[service] = there[service], after
        self._hunted(hunt, done)
        said = json.loads(done.stdout) if done.stdout.startswith("[") else [{}]
        return Ran(done, said[0], changed, lines, hunt)

    def _changed(self, before):
        """What differs, once that is nothing, or after a while: an agent that came back is healthy a moment later."""
        deadline = time.monotonic() + _AS_BEFORE_WITHIN_S
        while True:
            after = self.estate.dump()
            names = {name for name in {*before, *after} if before.get(name) != after.get(name)}
            lines = sorted(name for name in names if name.startswith(AUDIT))
            changed = {name: (before.get(name), after.get(name)) for name in names if name not in lines}
            if not changed or time.monotonic() > deadline:
                break
            time.sleep(0.5)
        told = [json.loads(self.estate.ask("GET", f"/v1/kv/{name.removeprefix('key ')}?raw")) for name in lines]
        return changed, [line["verb"] for line in told]

    def _hunted(self, hunt, done):
        hunt.files(
            "artefact", self.folder / "runs", *filter(Path.exists, [self.folder / "state", self.folder / "home"])
        )
        hunt.keys(json.loads(self.estate.ask("GET", "/v1/kv/?recurse")))
        for log in self.estate.folder.glob("*.log"):
            hunt.look("log", log, log.read_bytes())
        hunt.look("output", "what the command said", done.stdout + done.stderr)
